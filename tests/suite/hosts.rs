//! Several servers in `postgres.url`, and names that stand for another address than before.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use walrelay_testbed::{
    Folder, Postgres, PostgresOptions, Relay, RelayBuilder, eventually, free_port, shared_postgres,
    shared_rabbitmq,
};

use crate::complaint::{Part, complains, named};
use crate::world::{LONG, World, insert_event};

/// A primary and its standby, for all tests here.
struct Pair {
    primary: Postgres,
    standby: Postgres,
}

async fn pair() -> Result<&'static Pair> {
    static SHARED: OnceCell<Pair> = OnceCell::const_new();
    SHARED
        .get_or_try_init(|| async {
            let mut primary = Postgres::start(PostgresOptions::default()).await?;
            let standby = primary.standby(&PostgresOptions::default()).await?;
            Ok(Pair { primary, standby })
        })
        .await
}

/// A world on the pair's primary, which the standby has too.
async fn world() -> Result<(&'static Pair, World)> {
    let pair = pair().await?;
    let world = World::on(&pair.primary, shared_rabbitmq().await?).await?;
    world.relay().build()?.setup().await?;
    pair.standby.wait_replayed(&pair.primary).await?;
    Ok((pair, world))
}

/// A relay whose URL names these ports of 127.0.0.1.
fn relay_to(world: &World, ports: &[u16], parameters: &str) -> RelayBuilder {
    let servers: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let database = world.database.name();
    let url = format!(
        "postgres://postgres@{}/{database}?{parameters}",
        servers.join(",")
    );
    world.relay().postgres_url(&url)
}

async fn delivers(world: &World) -> Result<()> {
    let recorder = world.recorder().await?;
    let id = insert_event(&world.client, 1).await?;
    recorder.wait_for(1, LONG).await?;
    assert_eq!(recorder.message_ids(), [id]);
    Ok(())
}

