//! `walrelay doctor` against set-ups that are well, and against broken ones. What it says is kept as reviewed snapshots.

mod broker;
mod database;
mod elsewhere;
mod healthy;
mod routes;
mod tables;

use anyhow::{Context as _, Result};
use tokio::sync::OnceCell;
use walrelay_testbed::{Postgres, PostgresOptions, Relay, shared_rabbitmq};

use crate::world::World;

/// A server that gives no cause for a warning, and asks some roles for a password.
async fn server() -> Result<&'static Postgres> {
    static SERVER: OnceCell<Postgres> = OnceCell::const_new();
    let start = async || -> Result<_> {
        let options = PostgresOptions::default()
            .setting("max_slot_wal_keep_size", "1GB")
            .hba("host all doctor_scram 127.0.0.1/32 scram-sha-256")
            .hba("host all doctor_quiet 127.0.0.1/32 scram-sha-256");
        let server = Postgres::start(options).await?;
        let client = server.client("postgres").await?;
        client
            .batch_execute(
                "create role doctor_scram login superuser password 'right';
                 create role doctor_quiet login superuser password 'right'",
            )
            .await?;
        Ok(server)
    };
    SERVER.get_or_try_init(start).await
}

async fn world() -> Result<World> {
    World::on(server().await?, shared_rabbitmq().await?).await
}

/// A world that is set up, and its relay, which does not run.
async fn set_up() -> Result<(World, Relay)> {
    let world = world().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    Ok((world, relay))
}

/// What doctor says, and its exit code, without what differs from run to run.
async fn said(world: &World, relay: &Relay, arguments: &[&str]) -> Result<String> {
    let arguments = [&["doctor"], arguments].concat();
    let output = relay.run_command(&arguments).await?;
    let code = output.code().context("killed")?;
    assert_eq!(output.stderr, "");
    Ok(redacted(
        world,
        relay,
        &format!("{}exit code {code}\n", output.stdout),
    ))
}

fn redacted(world: &World, relay: &Relay, text: &str) -> String {
    let folder = relay.folder().path().display().to_string();
    let mut text = text.to_owned();
    for (name, stands_in) in [
        (folder.as_str(), "FOLDER"),
        (world.database.name(), "DB"),
        (world.vhost.name(), "VHOST"),
    ] {
        text = text.replace(name, stands_in);
    }
    for (port, stands_in) in [
        (world.database.port(), "PGPORT"),
        (world.vhost.port(), "MQPORT"),
        (relay.admin_port(), "ADMINPORT"),
    ] {
        text = text.replace(&format!(":{port}"), &format!(":{stands_in}"));
    }
    let lines: Vec<_> = text.lines().map(stable).collect();
    lines.join("\n") + "\n"
}

/// A line without versions, positions, sizes and numbers of processes.
fn stable(line: &str) -> String {
    // From PostgreSQL 17 on, and from RabbitMQ 3.11 or 4 on.
    let line = line
        .replace("a failover slot, of", "logical, of")
        .replace("ACCESS_REFUSED - write access to", "ACCESS_REFUSED - access to")
        .replace("takes 16.0 MiB by default", "takes SIZE by default")
        .replace("takes 128.0 MiB by default", "takes SIZE by default");
    let mut line = line;
    for (before, after, stands_in) in [
        ("version: PostgreSQL ", "", "VERSION"),
        ("version: RabbitMQ ", "", "VERSION"),
        ("confirmed up to ", "", "LSN"),
        ("migrations: all ", " are applied", "N"),
        ("WAL kept: ", " (wal_status", "SIZE"),
        ("(wal_status reserved); ", " more may", "SIZE"),
        ("server process ", " streams", "PID"),
        ("free slots: ", " of 100", "N"),
        ("free walsenders: ", " of 100", "N"),
    ] {
        line = replaced(&line, before, after, stands_in);
    }
    // The random part of a probe's key.
    let prefix = "walrelay.doctor.";
    match line.split_once(prefix) {
        Some((before, key)) => format!("{before}{prefix}KEY{}", key.get(32..).unwrap_or_default()),
        None => line,
    }
}

/// What stands between two texts, replaced; up to the end of the line where the second is empty.
fn replaced(line: &str, before: &str, after: &str, stands_in: &str) -> String {
    let Some(start) = line.find(before).map(|at| at + before.len()) else {
        return line.to_owned();
    };
    let rest = &line[start..];
    let end = match after {
        "" => Some(rest.len()),
        _ => rest.find(after),
    };
    let Some(end) = end else {
        return line.to_owned();
    };
    format!("{}{stands_in}{}", &line[..start], &rest[end..])
}
