//! Where events go, by rules, filters and values inside JSON (docs/mapping.md), with the relay at work.

use anyhow::{Context as _, Result, ensure};
use lapin::ExchangeKind;
use tokio_postgres::Client;
use walrelay_testbed::{QueueOptions, Recorder, eventually};

use crate::world::{LONG, World};

/// Inserts an event of this aggregate type, event type and payload; returns its id.
async fn insert(client: &Client, aggregate_type: &str, event_type: &str, payload: &str) -> Result<String> {
    let row = client
        .query_one(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), $1, 42, $2, $3::text::jsonb) returning id::text",
            &[&aggregate_type, &event_type, &payload],
        )
        .await?;
    Ok(row.get(0))
}

/// A topic exchange with a queue that takes everything from it, and a recorder on that.
async fn exchange(world: &World, name: &str) -> Result<Recorder> {
    world.vhost.declare_route(name, &format!("from {name}")).await?;
    Ok(Recorder::start(&world.vhost, &format!("from {name}")).await?)
}

/// The routing keys of what has come, in its order.
fn keys(recorder: &Recorder) -> Vec<String> {
    let deliveries = recorder.deliveries();
    deliveries
        .into_iter()
        .map(|delivery| delivery.routing_key)
        .collect()
}

const RULES: &str = r#"
exchange = "far"
routing_key = "{event_type|snake_case}.{payload.country|lower|default:none}"
[[outbox.route]]
when = { aggregate_type = "order", "payload.customer.tags.1" = "vip*" }
exchange = "near"
routing_key = "near.{payload.customer.name|kebab_case}.{payload.total}"
[[outbox.route]]
when = { event_type = ["Refunded", "Returned"] }
routing_key = "money.{payload.open}"
"#;

#[tokio::test]
async fn rules_send_events_to_two_exchanges_by_values_inside_awkward_json() -> Result<()> {
    let world = World::new().await?;
    let (near, far) = (exchange(&world, "near").await?, exchange(&world, "far").await?);
    let _relay = world.relay().extra(RULES).start().await?;
    let awkward = r#"{"a]": [[{"country": "no", "}": "\"{"}]], "country": "D\u0045", "total": 10.50,
        "customer": {"tags": ["x", "vip\"\\"], "name": "Gr\u00f6\u00dfe\u00201"}}"#;
    for (aggregate_type, event_type, payload) in [
        ("order", "OrderCreated", awkward),
        ("invoice", "InvoiceSent", awkward),
        ("order", "OrderPaid", r#"{"customer": {"tags": "vip"}}"#),
        (
            "order",
            "Returned",
            r#"{"open": true, "country": {"not": "a text"}}"#,
        ),
        ("order", "HTTPCalled", r#"{"country": null}"#),
    ] {
        insert(&world.client, aggregate_type, event_type, payload).await?;
    }
    far.wait_for_distinct(4, LONG).await?;
    near.wait_for_distinct(1, LONG).await?;
    assert_eq!(keys(&near), ["near.größe-1.10.50"]);
    assert_eq!(
        keys(&far),
        [
            "invoice_sent.de",
            "order_paid.none",
            "money.true",
            "http_called.none"
        ]
    );
    Ok(())
}

#[tokio::test]
async fn a_key_of_256_bytes_is_held_as_invalid_and_one_of_255_goes_out() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("rabbitmq.routing_key", "{payload.key}")
        .start()
        .await?;
    let of = |length| format!(r#"{{"key": "{}"}}"#, "k".repeat(length));
    insert(&world.client, "order", "Created", &of(255)).await?;
    let long = insert(&world.client, "order", "Created", &of(256)).await?;
    let readiness = relay
        .wait_readiness("the long key to be held", LONG, |readiness| {
            readiness.json["delivery"]["cause"] == "event_invalid"
        })
        .await?;
    let error = readiness.json["delivery"]["error"].as_str().context("an error")?;
    ensure!(
        error.contains(&long) && error.contains("routing key has 256 bytes, AMQP allows 255"),
        "{error}"
    );
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(keys(&recorder), ["k".repeat(255)]);
    Ok(())
}

#[tokio::test]
async fn what_becomes_of_an_unroutable_event_its_rule_says() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    let rules = r#"
[[outbox.route]]
when = { event_type = "Dropped" }
on_unroutable = "discard"
[[outbox.route]]
when = { event_type = "Aside" }
on_unroutable = "dead_letter"
[[outbox.route]]
when = { event_type = "Held*" }
on_unroutable = "hold"
"#;
    let mut relay = world
        .relay()
        .text("delivery.on_unroutable", "discard")
        .extra(rules)
        .start()
        .await?;
    for event_type in ["Dropped", "Aside", "Other", "HeldUp"] {
        insert(&world.client, "nobody", event_type, "{}").await?;
    }
    let behind = insert(&world.client, "order", "Created", "{}").await?;
    relay
        .wait_readiness("the last one to be held", LONG, |readiness| {
            readiness.json["delivery"]["cause"] == "event_unroutable"
        })
        .await?;
    let letters = eventually("the dead letter", LONG, || async {
        let letters = world
            .client
            .query("select routing_key from walrelay.dead_letters", &[])
            .await;
        letters.is_ok_and(|rows| rows.len() == 1 && rows[0].get::<_, &str>(0) == "nobody.Aside")
    });
    letters.await?;
    for (name, count) in [
        ("walrelay_discarded_total", 2.0),
        ("walrelay_dead_lettered_total", 1.0),
    ] {
        let counted = eventually(name, LONG, || async {
            let metrics = relay.metrics().await;
            metrics.is_ok_and(|metrics| metrics.sum(name, &[]) == count)
        });
        counted.await?;
    }
    // A binding heals the hold; what came behind it was not lost.
    world
        .vhost
        .bind(crate::world::QUEUE, crate::world::EXCHANGE, "nobody.#")
        .await?;
    recorder.wait_for_distinct(2, LONG).await?;
    assert!(recorder.distinct_ids().contains(&behind));
    Ok(())
}

