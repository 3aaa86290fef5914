//! A backfill that is interrupted, or whose events cannot be delivered: R3, R8, R9, R13, R16, R24.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use walrelay_testbed::{Postgres, PostgresOptions, Recorder, Relay, StopMode, eventually, shared_rabbitmq};

use crate::backfill::{LEFT, WINDOW, ids, is_backfilled};
use crate::marks::wait_for_rows;
use crate::setup::stop;
use crate::world::{EXCHANGE, LONG, QUEUE, World, text};

/// Rows settled and not yet struck out, at most: a strike, and what is settled while it is on its way.
const UNSTRUCK: u64 = 2_000;

/// Kills the relay in the middle of a backfill; how many came twice.
async fn killed_in_the_middle(rows: i32, rate: u32) -> Result<u64> {
    let world = World::new().await?.with_old_table().await?;
    let expected: HashSet<String> = world.old_rows(rows).await?.into_iter().collect();
    let mut relay = world
        .relay()
        .set("delivery.max_in_flight", &WINDOW.to_string())
        .set("delivery.max_rate", &rate.to_string())
        .text("log.level", "info")
        .build()?;
    relay.setup().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    let count = usize::try_from(rows)?;
    recorder.wait_for_distinct(count / 2, LONG).await?;
    relay.kill().await?;
    let left: usize = text(&world.client, LEFT).await?.parse()?;
    ensure!(
        left > 0 && left < count,
        "{left} rows are left: not in the middle"
    );
    let streamed = world.commit_events(1).await?;
    relay.reconfigure(|relay| relay.unset("delivery.max_rate"))?;
    relay.start()?;
    recorder.wait_for_distinct(count + 1, LONG).await?;
    world.wait_backfilled().await?;
    let mut delivered = recorder.distinct_ids();
    assert!(delivered.remove(&streamed[0]));
    assert_eq!(delivered, expected);
    assert_eq!(recorder.message_ids().last(), streamed.last());
    wait_for_rows(&world.client, i64::from(rows) + 1, 0).await?;
    Ok(recorder.duplicates())
}

#[tokio::test]
async fn a_relay_killed_in_the_middle_of_a_backfill_goes_on_and_repeats_little() -> Result<()> {
    let duplicates = killed_in_the_middle(8_000, 4_000).await?;
    assert!(duplicates <= UNSTRUCK + WINDOW, "{duplicates} duplicates");
    Ok(())
}

#[tokio::test]
#[ignore = "long"]
async fn a_relay_killed_in_the_middle_of_200_000_rows_goes_on_and_repeats_little() -> Result<()> {
    let duplicates = killed_in_the_middle(200_000, 20_000).await?;
    println!("{duplicates} duplicates of 200,000 rows");
    assert!(duplicates <= UNSTRUCK + WINDOW, "{duplicates} duplicates");
    Ok(())
}

/// In the middle of a backfill of 3,000 rows: the world, the relay, what it sends to, and the ids in their order.
async fn half_way() -> Result<(World, Relay, Recorder, Vec<String>)> {
    let world = World::new().await?.with_old_table().await?;
    let expected = world.old_rows(3_000).await?;
    let mut relay = world.relay().set("delivery.max_rate", "1500").build()?;
    relay.setup().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for_distinct(700, LONG).await?;
    Ok((world, relay, recorder, expected))
}

#[tokio::test]
async fn a_relay_stopped_in_the_middle_of_a_backfill_repeats_nothing() -> Result<()> {
    let (world, mut relay, recorder, expected) = half_way().await?;
    stop(&mut relay).await?;
    let left: usize = text(&world.client, LEFT).await?.parse()?;
    assert!(left > 0 && left <= 2_300, "{left}");
    relay.start()?;
    recorder.wait_for_distinct(expected.len(), LONG).await?;
    world.wait_backfilled().await?;
    assert_eq!(ids(&recorder.deliveries()), expected);
    Ok(())
}

/// A connection lost in the middle costs nothing: what is out stays known.
#[tokio::test]
async fn a_terminated_walsender_in_the_middle_of_a_backfill_costs_no_duplicate() -> Result<()> {
    let (world, relay, recorder, expected) = half_way().await?;
    world
        .client
        .execute(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1",
            &[&world.slot()],
        )
        .await?;
    recorder.wait_for_distinct(expected.len(), LONG).await?;
    world.wait_backfilled().await?;
    assert_eq!(ids(&recorder.deliveries()), expected);
    assert_eq!(relay.metrics().await?.sum("walrelay_sessions_total", &[]), 2.0);
    Ok(())
}

