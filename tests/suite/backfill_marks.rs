//! Marks of rows that the stream does not bring (R18, R22): no crash leaves such a row unsent that was published.

use anyhow::Result;
use walrelay_testbed::eventually;

use crate::marks::{plain_role, wait_for_degraded, wait_for_rows};
use crate::world::{LONG, World, text, wal_end};

const NOTED: &str = "select count(*)::text from walrelay.backfill where is_settled";

/// Waits until so many rows are noted as settled, and none as unsettled.
async fn wait_noted(world: &World, count: usize) -> Result<()> {
    let unsettled = "select count(*)::text from walrelay.backfill where not is_settled";
    let what = format!("{count} rows to be noted as settled");
    eventually(&what, LONG, || async {
        text(&world.client, NOTED)
            .await
            .is_ok_and(|noted| noted == count.to_string())
            && text(&world.client, unsettled).await.is_ok_and(|left| left == "0")
    })
    .await?;
    Ok(())
}

/// The sweep passes rows over that are older than the slot: their notes stay until they are marked.
#[tokio::test]
async fn r22_a_relay_killed_before_the_marks_of_a_backfill_leaves_no_sent_row_unsent() -> Result<()> {
    for setting in ["", "after_publish = \"delete\""] {
        let world = World::for_orders().await?.with_old_table().await?;
        world.old_rows(50).await?;
        let unroutable = "update outbox_events set aggregate_type = 'nobody'
                          where created_at = (select min(created_at) from outbox_events)";
        world.client.batch_execute(unroutable).await?;
        let recorder = world.recorder().await?;
        let mut relay = world
            .relay()
            .text("delivery.on_unroutable", "dead_letter")
            .extra(setting)
            .build()?;
        relay.setup().await?;
        let other = world.database.client().await?;
        other
            .batch_execute("begin; lock table outbox_events in share mode")
            .await?;
        relay.start()?;
        recorder.wait_for_distinct(49, LONG).await?;
        wait_noted(&world, 50).await?;
        relay.kill().await?;
        other.batch_execute("rollback").await?;
        relay.start()?;
        // The dead letter's row stays as it is.
        wait_for_rows(&world.client, if setting.is_empty() { 50 } else { 1 }, 1).await?;
        world.wait_backfilled().await?;
        assert_eq!(recorder.duplicates(), 0, "with {setting:?}");
        world.commit_events(1).await?;
        recorder.wait_for_distinct(50, LONG).await?;
    }
    Ok(())
}

/// R20: nor does a right that is missing while they are sent, for however long.
#[tokio::test]
async fn r22_rows_sent_without_the_right_to_mark_them_are_marked_once_it_is_granted() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    world.old_rows(50).await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().text("postgres.guard_interval", "1s").build()?;
    relay.setup().await?;
    let role = plain_role(&world).await?;
    let rights = format!(
        "grant select on outbox_events, walrelay.backfills to {role};
         grant delete, update (is_settled) on walrelay.backfill to {role}"
    );
    world.client.batch_execute(&rights).await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|builder| builder.postgres_url(&url))?;
    relay.start()?;
    recorder.wait_for_distinct(50, LONG).await?;
    wait_for_degraded(&mut relay, "marks_forbidden").await?;
    wait_noted(&world, 50).await?;
    // The stream goes on meanwhile, and so does another process.
    world.commit_events(1).await?;
    recorder.wait_for_distinct(51, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.kill().await?;
    relay.start()?;
    wait_for_degraded(&mut relay, "marks_forbidden").await?;
    let grant = format!("grant update (sent_at) on outbox_events to {role}");
    world.client.batch_execute(&grant).await?;
    // What the stream brought is the sweep's.
    wait_for_rows(&world.client, 51, 0).await?;
    world.wait_backfilled().await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
