//! The library for producers and consumers: an event goes with its transaction, and its effect happens once.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;
use walrelay_outbox::{Arrival, Event, Inbox, Outbox};
use walrelay_testbed::{Database, eventually, shared_postgres};

use crate::world::{LONG, World, text};

/// A database with a consumer's table, and a row to count effects in.
async fn consumer() -> Result<Database> {
    let database = shared_postgres().await?.database().await?;
    // Twice: a migration may run again.
    database.execute(Inbox::SCHEMA).await?;
    database.execute(Inbox::SCHEMA).await?;
    database
        .execute("create table stock (on_hand integer not null); insert into stock values (1000)")
        .await?;
    Ok(database)
}

/// One delivery of an event, as a consumer handles it.
async fn deliver(client: &mut Client, event_id: Uuid) -> Result<Arrival> {
    let transaction = client.transaction().await?;
    let arrival = Inbox::once(&transaction, event_id).await?;
    if arrival == Arrival::First {
        transaction
            .execute("update stock set on_hand = on_hand - 1", &[])
            .await?;
    }
    transaction.commit().await?;
    Ok(arrival)
}

const ON_HAND: &str = "select on_hand::text from stock";
const NOTED: &str = "select count(*)::text from processed_events";

#[tokio::test]
async fn concurrent_deliveries_of_an_event_have_one_effect() -> Result<()> {
    const CONSUMERS: usize = 8;
    let database = consumer().await?;
    let ids: Vec<Uuid> = (0..50).map(|_| Uuid::new_v4()).collect();
    let mut consumers = tokio::task::JoinSet::new();
    for _ in 0..CONSUMERS {
        let (mut client, ids) = (database.client().await?, ids.clone());
        consumers.spawn(async move {
            let mut firsts = 0;
            for id in ids {
                firsts += usize::from(deliver(&mut client, id).await? == Arrival::First);
            }
            anyhow::Ok(firsts)
        });
    }
    let mut firsts = 0;
    while let Some(consumer) = consumers.join_next().await {
        firsts += consumer??;
    }
    assert_eq!(firsts, 50);
    let client = database.client().await?;
    assert_eq!(text(&client, ON_HAND).await?, "950");
    assert_eq!(text(&client, NOTED).await?, "50");
    Ok(())
}

/// The second delivery waits for the first, whose end decides.
#[tokio::test]
async fn a_delivery_beside_an_open_one_waits_for_its_end() -> Result<()> {
    let database = consumer().await?;
    for (commits, expected) in [(true, Arrival::Again), (false, Arrival::First)] {
        let id = Uuid::new_v4();
        let mut first = database.client().await?;
        let transaction = first.transaction().await?;
        assert_eq!(Inbox::once(&transaction, id).await?, Arrival::First);

        let mut second = database.client().await?;
        let waiting = tokio::spawn(async move { deliver(&mut second, id).await });
        let observer = database.client().await?;
        let blocked = "select exists (select from pg_stat_activity
                       where datname = current_database() and wait_event_type = 'Lock')";
        eventually("the second delivery to wait", LONG, async || {
            observer.query_one(blocked, &[]).await.is_ok_and(|row| row.get(0))
        })
        .await?;
        if commits {
            transaction.commit().await?;
        } else {
            transaction.rollback().await?;
        }
        assert_eq!(waiting.await??, expected, "the first one committed: {commits}");
    }
    Ok(())
}

#[tokio::test]
async fn what_was_rolled_back_was_not_processed() -> Result<()> {
    let database = consumer().await?;
    let mut client = database.client().await?;
    let id = Uuid::new_v4();
    let transaction = client.transaction().await?;
    assert_eq!(Inbox::once(&transaction, id).await?, Arrival::First);
    // As when the consumer dies: the transaction is dropped.
    drop(transaction);
    assert_eq!(deliver(&mut client, id).await?, Arrival::First);
    assert_eq!(deliver(&mut client, id).await?, Arrival::Again);
    assert_eq!(text(&client, ON_HAND).await?, "999");
    Ok(())
}

