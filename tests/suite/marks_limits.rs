//! Marks at their limits: a queue that overflows, memory under load, rows that row security hides (R20, R21, I5).

use anyhow::Result;
use walrelay_testbed::{Keep, Recorder, eventually};

use crate::marks::{metric, plain_role, wait_for_degraded, wait_for_rows, wait_until_healed};
use crate::world::{LONG, QUEUE, World, commit_at_once};

/// The ids that may wait for their marks.
const MOST: usize = 65_536;

/// R21, I5: nothing can be marked while more events are published than ids may wait. Memory stays bounded, what is over is
/// given up and counted, and a sweep marks it afterwards.
#[tokio::test]
async fn r21_marks_that_find_no_room_are_left_to_a_sweep_and_cost_no_memory() -> Result<()> {
    const EVENTS: usize = MOST + 6_000;
    let world = World::new().await?;
    let recorder = Recorder::keeping(&world.vhost, QUEUE, Keep::Ids).await?;
    let mut relay = world.relay().text("log.level", "info").build()?;
    relay.setup().await?;
    let committed = commit_at_once(&world.client, EVENTS).await?;
    let other = world.database.client().await?;
    other
        .batch_execute("begin; lock table outbox_events in share mode")
        .await?;
    relay.start()?;
    recorder.wait_for_distinct(EVENTS, LONG * 5).await?;
    // R18: marking has failed for longer than a second.
    world.wait_flushed(committed).await?;
    let queued = metric(&relay, "walrelay_marks_queued").await?;
    let dropped = metric(&relay, "walrelay_marks_dropped_total").await?;
    assert!(queued > 0.0 && queued <= MOST as f64, "{queued} wait");
    assert_eq!(dropped, EVENTS as f64 - queued, "what finds no room is given up");
    let peak = relay.peak_rss_kib()?;
    assert!(peak < 64 * 1024, "{peak} KiB with {queued} ids that wait");
    eprintln!("{EVENTS} events, {queued} ids wait, {dropped} given up: peak {peak} KiB");

    other.batch_execute("rollback").await?;
    wait_for_rows(&world.client, i64::try_from(EVENTS)?, 0).await?;
    assert_eq!(recorder.duplicates(), 0);
    eventually("the sweep to be over", LONG, async || {
        metric(&relay, "walrelay_marks_queued")
            .await
            .is_ok_and(|queued| queued == 0.0)
    })
    .await?;
    Ok(())
}

/// R20: rows that the role cannot see would be passed over in silence.
#[tokio::test]
async fn r20_row_security_that_hides_rows_degrades_the_marks_and_names_the_remedy() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().text("postgres.guard_interval", "1s").build()?;
    relay.setup().await?;
    let role = plain_role(&world).await?;
    let sql = format!(
        "grant update (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid) on walrelay.state to {role};
         grant select, update (sent_at) on outbox_events to {role};
         alter table outbox_events enable row level security;
         create policy visible on outbox_events using (aggregate_type <> 'order')"
    );
    world.client.batch_execute(&sql).await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|builder| builder.postgres_url(&url))?;
    relay.start()?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    wait_for_degraded(&mut relay, "marks_unfit").await?;
    let readiness = relay.ready().await?;
    let part = &readiness.json["degraded"][0];
    assert_eq!(
        part["error"],
        "row security hides rows of table public.outbox_events from our role"
    );
    assert_eq!(
        part["remedy"],
        "change what the error names (row security: alter role ... bypassrls), or set after_publish = \"keep\" for the table"
    );
    wait_for_rows(&world.client, 10, 10).await?;
    world
        .client
        .batch_execute(&format!("alter role {role} bypassrls"))
        .await?;
    wait_until_healed(&world, &mut relay).await
}
