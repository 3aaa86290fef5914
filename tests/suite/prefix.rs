//! The settled prefix (R19): few duplicates after a crash, however large the transaction.

use anyhow::{Context as _, Result};
use walrelay::postgres::{EventPosition, settled};
use walrelay_testbed::{
    Keep, Postgres, PostgresOptions, QueueOptions, Recorder, eventually, shared_rabbitmq,
};

use crate::source::SetUp;
use crate::world::{EXCHANGE, LONG, QUEUE, World, insert_event, text, wait_true, wal_end};

/// A relay killed within a transaction of so many events sends again what was settled since the last stored prefix, and
/// what was in flight. Returns how many that were.
async fn killed_within(events: usize, setting: &str) -> Result<u64> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    world.vhost.delete_queue(QUEUE).await?;
    world.vhost.declare_queue(QueueOptions::quorum(QUEUE)).await?;
    world.vhost.bind(QUEUE, EXCHANGE, "#").await?;
    let recorder = Recorder::keeping(&world.vhost, QUEUE, Keep::Ids).await?;
    let mut relay = world.relay().extra(setting).start().await?;
    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'order', n % 1000, 'OrderCreated', jsonb_build_object('number', n)
         from generate_series(1, {events}) n"
    );
    world.client.batch_execute(&sql).await?;
    let committed = wal_end(&world.client).await?;
    recorder.wait_for_many(events / 3, LONG).await?;
    relay.kill().await?;
    let sql = "select coalesce(max(settled_tx_seq), -1)::text from walrelay.state";
    let prefix: u64 = text(&world.client, sql).await?.parse()?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    recorder.wait_for_many(events, LONG).await?;
    world.wait_flushed(committed).await?;
    assert_eq!(recorder.distinct_count(), events);
    assert_eq!(
        relay.metrics().await?.sum("walrelay_events_read_total", &[]),
        (events as u64 - prefix - 1) as f64
    );
    let duplicates = recorder.duplicates();
    eprintln!("{events} events, {setting:?}: {prefix} settled on record, {duplicates} sent again");
    Ok(duplicates)
}

/// R19, I7.
#[tokio::test]
async fn a_relay_killed_within_a_large_transaction_sends_little_of_it_again() -> Result<()> {
    for setting in ["", "after_publish = \"keep\""] {
        let duplicates = killed_within(200_000, setting).await?;
        // A second's worth by the timer, or a few batches; not the third of the transaction that was settled.
        assert!(duplicates < 40_000, "{duplicates} with {setting:?}");
    }
    Ok(())
}

/// R19, I7.
#[tokio::test]
#[ignore = "some minutes: a million events, where a_relay_killed_within_a_large_transaction_… has 200,000"]
async fn a_relay_killed_within_a_million_events_sends_little_of_them_again() -> Result<()> {
    let duplicates = killed_within(1_000_000, "").await?;
    assert!(duplicates < 40_000, "{duplicates}");
    Ok(())
}

/// R19: what is discarded or skipped before a held event is not judged again after a crash.
#[tokio::test]
async fn a_discarded_event_behind_the_slots_position_is_not_discarded_again_after_a_crash() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world
        .relay()
        .text("delivery.on_invalid", "discard")
        .start()
        .await?;
    world.vhost.delete_queue(QUEUE).await?;
    let sql = "begin;
        insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
            values (gen_random_uuid(), 'order', 1, '', '{}');
        insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
            values (gen_random_uuid(), 'nobody', 1, 'Asked', '{}');
        commit";
    world.client.batch_execute(sql).await?;
    relay.wait_not_ready(LONG).await?;
    let prefix = "select coalesce(max(settled_tx_seq), -1)::text from walrelay.state";
    eventually("the prefix to be stored", LONG, async || {
        text(&world.client, prefix)
            .await
            .is_ok_and(|prefix| prefix == "0")
    })
    .await?;
    relay.kill().await?;
    relay.start()?;
    let held = relay.wait_not_ready(LONG).await?;
    let held = match held.json["delivery"]["state"] == "held" {
        true => held,
        false => {
            relay
                .wait_readiness("the held event", LONG, |ready| {
                    ready.json["delivery"]["state"] == "held"
                })
                .await?
        }
    };
    assert_eq!(
        held.json["delivery"]["cause"], "event_unroutable",
        "{}",
        held.text
    );
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("walrelay_discarded_total", &[]), 0.0);
    assert_eq!(metrics.sum("walrelay_recognised_total", &[]), 1.0);
    Ok(())
}

