//! PostgreSQL: the way to it.

use anyhow::{Result, ensure};
use tokio::sync::OnceCell;
use walrelay_testbed::{Postgres, PostgresOptions, StopMode, free_port};

use super::SECRET;
use crate::complaint::{Part, complains, named, tells_no};
use crate::world::{LONG, World};

#[tokio::test]
async fn a_wrong_password_of_postgresql_heals_when_the_file_is_corrected() -> Result<()> {
    let world = World::without_exchange().await?;
    let database = asking_postgres().await?.database().await?;
    let url = format!(
        "postgres://asked@127.0.0.1:{}/{}",
        database.port(),
        database.name()
    );
    let mut relay = world.relay().postgres_url(&url).build()?;
    let wrong = relay.folder().write("password", "wrong-0ne\n", 0o600)?;
    relay.reconfigure(|relay| relay.text("postgres.password_file", &wrong.to_string_lossy()))?;
    let output = relay.run_command(&["setup"]).await?;
    ensure!(output.code() == Some(1), "{output:?}");
    ensure!(!output.stderr.contains("wrong-0ne"), "{output:?}");

    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "database_authentication",
        &["28P01", "asked"],
    )
    .await?;
    relay.folder().write("password", &format!("{SECRET}\n"), 0o600)?;
    named(&mut relay, Part::Database, "not_set_up").await?;
    tells_no(SECRET, &relay).await?;
    tells_no("wrong-0ne", &relay).await
}

#[tokio::test]
async fn a_password_of_postgresql_that_is_missing_or_unreadable_is_named() -> Result<()> {
    let world = World::without_exchange().await?;
    let port = asking_postgres().await?.port();
    let relay = || {
        let url = format!("postgres://asked@127.0.0.1:{port}/postgres");
        world.relay().postgres_url(&url)
    };
    let mut missing = relay().build()?;
    missing.start()?;
    complains(
        &mut missing,
        Part::Database,
        "database_authentication",
        &["password of `asked`"],
    )
    .await?;
    let mut unreadable = relay().text("postgres.password_file", "/no/such/file").build()?;
    unreadable.start()?;
    let words = ["/no/such/file", "No such file"];
    complains(&mut unreadable, Part::Database, "database_authentication", &words).await?;
    let mut empty = relay().build()?;
    let file = empty.folder().write("empty", "\n", 0o600)?;
    empty.reconfigure(|relay| relay.text("postgres.password_file", &file.to_string_lossy()))?;
    empty.start()?;
    complains(
        &mut empty,
        Part::Database,
        "database_authentication",
        &["is empty"],
    )
    .await
}

#[tokio::test]
async fn a_wrong_host_or_port_of_postgresql_is_named() -> Result<()> {
    let world = World::without_exchange().await?;
    let url = format!("postgres://postgres:{SECRET}@no-such-host.invalid/shop");
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "database_unreachable",
        &["no-such-host.invalid"],
    )
    .await?;
    tells_no(SECRET, &relay).await?;

    let endpoint = format!("127.0.0.1:{}", free_port());
    let url = format!("postgres://postgres:{SECRET}@{endpoint}/shop");
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "database_unreachable",
        &[&endpoint, "refused"],
    )
    .await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_database_that_is_missing_heals_when_it_is_created() -> Result<()> {
    let world = World::new().await?;
    let name = format!("{}_later", world.database.name());
    let url = format!("postgres://postgres@127.0.0.1:{}/{name}", world.database.port());
    let mut relay = world.relay().postgres_url(&url).build()?;
    relay.start()?;
    complains(&mut relay, Part::Database, "database_missing", &["3D000", &name]).await?;
    world
        .database
        .execute(&format!("create database {name} template template0"))
        .await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_wal_level_that_is_not_logical_heals_when_it_is_raised() -> Result<()> {
    let world = World::new().await?;
    let mut server = Postgres::start(PostgresOptions::default().setting("wal_level", "replica")).await?;
    let mut relay = world.relay().postgres_url(&server.url("postgres")).build()?;
    let output = relay.run_command(&["setup"]).await?;
    ensure!(output.code() == Some(1), "{output:?}");
    ensure!(output.stderr.contains("wal_level is `replica`"), "{output:?}");
    relay.start()?;
    complains(&mut relay, Part::Database, "wal_level", &["replica", "logical"]).await?;

    // The setting of the test bed stands in the file, this one wins over it.
    let client = server.client("postgres").await?;
    client
        .batch_execute("alter system set wal_level = 'logical'")
        .await?;
    server.restart(StopMode::Fast).await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_role_that_may_not_replicate_is_named_and_heals() -> Result<()> {
    let world = World::new().await?;
    let role = format!("plain_{}", world.database.name());
    world
        .database
        .execute(&format!("create role {role} login"))
        .await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let (port, name) = (world.database.port(), world.database.name());
    let url = format!("postgres://{role}@127.0.0.1:{port}/{name}");
    relay.reconfigure(|relay| relay.postgres_url(&url))?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "replication_role",
        &[&role, "REPLICATION"],
    )
    .await?;
    world
        .database
        .execute(&format!(
            "alter role {role} replication; grant usage on schema walrelay to {role};
             grant select on walrelay.state, walrelay.slots, walrelay.backfill to {role}"
        ))
        .await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// A server that asks everybody who comes by TCP for a password, and knows the role `asked`.
async fn asking_postgres() -> Result<&'static Postgres> {
    static ASKING: OnceCell<Postgres> = OnceCell::const_new();
    let start = async || -> Result<Postgres> {
        let server =
            Postgres::start(PostgresOptions::default().hba("host all all 127.0.0.1/32 scram-sha-256"))
                .await?;
        let create = format!("create role asked login replication password '{SECRET}'");
        server.client("postgres").await?.batch_execute(&create).await?;
        Ok(server)
    };
    ASKING.get_or_try_init(start).await
}
