//! Marks at their limits: a queue that overflows, memory under load, rows that row security hides, partitions (R20, R21,
//! I5).

use anyhow::Result;
use walrelay_testbed::{Keep, Recorder, eventually};

use crate::marks::{metric, plain_role, rows, wait_for_degraded, wait_for_rows, wait_until_healed};
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

/// R20: marks go through the root, where an index on exactly the id is possible only if the id is the partition key.
#[tokio::test]
async fn a_partitioned_table_is_marked_where_its_id_is_unique() -> Result<()> {
    for (key, index, is_marked) in [
        ("hash (id)", "id", true),
        ("range (created_at)", "id, created_at", false),
    ] {
        let world = World::new().await?;
        let recorder = world.recorder().await?;
        let bounds = match is_marked {
            true => ["with (modulus 2, remainder 0)", "with (modulus 2, remainder 1)"],
            false => [
                "from ('2000-01-01') to ('2020-01-01')",
                "from ('2020-01-01') to ('2100-01-01')",
            ],
        };
        let sql = format!(
            "create table outbox_events (id uuid not null, aggregate_type text not null, aggregate_id bigint not null,
                 event_type text not null, payload jsonb not null, sent_at timestamptz,
                 created_at timestamptz not null default now(), primary key ({index})) partition by {key};
             create table one partition of outbox_events for values {};
             create table two (sent_at timestamptz, id uuid not null, aggregate_type text not null,
                 aggregate_id bigint not null, event_type text not null, payload jsonb not null,
                 created_at timestamptz not null default now());
             alter table outbox_events attach partition two for values {}",
            bounds[0], bounds[1]
        );
        world.client.batch_execute(&sql).await?;
        let mut relay = world.running().await?;
        world.commit_events(20).await?;
        recorder.wait_for_distinct(20, LONG).await?;
        if is_marked {
            wait_for_rows(&world.client, 20, 0).await?;
        } else {
            wait_for_degraded(&mut relay, "marks_index").await?;
            assert_eq!(rows(&world.client).await?, (20, 20));
        }
    }
    Ok(())
}
