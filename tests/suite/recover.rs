//! A slot that is lost or gone (R23), and what becomes of the rows that it may have missed.

use std::collections::HashSet;

use anyhow::Result;
use walrelay_testbed::{Postgres, PostgresOptions, eventually, shared_rabbitmq};

use crate::complaint::{Part, complains, named};
use crate::setup::{last_line, normalised, said, stop};
use crate::world::{LONG, World, text};

/// A server that gives a slot up soon.
pub(crate) async fn impatient_server() -> Result<Postgres> {
    let options = PostgresOptions::default()
        .setting("max_slot_wal_keep_size", "1MB")
        .setting("min_wal_size", "32MB")
        .setting("max_wal_size", "32MB");
    Ok(Postgres::start(options).await?)
}

impl World {
    /// Writes log until the server has given the slot up.
    pub(crate) async fn lose_slot(&self) -> Result<()> {
        let status = format!(
            "select coalesce(wal_status, '') from pg_replication_slots where slot_name = '{}'",
            self.slot()
        );
        eventually("the slot to be lost", LONG, || async {
            for _ in 0..4 {
                let filler = "create table if not exists filler (t text); \
                              insert into filler select repeat('x', 1000) from generate_series(1, 1000); \
                              select pg_switch_wal()";
                drop(self.client.batch_execute(filler).await);
            }
            drop(self.client.batch_execute("checkpoint").await);
            text(&self.client, &status)
                .await
                .is_ok_and(|status| status == "lost")
        })
        .await?;
        Ok(())
    }

    /// As the owner of the table's marks would.
    async fn mark_all(&self) -> Result<()> {
        let sql = "update outbox_events set sent_at = now() where sent_at is null";
        Ok(self.client.batch_execute(sql).await?)
    }
}