#[tokio::test]
async fn a_column_of_its_own_wins_over_rule_and_template() -> Result<()> {
    let world = World::new().await?;
    let (own, far) = (exchange(&world, "own").await?, exchange(&world, "far").await?);
    let table = "create table outbox_events (id bigint primary key, aggregate_type text, aggregate_id text,
        event_type text, payload json, route text, exchange_name text)";
    world.client.batch_execute(table).await?;
    let columns = "
exchange = 'far'
routing_key = '{event_type}'
[[outbox.route]]
when = { event_type = 'Ruled' }
routing_key = 'by rule'
[outbox.columns]
routing_key = 'route'
exchange = 'exchange_name'
";
    let _relay = world.relay().extra(columns).start().await?;
    world
        .client
        .batch_execute(
            "insert into outbox_events values (1, 'a', '1', 'Ruled', '{}', 'by column', 'own'),
             (2, 'a', '1', 'Ruled', '{}', null, null), (3, 'a', '1', 'Plain', '{}', null, 'own')",
        )
        .await?;
    own.wait_for_distinct(2, LONG).await?;
    far.wait_for_distinct(1, LONG).await?;
    assert_eq!(
        (keys(&own), keys(&far)),
        (
            vec!["by column".to_owned(), "Plain".to_owned()],
            vec!["by rule".to_owned()]
        )
    );
    Ok(())
}

