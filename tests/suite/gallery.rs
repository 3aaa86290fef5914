//! The gallery in `config/examples`: each file as it is, against private servers.
//!
//! A new file needs a line in [`EXAMPLES`].

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use lapin::types::ShortString;
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use walrelay_testbed::{
    CommandOutput, Delivery, QueueOptions, RabbitMq, RabbitMqOptions, Recorder, Relay, free_port,
    shared_postgres,
};

use crate::streams::stored::Stored;
use crate::world::{LONG, World, wait_true};

/// What a file needs beside servers.
struct Example {
    file: &'static str,
    /// SQL that makes its tables; nothing where set-up makes them.
    tables: &'static str,
    /// SQL that writes one event.
    event: &'static str,
    target: Target,
    /// Whether the message is what the file's comments say.
    fits: fn(&Delivery) -> bool,
    /// SQL of a condition that comes to be true; nothing where there is none.
    afterwards: &'static str,
}

/// Where the event comes to.
#[derive(Clone, Copy)]
enum Target {
    /// A quorum queue, bound to the exchange by this key unless that is the default one.
    Queue {
        name: &'static str,
        exchange: &'static str,
        key: &'static str,
    },
    Stdout,
    /// A stream, by the stream protocol.
    Stream(&'static str),
}

const EXAMPLES: &[Example] = &[
    Example {
        fits: |message| {
            let body: Value = serde_json::from_slice(&message.body).unwrap_or_default();
            content_type(message) == "application/cloudevents+json"
                && body["specversion"] == "1.0"
                && body["type"] == "com.example.shop.order_created"
                && body["source"] == "//shop.example.com/orders"
                && body["data"] == json!({"total": 1})
        },
        ..of_default_table("cloudevents", queue("orders", "outbox", "order.*"))
    },
    of_default_table("consistent-hash", queue("shard-1", "sharded", "1")),
    Example {
        tables: "create table outbox (id uuid primary key, aggregatetype varchar(255) not null, aggregateid varchar(255) not null,
                                      type varchar(255) not null, payload varchar(4000) not null)",
        event: "insert into outbox values (gen_random_uuid(), 'Order', '42', 'OrderCreated', '{\"total\":  1.0}')",
        fits: |message| {
            message.routing_key == "order.order_created"
                && content_type(message) == "application/json"
                && message.body == b"{\"total\":  1.0}"
        },
        ..of_default_table("debezium", queue("orders", "outbox.event", "order.*"))
    },
    of_default_table("headers-exchange", queue("orders", "events", "")),
    of_default_table("minimal", queue("orders", "outbox", "order.*")),
    of_default_table("quorum-queues", queue("order-events", "", "")),
    Example {
        event: "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                values (gen_random_uuid(), 'order', 42, 'OrderCreated', '{\"customer\": {\"country\": \"DE\"}}')",
        fits: |message| message.routing_key == "de.order_created.web",
        ..of_default_table("rules", queue("near", "orders-near", "de.#"))
    },
    Example {
        tables: "create table events (seq bigint generated always as identity primary key, order_id bigint not null,
                                      kind text not null, body jsonb not null, status text not null default 'NEW',
                                      published_at timestamptz)",
        event: "insert into events (order_id, kind, body) values (42, 'OrderCreated', '{\"total\": 1}')",
        fits: |message| message.message_id == "1" && message.routing_key == "order.OrderCreated",
        afterwards: "(select status = 'SENT' and published_at is not null from events)",
        ..of_default_table("status-column", queue("orders", "outbox", "order.*"))
    },
    of_default_table("stdout", Target::Stdout),
    of_default_table("stream-with-dedup", Target::Stream("events")),
    Example {
        event: "select walrelay.emit('order', '42', 'OrderCreated', '{\"total\": 1}')",
        fits: |message| message.routing_key == "order.order_created" && message.body == b"{\"total\": 1}",
        ..of_default_table("table-less", queue("orders", "outbox", "order.*"))
    },
];

const fn queue(name: &'static str, exchange: &'static str, key: &'static str) -> Target {
    Target::Queue { name, exchange, key }
}

const fn of_default_table(file: &'static str, target: Target) -> Example {
    Example {
        file,
        tables: "",
        event: "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                values ('7b7f5c1e-9c1b-4a52-9f0e-2f1d1c0f4a11', 'order', 42, 'OrderCreated', '{\"total\": 1}')",
        target,
        fits: |message| message.body == b"{\"total\": 1}",
        afterwards: "",
    }
}

fn content_type(message: &Delivery) -> &str {
    message
        .properties
        .content_type()
        .as_ref()
        .map_or("", ShortString::as_str)
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/examples")
}

/// A broker with the plugins that examples ask for, and the port of its stream listener.
async fn broker() -> Result<&'static (RabbitMq, u16)> {
    static BROKER: OnceCell<(RabbitMq, u16)> = OnceCell::const_new();
    let start = async || -> Result<_> {
        let stream_port = free_port();
        let options = RabbitMqOptions::default()
            .plugin("rabbitmq_consistent_hash_exchange")
            .plugin("rabbitmq_stream")
            .config("stream.listeners.tcp.1", &format!("127.0.0.1:{stream_port}"));
        Ok((RabbitMq::start(options).await?, stream_port))
    };
    BROKER.get_or_try_init(start).await
}

