//! The headers column and the properties that columns give.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use serde_json::{Value as Json, json};
use walrelay_testbed::{Delivery, QueueOptions};

use super::{insert, more_headers, table_of, wait_for_dead_letters, world_and_relay};
use crate::world::{EXCHANGE, LONG, World, header};

#[tokio::test]
async fn every_type_of_json_arrives_as_one_of_amqp() -> Result<()> {
    let (world, relay) = world_and_relay("").await?;
    let relay = relay.start().await?;
    let recorder = world.recorder().await?;

    let object = json!({
        "string": "ü\"\n\u{0}", "yes": true, "no": false, "integer": -7, "widest": i64::MIN, "float": 0.1, "null": null,
        "table": {"a": {"b": [1]}, "e": {}}, "array": ["x", 1.5, [], {"y": false}], "x-delay": 1, "": "no name",
        "beyond": u64::MAX,
    });
    insert(&world, "meta", &format!("{object:#}")).await?;
    insert(
        &world,
        "meta",
        r#"{"twice": 1, "exact": 0.10000000000000000001, "tx_seq": 9, "twice": {"a": 1, "a": 2}}"#,
    )
    .await?;
    let came = recorder.wait_for(2, LONG).await?;
    assert_eq!(more_headers(&came[0]), table_of(&object));
    let expected = json!({"twice": {"a": 2}, "exact": "0.10000000000000000001"});
    assert_eq!(more_headers(&came[1]), table_of(&expected));
    assert_eq!(
        relay
            .metrics()
            .await?
            .value("walrelay_headers_overridden_total", &[]),
        Some(1.0)
    );
    Ok(())
}

#[tokio::test]
async fn properties_come_from_columns_and_headers_of_every_message_from_templates() -> Result<()> {
    let headers = "headers = { tenant = 'acme', 'x-of' = '{aggregate_type}/{aggregate_id}' }";
    let (world, relay) = world_and_relay(headers).await?;
    let _relay = relay.start().await?;
    let recorder = world.recorder().await?;
    world
        .client
        .batch_execute(
            "insert into outbox_events (ttl, prio, cause, media, meta)
             values ('3600000', 5, 'c-1', 'application/vnd.order+json', '{\"tenant\": 7}'), (null, null, null, null, null)",
        )
        .await?;
    let came = recorder.wait_for(2, LONG).await?;
    let told = |delivery: &Delivery| {
        let properties = &delivery.properties;
        let texts = [
            properties.content_type(),
            properties.correlation_id(),
            properties.expiration(),
        ];
        (
            texts.map(|text| text.as_ref().map(ToString::to_string)),
            *properties.priority(),
        )
    };
    let some = |text: &str| Some(text.to_owned());
    let set = [some("application/vnd.order+json"), some("c-1"), some("3600000")];
    assert_eq!(told(&came[0]), (set, Some(5)));
    assert_eq!(told(&came[1]), ([some("application/json"), None, None], None));
    assert_eq!(
        more_headers(&came[0]),
        table_of(&json!({"tenant": 7, "x-of": "order/42"}))
    );
    assert_eq!(
        more_headers(&came[1]),
        table_of(&json!({"tenant": "acme", "x-of": "order/42"}))
    );
    Ok(())
}

/// What the rules are for: so the broker answers a client that does not know them.
#[tokio::test]
async fn the_broker_closes_the_channel_at_what_counts_as_invalid() -> Result<()> {
    let world = World::for_orders().await?;
    let connection = world.vhost.connect().await?;
    let with_cc = |value: AMQPValue| {
        let mut headers = FieldTable::default();
        headers.insert("CC".into(), value);
        BasicProperties::default().with_headers(headers)
    };
    // Confirmed by a queue of each kind.
    let quorum = QueueOptions::quorum("quorum");
    world.vhost.declare_queue(quorum).await?;
    world.vhost.bind("quorum", EXCHANGE, "order.#").await?;
    let ten_years = "315360000000";
    for (properties, is_taken) in [
        (
            with_cc(AMQPValue::FieldArray(
                vec![AMQPValue::LongString("a".into())].into(),
            )),
            true,
        ),
        (with_cc(AMQPValue::LongString("a".into())), false),
        (with_cc(AMQPValue::Void), false),
        (BasicProperties::default().with_expiration(ten_years.into()), true),
        (BasicProperties::default().with_expiration("0".into()), true),
        (BasicProperties::default().with_expiration("-1".into()), false),
        (BasicProperties::default().with_expiration("1.5".into()), false),
    ] {
        let channel = connection.create_channel().await?;
        channel
            .confirm_select(lapin::options::ConfirmSelectOptions::default())
            .await?;
        let shown = format!("{properties:?}");
        let options = BasicPublishOptions::default();
        let confirm = channel
            .basic_publish(EXCHANGE.into(), "order.x".into(), options, b"", properties)
            .await?;
        assert_eq!(confirm.await.is_ok(), is_taken, "{shown}");
    }
    Ok(())
}