#[tokio::test]
async fn an_exchange_of_a_rule_that_is_missing_is_told_before_an_event_comes() -> Result<()> {
    let world = World::new().await?;
    let rule = "[[outbox.route]]\nwhen = { event_type = 'x' }\nexchange = 'nowhere'\n";
    let mut relay = world.relay().extra(rule).build()?;
    relay.setup().await?;
    let said = relay.run_command(&["doctor"]).await?;
    ensure!(
        said.stdout.contains("✓ exchange: `outbox` is there")
            && said.stdout.contains("✗ exchange: RabbitMQ closed"),
        "{}",
        said.stdout
    );
    relay.start()?;
    let readiness = relay
        .wait_readiness("the exchange to be missed", LONG, |readiness| {
            readiness.json["broker"]["cause"] == "exchange_missing"
        })
        .await?;
    assert!(!readiness.is_ready());
    world
        .vhost
        .declare_exchange("nowhere", ExchangeKind::Direct)
        .await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// Beside an exchange that is known and there, one that a row names and that is missing holds that row alone.
#[tokio::test]
async fn a_missing_exchange_that_a_row_names_holds_that_event_and_no_other_is_repeated() -> Result<()> {
    let world = World::new().await?;
    let far = exchange(&world, "far").await?;
    let rule =
        "exchange = 'far'\n[[outbox.route]]\nwhen = { event_type = 'Own' }\nexchange = '{payload.tenant}'\n";
    let mut relay = world.relay().extra(rule).start().await?;
    insert(&world.client, "order", "Plain", "{}").await?;
    let lost = insert(&world.client, "order", "Own", r#"{"tenant": "nowhere"}"#).await?;
    insert(&world.client, "order", "Plain", "{}").await?;
    let readiness = relay
        .wait_readiness("the event to be held", LONG, |readiness| {
            readiness.json["delivery"]["state"] == "held" && readiness.json.to_string().contains(&lost)
        })
        .await?;
    assert!(!readiness.is_ready());
    let skip = relay
        .run_command(&["skip", &lost, "--reason", "nowhere to go"])
        .await?;
    ensure!(skip.code() == Some(0), "{skip:?}");
    far.wait_for_distinct(2, LONG).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn the_exchange_of_logical_messages_is_declared_too() -> Result<()> {
    let world = World::without_exchange().await?;
    let mut relay = world
        .table_less()
        .text("rabbitmq.declare.exchange_type", "topic")
        .start()
        .await?;
    relay.wait_ready(LONG).await?;
    world.vhost.declare_queue(QueueOptions::classic("all")).await?;
    world.vhost.bind("all", "outbox", "#").await?;
    let recorder = Recorder::start(&world.vhost, "all").await?;
    world
        .client
        .batch_execute("select walrelay.emit('order', '1', 'OrderPaid', '{}')")
        .await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn every_exchange_that_is_known_is_declared_where_that_is_asked_for() -> Result<()> {
    let world = World::without_exchange().await?;
    let rule = "exchange = 'first'\n[[outbox.route]]\nwhen = { event_type = 'x' }\nexchange = 'second'\n";
    let _relay = world
        .relay()
        .text("rabbitmq.declare.exchange_type", "topic")
        .extra(rule)
        .start()
        .await?;
    world.vhost.declare_queue(QueueOptions::classic("both")).await?;
    world.vhost.bind("both", "first", "#").await?;
    world.vhost.bind("both", "second", "#").await?;
    let recorder = Recorder::start(&world.vhost, "both").await?;
    insert(&world.client, "order", "x", "{}").await?;
    insert(&world.client, "order", "y", "{}").await?;
    recorder.wait_for_distinct(2, LONG).await?;
    // The exchange of [rabbitmq] is nobody's.
    assert!(world.vhost.bind("both", "outbox", "#").await.is_err());
    Ok(())
}

#[tokio::test]
async fn doctor_lists_the_routes_of_rules_and_of_values_inside_json() -> Result<()> {
    let world = World::new().await?;
    exchange(&world, "near").await?;
    exchange(&world, "far").await?;
    let relay = world.relay().extra(RULES).build()?;
    relay.setup().await?;
    for (aggregate_type, event_type, payload) in [
        (
            "order",
            "Created",
            r#"{"customer": {"tags": [1, "vip"], "name": "Ann"}, "total": 1}"#,
        ),
        ("order", "Created", r#"{"country": "DE"}"#),
        ("order", "Created", r#"{"country": "DE", "other": 1}"#),
        ("order", "Refunded", "{}"),
    ] {
        insert(&world.client, aggregate_type, event_type, payload).await?;
    }
    let said = relay.run_command(&["doctor", "--routes"]).await?.stdout;
    for line in [
        "! route: 1 row cannot be routed: {payload.open} is null or missing, which outbox.route.routing_key (rule 2) asks for",
        "✓ route: `far`, `created.de`: 2 rows",
        "✓ route: `near`, `near.ann.1`: 1 row",
    ] {
        ensure!(said.contains(line), "{line} is not in\n{said}");
    }
    Ok(())
}
