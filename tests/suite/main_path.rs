//! The main path: WAL, event, message, confirm, acknowledged position.
//!
//! Events are relayed in order, so a test that expects nothing of some rows lets an event follow them and looks at
//! what came before it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay_testbed::{Delivery, Recorder};

use crate::world::{
    EXCHANGE, LONG, QUEUE, World, header, held_commit, insert_event, position, text, tx_seq, wal_end,
};

/// Inserts an event whose type is a label, to be recognised by its routing key.
async fn insert_labelled(client: &Client, label: &str) -> Result<()> {
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'order', 42, $1, '{}')";
    client.execute(sql, &[&label]).await?;
    Ok(())
}

/// The labels of what comes, in order, once the event labelled `last` is there.
async fn labels_up_to(recorder: &Recorder, last: &str) -> Result<Vec<String>> {
    let is_last = |delivery: &Delivery| label(delivery) == last;
    recorder
        .wait_until(last, LONG, |deliveries| deliveries.iter().any(is_last))
        .await?;
    Ok(recorder.deliveries().iter().map(label).collect())
}

fn label(delivery: &Delivery) -> String {
    let key = delivery.routing_key.rsplit_once('.');
    key.map(|(_, event_type)| event_type)
        .unwrap_or_default()
        .to_owned()
}

fn content_type(delivery: &Delivery) -> Option<&str> {
    delivery
        .properties
        .content_type()
        .as_ref()
        .map(|text| text.as_str())
}

#[tokio::test]
async fn an_event_survives_the_relays_death_and_is_delivered() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;

    let before = world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    relay.kill().await?;
    let after = world.commit_events(1).await?;
    relay.start()?;
    recorder.wait_for_distinct(2, LONG).await?;

    let delivered = recorder.distinct_ids();
    assert!(before.iter().chain(&after).all(|id| delivered.contains(id)));
    Ok(())
}

/// I4, R1.
#[tokio::test]
async fn a_row_arrives_as_exactly_the_documented_message() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;
    let client = &world.client;

    let (from, second) = (wal_end(client).await?, clock(client).await?);
    let id = insert_event(client, 7).await?;
    let (to, next_second) = (wal_end(client).await?, clock(client).await?);
    let came = recorder.wait_for(1, LONG).await?;

    let came = &came[0];
    let properties = &came.properties;
    let short = |text: &Option<_>| text.as_ref().map(ToString::to_string);
    assert_eq!(came.message_id, id);
    assert_eq!(
        (came.exchange.as_str(), came.routing_key.as_str()),
        ("outbox", "order.OrderCreated")
    );
    assert_eq!(
        came.body,
        text(client, "select payload::text from outbox_events")
            .await?
            .as_bytes()
    );
    assert_eq!(content_type(came), Some("application/json"));
    assert_eq!(short(properties.kind()).as_deref(), Some("OrderCreated"));
    assert_eq!(short(properties.app_id()).as_deref(), Some("walrelay"));
    assert_eq!(*properties.delivery_mode(), Some(2));
    let timestamp = i64::try_from(properties.timestamp().context("a timestamp")?)?;
    assert!(
        (second..=next_second).contains(&timestamp),
        "{second} {timestamp} {next_second}"
    );

    assert_eq!(header(came, "aggregate_type"), Some("order"));
    assert_eq!(header(came, "aggregate_id"), Some("42"));
    assert_eq!(tx_seq(came), Some(0));
    let commit_lsn = position(header(came, "commit_lsn").context("a commit LSN")?)?;
    assert!(from < commit_lsn && commit_lsn < to, "{from} {commit_lsn} {to}");
    let headers = properties.headers().as_ref().context("headers")?;
    let names: Vec<_> = headers.inner().keys().map(ToString::to_string).collect();
    assert_eq!(names, ["aggregate_id", "aggregate_type", "commit_lsn", "tx_seq"]);

    let others = [
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.user_id(),
        properties.cluster_id(),
    ];
    assert!(others.iter().all(|property| property.is_none()), "{properties:?}");
    assert_eq!(*properties.priority(), None);
    Ok(())
}

