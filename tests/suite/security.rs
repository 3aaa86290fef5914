//! Authentication, TLS, Unix sockets, and the names under which servers list us.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use tokio::sync::OnceCell;
use walrelay_testbed::{Certificates, Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Relay};

use crate::complaint::{Part, complains, tells_no};
use crate::world::{EXCHANGE, LONG, QUEUE, World, insert_event};

const SECRET: &str = "p@ss w0rd/%";

#[tokio::test]
async fn every_password_method_of_postgresql_is_spoken() -> Result<()> {
    let world = World::new().await?;
    for role in ["by_scram", "by_md5", "by_plain"] {
        let mut relay = guarded(
            &world,
            &format!("user={role} password='{SECRET}' sslmode=disable"),
        )
        .await?;
        assert_delivers(&world, &mut relay, false).await?;

        let mut wrong = guarded(
            &world,
            &format!("user={role} password='{SECRET}x' sslmode=disable"),
        )
        .await?;
        wrong.start()?;
        complains(
            &mut wrong,
            Part::Database,
            "database_authentication",
            &["28P01", role],
        )
        .await?;
        tells_no(SECRET, &wrong).await?;
    }
    Ok(())
}

#[tokio::test]
async fn sslmode_decides_about_tls_and_whom_to_trust() -> Result<()> {
    let world = World::new().await?;
    let (_, certificates) = secure_postgres().await?;
    let (ca, wrong_ca) = (certificates.ca_path().display(), Certificates::generate()?);
    let wrong_ca = wrong_ca.ca_path().display();
    for (settings, encrypted) in [
        ("sslmode=disable".to_owned(), false),
        ("sslmode=prefer".to_owned(), true),
        ("sslmode=require".to_owned(), true),
        (format!("sslmode=require sslrootcert={ca}"), true),
        (format!("sslmode=verify-ca sslrootcert={ca}"), true),
        (
            format!("sslmode=verify-full sslrootcert={ca} host=localhost"),
            true,
        ),
        // The certificate is for localhost only.
        (format!("sslmode=verify-ca sslrootcert={ca} host=127.0.0.1"), true),
    ] {
        let mut relay = guarded(&world, &format!("user=postgres {settings}")).await?;
        assert_delivers(&world, &mut relay, encrypted)
            .await
            .context(settings)?;
    }
    for (settings, words) in [
        (
            format!("sslmode=require sslrootcert={wrong_ca}"),
            &["localhost", "trusted root"],
        ),
        (
            format!("sslmode=verify-ca sslrootcert={wrong_ca}"),
            &["localhost", "trusted root"],
        ),
        (
            format!("sslmode=verify-full sslrootcert={wrong_ca}"),
            &["localhost", "trusted root"],
        ),
        (
            format!("sslmode=verify-full sslrootcert={ca} host=127.0.0.1"),
            &["127.0.0.1", "another name"],
        ),
        (
            "sslmode=verify-full sslrootcert=/no/such/ca.pem".to_owned(),
            &["/no/such/ca.pem", "No such file"],
        ),
    ] {
        let mut relay = guarded(&world, &format!("user=postgres {settings}")).await?;
        relay.start()?;
        complains(&mut relay, Part::Database, "database_tls", words)
            .await
            .context(settings)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_tls_is_demanded() -> Result<()> {
    let world = World::new().await?;
    let url = world.database.url();
    let mut relay = world
        .relay()
        .postgres_url(&format!("{url}?sslmode=prefer"))
        .build()?;
    relay.setup().await?;
    for sslmode in ["require", "verify-ca", "verify-full"] {
        relay.reconfigure(|relay| relay.postgres_url(&format!("{url}?sslmode={sslmode}")))?;
        relay.start()?;
        let mark = relay.log_mark();
        complains(
            &mut relay,
            Part::Database,
            "database_tls",
            &["offers no TLS", "ssl = on"],
        )
        .await
        .with_context(|| format!("{sslmode} from line {mark}"))?;
        relay.kill().await?;
        relay = world.relay().build()?;
    }
    relay.reconfigure(|relay| relay.postgres_url(&format!("{url}?sslmode=prefer")))?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_unix_socket_will_do_and_both_servers_list_us_by_name() -> Result<()> {
    let world = World::new().await?;
    let socket = walrelay_testbed::shared_postgres().await?.socket_dir();
    let folder = socket.to_string_lossy().replace('/', "%2F");
    let url = format!(
        "postgres://postgres@{folder}:{}/{}",
        world.database.port(),
        world.database.name()
    );
    let relay = world.relay().postgres_url(&url).start().await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;

    let name = format!("walrelay {}", world.slot());
    let sql = "select application_name, client_addr is null from pg_stat_replication
               where pid = (select active_pid from pg_replication_slots where slot_name = $1)";
    let row = world.client.query_one(sql, &[&world.slot()]).await?;
    assert_eq!((row.get::<_, &str>(0), row.get(1)), (&*name, true));

    let broker = walrelay_testbed::shared_rabbitmq().await?;
    let listed = broker
        .ctl(&["list_connections", "vhost", "client_properties"])
        .await?;
    let ours: Vec<&str> = listed
        .lines()
        .filter(|line| line.starts_with(&format!("{}\t", world.vhost.name())) && line.contains("walrelay"))
        .collect();
    assert!(
        ours.len() == 1 && ours[0].contains(&format!("\"{name}\"")),
        "{listed}"
    );
    drop(relay);
    Ok(())
}

#[tokio::test]
async fn amqps_trusts_the_named_authority_only() -> Result<()> {
    let world = World::new().await?;
    let certificates = Certificates::for_names(&["localhost"])?;
    let broker = RabbitMq::start(RabbitMqOptions::default().tls(&certificates)).await?;
    let vhost = broker.vhost().await?;
    vhost.declare_route(EXCHANGE, QUEUE).await?;
    let uri = vhost.tls_uri().context("no TLS listener")?;
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.setup().await?;
    let ca_file = relay.folder().path().join("ca.pem");
    relay.reconfigure(|relay| relay.text("rabbitmq.ca_file", &ca_file.to_string_lossy()))?;

    // A file that is not there yet, then one of somebody else, then the right one: none needs a restart.
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_tls",
        &["ca.pem", "No such file"],
    )
    .await?;
    replace(&ca_file, Certificates::generate()?.ca_path())?;
    let told = |line: &str| line.contains("broker_tls") && line.contains("not signed by a trusted root");
    relay.wait_for_log("the wrong authority", LONG, told).await?;
    replace(&ca_file, certificates.ca_path())?;
    relay.wait_ready(LONG).await?;
    let recorder = walrelay_testbed::Recorder::start(&vhost, QUEUE).await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    let listed = broker
        .ctl(&["list_connections", "ssl", "client_properties"])
        .await?;
    let name = format!("\"walrelay {}\"", world.slot());
    assert!(
        listed
            .lines()
            .any(|line| line.starts_with("true\t") && line.contains(&name)),
        "{listed}"
    );

    // Without a file the system's roots count, which do not know it; and the name is compared.
    for (change, words) in [
        ((uri.clone(), None), &["localhost", "trusted root"]),
        (
            (uri.replace("localhost", "127.0.0.1"), Some(&ca_file)),
            &["127.0.0.1", "another name"],
        ),
    ] {
        let mut relay = world.relay().rabbitmq_uri(&change.0);
        if let Some(file) = change.1 {
            relay = relay.text("rabbitmq.ca_file", &file.to_string_lossy());
        }
        let mut relay = relay.build()?;
        relay.start()?;
        complains(&mut relay, Part::Broker, "broker_tls", words).await?;
    }

    // Plain AMQP to the TLS port and the other way round.
    let (plain, tls) = (
        vhost.port().to_string(),
        broker.tls_port().context("no TLS listener")?.to_string(),
    );
    let mut relay = world
        .relay()
        .rabbitmq_uri(&uri.replace("amqps", "amqp"))
        .build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_protocol",
        &["frame type 21", "5671 with TLS"],
    )
    .await?;
    let mut relay = world.relay().rabbitmq_uri(&uri.replace(&tls, &plain)).build()?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "broker_tls", &["localhost"]).await
}

