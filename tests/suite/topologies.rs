//! RabbitMQ's types of exchange and of queue: each with the configuration of `docs/routing.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use lapin::ExchangeKind;
use tokio::sync::OnceCell;
use walrelay_testbed::{
    QueueOptions, RabbitMq, RabbitMqOptions, Recorder, Relay, RelayBuilder, StreamReader, eventually,
    free_port, shared_postgres,
};

use crate::complaint::{Part, complains};
use crate::world::{LONG, World, wal_end};

/// The exchange of these tests.
const EVENTS: &str = "events";

impl World {
    /// Inserts events, each of a type of aggregate, an aggregate and a type of event.
    async fn insert(&self, events: &[(&str, i64, &str)]) -> Result<()> {
        for (aggregate_type, aggregate_id, event_type) in events {
            let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                       values (gen_random_uuid(), $1, $2, $3, '{}')";
            self.client
                .execute(sql, &[aggregate_type, aggregate_id, event_type])
                .await?;
        }
        Ok(())
    }

    /// Declares these queues, and records what comes to each.
    async fn queues<const N: usize>(&self, names: [&str; N]) -> Result<Vec<Recorder>> {
        let mut recorders = Vec::with_capacity(N);
        for name in names {
            self.vhost.declare_queue(QueueOptions::classic(name)).await?;
            recorders.push(Recorder::start(&self.vhost, name).await?);
        }
        Ok(recorders)
    }

    /// A relay to an exchange that it declares itself.
    async fn declaring(&self, kind: &str, routing_key: &str) -> Result<Relay> {
        let relay = self
            .relay()
            .text("rabbitmq.exchange", EVENTS)
            .text("rabbitmq.routing_key", routing_key)
            .text("rabbitmq.declare.exchange_type", kind);
        Ok(relay.start().await?)
    }

    /// Waits until all that is in the table is confirmed.
    async fn all_confirmed(&self) -> Result<()> {
        self.wait_flushed(wal_end(&self.client).await?).await
    }
}

/// What came to a queue, as type and id of the aggregate and type of the event.
fn events(recorder: &Recorder) -> Vec<String> {
    recorder
        .deliveries()
        .iter()
        .map(|delivery| {
            let of = |name| {
                crate::world::header(delivery, name)
                    .unwrap_or_default()
                    .to_owned()
            };
            let kind = delivery.properties.kind().as_ref();
            let kind = kind.map(|kind| kind.as_str().to_owned()).unwrap_or_default();
            format!("{} {} {kind}", of("aggregate_type"), of("aggregate_id"))
        })
        .collect()
}

const THREE: [(&str, i64, &str); 3] = [
    ("order", 1, "Created"),
    ("order", 2, "Paid"),
    ("invoice", 1, "Created"),
];

#[tokio::test]
async fn by_the_default_exchange_the_routing_key_names_the_queue() -> Result<()> {
    let world = World::new().await?;
    let queues = world.queues(["order-events"]).await?;
    let relay = world
        .relay()
        .text("rabbitmq.exchange", "")
        .text("rabbitmq.routing_key", "{aggregate_type}-events");
    let mut relay = relay.start().await?;
    world.insert(&THREE).await?;
    relay
        .wait_readiness("the invoice to be held", LONG, |readiness| {
            readiness.json["delivery"]["cause"] == "event_unroutable"
        })
        .await?;
    let invoices = world.queues(["invoice-events"]).await?;
    world.all_confirmed().await?;
    assert_eq!(events(&queues[0]), ["order 1 Created", "order 2 Paid"]);
    assert_eq!(events(&invoices[0]), ["invoice 1 Created"]);
    Ok(())
}

#[tokio::test]
async fn a_direct_exchange_goes_by_the_whole_key() -> Result<()> {
    let world = World::new().await?;
    let queues = world.queues(["orders", "invoices"]).await?;
    let _relay = world.declaring("direct", "{aggregate_type}").await?;
    world.vhost.bind("orders", EVENTS, "order").await?;
    world.vhost.bind("invoices", EVENTS, "invoice").await?;
    world.insert(&THREE).await?;
    world.all_confirmed().await?;
    queues[1].wait_for_distinct(1, LONG).await?;
    queues[0].wait_for_distinct(2, LONG).await?;
    assert_eq!(events(&queues[0]), ["order 1 Created", "order 2 Paid"]);
    assert_eq!(events(&queues[1]), ["invoice 1 Created"]);
    Ok(())
}