#[tokio::test]
async fn r23_all_10_000_events_that_a_lost_slot_missed_are_delivered() -> Result<()> {
    let postgres = impatient_server().await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let mut relay = world.relay().start().await?;
    let recorder = world.recorder().await?;
    let earlier = world.commit_events(20).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    stop(&mut relay).await?;
    world.mark_all().await?;
    let missed: HashSet<String> = world.old_rows(10_000).await?.into_iter().collect();
    world.lose_slot().await?;

    relay.start()?;
    complains(&mut relay, Part::Database, "slot_lost", &["is lost"]).await?;
    let unasked = relay.run_command(&["recover"]).await?;
    assert_eq!((unasked.code(), unasked.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(normalised(&world, last_line(&unasked)), @"walrelay: the replication slot `SLOT` is lost: the server removed WAL that it needed, and recover makes it anew: say --yes where there is no terminal to ask on");
    let output = relay.run_command(&["recover", "--yes"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    found    the replication slot `SLOT` is lost: the server removed WAL that it needed
    found    publication walrelay
    dropped  slot SLOT
    created  slot SLOT (streams from LSN)
    written  baseline of publication and tables
    copied   10000 unsent rows of public.outbox_events, to be sent first, by created_at
    warning  up to 10000 of these may be duplicates: sent, but not yet marked or deleted; normally those of the last second
    warning  rows that were inserted and deleted while no slot kept them cannot be recovered
    ");
    relay.wait_ready(LONG).await?;
    recorder.wait_for_distinct(10_020, LONG).await?;
    world.wait_backfilled().await?;
    let later = world.commit_events(1).await?;
    recorder.wait_for_distinct(10_021, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    let delivered = recorder.distinct_ids();
    assert!(missed.is_subset(&delivered));
    assert!(earlier.iter().chain(&later).all(|id| delivered.contains(id)));
    Ok(())
}

/// R23: skipped events and dead letters have their end, and a retry under way is asked for again (R16).
#[tokio::test]
async fn r23_neither_skips_nor_dead_letters_come_back_but_retries_go_on() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    stop(&mut relay).await?;
    let old = world.old_rows(6).await?;
    let slot = world.slot();
    let set_aside = |id: &str, state: &str, number: usize| {
        format!(
            "insert into walrelay.dead_letters (slot, commit_lsn, tx_seq, outbox, xid, commit_time, event_id, reason, detail,
             columns, state) select '{slot}', '0/{number}0', 0, 'public.outbox_events', 5, now(), id::text, 'unroutable', '',
             json_build_object('id', id::text, 'aggregate_type', aggregate_type, 'aggregate_id', aggregate_id::text,
             'event_type', event_type, 'payload', payload::text, 'sent_at', null, 'created_at', created_at::text,
             'headers', null), '{state}' from outbox_events where id = '{id}'"
        )
    };
    world
        .client
        .batch_execute(&set_aside(&old[0], "pending", 1))
        .await?;
    world
        .client
        .batch_execute(&set_aside(&old[1], "retrying", 2))
        .await?;
    world
        .client
        .batch_execute(&format!(
            "insert into walrelay.skips (slot, event_id, reason, settled_at, settled_commit_lsn, settled_tx_seq, settled_xid)
             values ('{slot}', '{}', 'no', now(), '0/50', 0, 7);
             insert into walrelay.skips (slot, commit_lsn, tx_seq, reason, settled_at, settled_commit_lsn, settled_tx_seq,
             settled_xid, settled_event_id) values ('{slot}', '0/60', 0, 'no', now(), '0/60', 0, 7, '{}')",
            old[2], old[3]
        ))
        .await?;
    world.database.drop_slots().await?;

    let output = relay.run_command(&["recover", "--yes"]).await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    found    the replication slot `SLOT` does not exist
    found    publication walrelay
    created  slot SLOT (streams from LSN)
    written  baseline of publication and tables
    copied   2 unsent rows of public.outbox_events, to be sent first, by created_at
    warning  up to 2 of these may be duplicates: sent, but not yet marked or deleted; normally those of the last second
    warning  rows that were inserted and deleted while no slot kept them cannot be recovered
    again    retry of 1 dead letters
    ");
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for_distinct(3, LONG).await?;
    let later = world.commit_events(1).await?;
    recorder.wait_for_distinct(4, LONG).await?;
    let delivered = recorder.distinct_ids();
    let expected = [&old[1], &old[4], &old[5], &later[0]].map(String::clone);
    assert_eq!(delivered, HashSet::from(expected));
    let left = "select coalesce(string_agg(event_id, ','), '') from walrelay.dead_letters";
    eventually("the retry to be settled", LONG, || async {
        text(&world.client, left).await.is_ok_and(|left| left == old[0])
    })
    .await?;
    Ok(())
}

/// Without marks nothing tells what was sent: a guess would lose events or send all there ever were.
#[tokio::test]
async fn r23_a_table_without_marks_needs_a_time() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    world
        .client
        .batch_execute("alter table outbox_events drop column sent_at")
        .await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let old = world.old_rows(10).await?;
    world.database.drop_slots().await?;
    let refused = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(normalised(&world, last_line(&refused)), @"walrelay: nothing tells which rows of public.outbox_events the slot `SLOT` has missed: it has no marks: run `walrelay recover --since TIME`: it sends the rows written since, those that were sent before again");
    assert_eq!(world.slots().await?, 0);

    // The sixth row's time.
    let output = relay
        .run_command(&["recover", "--yes", "--since", "2026-01-01T00:00:06Z"])
        .await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    found    the replication slot `SLOT` does not exist
    found    publication walrelay
    created  slot SLOT (streams from LSN)
    written  baseline of publication and tables
    copied   5 rows of public.outbox_events since 2026-01-01T00:00:06Z, to be sent first, by created_at
    warning  any of these 5 may be a duplicate: nothing tells which rows of public.outbox_events were sent
    warning  rows that were inserted and deleted while no slot kept them cannot be recovered
    ");
    let recorder = world.recorder().await?;
    relay.start()?;
    let deliveries = recorder.wait_for(5, LONG).await?;
    let ids: Vec<_> = deliveries
        .iter()
        .map(|delivery| delivery.message_id.as_str())
        .collect();
    assert_eq!(ids, old[5..]);
    Ok(())
}

/// R23, with `on_slot_lost = "rescan"`.
#[tokio::test]
async fn r23_a_relay_that_may_recovers_a_lost_slot_by_itself() -> Result<()> {
    let postgres = impatient_server().await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let mut relay = world
        .relay()
        .text("recovery.on_slot_lost", "rescan")
        .start()
        .await?;
    stop(&mut relay).await?;
    let missed = world.old_rows(50).await?;
    world.lose_slot().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for_distinct(50, LONG).await?;
    world.wait_backfilled().await?;
    relay
        .wait_for_log("the recovery", LONG, |line| {
            line.contains("50 unsent rows of public.outbox_events")
        })
        .await?;
    let ids: Vec<_> = recorder.message_ids();
    assert_eq!(ids, missed);
    world.commit_events(1).await?;
    recorder.wait_for_distinct(51, LONG).await?;
    Ok(())
}

/// Nor is a slot made for a database that was never set up, or whose slot was torn down.
#[tokio::test]
async fn r23_a_relay_that_may_recover_makes_no_slot_where_none_was_set_up() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().text("recovery.on_slot_lost", "rescan").build()?;
    relay.start()?;
    named(&mut relay, Part::Database, "not_set_up").await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    stop(&mut relay).await?;
    let torn_down = relay.run_command(&["teardown", "--yes"]).await?;
    assert_eq!(torn_down.code(), Some(0), "{}", torn_down.stderr);
    relay.start()?;
    named(&mut relay, Part::Database, "not_set_up").await?;
    assert_eq!(world.slots().await?, 0);
    Ok(())
}

/// R22, R23: rows of a backfill that is not over are not noted twice, and none is forgotten.
#[tokio::test]
async fn r23_a_slot_lost_in_the_middle_of_a_backfill_loses_and_repeats_nothing() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let old = world.old_rows(10).await?;
    world.mark_all().await?;
    let mut relay = world.relay().build()?;
    // Marked rows, which recovery would not look for.
    let output = relay.run_command(&["setup", "--backfill", "all"]).await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    let later = world.commit_events(3).await?;
    world.database.drop_slots().await?;
    let output = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!(output.code(), Some(0), "{}", output.stderr);
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for(13, LONG).await?;
    world.wait_backfilled().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(14, LONG).await?;
    let ids = recorder.message_ids();
    assert_eq!(ids[..10], old);
    assert_eq!(ids[10..13], later);
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}
