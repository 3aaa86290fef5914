//! Deaths at any moment: the relay's by SIGKILL, PostgreSQL's with all its processes; and half a transaction delivered
//! when a session ends (I1, I2, I3, I7).

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use walrelay_testbed::{Direction, Postgres, PostgresOptions, eventually, shared_rabbitmq};

use crate::faults::{shared_recorder, wait_for_metric, wait_for_more};
use crate::shutdown::{Stage, commit_batch};
use crate::world::{LONG, World};
use crate::writer::Writer;

/// The seed of this run's random moments: `WALRELAY_TEST_SEED`, or another one each time.
fn seed() -> Result<u64> {
    match std::env::var("WALRELAY_TEST_SEED") {
        Ok(seed) => seed.parse().context("WALRELAY_TEST_SEED"),
        Err(_) => Ok(SystemTime::UNIX_EPOCH.elapsed()?.subsec_nanos().into()),
    }
}

/// I1, I2, I3, I7: while it starts, connects, reads, waits for answers or reports.
#[tokio::test]
async fn a_relay_killed_at_random_moments_loses_nothing_and_keeps_the_order() -> Result<()> {
    const DEATHS: usize = 10;
    const WINDOW: usize = 100;
    let seed = seed()?;
    println!("WALRELAY_TEST_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::new().await?;
    let recorder = shared_recorder(&world).await?;
    let relay = world.relay().set("delivery.max_in_flight", &WINDOW.to_string());
    // Where rows are marked, a report waits for them, and more may be settled meanwhile (R18).
    let relay = relay.env("WALRELAY_OUTBOX_AFTER_PUBLISH", "keep");
    let mut relay = relay.start().await?;
    let writer = Writer::start(&world.database, &recorder);
    wait_for_more(&recorder).await?;
    let mut before_start = 0;
    for _ in 0..DEATHS {
        if random.bool() {
            // Any count of deliveries may be the last before a report, or behind one.
            let reached = recorder.distinct_count() + random.usize(1..500);
            recorder.wait_for_distinct(reached, LONG).await?;
        } else {
            // Any of the three lines of its start.
            let lines = before_start + random.usize(0..=3);
            let started = || std::future::ready(relay.log_mark() >= lines);
            eventually("a line of the log", LONG, started).await?;
        }
        relay.kill().await?;
        before_start = relay.log_mark();
        relay.start()?;
    }
    wait_for_more(&recorder).await?;

    let written = writer.wait_delivered_in_order(&recorder).await;
    written.with_context(|| format!("seed {seed}"))?;
    let duplicates = recorder.duplicates();
    let bound = u64::try_from(DEATHS * 2 * WINDOW)?;
    assert!(duplicates <= bound, "{duplicates}, seed {seed}");
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// I1, I2: SIGKILL to the postmaster, and its children go with it.
#[tokio::test]
async fn a_postgresql_killed_under_load_loses_nothing() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let (mut relay, recorder, writer) = world.under_load().await?;
    for _ in 0..2 {
        wait_for_more(&recorder).await?;
        postgres.kill().await?;
        relay.wait_not_ready(LONG).await?;
        postgres.start_again().await?;
        wait_for_more(&recorder).await?;
    }

    writer.wait_delivered_in_order(&recorder).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// R2, I7: the new session brings the transaction from its beginning.
#[tokio::test]
async fn the_confirmed_half_of_a_transaction_is_not_published_again_by_the_next_session() -> Result<()> {
    const EVENTS: usize = 20_000;
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let relay = stage.relay().set("delivery.max_in_flight", "200").start().await?;
    let client = stage.database.client().await?;
    let terminate = "select count(pg_terminate_backend(active_pid)) from pg_replication_slots where active_pid is not null";
    commit_batch(&client, EVENTS, "OrderCreated").await?;
    for (sessions, confirmed) in [(2, EVENTS / 4), (3, EVENTS / 2)] {
        recorder.wait_for_distinct(confirmed, LONG).await?;
        stage.to_broker.stall_one_way(Direction::ToServer);
        let position = stage.slot().await?;
        client.query(terminate, &[]).await?;
        wait_for_metric(&relay, "walrelay_sessions_total", f64::from(sessions)).await?;
        assert!(recorder.distinct_count() < EVENTS, "it was too fast");
        assert_eq!(
            stage.slot().await?,
            position,
            "the transaction is acknowledged as a whole"
        );
        stage.to_broker.resume();
    }
    recorder.wait_for_distinct(EVENTS, LONG).await?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_links_total", &[]), Some(1.0));
    assert!(metrics.sum("walrelay_recognised_total", &[]) >= (EVENTS / 4) as f64);
    assert_eq!(metrics.sum("walrelay_published_total", &[]), EVENTS as f64);
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