#[tokio::test]
async fn servers_are_tried_in_order_until_one_takes_writes() -> Result<()> {
    for attributes in ["read-write", "primary"] {
        let (pair, world) = world().await?;
        let ports = [free_port(), pair.standby.port(), pair.primary.port()];
        let parameters = format!("target_session_attrs={attributes}");
        let mut relay = relay_to(&world, &ports, &parameters).build()?;
        relay.start()?;
        relay.wait_ready(LONG).await?;
        delivers(&world).await?;
        // It never was in trouble: one try went through the list.
        assert!(
            !relay
                .log()
                .iter()
                .any(|line| line.contains("\"side\":\"database\""))
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_key_value_form_takes_a_list_too() -> Result<()> {
    let (pair, world) = world().await?;
    let text = format!(
        "host=127.0.0.1,127.0.0.1 port={},{} user=postgres dbname={} target_session_attrs=read-write",
        pair.standby.port(),
        pair.primary.port(),
        world.database.name()
    );
    let mut relay = world.relay().postgres_url(&text).build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    delivers(&world).await
}

#[tokio::test]
async fn every_server_that_will_not_do_is_named_with_its_reason() -> Result<()> {
    let (pair, world) = world().await?;
    let dead = free_port();
    let standby = pair.standby.port();
    let mut relay = relay_to(&world, &[dead, standby], "target_session_attrs=read-write").build()?;
    relay.start()?;
    let words = [
        format!("127.0.0.1:{dead}: cannot connect to 127.0.0.1:{dead}"),
        format!("127.0.0.1:{standby}: the server is a standby"),
    ];
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    complains(&mut relay, Part::Database, "database_unreachable", &words).await
}

#[tokio::test]
async fn a_server_whose_sessions_may_not_write_is_passed_over() -> Result<()> {
    let (pair, world) = world().await?;
    let set = |value: &str| {
        let name = world.database.name();
        format!("alter database {name} set default_transaction_read_only = {value}")
    };
    let admin = pair.primary.client("postgres").await?;
    admin.batch_execute(&set("on")).await?;
    let ports = [pair.primary.port(), free_port()];
    let mut relay = relay_to(&world, &ports, "target_session_attrs=read-write").build()?;
    relay.start()?;
    let readiness = named(&mut relay, Part::Database, "database_unreachable").await?;
    let read_only = "sessions of this role read only (default_transaction_read_only = on)";
    assert!(readiness.text.contains(read_only), "{}", readiness.text);
    admin.batch_execute(&set("off")).await?;
    relay.wait_ready(LONG).await?;
    delivers(&world).await
}

#[tokio::test]
async fn a_server_that_never_answers_costs_no_more_than_its_own_deadline() -> Result<()> {
    let (pair, world) = world().await?;
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let ports = [silent.local_addr()?.port(), pair.primary.port()];
    let mut relay = relay_to(&world, &ports, "connect_timeout=1").build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    delivers(&world).await
}

/// R15: what an errand stores belongs where the stream comes from, whatever the list or a name leads to by then.
#[tokio::test]
async fn r15_errands_go_to_the_server_of_the_stream_though_one_before_it_is_back() -> Result<()> {
    let (pair, world) = world().await?;
    let first = free_port();
    let mut relay = relay_to(&world, &[first, pair.primary.port()], "connect_timeout=2")
        .text("delivery.on_invalid", "dead_letter")
        .text("postgres.guard_interval", "1s")
        .build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;

    let back = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).await?;
    let stored = async {
        // Its routing key is too long.
        let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   values (gen_random_uuid(), 'order', 42, repeat('x', 300), '{}')";
        world.client.batch_execute(sql).await?;
        eventually("the dead letter to be stored", LONG, async || {
            let stored = "select from walrelay.dead_letters";
            world
                .client
                .query(stored, &[])
                .await
                .is_ok_and(|rows| rows.len() == 1)
        })
        .await?;
        anyhow::Ok(())
    };
    tokio::select! {
        biased;
        _ = back.accept() => anyhow::bail!("the relay went to another server"),
        stored = stored => stored?,
    }
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_sessions_total", &[]), Some(1.0));
    Ok(())
}

/// A relay that sees `hosts` in place of `/etc/hosts`; none, with the reason printed, where the system does not let it.
fn with_hosts_file(folder: &Folder, builder: RelayBuilder) -> Result<Option<Relay>> {
    let hosts = folder.path().join("hosts");
    // Whoever is not root may mount in a user namespace of his own.
    let unshare = "unshare --mount --map-root-user";
    let mount = format!("{unshare} mount --bind '{}' /etc/hosts", hosts.display());
    let tried = Command::new("sh").args(["-c", &mount]).output()?;
    if !tried.status.success() {
        let why = String::from_utf8_lossy(&tried.stderr);
        eprintln!("skipped: no private /etc/hosts here: {}", why.trim());
        return Ok(None);
    }
    let script = format!(
        "#!/bin/sh\nexec {unshare} sh -c 'mount --bind \"$0\" /etc/hosts && exec \"$@\"' '{}' '{}' \"$@\"\n",
        hosts.display(),
        env!("CARGO_BIN_EXE_walrelay"),
    );
    let path = folder.write("walrelay", &script, 0o755)?;
    Ok(Some(builder.binary(path).build()?))
}

#[tokio::test]
async fn a_name_is_looked_up_at_every_try() -> Result<()> {
    let world = World::new().await?;
    let folder = Folder::new("hosts-")?;
    // In place, since the relay has this very file mounted.
    let lead_to = |address: &str| {
        let line = format!("127.0.0.1 localhost\n{address} database.walrelay.test\n");
        std::fs::write(folder.path().join("hosts"), line).context("write the hosts file")
    };
    // Nobody listens on this one.
    lead_to("127.0.0.9")?;
    let server = format!("database.walrelay.test:{}", shared_postgres().await?.port());
    let url = world.database.url();
    let url = url.replace(&format!("127.0.0.1:{}", shared_postgres().await?.port()), &server);
    world.relay().build()?.setup().await?;
    let Some(mut relay) = with_hosts_file(&folder, world.relay().postgres_url(&url))? else {
        return Ok(());
    };
    relay.start()?;
    complains(&mut relay, Part::Database, "database_unreachable", &[&server]).await?;
    lead_to("127.0.0.1")?;
    relay.wait_ready(LONG).await?;
    delivers(&world).await
}
