//! Broken ways to the database, and servers that will not do.

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use walrelay_testbed::{Certificates, Postgres, PostgresOptions, free_port, shared_rabbitmq};

use super::{redacted, said, server, set_up, world};
use crate::world::World;

#[tokio::test]
async fn nobody_listens_at_the_database_s_port() -> Result<()> {
    let world = world().await?;
    let port = free_port();
    let url = format!("postgres://walrelay@127.0.0.1:{port}/shop");
    let relay = world.relay().postgres_url(&url).build()?;
    let said = said(&world, &relay, &[]).await?;
    insta::assert_snapshot!(
        "database_unreachable",
        said.replace(&format!(":{port}"), ":NOBODY")
    );
    Ok(())
}

#[tokio::test]
async fn the_password_is_wrong() -> Result<()> {
    let world = world().await?;
    let url = world.database.url().replace("postgres@", "doctor_scram:wrong@");
    let relay = world.relay().postgres_url(&url).build()?;
    insta::assert_snapshot!("database_password", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_database_does_not_exist() -> Result<()> {
    let world = world().await?;
    let url = format!("{}_other", world.database.url());
    let relay = world.relay().postgres_url(&url).build()?;
    insta::assert_snapshot!("database_missing", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn tls_is_demanded_of_a_server_without_it() -> Result<()> {
    let world = world().await?;
    let url = format!("{}?sslmode=require", world.database.url());
    let relay = world.relay().postgres_url(&url).build()?;
    insta::assert_snapshot!("database_tls", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_certificate_is_of_an_authority_that_is_not_trusted() -> Result<()> {
    let (certificates, others) = (
        Certificates::for_names(&["localhost"])?,
        Certificates::for_names(&["localhost"])?,
    );
    let options = PostgresOptions::default()
        .tls(&certificates)
        .setting("max_slot_wal_keep_size", "1GB");
    let postgres = Postgres::start(options).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    for (authority, line) in [
        (
            &certificates,
            "  ✓ TLS: TLS 1.3, the certificate is checked for the host's name (sslmode=verify-full)",
        ),
        (
            &others,
            "  ✗ TLS: the certificate of localhost is not signed by a trusted root",
        ),
    ] {
        let url = format!(
            "postgres://postgres@localhost:{}/{}?sslmode=verify-full&sslrootcert={}",
            postgres.port(),
            world.database.name(),
            authority.ca_path().display()
        );
        relay.reconfigure(|relay| relay.postgres_url(&url))?;
        let said = said(&world, &relay, &[]).await?;
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    Ok(())
}

#[tokio::test]
async fn the_server_decodes_nothing_and_keeps_wal_without_end() -> Result<()> {
    let options = PostgresOptions::default()
        .setting("wal_level", "replica")
        .setting("max_replication_slots", "1")
        .setting("synchronous_commit", "local")
        .setting("synchronous_standby_names", "*");
    let postgres = Postgres::start(options).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    world
        .client
        .batch_execute("select pg_create_physical_replication_slot('replica')")
        .await?;
    let relay = world.relay().build()?;
    insta::assert_snapshot!("server_settings", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn a_standby_is_named_and_passed_over_where_that_was_asked_for() -> Result<()> {
    let options = || PostgresOptions::default().setting("max_slot_wal_keep_size", "1GB");
    let mut primary = Postgres::start(options()).await?;
    let standby = primary.standby(&options()).await?;
    let world = World::on(&primary, shared_rabbitmq().await?).await?;
    world.relay().build()?.setup().await?;
    standby.wait_replayed(&primary).await?;
    let database = world.database.name();
    let alone = format!("postgres://postgres@127.0.0.1:{}/{database}", standby.port());
    let relay = world.relay().postgres_url(&alone).build()?;
    let port = |text: String| text.replace(&format!(":{}", standby.port()), ":STANDBY");
    insta::assert_snapshot!("standby", port(said(&world, &relay, &[]).await?));

    let both = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/{database}?target_session_attrs=read-write",
        standby.port(),
        primary.port()
    );
    let relay = world.relay().postgres_url(&both).build()?;
    let output = relay.run_command(&["doctor"]).await?;
    let text = port(redacted(&world, &relay, &output.stdout));
    let passed = "PostgreSQL 127.0.0.1:STANDBY\n";
    assert!(text.contains(passed), "{text}");
    assert!(text.contains("✓ primary: a standby: passed over"), "{text}");
    assert!(text.contains("! standbys: "), "{text}");
    assert_eq!(output.code(), Some(0), "{text}");

    // Where none takes writes, that is what fails, and so it is where the relay would stay with the standby; a server of a
    // list that cannot be reached is a warning.
    let nobody = free_port();
    let read_only = format!("alter database {database} set default_transaction_read_only = on");
    for (servers, attributes, line, code) in [
        (
            [standby.port(), standby.port()],
            "read-write",
            "✗ primary: the server is a standby",
            1,
        ),
        (
            [standby.port(), primary.port()],
            "any",
            "✗ primary: the server is a standby",
            1,
        ),
        (
            [nobody, primary.port()],
            "read-write",
            "! connection: cannot connect to 127.0.0.1:",
            0,
        ),
    ] {
        let [first, second] = servers;
        let url = format!(
            "postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{database}?target_session_attrs={attributes}"
        );
        let relay = world.relay().postgres_url(&url).build()?;
        let output = relay.run_command(&["doctor"]).await?;
        assert!(output.stdout.contains(line), "{}", output.stdout);
        assert_eq!(output.code(), Some(code), "{}", output.stdout);
    }
    world.client.batch_execute(&read_only).await?;
    let url = format!("{}?target_session_attrs=read-write", world.database.url());
    let relay = world.relay().postgres_url(&url).build()?;
    let output = relay.run_command(&["doctor"]).await?;
    let line = "✗ primary: the server lets sessions of this role read only";
    assert!(output.stdout.contains(line), "{}", output.stdout);
    Ok(())
}

/// As PgBouncer refuses what it does not know.
#[tokio::test]
async fn a_pooler_stands_in_the_way() -> Result<()> {
    let world = world().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let pooler = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut packet = [0; 1024];
            if !client.read(&mut packet).await.is_ok_and(|read| read > 0) {
                continue;
            }
            let mut answer =
                b"E\0\0\0\0SFATAL\0C08P01\0Munsupported startup parameter in options\0\0".to_vec();
            let length = u32::try_from(answer.len() - 1).expect("short");
            answer[1..5].copy_from_slice(&length.to_be_bytes());
            client.write_all(&answer).await.ok();
        }
    });
    let url = format!("postgres://walrelay@127.0.0.1:{port}/shop?sslmode=disable");
    let relay = world.relay().postgres_url(&url).build()?;
    let said = said(&world, &relay, &[]).await?;
    pooler.abort();
    insta::assert_snapshot!("pooler", said.replace(&format!(":{port}"), ":POOLER"));
    Ok(())
}

#[tokio::test]
async fn the_role_has_no_rights_at_all() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let role = format!("role_{}", world.database.name());
    world
        .client
        .batch_execute(&format!("create role {role} login"))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|relay| relay.postgres_url(&url))?;
    insta::assert_snapshot!("role_without_rights", said(&world, &relay, &[]).await?);

    // What it said is what was missing.
    let sql = format!(
        "alter role {role} replication; grant usage on schema walrelay to {role}; \
        grant select on walrelay.schema_migrations to {role}; grant select on walrelay.state to {role}; \
        grant select on walrelay.slots, walrelay.backfills, walrelay.mark_owners to {role}; \
        grant select, delete on walrelay.backfill to {role}"
    );
    world.client.batch_execute(&sql).await?;
    relay.reconfigure(|relay| relay.text("delivery.on_invalid", "dead_letter"))?;
    insta::assert_snapshot!("role_without_some", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn a_managed_service_gets_its_own_statements() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let (database, role) = (world.database.name(), format!("role_{}", world.database.name()));
    world
        .client
        .batch_execute(&format!(
            "create role {role} login; alter database {database} set rds.logical_replication = 'off'"
        ))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|relay| relay.postgres_url(&url))?;
    let said = said(&world, &relay, &[]).await?;
    assert!(said.contains("✓ managed service: Amazon RDS or Aurora"), "{said}");
    assert!(
        said.contains("        grant rds_replication to \"role_DB\";"),
        "{said}"
    );
    Ok(())
}

#[tokio::test]
async fn the_password_is_right_and_asked_for_by_scram() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let url = world.database.url().replace("postgres@", "doctor_quiet:right@");
    relay.reconfigure(|relay| relay.postgres_url(&url))?;
    let log = server().await?.log().len();
    let said = said(&world, &relay, &[]).await?;
    assert!(
        said.contains("✓ authentication: `doctor_quiet` is let in by SCRAM-SHA-256"),
        "{said}"
    );
    let log = server().await?.log().split_off(log);
    assert!(!log.contains("doctor_quiet"), "{log}");
    Ok(())
}