#[tokio::test]
async fn old_notes_go_in_batches_and_young_ones_stay() -> Result<()> {
    let database = consumer().await?;
    let mut client = database.client().await?;
    client
        .batch_execute(
            "insert into processed_events select gen_random_uuid(), now() - interval '31 days' from generate_series(1, 25);
             insert into processed_events select gen_random_uuid(), now() - interval '29 days' from generate_series(1, 3);
             create table batches (rows bigint);
             create function note_batch() returns trigger language plpgsql as
               $$ begin insert into batches select count(*) from gone; return null; end $$;
             create trigger batches after delete on processed_events referencing old table as gone
               for each statement execute function note_batch()",
        )
        .await?;
    let month = Duration::from_secs(30 * 24 * 3600);
    // One that is being processed, or deleted by another call, is passed over.
    let mut other = database.client().await?;
    let transaction = other.transaction().await?;
    let lock = "select from processed_events where event_id = (select event_id from processed_events
                order by processed_at limit 1) for update";
    transaction.execute(lock, &[]).await?;
    assert_eq!(Inbox::delete_older_than(&client, month, 10).await?, 24);
    transaction.rollback().await?;
    assert_eq!(
        text(&client, "select string_agg(rows::text, ' ') from batches").await?,
        "10 10 4"
    );
    assert_eq!(Inbox::delete_older_than(&client, month, 10).await?, 1);
    assert_eq!(Inbox::delete_older_than(&client, Duration::ZERO, 0).await?, 0);
    assert_eq!(text(&client, NOTED).await?, "3");

    // That is why they have to be kept for long: a duplicate of a forgotten one is taken for new.
    let id = Uuid::new_v4();
    assert_eq!(deliver(&mut client, id).await?, Arrival::First);
    client
        .batch_execute("update processed_events set processed_at = now() - interval '1 hour'")
        .await?;
    assert_eq!(
        Inbox::delete_older_than(&client, Duration::from_secs(60), 1000).await?,
        4
    );
    assert_eq!(deliver(&mut client, id).await?, Arrival::First);
    Ok(())
}

/// Through the relay: the producer's event arrives as it was written, or not at all.
#[tokio::test]
async fn an_event_goes_with_its_transaction_and_no_further() -> Result<()> {
    let mut world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;
    let event = |number| Event {
        id: Uuid::new_v4(),
        aggregate_type: "order",
        aggregate_id: number,
        event_type: "OrderCreated",
        payload: r#"{"sku_ids": [1, 2]}"#,
    };
    let (rolled_back, committed) = (event(1), event(2));
    let transaction = world.client.transaction().await?;
    Outbox::insert(&transaction, rolled_back).await?;
    transaction.rollback().await?;
    let transaction = world.client.transaction().await?;
    Outbox::insert(&transaction, committed).await?;
    transaction.commit().await?;

    let delivered = recorder.wait_for(1, LONG).await?;
    assert_eq!(delivered[0].message_id, committed.id.to_string());
    assert_eq!(delivered[0].routing_key, "order.OrderCreated");
    assert_eq!(delivered[0].body, committed.payload.as_bytes());
    assert_eq!(crate::world::header(&delivered[0], "aggregate_id"), Some("2"));

    // A second event with the same id is not passed over in silence.
    let transaction = world.client.transaction().await?;
    let error = Outbox::insert(&transaction, committed)
        .await
        .expect_err("the id is there already");
    assert_eq!(error.code(), Some(&SqlState::UNIQUE_VIOLATION));
    drop(transaction);
    let transaction = world.client.transaction().await?;
    let broken = Event {
        id: Uuid::new_v4(),
        payload: "{",
        ..committed
    };
    let error = Outbox::insert(&transaction, broken)
        .await
        .expect_err("that is no JSON");
    assert_eq!(error.code(), Some(&SqlState::INVALID_TEXT_REPRESENTATION));
    Ok(())
}