/// I1, R8.
#[tokio::test]
async fn what_the_broker_would_close_the_channel_for_is_invalid_and_named() -> Result<()> {
    let (world, relay) = world_and_relay("").await?;
    let relay = relay.start().await?;
    let recorder = world.recorder().await?;

    let long = "x".repeat(256);
    let nested = format!("{{\"a\": {}{}}}", "[".repeat(17), "]".repeat(17));
    let rows = [
        ("meta", "[1]".to_owned(), "no JSON object"),
        ("meta", "{\"CC\": \"a\"}".to_owned(), "CC in it must be an array"),
        ("meta", "{\"BCC\": [1]}".to_owned(), "BCC in it must be an array"),
        ("meta", format!("{{\"CC\": [\"{long}\"]}}"), "at most 255 bytes"),
        ("meta", format!("{{\"{long}\": 1}}"), "a name in it has 256 bytes"),
        ("meta", r#"{"a": "\ud800"}"#.to_owned(), "no JSON from byte 7 on"),
        ("meta", nested, "nested more than 16 deep"),
        (
            "meta",
            format!("{{\"a\": \"{}\"}}", "x".repeat(200_000)),
            "more than 131072 bytes",
        ),
        (
            "meta",
            format!("{{\"a\": \"{}\"}}", "x".repeat(131_000)),
            "do not fit into a frame",
        ),
        (
            "ttl",
            "-1".to_owned(),
            "column \"ttl\" cannot become the message's expiration",
        ),
        ("ttl", "315360000001".to_owned(), "expiration"),
        (
            "prio",
            "256".to_owned(),
            "column \"prio\" cannot become the message's priority",
        ),
        ("cause", long.clone(), "correlation id has 256 bytes"),
        ("media", long.clone(), "content type has 256 bytes"),
    ];
    let mut expected = HashMap::new();
    for (column, value, why) in &rows {
        expected.insert(insert(&world, column, value).await?, *why);
    }
    let last = insert(&world, "meta", "{}").await?;
    recorder.wait_for(1, LONG).await?;
    assert_eq!(recorder.message_ids(), [last]);
    wait_for_dead_letters(&world, rows.len()).await?;
    let sql = "select event_id, detail from walrelay.dead_letters where reason = 'invalid'";
    for row in world.client.query(sql, &[]).await? {
        let (id, detail): (String, String) = (row.get(0), row.get(1));
        let why = expected.remove(&id).context("an id")?;
        assert!(detail.contains(why), "{detail} should tell {why}");
    }
    assert!(expected.is_empty(), "{expected:?}");
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_refused_total", &[]), Some(0.0));
    assert_eq!(metrics.value("walrelay_links_total", &[]), Some(1.0));
    Ok(())
}

/// Any JSON object, with a liking for the names that mean something to the relay or to the broker.
fn object() -> impl Strategy<Value = Json> {
    let text = "[a-z#*.\"\\\\\n\u{1}\u{e9}\u{1f600}]{0,8}";
    let name = prop_oneof![
        3 => text,
        1 => prop::sample::select(vec![
            "CC", "BCC", "x-death", "x-first-death-queue", "x-delay", "x-delivery-count", "x-match", "x-received-from",
            "x-stream-offset", "timestamp_in_ms", "aggregate_id", "tx_seq", "commit_lsn", "replay_seq", "traceparent",
        ])
        .prop_map(str::to_owned),
        1 => "[a-z\u{e9}]{120,140}",
    ];
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        text.prop_map(Json::from),
    ];
    let names = name.clone();
    let value = leaf.prop_recursive(5, 32, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(text.prop_map(Json::from), 0..3).prop_map(Json::from),
            prop::collection::vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::hash_map(names.clone(), inner, 0..5)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    });
    prop::collection::hash_map(name, value, 0..8)
        .prop_map(|members| Json::Object(members.into_iter().collect()))
}

