//! What becomes of events that cannot be delivered (R8 to R10, R15), and the guard (R5), with the relay at work.

use anyhow::Result;
use tokio_postgres::Client;
use walrelay_testbed::{Relay, eventually};

use crate::world::{EXCHANGE, LONG, World};

/// Inserts an event of this aggregate type and event type; returns its id.
async fn insert(client: &Client, aggregate_type: &str, event_type: &str) -> Result<String> {
    let row = client
        .query_one(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), $1, 42, $2, '{\"n\": 0.10000000000000000001}') returning id::text",
            &[&aggregate_type, &event_type],
        )
        .await?;
    Ok(row.get(0))
}

/// Waits until the slot's confirmed position has passed everything written so far.
async fn confirmed(world: &World) -> Result<()> {
    let row = world
        .client
        .query_one("select pg_current_wal_flush_lsn()::text", &[])
        .await?;
    let position: String = row.get(0);
    let slot = world.slot();
    eventually("the slot passes what was written", LONG, || async {
        let passed = world
            .client
            .query_one(
                "select confirmed_flush_lsn >= $1::text::pg_lsn from pg_replication_slots where slot_name = $2",
                &[&position, &slot],
            )
            .await;
        passed.is_ok_and(|row| row.get(0))
    })
    .await?;
    Ok(())
}

async fn counter(relay: &Relay, name: &str) -> Result<f64> {
    Ok(relay.metrics().await?.sum(name, &[]))
}

/// R10, R15.
#[tokio::test]
async fn an_unroutable_event_becomes_a_dead_letter_and_delivery_goes_on() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .start()
        .await?;

    let mut routable = Vec::new();
    let mut astray = Vec::new();
    for number in 0..20 {
        if number % 5 == 2 {
            astray.push(insert(&world.client, "nobody", "Asked").await?);
        }
        routable.push(insert(&world.client, "order", "Created").await?);
    }
    recorder.wait_for_distinct(routable.len(), LONG).await?;
    confirmed(&world).await?;

    let rows = world
        .client
        .query(
            "select event_id, reason, state, columns ->> 'payload', exchange, routing_key from walrelay.dead_letters
             order by commit_lsn, tx_seq",
            &[],
        )
        .await?;
    assert_eq!(
        rows.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>(),
        astray
    );
    for row in &rows {
        let texts: Vec<String> = (1..6).map(|column| row.get(column)).collect();
        assert_eq!(
            texts,
            [
                "unroutable",
                "pending",
                "{\"n\": 0.10000000000000000001}",
                EXCHANGE,
                "nobody.Asked"
            ]
        );
    }
    assert_eq!(counter(&relay, "walrelay_dead_lettered_total").await?, 4.0);
    assert!(relay.ready().await?.is_ready());
    Ok(())
}

#[tokio::test]
async fn an_invalid_row_is_set_aside_under_its_key_by_its_own_policy() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world
        .relay()
        .text("delivery.on_invalid", "dead_letter")
        .start()
        .await?;
    let invalid = insert(&world.client, "order", "").await?;
    insert(&world.client, "order", "Created").await?;
    recorder.wait_for_distinct(1, LONG).await?;
    confirmed(&world).await?;
    let row = world
        .client
        .query_one("select event_id, reason, detail from walrelay.dead_letters", &[])
        .await?;
    assert_eq!(
        (row.get::<_, String>(0), row.get::<_, String>(1)),
        (invalid, "invalid".to_owned())
    );
    assert!(row.get::<_, String>(2).contains("\"event_type\" is empty"));
    assert_eq!(counter(&relay, "walrelay_invalid_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn a_discarded_event_is_counted_and_logged_with_its_key() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let relay = world
        .relay()
        .text("delivery.on_unroutable", "discard")
        .start()
        .await?;
    let astray = insert(&world.client, "nobody", "Asked").await?;
    insert(&world.client, "order", "Created").await?;
    recorder.wait_for_distinct(1, LONG).await?;
    relay
        .wait_for_log("the discarded event", LONG, |line| {
            line.contains("event discarded") && line.contains(&astray)
        })
        .await?;
    confirmed(&world).await?;
    assert_eq!(counter(&relay, "walrelay_discarded_total").await?, 1.0);
    Ok(())
}

/// R9.
#[tokio::test]
async fn a_held_event_is_skipped_by_hand_and_delivery_goes_on() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    let astray = insert(&world.client, "nobody", "Asked").await?;
    insert(&world.client, "order", "Created").await?;
    relay.wait_not_ready(LONG).await?;
    let skip = relay
        .run_command(&["skip", &astray, "--reason", "a test asks nobody"])
        .await?;
    assert_eq!(skip.code(), Some(0), "{}", skip.stderr);
    recorder.wait_for_distinct(1, LONG).await?;
    relay.wait_ready(LONG).await?;
    confirmed(&world).await?;
    assert_eq!(counter(&relay, "walrelay_skipped_total").await?, 1.0);
    eventually("the skip is on record", LONG, || async {
        let settled = world
            .client
            .query_one(
                "select count(*) from walrelay.skips where settled_at is not null",
                &[],
            )
            .await;
        settled.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    })
    .await?;
    Ok(())
}