#[tokio::test]
async fn a_topic_exchange_goes_by_patterns() -> Result<()> {
    let world = World::new().await?;
    let queues = world.queues(["orders", "created"]).await?;
    let _relay = world.declaring("topic", "{aggregate_type}.{event_type}").await?;
    world.vhost.bind("orders", EVENTS, "order.*").await?;
    world.vhost.bind("created", EVENTS, "*.Created").await?;
    world.insert(&THREE).await?;
    world.all_confirmed().await?;
    for queue in &queues {
        queue.wait_for_distinct(2, LONG).await?;
    }
    assert_eq!(events(&queues[0]), ["order 1 Created", "order 2 Paid"]);
    assert_eq!(events(&queues[1]), ["order 1 Created", "invoice 1 Created"]);
    Ok(())
}

#[tokio::test]
async fn a_headers_exchange_goes_by_the_message_s_headers() -> Result<()> {
    let world = World::new().await?;
    let queues = world.queues(["orders", "first", "all"]).await?;
    let _relay = world.declaring("headers", "{event_type}").await?;
    let bind =
        async |queue, arguments: &[(&str, &str)]| world.vhost.bind_with(queue, EVENTS, "", arguments).await;
    bind("orders", &[("x-match", "all"), ("aggregate_type", "order")]).await?;
    let first = [
        ("x-match", "all"),
        ("aggregate_type", "order"),
        ("aggregate_id", "1"),
    ];
    bind("first", &first).await?;
    let any = [
        ("x-match", "any"),
        ("aggregate_type", "order"),
        ("aggregate_id", "1"),
    ];
    bind("all", &any).await?;
    world.insert(&THREE).await?;
    world.all_confirmed().await?;
    queues[2].wait_for_distinct(3, LONG).await?;
    queues[0].wait_for_distinct(2, LONG).await?;
    queues[1].wait_for_distinct(1, LONG).await?;
    assert_eq!(events(&queues[0]), ["order 1 Created", "order 2 Paid"]);
    assert_eq!(events(&queues[1]), ["order 1 Created"]);
    assert_eq!(events(&queues[2]).len(), 3);
    Ok(())
}

/// Classic, quorum and stream: one confirm once all three have it.
#[tokio::test]
async fn a_fanout_exchange_fills_queues_of_every_type() -> Result<()> {
    let world = World::new().await?;
    let classic = world.queues(["classic"]).await?;
    world.vhost.declare_queue(QueueOptions::quorum("quorum")).await?;
    let quorum = Recorder::start(&world.vhost, "quorum").await?;
    world.vhost.declare_queue(QueueOptions::stream("stream")).await?;
    let stored = Arc::new(Mutex::new(Vec::new()));
    let store = Arc::clone(&stored);
    let _stream = StreamReader::start(&world.vhost, "stream", move |message| {
        let id = message.properties.message_id().as_ref().map(ToString::to_string);
        store
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(id.unwrap_or_default());
    });
    let mut relay = world.declaring("fanout", "").await?;
    for queue in ["classic", "quorum", "stream"] {
        world.vhost.bind(queue, EVENTS, "").await?;
    }
    let ids = world.commit_events(300).await?;
    world.all_confirmed().await?;
    classic[0].wait_for_distinct(300, LONG).await?;
    quorum.wait_for_distinct(300, LONG).await?;
    let stored = || stored.lock().unwrap_or_else(PoisonError::into_inner).clone();
    eventually("300 in the stream", LONG, || {
        std::future::ready(stored().len() >= 300)
    })
    .await?;
    assert_eq!(classic[0].message_ids(), ids);
    assert_eq!(quorum.message_ids(), ids);
    assert_eq!(stored(), ids);
    ensure!(relay.wait_ready(LONG).await?.is_ready());
    Ok(())
}

/// A broker with the plugin for consistent hashes, and one to look at exchanges by, on this port.
async fn with_plugins() -> Result<&'static (RabbitMq, u16)> {
    static BROKER: OnceCell<(RabbitMq, u16)> = OnceCell::const_new();
    let start = async || -> Result<_> {
        let port = free_port();
        let options = RabbitMqOptions::default()
            .plugin("rabbitmq_consistent_hash_exchange")
            .plugin("rabbitmq_management")
            .config("management.tcp.port", &port.to_string())
            .config("management.tcp.ip", "127.0.0.1");
        Ok((RabbitMq::start(options).await?, port))
    };
    BROKER.get_or_try_init(start).await
}