#[tokio::test]
async fn random_headers_never_close_the_channel_and_arrive_as_they_were_meant() -> Result<()> {
    const ROWS: usize = 400;
    let (world, relay) = world_and_relay("").await?;
    // What each kind of queue makes of headers is its own: a stream keeps them as AMQP 1.0 has them.
    for (name, queue) in [
        ("quorum", QueueOptions::quorum("quorum")),
        ("stream", QueueOptions::stream("stream")),
    ] {
        world.vhost.declare_queue(queue).await?;
        world.vhost.bind(name, EXCHANGE, "order.#").await?;
    }
    let relay = relay.start().await?;
    let recorder = world.recorder().await?;

    let mut runner = TestRunner::default();
    let mut objects = HashMap::new();
    for _ in 0..ROWS {
        let tree = object().new_tree(&mut runner);
        let object = tree.map_err(|reason| anyhow::anyhow!("{reason}"))?.current();
        let id = insert(&world, "meta", &object.to_string()).await?;
        objects.insert(id, object);
    }
    let last = insert(&world, "meta", "{}").await?;
    recorder
        .wait_until("the last event", LONG, |deliveries| {
            deliveries.iter().any(|delivery| delivery.message_id == last)
        })
        .await?;
    let came = recorder.deliveries();
    wait_for_dead_letters(&world, ROWS + 1 - came.len()).await?;
    assert!(came.len() > ROWS / 2, "most objects can be headers");
    let metrics = relay.metrics().await?;
    for (name, value) in [("refused", 0.0), ("unanswered", 0.0), ("links", 1.0)] {
        let found = metrics.value(&format!("walrelay_{name}_total"), &[]);
        assert_eq!(found, Some(value), "{name}");
    }
    for delivery in came.iter().filter(|delivery| delivery.message_id != last) {
        let object = &objects[&delivery.message_id];
        let mut expected = object.clone();
        let members = expected.as_object_mut().context("an object")?;
        // The broker takes BCC out, and the trace is passed on where it is a text.
        for name in ["BCC", "aggregate_id", "tx_seq", "commit_lsn", "replay_seq"] {
            members.remove(name);
        }
        let is_trace = |value: &Json| value.as_str().is_some_and(|text| !text.is_empty());
        if members.get("traceparent").is_some_and(|value| !is_trace(value)) {
            members.remove("traceparent");
        }
        assert_eq!(more_headers(delivery), table_of(&expected), "{object}");
        assert_eq!(header(delivery, "aggregate_id"), Some("42"), "{object}");
    }
    Ok(())
}

#[tokio::test]
async fn what_can_be_no_header_or_template_is_refused_at_the_start() -> Result<()> {
    let world = World::for_orders().await?;
    for (toml, complaint) in [
        (
            "headers = { tx_seq = 'x' }",
            "outbox.headers cannot hold aggregate_type",
        ),
        ("headers = { CC = 'x' }", "outbox.headers cannot hold CC and BCC"),
        (
            "headers = { a = 1 }",
            "outbox.headers must be a table of names, each with a text in quotes",
        ),
        (
            "headers = { a = '{b' }",
            "outbox.headers is not valid: `{` without its `}`",
        ),
        (
            "columns.expiration = { value = '{' }",
            "outbox.columns.expiration is not valid",
        ),
        (
            "format = 'cloudevent'",
            "outbox.format must be payload, cloudevents-binary",
        ),
        (
            "cloudevents.source = 'a b'",
            "outbox.cloudevents.source is not valid: it is no URI-reference",
        ),
        (
            "cloudevents.prefix = ''",
            "outbox.cloudevents.prefix must be 1 to 200 bytes long",
        ),
    ] {
        let relay = world.relay().extra(toml).build()?;
        let checked = relay.run_command(&["config", "check"]).await?;
        assert_eq!(checked.code(), Some(78), "{toml}: {}", checked.stdout);
        assert!(checked.stderr.contains(complaint), "{toml}: {}", checked.stderr);
    }
    Ok(())
}