/// R3, R8: a backfilled event is held as any other, and nothing of the stream passes it.
#[tokio::test]
async fn r3_a_held_row_keeps_the_stream_and_the_slot_where_they_are() -> Result<()> {
    let world = World::for_orders().await?.with_old_table().await?;
    let mut expected = world.old_rows(5).await?;
    let mut relay = world.relay().build()?;
    world
        .client
        .batch_execute("update outbox_events set aggregate_type = 'nobody' where created_at = (select min(created_at) from outbox_events)")
        .await?;
    relay.setup().await?;
    let before = world.flushed().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    let held = relay.wait_readiness("the row to be held", LONG, |readiness| {
        readiness.json["delivery"]["state"] == "held"
    });
    assert_eq!(held.await?.json["delivery"]["cause"], "event_unroutable");
    expected.extend(world.commit_events(3).await?);
    let waited = relay
        .run_command(&["wait", "--lsn", "0/1", "--timeout", "5s"])
        .await?;
    assert_eq!(waited.code(), Some(1));
    let line = waited.stderr.lines().last().unwrap_or_default();
    assert!(line.contains("has 5 rows to be sent before"), "R24: {line}");
    assert_eq!(world.flushed().await?, before);

    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    recorder.wait_for_distinct(8, LONG).await?;
    let settled = relay.run_command(&["wait", "--current"]).await?;
    assert_eq!(settled.code(), Some(0), "{}", settled.stderr);
    let delivered: HashSet<_> = recorder.message_ids().into_iter().collect();
    assert_eq!(delivered, expected.into_iter().collect());
    assert!(world.flushed().await? > before);
    Ok(())
}

/// R13: the stream is not read, so the shutdown is looked for.
#[tokio::test]
async fn r13_a_fast_shutdown_ends_in_the_middle_of_a_backfill() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?)
        .await?
        .with_old_table()
        .await?;
    world.old_rows(5).await?;
    world
        .client
        .batch_execute("update outbox_events set event_type = ''")
        .await?;
    let mut relay = world.running_but_held().await?;
    world.commit_events(3).await?;
    let start = std::time::Instant::now();
    postgres.stop(StopMode::Fast).await?;
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    postgres.start_again().await?;
    relay
        .wait_readiness("the row to be held again", LONG, |readiness| {
            readiness.json["database"]["state"] == "up" && readiness.json["delivery"]["state"] == "held"
        })
        .await?;
    Ok(())
}

impl World {
    /// A relay that is set up and whose first event is held.
    async fn running_but_held(&self) -> Result<Relay> {
        let mut relay = self.relay().build()?;
        relay.setup().await?;
        relay.start()?;
        relay
            .wait_readiness("an event to be held", LONG, |readiness| {
                readiness.json["delivery"]["state"] == "held"
            })
            .await?;
        Ok(relay)
    }
}

/// R16: its key is kept, and so is the word that it did not come from the stream.
#[tokio::test]
async fn r16_a_backfilled_row_becomes_a_dead_letter_and_is_retried() -> Result<()> {
    let world = World::for_orders().await?.with_old_table().await?;
    let expected = world.old_rows(5).await?;
    world
        .client
        .batch_execute("update outbox_events set aggregate_type = 'nobody' where created_at = (select min(created_at) from outbox_events)")
        .await?;
    let mut relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .build()?;
    relay.setup().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    assert_eq!(ids(&recorder.wait_for(4, LONG).await?), expected[1..]);
    world.wait_backfilled().await?;
    let stored = "select string_agg(event_id || ' ' || xid, ',') from walrelay.dead_letters";
    assert_eq!(text(&world.client, stored).await?, format!("{} 0", expected[0]));

    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let asked = relay
        .run_command(&["dead-letters", "retry", "--id", &expected[0]])
        .await?;
    assert_eq!(asked.code(), Some(0), "{}", asked.stderr);
    let deliveries = recorder.wait_for(5, LONG).await?;
    let last = &deliveries[4];
    assert_eq!(last.message_id, expected[0]);
    assert!(is_backfilled(last));
    Ok(())
}

/// R9: a skip of a backfilled event is on record with its id, so that no recovery brings the event back.
#[tokio::test]
async fn r9_a_held_row_is_skipped_by_its_key() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let old = world.old_rows(2).await?;
    world
        .client
        .batch_execute("update outbox_events set event_type = '' where created_at = (select min(created_at) from outbox_events)")
        .await?;
    let relay = world.running_but_held().await?;
    let readiness = relay.ready().await?;
    let error = readiness.json["delivery"]["error"]
        .as_str()
        .context("an error")?
        .to_owned();
    let (_, place) = error.split_once(" at ").context("a key")?;
    let key: Vec<_> = place.splitn(3, ':').take(2).collect();
    let skipped = relay
        .run_command(&["skip", &key.join(":"), "--reason", "empty"])
        .await?;
    assert_eq!(skipped.code(), Some(0), "{}", skipped.stderr);
    let recorder = world.recorder().await?;
    assert_eq!(ids(&recorder.wait_for(1, LONG).await?), old[1..]);
    let recorded = "select coalesce(string_agg(settled_event_id, ','), '') from walrelay.skips";
    eventually("the skip to be on record", LONG, || async {
        text(&world.client, recorded).await.is_ok_and(|id| id == old[0])
    })
    .await?;
    Ok(())
}