async fn world_with_plugins() -> Result<(World, RelayBuilder)> {
    let (broker, port) = with_plugins().await?;
    let world = World::on(shared_postgres().await?, broker).await?;
    let management = format!("http://127.0.0.1:{port}");
    let relay = world.relay().text("rabbitmq.management", &management);
    Ok((world, relay))
}

#[tokio::test]
async fn a_consistent_hash_exchange_keeps_each_aggregate_in_one_queue_and_in_order() -> Result<()> {
    const AGGREGATES: usize = 100;
    const EVENTS_OF_EACH: usize = 5;
    let (world, relay) = world_with_plugins().await?;
    let names = ["shard-1", "shard-2", "shard-3", "shard-4"];
    let queues = world.queues(names).await?;
    let relay = relay
        .text("rabbitmq.exchange", EVENTS)
        .text("rabbitmq.routing_key", "{aggregate_id}")
        .text("rabbitmq.declare.exchange_type", "x-consistent-hash");
    let _relay = relay.start().await?;
    for queue in names {
        // The weight.
        world.vhost.bind(queue, EVENTS, "1").await?;
    }
    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'order', n % {AGGREGATES}, 'Event' || n / {AGGREGATES}, '{{}}'
         from generate_series(0, {}) n",
        AGGREGATES * EVENTS_OF_EACH - 1
    );
    world.client.batch_execute(&sql).await?;
    world.all_confirmed().await?;
    let count = || queues.iter().map(Recorder::distinct_count).sum::<usize>();
    eventually("all events", LONG, || {
        std::future::ready(count() >= AGGREGATES * EVENTS_OF_EACH)
    })
    .await?;
    let mut seen = BTreeSet::new();
    for queue in &queues {
        let mut of_aggregate = BTreeMap::<String, Vec<String>>::new();
        for event in events(queue) {
            let (aggregate, kind) = event.rsplit_once(' ').unwrap_or_default();
            of_aggregate
                .entry(aggregate.to_owned())
                .or_default()
                .push(kind.to_owned());
        }
        ensure!(!of_aggregate.is_empty(), "an empty queue");
        for (aggregate, kinds) in of_aggregate {
            assert_eq!(
                kinds,
                ["Event0", "Event1", "Event2", "Event3", "Event4"],
                "{aggregate}"
            );
            ensure!(seen.insert(aggregate), "in two queues");
        }
    }
    assert_eq!(seen.len(), AGGREGATES);
    Ok(())
}

/// The shared broker does not have the plugin.
#[tokio::test]
async fn a_type_of_exchange_that_the_broker_lacks_is_named_with_its_plugin() -> Result<()> {
    let world = World::new().await?;
    let relay = world
        .relay()
        .text("rabbitmq.exchange", EVENTS)
        .text("rabbitmq.declare.exchange_type", "x-consistent-hash");
    let mut relay = relay.build()?;
    relay.start()?;
    // 3.10 closes the connection with 503, 4.0 the channel with 406.
    let words = ["exchange type 'x-consistent-hash'"];
    complains(&mut relay, Part::Broker, "exchange_mismatch", &words).await?;
    let ready = relay.ready().await?;
    ensure!(
        ready
            .text
            .contains("enable the plugin rabbitmq_consistent_hash_exchange"),
        "{}",
        ready.text
    );
    Ok(())
}

/// What `doctor --routes` says of alternate exchanges.
async fn said_of_alternates(relay: &Relay) -> Result<String> {
    let output = relay.run_command(&["doctor", "--routes"]).await?;
    let mut lines = output
        .stdout
        .lines()
        .filter(|line| line.contains("alternate exchange"));
    Ok(lines.next().unwrap_or_default().trim().to_owned())
}

