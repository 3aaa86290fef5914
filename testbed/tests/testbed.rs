//! The test bed tested on itself: what tests of walrelay take for granted.

#![expect(clippy::unwrap_used, reason = "the helpers of tests may fail as tests do")]

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, ExchangeKind};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use walrelay_testbed::{
    Certificates, Direction, Error, Keep, Postgres, PostgresOptions, QueueOptions, RabbitMq, RabbitMqOptions,
    Recorder, RelayBuilder, Result, StopMode, TcpProxy, Vhost, eventually, eventually_some, shared_postgres,
    shared_rabbitmq,
};

const SOON: Duration = Duration::from_secs(20);

async fn publish(vhost: &Vhost, exchange: &str, key: &str, ids: std::ops::Range<u32>) {
    let connection = vhost.connect().await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
        .unwrap();
    for id in ids {
        let properties = BasicProperties::default()
            .with_message_id(format!("{id}").into())
            .with_delivery_mode(2);
        let options = BasicPublishOptions::default();
        let confirm = channel
            .basic_publish(exchange.into(), key.into(), options, b"body", properties)
            .await
            .unwrap();
        confirm.await.unwrap();
    }
    connection.close(200, "done".into()).await.unwrap();
}

#[tokio::test]
async fn every_database_of_the_shared_server_is_fresh_and_logical() -> Result<()> {
    let postgres = shared_postgres().await?;
    let (one, two) = (postgres.database().await?, postgres.database().await?);
    one.execute("create table t (x int)").await?;
    two.execute("create table t (x int)").await?;
    let client = one.client().await?;
    let level: String = client.query_one("show wal_level", &[]).await.unwrap().get(0);
    assert_eq!(level, "logical");
    client
        .query(
            "select pg_create_logical_replication_slot('mine', 'pgoutput')",
            &[],
        )
        .await
        .unwrap();
    one.drop_slots().await?;
    let left: i64 = client
        .query_one("select count(*) from pg_replication_slots", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0);
    // The URL names the same database, over TCP.
    let (client, connection) = tokio_postgres::connect(&two.url(), tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let name: String = client
        .query_one("select current_database()", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(name, two.name());
    Ok(())
}

#[tokio::test]
async fn a_killed_postgres_starts_again_with_what_was_committed() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default().setting("max_connections", "20")).await?;
    let database = postgres.database().await?;
    database
        .execute("create table t (x int); insert into t values (1)")
        .await?;
    let busy = database.client().await?;
    postgres.kill().await?;
    assert!(busy.simple_query("select 1").await.is_err());
    postgres.start_again().await?;
    database.execute("insert into t values (2)").await?;
    postgres.restart(StopMode::Immediate).await?;
    postgres.restart(StopMode::Fast).await?;
    let client = database.client().await?;
    let count: i64 = client
        .query_one("select count(*) from t", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(count, 2);
    let connections: String = client
        .query_one("show max_connections", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(connections, "20");
    Ok(())
}

#[tokio::test]
async fn a_postgres_with_tls_and_scram_starts_and_refuses_the_passwordless() -> Result<()> {
    let certificates = Certificates::generate()?;
    let options = PostgresOptions::default()
        .tls(&certificates)
        .hba("hostssl all alice 127.0.0.1/32 scram-sha-256");
    let postgres = Postgres::start(options.hba("host all alice 127.0.0.1/32 reject")).await?;
    let database = postgres.database().await?;
    database
        .execute("create role alice login password 'secret'")
        .await?;
    let url = database.url().replace("postgres@", "alice:secret@");
    let refused = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(
        refused.code(),
        Some(&tokio_postgres::error::SqlState::INVALID_AUTHORIZATION_SPECIFICATION)
    );
    let client = database.client().await?;
    let ssl: String = client.query_one("show ssl", &[]).await.unwrap().get(0);
    assert_eq!(ssl, "on");
    Ok(())
}

#[tokio::test]
async fn a_server_that_cannot_start_says_why() {
    let refused = Postgres::start(PostgresOptions::default().setting("max_connections", "many"))
        .await
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("invalid value for parameter \"max_connections\""),
        "{refused}"
    );
}

#[tokio::test]
async fn vhosts_keep_their_queues_apart_and_the_recorder_sees_messages_in_order() -> Result<()> {
    let broker = shared_rabbitmq().await?;
    let (one, two) = (broker.vhost().await?, broker.vhost().await?);
    assert_ne!(one.name(), two.name());
    for vhost in [&one, &two] {
        vhost.declare_exchange("outbox", ExchangeKind::Topic).await?;
        vhost.declare_queue(QueueOptions::quorum("all")).await?;
        vhost.bind("all", "outbox", "#").await?;
    }
    let recorder = Recorder::start(&one, "all").await?;
    let counter = Recorder::keeping(&two, "all", Keep::Ids).await?;
    publish(&one, "outbox", "order.created", 0..300).await;
    publish(&two, "outbox", "order.created", 0..2).await;
    publish(&two, "outbox", "order.created", 1..2).await;
    let deliveries = recorder.wait_for(300, SOON).await?;
    let ids: Vec<String> = (0..300).map(|id| id.to_string()).collect();
    assert_eq!(recorder.message_ids(), ids);
    assert_eq!(
        (
            deliveries[0].routing_key.as_str(),
            deliveries[0].exchange.as_str()
        ),
        ("order.created", "outbox")
    );
    assert_eq!(deliveries[0].body, b"body");
    assert!(!deliveries[0].redelivered);
    counter.wait_for(3, SOON).await?;
    assert_eq!(
        counter.distinct_ids(),
        HashSet::from(["0".to_owned(), "1".to_owned()])
    );
    assert_eq!(counter.duplicates(), 1);
    assert_eq!(recorder.duplicates(), 0);
    let late = recorder
        .wait_for(301, Duration::from_millis(20))
        .await
        .unwrap_err();
    assert!(late.to_string().contains("300 came"), "{late}");
    Ok(())
}

#[tokio::test]
async fn a_killed_broker_starts_again_with_its_queues_and_the_recorder_comes_back() -> Result<()> {
    let certificates = Certificates::generate()?;
    let mut broker = RabbitMq::start(RabbitMqOptions::default().tls(&certificates)).await?;
    let vhost = broker.vhost().await?;
    vhost.declare_route("outbox", "all").await?;
    publish(&vhost, "outbox", "k", 0..10).await;
    broker.kill().await?;
    assert!(vhost.connect().await.is_err());
    broker.start_again().await?;
    assert_eq!(vhost.queue_length("all").await?, 10);
    let recorder = Recorder::start(&vhost, "all").await?;
    recorder.wait_for(10, SOON).await?;
    broker.restart().await?;
    publish(&vhost, "outbox", "k", 10..20).await;
    recorder.wait_for_distinct(20, SOON).await?;
    assert!(broker.ctl(&["list_vhosts"]).await?.contains(vhost.name()));
    broker.raise_memory_alarm().await?;
    let alarms = broker.ctl(&["eval", "rabbit_alarm:get_alarms()."]).await?;
    assert!(alarms.contains("memory"), "{alarms}");
    broker.clear_memory_alarm().await?;
    assert_eq!(
        broker.ctl(&["eval", "rabbit_alarm:get_alarms()."]).await?.trim(),
        "[]"
    );
    let tls = tokio::net::TcpStream::connect(("127.0.0.1", broker.tls_port().unwrap())).await;
    assert!(tls.is_ok());
    Ok(())
}

/// Starts this very test program once more as a process that starts servers and never ends by itself.
#[tokio::test]
async fn servers_and_folders_do_not_outlive_a_killed_test_process() -> Result<()> {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["a_process_to_be_killed", "--exact", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(process.stdout.take().unwrap());
    let line = output
        .lines()
        .map_while(|line| line.ok())
        .find(|line| line.contains("started "));
    let line = line.expect("the process says what it started");
    let mut words = line.split("started ").nth(1).unwrap().split(' ');
    let folder = PathBuf::from(words.next().unwrap());
    let pids: Vec<u32> = words.map(|word| word.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(folder.exists() && pids.iter().all(|pid| runs(*pid)), "{line}");
    process.kill().unwrap();
    process.wait().unwrap();
    eventually("the servers' end", SOON, || {
        std::future::ready(!pids.iter().any(|pid| runs(*pid)))
    })
    .await?;
    eventually("the folder's end", SOON, || std::future::ready(!folder.exists())).await
}

#[tokio::test]
#[ignore = "run by servers_and_folders_do_not_outlive_a_killed_test_process"]
async fn a_process_to_be_killed() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let broker = RabbitMq::start(RabbitMqOptions::default()).await?;
    let socket_dir = postgres.socket_dir();
    let base = socket_dir.ancestors().nth(2).unwrap();
    println!(
        "started {} {} {}",
        base.display(),
        postgres.pid().unwrap(),
        broker.pid().unwrap()
    );
    std::future::pending().await
}

fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// A server that sends everything back.
async fn echo() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await
            });
        }
    });
    port
}

