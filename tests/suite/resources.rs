//! What the system may take away from the relay's process: descriptors, threads, the right time.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use walrelay_testbed::{TcpProxy, eventually};

use crate::world::{LONG, World, wal_end};

/// I9: no crash, no busy loop, and it heals once there are descriptors again.
#[tokio::test]
async fn a_relay_without_free_descriptors_says_so_and_heals_when_there_are_some() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let to_database = TcpProxy::start(world.database.port()).await?;
    let to_broker = TcpProxy::start(world.vhost.port()).await?;
    let relay = world
        .relay()
        .postgres_url(&world.database.url_through(to_database.port()));
    let mut relay = relay
        .rabbitmq_uri(&world.vhost.uri_through(to_broker.port()))
        .start()
        .await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;

    relay.limit_descriptors(Some(3))?;
    let mark = relay.log_mark();
    // A visitor whom nobody can let in.
    let visitor = tokio::net::TcpStream::connect(("127.0.0.1", relay.admin_port())).await?;
    to_database.cut().await;
    to_broker.cut().await;
    for side in ["database", "broker"] {
        relay
            .wait_for_log_after(mark, side, LONG, |line| {
                line.contains("descriptors_exhausted")
                    && line.contains("WARN")
                    && line.contains(&format!("\"side\":\"{side}\""))
            })
            .await?;
    }
    // Some tries at the longest pause.
    let tries = || {
        let log = relay.log();
        let tried = log
            .iter()
            .skip(mark)
            .filter(|line| line.contains("Too many open files"));
        tried.count()
    };
    let before = relay.processor_ticks()?;
    let until = tries() + 6;
    eventually("further tries", LONG, || std::future::ready(tries() >= until)).await?;
    let used = relay.processor_ticks()? - before;
    ensure!(used <= 30, "{used} clock ticks");
    ensure!(relay.exit_status()?.is_none(), "it ended");
    world.commit_events(10).await?;

    relay.limit_descriptors(None)?;
    drop(visitor);
    relay.wait_ready(LONG).await?;
    recorder.wait_for_distinct(11, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// A panic in a task ends the process: half a relay must not live on. The one here is the runtime's own, which cannot
/// look a host name up without another thread.
#[tokio::test]
async fn a_panic_in_a_task_ends_the_process_with_70() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let to_broker = TcpProxy::start(world.vhost.port()).await?;
    let uri = world
        .vhost
        .uri_through(to_broker.port())
        .replace("127.0.0.1", "localhost");
    let mut relay = world.relay().rabbitmq_uri(&uri).start().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    // The thread of the last look-up ends when it has had nothing to do for a while.
    eventually("one thread", LONG, || {
        std::future::ready(relay.threads().is_ok_and(|threads| threads == 1))
    })
    .await?;

    relay.limit_address_space(Some(1))?;
    to_broker.cut().await;
    let status = relay.wait_exit(Duration::from_secs(10)).await?;
    ensure!(status.code() == Some(70), "{status}");
    let log = relay.log().join("\n");
    ensure!(log.matches("panicked").count() == 1, "it lived on: {log}");

    world.commit_events(3).await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    recorder.wait_for_distinct(4, LONG).await?;
    Ok(())
}

/// The library by which one process sees another time.
fn faketime() -> Option<String> {
    let mut folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let library = folders.find_map(|folder| {
        let library = folder.path().join("faketime/libfaketimeMT.so.1");
        library.exists().then_some(library)
    });
    Some(library?.to_str()?.to_owned())
}

/// The wall clock is shown and sent, never waited for or compared.
#[tokio::test]
async fn a_wall_clock_that_jumps_changes_nothing() -> Result<()> {
    const DAY: f64 = 86_400.0;
    let library = faketime().context("libfaketime is missing: install Debian's package faketime")?;
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let folder = tempfile::tempdir()?;
    let clock = folder.path().join("clock");
    // Replaced whole, so that it is never read half written.
    let jump = |to: &str| -> Result<()> {
        let new = folder.path().join("new");
        std::fs::write(&new, to)?;
        Ok(std::fs::rename(&new, &clock)?)
    };
    jump("+0d")?;
    let mut relay = world
        .relay()
        .env("LD_PRELOAD", &library)
        .env("FAKETIME_TIMESTAMP_FILE", clock.to_str().context("a path")?)
        .env("FAKETIME_NO_CACHE", "1")
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        .text("postgres.wal_sender_timeout", "2s")
        .text("postgres.status_interval", "200ms")
        .text("rabbitmq.heartbeat", "1s")
        .start()
        .await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    for (index, days) in [40, -40, 1, 0].into_iter().enumerate() {
        jump(&format!("{days:+}d"))?;
        world.commit_events(10).await?;
        recorder.wait_for_distinct(1 + 10 * (index + 1), LONG).await?;
        let updates = relay.metrics().await?.sum("walrelay_status_updates_total", &[]);
        eventually("status updates for longer than a time-out", LONG, async || {
            let metrics = relay.metrics().await;
            metrics.is_ok_and(|metrics| metrics.sum("walrelay_status_updates_total", &[]) >= updates + 12.0)
        })
        .await?;
        // The clock that it shows did jump.
        let metrics = relay.metrics().await?;
        let shown = metrics.sum("walrelay_last_progress_timestamp_seconds", &[]);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_secs_f64();
        ensure!(
            ((shown - now) / DAY - f64::from(days)).abs() < 0.5,
            "{shown} at {now}"
        );
    }
    assert_eq!(recorder.duplicates(), 0);
    relay.wait_ready(LONG).await?;
    let metrics = relay.metrics().await?;
    for connections in ["walrelay_sessions_total", "walrelay_links_total"] {
        assert_eq!(metrics.value(connections, &[]), Some(1.0), "{connections}");
    }
    Ok(())
}