/// The broker confirms what the alternate exchange takes, so that `on_unroutable` never applies.
#[tokio::test]
async fn an_alternate_exchange_takes_what_no_queue_is_bound_for() -> Result<()> {
    let (world, relay) = world_with_plugins().await?;
    let vhost = &world.vhost;
    vhost.declare_exchange("unrouted", ExchangeKind::Fanout).await?;
    let alternate = [("alternate-exchange", "unrouted")];
    vhost
        .declare_exchange_with(EVENTS, ExchangeKind::Topic, &alternate)
        .await?;
    let queues = world.queues(["orders", "rest"]).await?;
    vhost.bind("orders", EVENTS, "order.#").await?;
    let mut relay = relay.text("rabbitmq.exchange", EVENTS).start().await?;
    // The alternate exchange has no queue either: it comes back.
    world.insert(&THREE).await?;
    let is_held =
        |readiness: &walrelay_testbed::Readiness| readiness.json["delivery"]["cause"] == "event_unroutable";
    relay
        .wait_readiness("the invoice to be held", LONG, is_held)
        .await?;
    let returned = relay.metrics().await?.sum("walrelay_returned_total", &[]);
    ensure!(returned >= 1.0, "{returned}");

    vhost.bind("rest", "unrouted", "").await?;
    world.all_confirmed().await?;
    let returned = relay.metrics().await?.sum("walrelay_returned_total", &[]);
    world.insert(&[("refund", 9, "Made")]).await?;
    queues[1].wait_for_distinct(2, LONG).await?;
    world.all_confirmed().await?;
    assert_eq!(events(&queues[1]), ["invoice 1 Created", "refund 9 Made"]);
    assert_eq!(events(&queues[0]), ["order 1 Created", "order 2 Paid"]);
    assert_eq!(
        relay.metrics().await?.sum("walrelay_returned_total", &[]),
        returned
    );
    assert_eq!(
        said_of_alternates(&relay).await?,
        "! alternate exchange: `events` has the alternate exchange `unrouted` by an argument: an event that no queue is \
         bound for goes there and is confirmed, not returned"
    );
    Ok(())
}

/// A policy says so as an argument does; only who may read policies can tell.
#[tokio::test]
async fn doctor_tells_of_an_alternate_exchange_by_a_policy() -> Result<()> {
    let (world, relay) = world_with_plugins().await?;
    let (broker, port) = with_plugins().await?;
    let vhost = &world.vhost;
    vhost.declare_exchange("unrouted", ExchangeKind::Fanout).await?;
    vhost.declare_exchange(EVENTS, ExchangeKind::Topic).await?;
    vhost.declare_queue(QueueOptions::classic("rest")).await?;
    vhost.bind("rest", "unrouted", "").await?;
    let mut relay = relay.text("rabbitmq.exchange", EVENTS).build()?;
    relay.setup().await?;
    world.insert(&THREE).await?;
    assert_eq!(said_of_alternates(&relay).await?, "");
    let definition = r#"{"alternate-exchange":"unrouted"}"#;
    let policy = [
        "set_policy",
        "-p",
        vhost.name(),
        "--apply-to",
        "exchanges",
        "AE",
        "^events$",
        definition,
    ];
    broker.ctl(&policy).await?;
    assert_eq!(
        said_of_alternates(&relay).await?,
        "! alternate exchange: `events` has the alternate exchange `unrouted` by the policy `AE`: an event that no queue \
         is bound for goes there and is confirmed, not returned"
    );
    let output = relay.run_command(&["doctor", "--routes"]).await?;
    ensure!(
        output
            .stdout
            .contains("✓ route: `events`, `order.Paid`: 1 row; reaches rest"),
        "{}",
        output.stdout
    );
    let user = format!("looker-{}", vhost.name());
    broker.ctl(&["add_user", &user, "s3cret"]).await?;
    broker.ctl(&["set_user_tags", &user, "management"]).await?;
    broker
        .ctl(&["set_permissions", "-p", vhost.name(), &user, ".*", ".*", ".*"])
        .await?;
    let url = format!("http://{user}:s3cret@127.0.0.1:{port}");
    relay.reconfigure(|relay| relay.text("rabbitmq.management", &url))?;
    assert_eq!(
        said_of_alternates(&relay).await?,
        "– alternate exchange: the policy `AE` applies to `events`, and may be read with the tag policymaker only"
    );
    relay.reconfigure(|relay| relay.unset("rabbitmq.management"))?;
    assert_eq!(
        said_of_alternates(&relay).await?,
        "– bindings, alternate exchange: rabbitmq.management is not set: only that API tells what is bound, and of \
         alternate exchanges"
    );
    Ok(())
}
