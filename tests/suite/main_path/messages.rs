//! A row as a message.

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay_testbed::Delivery;

use super::label;
use crate::world::{LONG, QUEUE, World, header, insert_event, position, text, tx_seq, wal_end};

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
