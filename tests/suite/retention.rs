//! Retention: the running relay deletes rows that were sent long ago, and nothing of that is in delivery's way.

use anyhow::{Context as _, Result, ensure};
use walrelay_testbed::{RelayBuilder, eventually};

use crate::purge::{DEAD_LETTERS, LEFT, ROWS};
use crate::world::{LONG, World, text};

const METRIC: &str = "walrelay_retention_deleted_total";
const FAILURES: &str = "walrelay_retention_failures_total";

/// Rows are looked for each second: a sixtieth of the time they stay.
const KEEP: &str = "[outbox.retention]\nkeep_sent = \"1m\"";

fn keeping(relay: RelayBuilder) -> RelayBuilder {
    relay.extra(KEEP)
}

const OUTBOX_TABLE: &str = include_str!("../../migrations/outbox_table.sql");

/// A world with a set-up database, the rows of [`ROWS`] in it, older than the slot, and no relay.
async fn with_rows() -> Result<World> {
    let world = World::new().await?;
    for sql in [OUTBOX_TABLE, ROWS] {
        world.client.batch_execute(sql).await?;
    }
    // The unsent ones stay so.
    let setup = world
        .relay()
        .build()?
        .run_command(&["setup", "--backfill", "none"])
        .await?;
    ensure!(setup.code() == Some(0), "{setup:?}");
    Ok(world)
}

async fn wait_left(world: &World, expected: &str) -> Result<()> {
    let what = format!("`{expected}` rows to be left");
    eventually(&what, LONG, || async {
        text(&world.client, LEFT).await.is_ok_and(|left| left == expected)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn old_rows_go_while_events_flow_and_unsent_ones_and_those_of_dead_letters_stay() -> Result<()> {
    let world = with_rows().await?;
    world.client.batch_execute(DEAD_LETTERS).await?;
    let recorder = world.recorder().await?;
    let mut relay = keeping(world.relay()).build()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    // Those of yesterday go as well: rows stay for a minute.
    wait_left(&world, "102 100 2").await?;
    let ids = world.commit_events(10).await?;
    eventually("every new event to come", LONG, || {
        let delivered = recorder.distinct_ids();
        std::future::ready(ids.iter().all(|id| delivered.contains(id)))
    })
    .await?;
    eventually("the metric to say so", LONG, || async {
        relay
            .metrics()
            .await
            .is_ok_and(|metrics| metrics.sum(METRIC, &[]) == 298.0)
    })
    .await?;
    assert_eq!(relay.metrics().await?.sum(FAILURES, &[]), 0.0);
    world
        .client
        .batch_execute("delete from walrelay.dead_letters")
        .await?;
    wait_left(&world, "110 100 0").await?;
    Ok(())
}

/// I9. The words in /readyz can be pasted.
#[tokio::test]
async fn a_missing_right_degrades_and_names_the_grant_and_delivery_goes_on() -> Result<()> {
    let world = with_rows().await?;
    let recorder = world.recorder().await?;
    let role = format!("relay_{}", world.database.name());
    world
        .client
        .batch_execute(&format!(
            "create role {role} login replication; grant usage on schema walrelay to {role};
             grant select on walrelay.mark_owners, walrelay.state, walrelay.slots, walrelay.backfill to {role};
             grant update (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid) on walrelay.state to {role};
             grant select, update (sent_at) on outbox_events to {role}"
        ))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let mut relay = keeping(world.relay().postgres_url(&url)).build()?;
    relay.start()?;
    let fails =
        |readiness: &walrelay_testbed::Readiness| readiness.json["degraded"][0]["state"] == "retention";
    let readiness = relay.wait_readiness("retention fails", LONG, fails).await?;
    assert!(readiness.is_ready(), "{}", readiness.text);
    assert_eq!(readiness.json["degraded"][0]["cause"], "database_forbidden");
    let ids = world.commit_events(1).await?;
    eventually("the event to come", LONG, || {
        std::future::ready(recorder.distinct_ids().contains(&ids[0]))
    })
    .await?;
    // Twice, so that it would have been logged again.
    eventually("two failures", LONG, || async {
        relay
            .metrics()
            .await
            .is_ok_and(|metrics| metrics.sum(FAILURES, &[]) >= 2.0)
    })
    .await?;
    let told = |line: &&String| line.contains("retention fails; events flow meanwhile");
    assert_eq!(relay.log().iter().filter(told).count(), 1);

    let error = readiness.json["degraded"][0]["error"]
        .as_str()
        .context("an error")?;
    let (_, grant) = error.split_once("owner: ").context("a grant")?;
    let (grant, _) = grant.split_once("): ").context("its end")?;
    world.client.batch_execute(grant).await?;
    wait_left(&world, "101 100 0").await?;
    let works = |readiness: &walrelay_testbed::Readiness| readiness.json.get("degraded").is_none();
    relay.wait_readiness("retention works", LONG, works).await?;
    Ok(())
}

#[tokio::test]
async fn a_table_without_marks_degrades_and_delivery_goes_on() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    world
        .client
        .batch_execute("alter table outbox_events drop column sent_at")
        .await?;
    let recorder = world.recorder().await?;
    let mut relay = keeping(world.relay()).build()?;
    relay.start()?;
    let fails =
        |readiness: &walrelay_testbed::Readiness| readiness.json["degraded"][0]["cause"] == "table_unfit";
    let readiness = relay.wait_readiness("retention fails", LONG, fails).await?;
    assert!(readiness.is_ready(), "{}", readiness.text);
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_locked_table_fails_a_round_and_is_tried_again() -> Result<()> {
    let world = with_rows().await?;
    let recorder = world.recorder().await?;
    let mut other = world.database.client().await?;
    let lock = other.transaction().await?;
    // What writers do is let through, a delete is not.
    lock.batch_execute("lock table walrelay.dead_letters in access exclusive mode")
        .await?;
    let mut relay = keeping(world.relay()).build()?;
    relay.start()?;
    let locked =
        |readiness: &walrelay_testbed::Readiness| readiness.json["degraded"][0]["cause"] == "database_locked";
    let readiness = relay
        .wait_readiness("retention waits for the lock", LONG, locked)
        .await?;
    assert!(readiness.is_ready(), "{}", readiness.text);
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    lock.rollback().await?;
    wait_left(&world, "101 100 0").await?;
    Ok(())
}

/// A standby has no part in the table.
#[tokio::test]
async fn only_the_active_instance_deletes() -> Result<()> {
    let world = with_rows().await?;
    let mut active = world.relay().build()?;
    active.start()?;
    active.wait_ready(LONG).await?;
    let mut standby = keeping(world.relay()).build()?;
    standby.start()?;
    let waits = |readiness: &walrelay_testbed::Readiness| readiness.json["role"] == "standby";
    standby.wait_readiness("standing by", LONG, waits).await?;
    // Its retention has been due for so long that it would have begun.
    let ticks = "select count(*)::text from outbox_events";
    let begun = std::time::Instant::now();
    eventually("three seconds to pass", LONG, || async {
        begun.elapsed().as_secs() >= 3 && text(&world.client, ticks).await.is_ok()
    })
    .await?;
    assert_eq!(text(&world.client, LEFT).await?, "400 100 200");
    assert_eq!(standby.metrics().await?.sum(METRIC, &[]), 0.0);
    active.kill().await?;
    wait_left(&world, "100 100 0").await?;
    Ok(())
}