/// R19, I8: nothing is written while nothing is settled, though the log goes on.
#[tokio::test]
async fn an_idle_relay_stores_no_prefix() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.running().await?;
    world.commit_events(3).await?;
    recorder.wait_for_distinct(3, LONG).await?;
    let complete = "select settled_complete::text from walrelay.state where settled_tx_seq is not null";
    wait_true(&world.client, "the prefix to be stored", complete).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    let row = "select ctid::text || xmin from walrelay.state";
    let before = text(&world.client, row).await?;
    let updates = async || {
        relay
            .metrics()
            .await
            .map(|metrics| metrics.sum("walrelay_status_updates_total", &[]))
    };
    let from = updates().await?;
    world
        .client
        .batch_execute("create table filler as select n from generate_series(1, 1000) n")
        .await?;
    eventually("some seconds to pass", LONG, async || {
        updates().await.is_ok_and(|now| now >= from + 4.0)
    })
    .await?;
    assert_eq!(text(&world.client, row).await?, before);
    Ok(())
}

/// R19, R15: a prefix counts for the stream that comes from the same server, and for that cluster only.
#[tokio::test]
async fn a_prefix_of_another_cluster_or_another_servers_is_not_passed_over() -> Result<()> {
    let set_up = SetUp::new().await?;
    let (stream, process_id) = set_up.stream().await?;
    let session = set_up.session().await?;
    let (slot, identity) = (&set_up.source.slot, stream.identity());
    let load = async |identity, process_id| settled::load(&session, slot, identity, process_id).await;
    let found = load(identity, process_id).await?.context("a record")?;
    assert_eq!(found.position, None, "nothing is settled yet");
    let sql = "update walrelay.state set settled_commit_lsn = '0/16B3748', settled_tx_seq = 7";
    set_up.client.batch_execute(sql).await?;
    let found = load(identity, process_id).await?.context("a prefix")?;
    assert_eq!(found.position, Some("0/16B3748:7".parse::<EventPosition>()?));
    assert_eq!(found.barrier.get(), 0, "it counts on no dead letter");
    assert_eq!(
        load(identity, process_id + 1).await?,
        None,
        "another server streams"
    );
    let mut other = identity;
    other.system_id += 1;
    assert_eq!(load(other, process_id).await?, None, "another cluster");

    // R15: a dead letter that the slot has not passed.
    let sql = "update walrelay.state set settled_commit_lsn = pg_current_wal_insert_lsn();
               insert into walrelay.dead_letters (slot, commit_lsn, tx_seq, outbox, xid, commit_time, reason, detail, columns)
               select slot, settled_commit_lsn, 0, 'outbox_events', 1, now(), 'invalid', '', '{}' from walrelay.state";
    set_up.client.batch_execute(sql).await?;
    let found = load(identity, process_id).await?.context("a prefix")?;
    let position = found.position.context("a prefix")?;
    assert!(found.barrier > position.commit_lsn);
    session.close().await;
    Ok(())
}

/// R19: a slot that is created anew begins with nothing settled.
#[tokio::test]
async fn a_new_slot_has_no_settled_prefix() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    insert_event(&world.client, 0).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    relay.terminate()?;
    relay.wait_exit(LONG).await?;
    let stored =
        "select (settled_commit_lsn is not null)::text || ' ' || settled_complete from walrelay.state";
    assert_eq!(text(&world.client, stored).await?, "true true");
    let recovered = relay.run_command(&["recover"]).await?;
    assert_eq!(recovered.code(), Some(0), "{}", recovered.stderr);
    assert_eq!(
        text(&world.client, stored).await?,
        "true true",
        "the slot is the same"
    );
    let torn_down = relay.run_command(&["teardown", "--yes"]).await?;
    assert_eq!(torn_down.code(), Some(0), "{}", torn_down.stderr);
    relay.setup().await?;
    assert_eq!(text(&world.client, stored).await?, "false true");
    Ok(())
}