/// A server with TLS that asks some roles for their password, and the certificates it shows.
async fn secure_postgres() -> Result<&'static (Postgres, Certificates)> {
    static SECURE: OnceCell<(Postgres, Certificates)> = OnceCell::const_new();
    let start = async || -> Result<_> {
        let certificates = Certificates::for_names(&["localhost"])?;
        let options = PostgresOptions::default()
            .tls(&certificates)
            .hba("host all by_scram 127.0.0.1/32 scram-sha-256")
            .hba("host all by_md5 127.0.0.1/32 md5")
            .hba("host all by_plain 127.0.0.1/32 password");
        let server = Postgres::start(options).await?;
        let client = server.client("postgres").await?;
        for (role, encryption) in [
            ("by_scram", "scram-sha-256"),
            ("by_md5", "md5"),
            ("by_plain", "scram-sha-256"),
        ] {
            client
                .batch_execute(&format!(
                    "set password_encryption = '{encryption}'; create role {role} superuser login password '{SECRET}'"
                ))
                .await?;
        }
        Ok((server, certificates))
    };
    SECURE.get_or_try_init(start).await
}

/// A relay to a new database of the secure server, by a connection string.
async fn guarded(world: &World, settings: &str) -> Result<Relay> {
    let database = secure_postgres().await?.0.database().await?;
    // A later key wins, so that a test may name another host.
    let url = format!(
        "host=localhost port={} dbname={} {settings}",
        database.port(),
        database.name()
    );
    Ok(world.relay().slot(database.name()).postgres_url(&url).build()?)
}

/// The relay sets up and delivers, and its walsender is encrypted or not.
async fn assert_delivers(world: &World, relay: &mut Relay, encrypted: bool) -> Result<()> {
    let output = relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let slot = output
        .stdout
        .split("slot ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .context("no slot")?;
    let client = secure_postgres().await?.0.client(slot).await?;
    let recorder = world.recorder().await?;
    let id = insert_event(&client, 1).await?;
    recorder
        .wait_until("the event", LONG, |deliveries| {
            deliveries.iter().any(|delivery| delivery.message_id == id)
        })
        .await?;
    let sql =
        "select ssl from pg_stat_ssl join pg_replication_slots on pid = active_pid where slot_name = $1";
    let ssl: bool = client.query_one(sql, &[&slot]).await?.get(0);
    ensure!(ssl == encrypted, "encrypted: {ssl}");
    tells_no(SECRET, relay).await?;
    relay.kill().await?;
    Ok(())
}

fn replace(path: &Path, by: &Path) -> Result<()> {
    Ok(std::fs::copy(by, path).map(drop)?)
}