#[test]
fn every_file_of_the_gallery_is_tried() -> Result<()> {
    let files = fs::read_dir(folder())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let files = files.collect::<Result<BTreeSet<_>>>()?;
    let tried: BTreeSet<_> = EXAMPLES
        .iter()
        .map(|example| format!("{}.toml", example.file))
        .collect();
    assert_eq!(files, tried);
    Ok(())
}

#[tokio::test]
async fn each_example_delivers_an_event() -> Result<()> {
    for example in EXAMPLES {
        let tried = Box::pin(try_out(example)).await;
        tried.with_context(|| format!("config/examples/{}.toml", example.file))?;
    }
    Ok(())
}

async fn try_out(example: &Example) -> Result<()> {
    let (broker, stream_port) = broker().await?;
    let world = World::on(shared_postgres().await?, broker).await?;
    if !example.tables.is_empty() {
        world.client.batch_execute(example.tables).await?;
    }
    let text = fs::read_to_string(folder().join(format!("{}.toml", example.file)))?;
    let mut relay = world.relay().build()?;
    fs::write(relay.config_path(), &text)?;
    // The servers are not at home at localhost, and slots are a server's.
    let mut here = vec![
        format!("postgres.url={}", world.database.url()),
        format!("postgres.slot=slot_{}", world.database.name()),
        format!("rabbitmq.uri={}", world.vhost.uri()),
        format!("admin.listen=127.0.0.1:{}", relay.admin_port()),
    ];
    if matches!(example.target, Target::Stream(_)) {
        here.push(format!("rabbitmq.stream.port={stream_port}"));
    }
    let set: Vec<_> = here.iter().flat_map(|value| ["--set", value.as_str()]).collect();
    if cfg!(not(feature = "stream")) && matches!(example.target, Target::Stream(_)) {
        return lacks_the_feature(&relay.run_command(&["config", "check"]).await?);
    }
    for command in [&["config", "check"][..], &["setup"]] {
        let output = relay.run_command(&[command, &set].concat()).await?;
        ensure!(
            output.status.success(),
            "{command:?}: {}{}",
            output.stdout,
            output.stderr
        );
    }
    relay.arguments(&set);
    match example.target {
        Target::Queue { name, exchange, key } => {
            to_a_queue(relay, &world, example, (name, exchange, key)).await
        }
        Target::Stdout => to_a_pipe(relay, &world, example).await,
        Target::Stream(name) => to_a_stream(relay, &world, example, name).await,
    }
}

/// One line says what is missing, and where it is asked for.
fn lacks_the_feature(output: &CommandOutput) -> Result<()> {
    let lines: Vec<_> = output.stderr.lines().collect();
    ensure!(output.code() == Some(78), "{}", output.stderr);
    ensure!(
        matches!(lines[..], [line] if line.contains("toml:")
            && line.contains("rabbitmq.stream.name")
            && line.contains("cargo build --features stream")),
        "{}",
        output.stderr
    );
    Ok(())
}

async fn to_a_queue(
    mut relay: Relay,
    world: &World,
    example: &Example,
    (name, exchange, key): (&str, &str, &str),
) -> Result<()> {
    world.vhost.declare_queue(QueueOptions::quorum(name)).await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    if !exchange.is_empty() {
        world.vhost.bind(name, exchange, key).await?;
    }
    world.client.batch_execute(example.event).await?;
    let recorder = Recorder::start(&world.vhost, name).await?;
    let deliveries = recorder.wait_for(1, LONG).await?;
    ensure!(deliveries.len() == 1, "{} messages", deliveries.len());
    let message = &deliveries[0];
    ensure!(
        message.exchange == exchange && (example.fits)(message),
        "{message:?}"
    );
    if !example.afterwards.is_empty() {
        let sql = format!("select ({})::text", example.afterwards);
        wait_true(&world.client, example.afterwards, &sql).await?;
    }
    Ok(())
}

async fn to_a_stream(mut relay: Relay, world: &World, example: &Example, name: &str) -> Result<()> {
    world.vhost.declare_queue(QueueOptions::stream(name)).await?;
    let stored = Stored::read(&world.vhost, name);
    relay.start()?;
    relay.wait_ready(LONG).await?;
    world.client.batch_execute(example.event).await?;
    stored.wait_for(1).await?;
    assert_eq!(stored.ids(), ["7b7f5c1e-9c1b-4a52-9f0e-2f1d1c0f4a11"]);
    Ok(())
}

async fn to_a_pipe(mut relay: Relay, world: &World, example: &Example) -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    relay.start_into(writer)?;
    relay.wait_ready(LONG).await?;
    world.client.batch_execute(example.event).await?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).map(|_| line)
    });
    let line: Value = serde_json::from_str(&tokio::time::timeout(LONG, reading).await???)?;
    ensure!(line["body"]["total"] == 1, "{line}");
    Ok(())
}