#[tokio::test]
async fn the_proxy_passes_bytes_unchanged_stalls_cuts_and_refuses() -> Result<()> {
    let mut proxy = TcpProxy::start(echo().await).await?;
    let connect = || tokio::net::TcpStream::connect(("127.0.0.1", proxy.port()));
    let mut stream = connect().await.unwrap();
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let mut received = vec![0; sent.len()];
    {
        let (mut from, mut to) = stream.split();
        let (written, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut received));
        written.unwrap();
        read.unwrap();
    }
    assert!(sent == received);

    proxy.stall_one_way(Direction::ToClient);
    stream.write_all(b"held").await.unwrap();
    let mut four = [0; 4];
    let early = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut four)).await;
    assert!(early.is_err(), "stalled, but something came");
    proxy.resume();
    stream.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"held");

    assert_eq!(proxy.connections(), 1);
    proxy.cut().await;
    assert!(
        matches!(stream.read(&mut four).await, Ok(0) | Err(_)),
        "cut, but still open"
    );
    assert_eq!(proxy.connections(), 0);
    let mut stream = connect().await.unwrap();
    eventually("the connection", SOON, || {
        std::future::ready(proxy.connections() == 1)
    })
    .await?;
    proxy.refuse().await;
    let refused = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port()))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    stream.write_all(b"open").await.unwrap();
    stream.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"open");
    proxy.pass().await?;
    tokio::net::TcpStream::connect(("127.0.0.1", proxy.port()))
        .await
        .unwrap();
    Ok(())
}