async fn clock(client: &Client) -> Result<i64> {
    let sql = "select floor(extract(epoch from clock_timestamp()))::bigint";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

#[tokio::test]
async fn exchange_and_routing_key_follow_their_templates() -> Result<()> {
    let world = World::new().await?;
    world.vhost.declare_route("order-events", QUEUE).await?;
    let recorder = world.recorder().await?;
    let relay = world
        .relay()
        .text("rabbitmq.exchange", "{aggregate_type}-events")
        .text("rabbitmq.routing_key", "v1.{aggregate_id}.{{{event_type}}}")
        .text("rabbitmq.app_id", "shop");
    let _relay = relay.start().await?;

    world.commit_events(1).await?;
    let came = recorder.wait_for(1, LONG).await?;

    let route = (came[0].exchange.as_str(), came[0].routing_key.as_str());
    assert_eq!(route, ("order-events", "v1.42.{OrderCreated}"));
    let app_id = came[0].properties.app_id().as_ref().map(|text| text.as_str());
    assert_eq!(app_id, Some("shop"));
    Ok(())
}

/// I4: numbers, escapes and nesting as PostgreSQL prints them, not as a JSON library would.
#[tokio::test]
async fn a_json_body_is_the_columns_text_byte_for_byte() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;

    let payloads = [
        r#"{"price": 0.10000000000000000001, "big": 123456789012345678901234567890, "zero": 1.50, "exponent": 1e400}"#,
        r#"{"é": "日本 🎉", "nested": {"a": [{"b": ["\u00e9\ud83c\udf89", "\"\\\/\b\f\n\r\t", null, true, {}]}]}, "z": 1, "aa": 2}"#,
        r#""just a text""#,
        "0",
        "[]",
    ];
    for payload in payloads {
        let sql = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), 'order', 42, 'OrderCreated', $json${payload}$json$)"
        );
        world.client.batch_execute(&sql).await?;
    }
    let came = recorder.wait_for(payloads.len() as u64, LONG).await?;

    for delivery in &came {
        let sql = format!(
            "select payload::text from outbox_events where id = '{}'",
            delivery.message_id
        );
        assert_eq!(
            String::from_utf8_lossy(&delivery.body),
            text(&world.client, &sql).await?
        );
    }
    assert!(String::from_utf8_lossy(&came[0].body).contains("0.10000000000000000001"));
    Ok(())
}

/// I4, and item by item: a column of any type may be the aggregate's id.
#[tokio::test]
async fn each_payload_type_keeps_its_bytes_and_says_its_content_type() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let types = [
        ("json", "uuid", "application/json"),
        ("jsonb", "bigint", "application/json"),
        ("text", "text", "text/plain"),
        ("bytea", "numeric(10,2)", "application/octet-stream"),
    ];
    let mut tables = Vec::new();
    for (payload, aggregate, _) in types {
        tables.push(format!("public.outbox_{payload}"));
        let sql = format!(
            "create table outbox_{payload} (id uuid primary key default gen_random_uuid(), aggregate_type text not null,
             aggregate_id {aggregate} not null, event_type text not null, payload {payload} not null, sent_at timestamptz)"
        );
        world.client.batch_execute(&sql).await?;
    }
    let tables: Vec<&str> = tables.iter().map(String::as_str).collect();
    let _relay = world.relay().outboxes(&tables).start().await?;

    world
        .client
        .batch_execute(
            r#"insert into outbox_json (aggregate_type, aggregate_id, event_type, payload)
                 values ('a', '6f2c0d5e-0000-4000-8000-000000000001', 'json', '{"b" :  1, "a":2, "b":1.00, "u": "\u00e9"}');
               insert into outbox_jsonb (aggregate_type, aggregate_id, event_type, payload)
                 values ('a', -9, 'jsonb', '{"b" :  1, "a":2, "b":1.00}');
               insert into outbox_text (aggregate_type, aggregate_id, event_type, payload)
                 values ('a', 'customer é', 'text', E'not json: {"\n\t€ \\x00');
               insert into outbox_bytea (aggregate_type, aggregate_id, event_type, payload)
                 values ('a', 1.5, 'bytea', '\x00ff5c786465616462656566');"#,
        )
        .await?;
    let came = recorder.wait_for(4, LONG).await?;

    let bodies: Vec<&[u8]> = came.iter().map(|delivery| delivery.body.as_slice()).collect();
    let expected: [&[u8]; 4] = [
        br#"{"b" :  1, "a":2, "b":1.00, "u": "\u00e9"}"#,
        br#"{"a": 2, "b": 1.00}"#,
        "not json: {\"\n\t€ \\x00".as_bytes(),
        b"\x00\xff\\xdeadbeef",
    ];
    assert_eq!(bodies, expected);
    assert!(
        came.iter()
            .map(content_type)
            .eq(types.map(|(_, _, content_type)| Some(content_type)))
    );
    let aggregates = ["6f2c0d5e-0000-4000-8000-000000000001", "-9", "customer é", "1.50"];
    assert!(
        came.iter()
            .map(|delivery| header(delivery, "aggregate_id"))
            .eq(aggregates.map(Some))
    );
    Ok(())
}

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

/// I4: more than one AMQP frame, stored out of line by PostgreSQL.
#[tokio::test]
async fn a_payload_of_a_megabyte_arrives_unchanged() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;

    world
        .client
        .batch_execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', 1, 'Large', jsonb_build_object('hex', string_agg(md5(n::text), ''))
             from generate_series(1, 32768) n",
        )
        .await?;
    world.commit_events(1).await?;
    let came = recorder.wait_for(2, LONG).await?;

    let sql = "select payload::text from outbox_events where event_type = 'Large'";
    let payload = text(&world.client, sql).await?;
    assert!(payload.len() > 1024 * 1024);
    // Not assert_eq: nobody wants to read a megabyte.
    assert!(
        came[0].body == payload.as_bytes(),
        "{} bytes came",
        came[0].body.len()
    );
    assert_eq!(label(&came[1]), "OrderCreated");
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
