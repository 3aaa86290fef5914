//! What becomes of the payload.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value as Json, json};
use walrelay_testbed::{Delivery, Recorder};

use super::{insert, more_headers, wait_for_dead_letters, world_and_relay};
use crate::world::{EXCHANGE, LONG, QUEUE, World, text};

fn content_type(delivery: &Delivery) -> String {
    let content_type = delivery.properties.content_type().as_ref();
    content_type.map(ToString::to_string).unwrap_or_default()
}

/// `outbox.format` and what belongs to it, ahead of the tables that a world's relay has below.
fn format(format: &str) -> String {
    let attributes = match format {
        "cloudevents-binary" => "cloudevents = { source = '//shop/{aggregate_type}', prefix = 'ce-' }",
        "cloudevents-structured" => "cloudevents = { source = '//shop/{aggregate_type}' }",
        _ => "",
    };
    format!("format = '{format}'\n{attributes}\n")
}

/// A relay of this format; an event with headers, and what came of it.
async fn first_message(world: &World, recorder: &Recorder) -> Result<Delivery> {
    insert(world, "meta", r#"{"tenant": "acme", "traceparent": "00-ab"}"#).await?;
    recorder.wait_for(1, LONG).await?.pop().context("a message")
}

/// I4: the payload is within the document byte for byte.
#[tokio::test]
async fn an_envelope_and_a_structured_cloudevent_hold_the_payload_as_it_is() -> Result<()> {
    const DATA: &str = r#"{"n": 0.10000000000000000001}"#;
    let (world, relay) = world_and_relay(&format("envelope")).await?;
    let recorder = world.recorder().await?;
    let mut relay = relay.start().await?;
    let came = first_message(&world, &recorder).await?;
    let printed = text(
        &world.client,
        "select to_json(created_at at time zone 'UTC')#>>'{}' || 'Z' from outbox_events",
    )
    .await?;
    assert_eq!(
        std::str::from_utf8(&came.body)?,
        format!(
            r#"{{"id":"1","aggregate_type":"order","aggregate_id":"42","event_type":"created","created_at":"{printed}","headers":{{"tenant": "acme", "traceparent": "00-ab"}},"content_type":"application/json","payload":{DATA}}}"#
        )
    );
    assert_eq!(content_type(&came), "application/json");

    relay.terminate()?;
    relay.wait_exit(LONG).await?;
    let tenant = more_headers(&came).inner().get("tenant").cloned();
    assert_eq!(tenant, Some(AMQPValue::LongString("acme".into())));

    let (world, relay) = world_and_relay(&format("cloudevents-structured")).await?;
    let recorder = world.recorder().await?;
    let _relay = relay.start().await?;
    let came = first_message(&world, &recorder).await?;
    let body = std::str::from_utf8(&came.body)?;
    assert!(
        body.ends_with(&format!(
            r#","datacontenttype":"application/json","data":{DATA}}}"#
        )),
        "{body}"
    );
    assert!(
        body.contains(r#""source":"//shop/order","type":"created","subject":"42","time":""#),
        "{body}"
    );
    assert!(
        body.contains(r#""partitionkey":"42","traceparent":"00-ab""#),
        "{body}"
    );
    assert_eq!(content_type(&came), "application/cloudevents+json");
    Ok(())
}

/// What a message says, but for its own origin.
fn told(delivery: &Delivery) -> (Vec<u8>, String, FieldTable, Option<u8>) {
    (
        delivery.body.clone(),
        content_type(delivery),
        more_headers(delivery),
        *delivery.properties.priority(),
    )
}

/// Dead letters that are sent again and replays go the way of every row.
#[tokio::test]
async fn a_dead_letter_sent_again_and_a_replay_have_the_same_headers_properties_and_format() -> Result<()> {
    for name in ["cloudevents-binary", "cloudevents-structured", "envelope"] {
        let (world, relay) = world_and_relay(&format(name)).await?;
        let recorder = world.recorder().await?;
        let relay = relay.start().await?;
        let values = r#"3, '{"n": 1.5, "CC": ["order.too"]}'"#;
        let insert = |aggregate_type| {
            format!(
                "insert into outbox_events (aggregate_type, prio, meta) values ('{aggregate_type}', {values})"
            )
        };
        world.client.batch_execute(&insert("order")).await?;
        let first = recorder.wait_for(1, LONG).await?;
        // Found in no queue, not even by CC.
        let nobodys = insert("nobody").replace("order.too", "nobody.too");
        world.client.batch_execute(&nobodys).await?;
        wait_for_dead_letters(&world, 1).await?;
        world.vhost.bind(QUEUE, EXCHANGE, "nobody.created").await?;
        let asked = relay.run_command(&["dead-letters", "retry", "--id", "2"]).await?;
        assert_eq!(asked.code(), Some(0), "{}", asked.stderr);
        let came = recorder.wait_for(2, LONG).await?;
        let retried = came.last().context("the dead letter")?;
        for id in ["1", "2"] {
            let replayed = relay.run_command(&["replay", "--id", id]).await?;
            assert_eq!(replayed.code(), Some(0), "{}", replayed.stderr);
        }
        let came = recorder.wait_for(4, LONG).await?;
        assert_eq!(told(&came[2]), told(&first[0]), "{name}");
        assert_eq!(told(&came[3]), told(retried), "{name}");
        let has = |header: &str| more_headers(retried).inner().contains_key(header);
        assert!(
            has("n") && has("CC") && has("ce-id") == (name == "cloudevents-binary"),
            "{name}"
        );
    }
    Ok(())
}

/// What `scripts/test-cloudevents` reads by the SDK: every message with what it stands for, one JSON object a line.
#[tokio::test]
#[ignore = "scripts/test-cloudevents reads what it writes by an SDK of CloudEvents"]
async fn cloudevents_are_written_down_for_the_sdk() -> Result<()> {
    let file = std::env::var_os("WALRELAY_CLOUDEVENTS_FILE").map(PathBuf::from);
    let file = file.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cloudevents.jsonl"));
    let mut out = std::fs::File::create(&file)?;
    for (format, prefix) in [
        ("cloudevents-binary", "cloudEvents:"),
        ("cloudevents-binary", "cloudEvents_"),
        ("cloudevents-binary", "ce-"),
        ("cloudevents-structured", "cloudEvents:"),
    ] {
        let kinds = [
            ("json", r#"{"a": [1, "ü\n"]}"#, None, json!({"a": [1, "ü\n"]})),
            ("text", "a \"text\"\n\\ü", None, json!("a \"text\"\n\\ü")),
            ("text", "[1, 2]", Some("application/vnd.list+json"), json!([1, 2])),
            ("bytea", "\\x00ff7a80", None, json!({"hex": "00ff7a80"})),
        ];
        // The prefix has nothing to do with the payload.
        let kinds = kinds
            .into_iter()
            .take(if prefix == "cloudEvents:" { 4 } else { 1 });
        for (kind, payload, media, data) in kinds {
            let (world, relay) =
                world_and_relay(&format!("format = '{format}'\ncloudevents.prefix = '{prefix}'\n")).await?;
            let cast = format!(
                "alter table outbox_events alter payload drop default, alter payload type {kind} using payload::text::{kind}"
            );
            world.client.batch_execute(&cast).await?;
            let recorder = world.recorder().await?;
            let _relay = relay.start().await?;
            let sql = format!(
                "insert into outbox_events (payload, media, meta, created_at)
                 values ($1::text::{kind}, $2, '{{\"traceparent\": \"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\",
                 \"n\": 1}}', '2026-01-31 12:00:00.25+00')"
            );
            world.client.execute(&sql, &[&payload, &media]).await?;
            let came = recorder.wait_for(1, LONG).await?.pop().context("a message")?;
            let texts = came
                .properties
                .headers()
                .iter()
                .flatten()
                .filter_map(|(name, value)| {
                    let text = std::str::from_utf8(value.as_long_string()?.as_bytes()).ok()?;
                    Some((name.to_string(), Json::from(text)))
                });
            let default = match kind {
                "json" => "application/json",
                "text" => "text/plain",
                _ => "application/octet-stream",
            };
            let line = json!({
                "prefix": prefix,
                "content_type": content_type(&came),
                "headers": texts.collect::<serde_json::Map<_, _>>(),
                "body": came.body,
                "attributes": {
                    "specversion": "1.0",
                    "id": "1",
                    "source": "/public.outbox_events",
                    "type": "created",
                    "subject": "42",
                    "time": "2026-01-31T12:00:00.250000+00:00",
                    "datacontenttype": media.unwrap_or(default),
                    "aggregatetype": "order",
                    "partitionkey": "42",
                    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                },
                "data": data,
            });
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}