#[tokio::test]
async fn the_proxy_delays_and_half_closes() -> Result<()> {
    let proxy = TcpProxy::start(echo().await).await?;
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port()))
        .await
        .unwrap();
    let mut four = [0; 4];
    proxy.delay(Duration::from_millis(50));
    let sent = Instant::now();
    stream.write_all(b"late").await.unwrap();
    stream.read_exact(&mut four).await.unwrap();
    assert_eq!(&four, b"late");
    // There and back.
    assert!(
        sent.elapsed() >= Duration::from_millis(100),
        "{:?}",
        sent.elapsed()
    );
    proxy.resume();

    proxy.half_close(Direction::ToClient);
    assert_eq!(stream.read(&mut four).await.unwrap(), 0);
    stream.write_all(b"open").await.unwrap();
    assert_eq!(proxy.connections(), 1);
    let mut other = tokio::net::TcpStream::connect(("127.0.0.1", proxy.port()))
        .await
        .unwrap();
    other.write_all(b"more").await.unwrap();
    other.read_exact(&mut four).await.unwrap();
    assert_eq!((&four, proxy.reached()), (b"more", 2));
    Ok(())
}

/// Stands in for the daemon: a shell script that takes the same arguments.
fn pretended_relay(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("pretended-relay");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn a_relay_is_set_up_started_watched_paused_and_ended() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        case $1 in
          setup) echo "set up with $3"; exit 0 ;;
          run) trap 'echo "ended"; exit 7' TERM; echo '{"message":"started"}'; while :; do sleep 0.05; done ;;
          *) echo "unknown command" >&2; exit 2 ;;
        esac"#;
    let mut relay = RelayBuilder::new(pretended_relay(folder.path(), script))
        .set("delivery.max_in_flight", "10")
        .build()?;
    let output = relay.setup().await?;
    assert_eq!(
        output.stdout,
        format!("set up with {}\n", relay.config_path().display())
    );
    let refused = relay.run_command(&["frobnicate"]).await?;
    assert_eq!(
        (refused.code(), refused.stderr.as_str()),
        (Some(2), "unknown command\n")
    );
    relay.start()?;
    relay
        .wait_for_log("the start", SOON, |line| line.contains("started"))
        .await?;
    assert!(relay.peak_rss_kib()? > 100);
    relay.pause()?;
    let state = || {
        std::fs::read_to_string(format!("/proc/{}/stat", relay.pid().unwrap()))
            .unwrap()
            .contains(") T ")
    };
    eventually("the pause", SOON, || std::future::ready(state())).await?;
    relay.resume()?;
    relay.terminate()?;
    assert_eq!(relay.wait_exit(SOON).await?.code(), Some(7));
    let mark = relay.log_mark();
    relay.start()?;
    relay
        .wait_for_log_after(mark, "the second start", SOON, |line| line.contains("started"))
        .await?;
    relay.kill().await?;
    let ended = relay.wait_ready(SOON).await.unwrap_err();
    assert!(matches!(ended, Error::Process { .. }), "{ended}");
    Ok(())
}

#[tokio::test]
async fn waiting_in_vain_names_what_was_waited_for() {
    let asked = Instant::now();
    let late = eventually("a miracle", Duration::from_millis(50), async || false)
        .await
        .unwrap_err();
    assert!(late.to_string().ends_with("in vain for a miracle"), "{late}");
    assert!(asked.elapsed() >= Duration::from_millis(50));
    let found = eventually_some("a number", SOON, async || Some(7)).await.unwrap();
    assert_eq!(found, 7);
}