/// R9: its request would stay open, for another event of the same id.
#[tokio::test]
async fn a_stop_waits_until_the_skip_of_an_event_is_on_record() -> Result<()> {
    const ID: &str = "7b7f5c1e-0000-4000-8000-000000000000";
    let world = World::for_orders().await?;
    let mut relay = world.running().await?;
    let skip = relay.run_command(&["skip", ID, "--reason", "a test"]).await?;
    assert_eq!(skip.code(), Some(0), "{}", skip.stderr);
    let mut other = world.database.client().await?;
    let lock = other.transaction().await?;
    lock.execute("select from walrelay.skips for update", &[]).await?;
    world
        .client
        .batch_execute(&format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values ('{ID}', 'nobody', 42, 'Asked', '{{}}')"
        ))
        .await?;
    let relay_ref = &relay;
    eventually("the skip", LONG, || async move {
        counter(relay_ref, "walrelay_skipped_total")
            .await
            .is_ok_and(|skipped| skipped == 1.0)
    })
    .await?;
    relay.terminate()?;
    relay
        .wait_for_log("the stop", LONG, |line| line.contains("stopping"))
        .await?;
    lock.rollback().await?;
    assert!(relay.wait_exit(LONG).await?.success());
    let settled = "select count(*) from walrelay.skips where settled_at is not null";
    let row = world.client.query_one(settled, &[]).await?;
    assert_eq!(row.get::<_, i64>(0), 1);
    Ok(())
}

/// R10: it counts the WAL since this hold began.
#[tokio::test]
async fn a_hold_that_costs_too_much_wal_ends_in_a_dead_letter() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("delivery.hold_max_wal", "1MiB")
        .start()
        .await?;
    insert(&world.client, "nobody", "Asked").await?;
    insert(&world.client, "order", "Created").await?;
    relay.wait_not_ready(LONG).await?;
    eventually("the hold ends", LONG, || async {
        let grown = world
            .client
            .batch_execute(
                "create table if not exists filler (t text);
             insert into filler select repeat('x', 1000) from generate_series(1, 2000)",
            )
            .await;
        grown.is_ok() && recorder.distinct_count() == 1
    })
    .await?;
    confirmed(&world).await?;
    assert_eq!(counter(&relay, "walrelay_dead_lettered_total").await?, 1.0);
    Ok(())
}

/// R10.
#[tokio::test]
async fn with_too_many_dead_letters_pending_events_are_held_until_a_person_makes_room() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .set("delivery.dead_letters_max", "1")
        .start()
        .await?;
    let first = insert(&world.client, "nobody", "Asked").await?;
    confirmed(&world).await?;
    insert(&world.client, "nobody", "Asked").await?;
    insert(&world.client, "order", "Created").await?;
    let held = relay.wait_not_ready(LONG).await?;
    assert_eq!(
        held.json["delivery"]["cause"], "event_unroutable",
        "{}",
        held.text
    );
    let discard = ["dead-letters", "discard", "--id", &first, "--because", "a test"];
    let discarded = relay.run_command(&discard).await?;
    assert_eq!(discarded.code(), Some(0), "{}", discarded.stderr);
    recorder.wait_for_distinct(1, LONG).await?;
    confirmed(&world).await?;
    assert_eq!(counter(&relay, "walrelay_dead_lettered_total").await?, 2.0);
    Ok(())
}

/// R5: the publication's oid does not change, and a restart must not adopt the new state.
#[tokio::test]
async fn a_publication_that_was_changed_and_changed_back_halts_until_recover() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("postgres.guard_interval", "1s")
        .start()
        .await?;
    world
        .database
        .execute("alter publication walrelay set (publish = 'update'); alter publication walrelay set (publish = 'insert')")
        .await?;
    let found = relay.wait_not_ready(LONG).await?;
    assert_eq!(
        found.json["database"]["cause"], "publication_changed",
        "{}",
        found.text
    );
    relay.kill().await?;
    relay.start()?;
    let found = relay.wait_not_ready(LONG).await?;
    assert_eq!(found.json["ready"], false);
    let recovered = relay.run_command(&["recover"]).await?;
    assert_eq!(recovered.code(), Some(0), "{}", recovered.stderr);
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}
