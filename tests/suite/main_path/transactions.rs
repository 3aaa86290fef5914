//! Whole transactions in commit order, and the position that follows them.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use super::{insert_labelled, labels_up_to};
use crate::world::{EXCHANGE, LONG, QUEUE, World, header, tx_seq, wal_end};

/// R1.
#[tokio::test]
async fn a_copy_of_5000_rows_is_5000_messages_in_the_rows_order() -> Result<()> {
    const ROWS: i64 = 5_000;
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;

    let sql = format!(
        r#"copy outbox_events (id, aggregate_type, aggregate_id, event_type, payload) from program
           $$seq 0 {} | awk '{{ printf "%08x-0000-4000-8000-000000000000\torder\t%d\tOrderCreated\t{{}}\n", $1, $1 }}'$$"#,
        ROWS - 1
    );
    world.client.batch_execute(&sql).await?;
    let came = recorder.wait_for(ROWS as u64, LONG).await?;

    assert!(came.iter().filter_map(tx_seq).eq(0..ROWS));
    let mut commits = came.iter().map(|delivery| header(delivery, "commit_lsn"));
    let first = commits.next().context("a delivery")?;
    assert!(first.is_some() && commits.all(|commit| commit == first));
    for (number, delivery) in came.iter().enumerate() {
        assert_eq!(
            delivery.message_id,
            format!("{number:08x}-0000-4000-8000-000000000000")
        );
    }
    Ok(())
}

/// I3: the order is that of the commits, not that of the inserts.
#[tokio::test]
async fn interleaved_transactions_arrive_whole_and_in_commit_order() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;
    let (first, second) = (&world.client, world.database.client().await?);

    first.batch_execute("begin").await?;
    insert_labelled(first, "a1").await?;
    second.batch_execute("begin").await?;
    insert_labelled(&second, "b1").await?;
    insert_labelled(first, "a2").await?;
    insert_labelled(&second, "b2").await?;
    second.batch_execute("commit").await?;
    insert_labelled(first, "a3").await?;
    first.batch_execute("commit").await?;

    assert_eq!(
        labels_up_to(&recorder, "a3").await?,
        ["b1", "b2", "a1", "a2", "a3"]
    );
    let came = recorder.deliveries();
    assert!(came.iter().filter_map(tx_seq).eq([0, 1, 0, 1, 2]));
    let commits: BTreeSet<_> = came
        .iter()
        .map(|delivery| header(delivery, "commit_lsn"))
        .collect();
    assert_eq!(commits.len(), 2);
    Ok(())
}

/// I2.
#[tokio::test]
async fn what_is_rolled_back_is_never_delivered() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;
    let client = &world.client;

    client.batch_execute("begin").await?;
    insert_labelled(client, "rolled-back").await?;
    client.batch_execute("rollback").await?;
    client.batch_execute("begin").await?;
    insert_labelled(client, "before").await?;
    client.batch_execute("savepoint s").await?;
    insert_labelled(client, "to-the-savepoint").await?;
    client.batch_execute("rollback to s").await?;
    insert_labelled(client, "after").await?;
    client.batch_execute("commit").await?;

    assert_eq!(labels_up_to(&recorder, "after").await?, ["before", "after"]);
    assert!(recorder.deliveries().iter().filter_map(tx_seq).eq([0, 1]));
    Ok(())
}

/// I1: the row need not be there any more.
#[tokio::test]
async fn a_row_inserted_and_deleted_in_one_transaction_is_delivered() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;

    world.client.batch_execute("begin").await?;
    insert_labelled(&world.client, "deleted-at-once").await?;
    world
        .client
        .batch_execute("delete from outbox_events; commit")
        .await?;

    assert_eq!(
        labels_up_to(&recorder, "deleted-at-once").await?,
        ["deleted-at-once"]
    );
    Ok(())
}

#[tokio::test]
async fn updates_deletes_and_truncates_deliver_nothing() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;

    insert_labelled(&world.client, "inserted").await?;
    insert_labelled(&world.client, "inserted-too").await?;
    let sql = "update outbox_events set event_type = 'updated';
               update outbox_events set sent_at = now();
               delete from outbox_events where ctid = (select min(ctid) from outbox_events);
               truncate outbox_events;";
    for statement in sql.split_terminator(';') {
        world.client.batch_execute(statement).await?;
    }
    insert_labelled(&world.client, "last").await?;

    assert_eq!(
        labels_up_to(&recorder, "last").await?,
        ["inserted", "inserted-too", "last"]
    );
    Ok(())
}

/// I1: acknowledged once confirmed. I8, R3: an idle outbox retains no WAL of other tables.
#[tokio::test]
async fn the_slot_follows_what_is_delivered_and_what_other_tables_write() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;

    world.commit_events(1).await?;
    let committed = wal_end(&world.client).await?;
    recorder.wait_for(1, LONG).await?;
    world.wait_flushed(committed).await?;

    world
        .client
        .batch_execute("create table other (n bigint); insert into other select generate_series(1, 100000)")
        .await?;
    let written = wal_end(&world.client).await?;
    world.wait_flushed(written).await?;
    assert_eq!(recorder.count(), 1);
    assert_eq!(world.vhost.queue_length(QUEUE).await?, 0);
    assert_eq!(recorder.deliveries()[0].exchange, EXCHANGE);
    Ok(())
}
