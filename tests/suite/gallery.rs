//! The gallery in `config/examples`: each file as it is, against private servers.
//!
//! A new file needs a line in [`EXAMPLES`].

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::sync::OnceCell;
use walrelay_testbed::{QueueOptions, RabbitMq, RabbitMqOptions, Recorder, Relay, shared_postgres};

use crate::world::{LONG, World};

/// What a file needs beside servers.
struct Example {
    file: &'static str,
    /// SQL that makes its tables; nothing where set-up makes them.
    tables: &'static str,
    /// SQL that writes one event.
    event: &'static str,
    target: Target,
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
}

const EXAMPLES: &[Example] = &[
    of_default_table("consistent-hash", queue("shard-1", "sharded", "1")),
    of_default_table("headers-exchange", queue("orders", "events", "")),
    of_default_table("minimal", queue("orders", "outbox", "order.*")),
    of_default_table("quorum-queues", queue("order-events", "", "")),
    of_default_table("stdout", Target::Stdout),
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
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("config/examples")
}

/// A broker with the plugins that examples ask for.
async fn broker() -> Result<&'static RabbitMq> {
    static BROKER: OnceCell<RabbitMq> = OnceCell::const_new();
    let options = RabbitMqOptions::default().plugin("rabbitmq_consistent_hash_exchange");
    Ok(BROKER.get_or_try_init(|| RabbitMq::start(options)).await?)
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
    let world = World::on(shared_postgres().await?, broker().await?).await?;
    if !example.tables.is_empty() {
        world.client.batch_execute(example.tables).await?;
    }
    let text = fs::read_to_string(folder().join(format!("{}.toml", example.file)))?;
    let mut relay = world.relay().build()?;
    fs::write(relay.config_path(), &text)?;
    // The servers are not at home at localhost, and slots are a server's.
    let here = [
        format!("postgres.url={}", world.database.url()),
        format!("postgres.slot=slot_{}", world.database.name()),
        format!("rabbitmq.uri={}", world.vhost.uri()),
        format!("admin.listen=127.0.0.1:{}", relay.admin_port()),
    ];
    let set: Vec<_> = here.iter().flat_map(|value| ["--set", value.as_str()]).collect();
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
    let Target::Queue { name, exchange, key } = example.target else {
        return to_a_pipe(relay, &world, example).await;
    };

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
    ensure!(!deliveries[0].body.is_empty() && deliveries[0].exchange == exchange);
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
