//! Tables of other shapes and names, and rows that become no message.

use anyhow::Result;

use super::{insert_labelled, labels_up_to};
use crate::world::{LONG, World, header, held_commit, text, tx_seq};

/// Columns are found by name, anew after each change.
#[tokio::test]
async fn columns_may_be_added_dropped_and_reordered_while_the_relay_runs() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    let client = &world.client;

    insert_labelled(client, "first").await?;
    client
        .batch_execute("alter table outbox_events add column tenant text default 'acme', add column note text not null default ''")
        .await?;
    insert_labelled(client, "added").await?;
    client
        .batch_execute("alter table outbox_events drop column created_at, drop column tenant")
        .await?;
    insert_labelled(client, "dropped").await?;
    // Moves two required columns to the end.
    client
        .batch_execute(
            "begin;
             alter table outbox_events rename column event_type to old_type;
             alter table outbox_events rename column payload to old_payload;
             alter table outbox_events alter old_type drop not null, alter old_payload drop not null,
               add column payload jsonb, add column event_type text;
             commit;",
        )
        .await?;
    insert_labelled(client, "reordered").await?;
    // In the middle of a transaction.
    client.batch_execute("begin").await?;
    insert_labelled(client, "before-the-change").await?;
    client
        .batch_execute("alter table outbox_events drop column old_type")
        .await?;
    insert_labelled(client, "after-the-change").await?;
    client.batch_execute("commit").await?;

    let labels = labels_up_to(&recorder, "after-the-change").await?;
    let expected = [
        "first",
        "added",
        "dropped",
        "reordered",
        "before-the-change",
        "after-the-change",
    ];
    assert_eq!(labels, expected);
    assert!(
        recorder
            .deliveries()
            .iter()
            .all(|delivery| delivery.body == b"{}")
    );
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_table_may_have_more_columns_in_any_order() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (
               extra integer[] default '{1,2}', sent_at timestamptz, payload json, gone text, event_type varchar(40),
               \"Quoted \"\"name\" text, aggregate_id text, flag boolean generated always as (true) stored,
               id uuid unique default gen_random_uuid(), aggregate_type name, primary key (aggregate_id, event_type));
             alter table outbox_events drop column gone;",
        )
        .await?;
    let _relay = world.running().await?;

    world
        .client
        .batch_execute(
            r#"insert into outbox_events (payload, event_type, "Quoted ""name", aggregate_id, aggregate_type)
               values ('{ }', 'moved', null, 'a-1', 'order')"#,
        )
        .await?;

    assert_eq!(labels_up_to(&recorder, "moved").await?, ["moved"]);
    let came = recorder.deliveries();
    assert_eq!(came[0].body, b"{ }");
    assert_eq!(
        (
            header(&came[0], "aggregate_id"),
            header(&came[0], "aggregate_type")
        ),
        (Some("a-1"), Some("order"))
    );
    Ok(())
}

/// R1: `tx_seq` counts every Insert of the transaction, relayed or not.
#[tokio::test]
async fn a_row_inserted_as_sent_is_not_relayed_but_counted() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.running().await?;

    world
        .client
        .batch_execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, sent_at)
             values (gen_random_uuid(), 'order', 1, 'sent', '{}', now()),
                    (gen_random_uuid(), 'order', 1, 'second', '{}', null),
                    (gen_random_uuid(), 'order', 1, 'sent', '{}', '-infinity'),
                    (gen_random_uuid(), 'order', 1, 'fourth', '{}', null)",
        )
        .await?;

    assert_eq!(labels_up_to(&recorder, "fourth").await?, ["second", "fourth"]);
    assert!(recorder.deliveries().iter().filter_map(tx_seq).eq([1, 3]));
    assert_eq!(
        relay.metrics().await?.value("walrelay_already_sent_total", &[]),
        Some(2.0)
    );
    Ok(())
}

/// I1, I9, R8.
#[tokio::test]
async fn an_event_without_a_type_is_held_as_invalid_and_named() -> Result<()> {
    let world = World::new().await?;
    invalid_is_held(&world, "'', 'a payload'", "event_type").await
}

/// I1, I9, R8.
#[tokio::test]
async fn an_event_without_a_payload_is_held_as_invalid_and_named() -> Result<()> {
    let world = World::new().await?;
    invalid_is_held(&world, "'EmptyPayload', ''", "payload").await
}

/// I1, I9, R8.
#[tokio::test]
async fn an_event_whose_payload_is_null_is_held_as_invalid_and_named() -> Result<()> {
    let world = World::new().await?;
    invalid_is_held(&world, "'NullPayload', null", "payload").await
}

async fn invalid_is_held(world: &World, bad: &str, column: &str) -> Result<()> {
    let client = &world.client;
    client
        .batch_execute(
            "create table outbox_events (id uuid primary key default gen_random_uuid(), aggregate_type text,
             aggregate_id bigint, event_type text, payload text)",
        )
        .await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    let insert = async |values: &str| {
        let sql = format!(
            "insert into outbox_events (aggregate_type, aggregate_id, event_type, payload)
             values ('order', 1, {values}) returning id::text"
        );
        text(client, &sql).await
    };

    let good = insert("'Good', 'a payload'").await?;
    let bad = insert(bad).await?;
    insert("'Behind', 'a payload'").await?;

    let readiness = relay
        .wait_readiness("the held event", LONG, |readiness| {
            readiness.json["delivery"]["state"] == "held"
        })
        .await?;
    assert_eq!(readiness.status, 503);
    let delivery = &readiness.json["delivery"];
    assert_eq!(
        (delivery["cause"].as_str(), delivery["class"].as_str()),
        (Some("event_invalid"), Some("held"))
    );
    let error = delivery["error"].as_str().unwrap_or_default();
    assert!(error.contains(&bad) && error.contains(column), "{error}");
    let commit = held_commit(error)?;
    relay
        .wait_for_log("the held event", LONG, |line| {
            line.contains("event is held") && line.contains(&bad) && line.contains("event_invalid")
        })
        .await?;
    let metrics = relay.metrics().await?;
    assert_eq!(
        metrics.value("walrelay_fault", &[("cause", "event_invalid")]),
        Some(1.0)
    );
    assert_eq!(metrics.sum("walrelay_halted", &[]), 0.0);

    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.message_ids(), [good]);
    let flushed = world.flushed().await?;
    assert!(
        flushed <= commit,
        "{flushed} is beyond the held event's commit at {commit}"
    );
    Ok(())
}

#[tokio::test]
async fn a_quoted_table_of_another_schema_is_relayed() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    world.client.batch_execute(r#"create schema "My Schema""#).await?;
    let table = r#""My Schema"."Outbox.Events""#;
    let _relay = world.relay().outboxes(&[table]).start().await?;

    let sql = format!(
        "insert into {table} (id, aggregate_type, aggregate_id, event_type, payload)
         values (gen_random_uuid(), 'order', 1, 'quoted', '{{}}')"
    );
    world.client.batch_execute(&sql).await?;

    assert_eq!(labels_up_to(&recorder, "quoted").await?, ["quoted"]);
    Ok(())
}
