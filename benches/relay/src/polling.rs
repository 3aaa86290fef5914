//! What people use instead: a relay that polls, as the classic article has it, and as well as that can be done.
//!
//! It takes a hundred unsent rows with `for update skip locked`, publishes them, waits for their confirms, sets their `sent_at`
//! and commits; when it finds fewer it waits for 100 ms. The table has the partial index that this needs, publishes go out together,
//! and a full batch is followed by the next at once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio_postgres::NoTls;
use walrelay_testbed::{QueueKind, Service, eventually, eventually_some, processor_time};

use crate::backlog::{AGGREGATES, Outbox, Shape, commit};
use crate::book::{Notes, Quantity};
use crate::stage::{EXCHANGE, QUEUE, Stage};

const BATCH: usize = 100;
const INTERVAL: Duration = Duration::from_millis(100);

const DEADLINE: Duration = Duration::from_secs(180);

/// How often the queue's length is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// By this name its database session is found.
pub(crate) const APPLICATION: &str = "polling";

pub(crate) const CASE: &str = "polling relay / classic";

/// Where it polls and publishes.
#[derive(Debug, Args)]
pub(crate) struct PollArgs {
    #[arg(long)]
    database: String,
    #[arg(long)]
    broker: String,
}

/// Relays until killed.
pub(crate) async fn run(arguments: &PollArgs) -> Result<()> {
    let mut config: tokio_postgres::Config = arguments.database.parse()?;
    config.application_name(APPLICATION);
    let (mut client, connection) = config.connect(NoTls).await?;
    let session = tokio::spawn(connection);
    let connection = Connection::connect(&arguments.broker, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let select = format!(
        "select id::text, aggregate_type, aggregate_id::text, event_type, payload::text from outbox_events
         where sent_at is null order by created_at limit {BATCH} for update skip locked"
    );
    let select = client.prepare(&select).await?;
    let update = client
        .prepare("update outbox_events set sent_at = now() where id = any($1::text[]::uuid[])")
        .await?;
    loop {
        let transaction = client.transaction().await?;
        let rows = transaction.query(&select, &[]).await?;
        let events: Vec<[String; 5]> = rows
            .iter()
            .map(|row| [0, 1, 2, 3, 4].map(|column| row.get(column)))
            .collect();
        try_join_all(events.iter().map(|event| publish(&channel, event))).await?;
        if !events.is_empty() {
            let ids: Vec<&str> = events.iter().map(|[id, ..]| id.as_str()).collect();
            transaction.execute(&update, &[&ids]).await?;
        }
        transaction.commit().await?;
        if session.is_finished() {
            bail!("the database session has ended");
        }
        if events.len() < BATCH {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Publishes an event and waits for its confirm.
async fn publish(
    channel: &Channel,
    [id, aggregate_type, aggregate_id, event_type, payload]: &[String; 5],
) -> Result<()> {
    let mut headers = FieldTable::default();
    for (name, value) in [("aggregate_type", aggregate_type), ("aggregate_id", aggregate_id)] {
        headers.insert(name.into(), AMQPValue::LongString(value.as_str().into()));
    }
    let properties = BasicProperties::default()
        .with_message_id(id.as_str().into())
        .with_type(event_type.as_str().into())
        .with_content_type("application/json".into())
        .with_delivery_mode(2)
        .with_headers(headers);
    let options = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let routing_key = format!("{aggregate_type}.{event_type}");
    let publishing = channel.basic_publish(
        EXCHANGE.into(),
        routing_key.as_str().into(),
        options,
        payload.as_bytes(),
        properties,
    );
    let confirm = publishing.await?.await?;
    ensure!(
        confirm.is_ack() && confirm.take_message().is_none(),
        "event {id} was refused"
    );
    Ok(())
}

/// A polling relay over an outbox, as a process of its own; and its database session's.
pub(crate) struct Poller {
    pub(crate) service: Service,
    pub(crate) backend: u32,
}

impl Poller {
    /// Gives the table its index, and starts to poll.
    pub(crate) async fn start(stage: &Stage, outbox: &Outbox) -> Result<Poller> {
        let index = "create index on outbox_events (created_at) where sent_at is null; analyze outbox_events";
        outbox.client.batch_execute(index).await?;
        let (database, broker) = (outbox.database.url(), stage.vhost.uri());
        let arguments = ["poll", "--database", &database, "--broker", &broker];
        let mut service = Service::new("polling relay", &stage.this, &arguments);
        service.start()?;
        let sql =
            "select pid from pg_stat_activity where application_name = $1 and datname = current_database()";
        let backend = eventually_some("the polling relay's session", DEADLINE, async || {
            let row = outbox.client.query_opt(sql, &[&APPLICATION]).await.ok()??;
            u32::try_from(row.get::<_, i32>(0)).ok()
        })
        .await
        .with_context(|| service.log().join("\n"))?;
        Ok(Poller { service, backend })
    }
}

/// Measures how fast it empties a backlog into a classic queue.
pub(crate) async fn measure(stage: &Stage, notes: &mut Notes<'_>, events: u32) -> Result<()> {
    // The table without a slot that would keep the log.
    let outbox = Outbox::new(stage, "keep").await?;
    outbox.database.drop_slots().await?;
    commit(&outbox.client, events, Shape::Thousand, AGGREGATES).await?;
    stage.fresh_queue(QueueKind::Classic).await?;
    let mut poller = Poller::start(stage, &outbox).await?;
    let connection = stage.vhost.connect().await?;
    let channel = connection.create_channel().await?;
    let delivered = async || -> Result<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let looked = channel
            .queue_declare(QUEUE.into(), options, FieldTable::default())
            .await?;
        Ok(looked.message_count())
    };
    eventually("the first messages", DEADLINE, async || {
        delivered().await.is_ok_and(|count| count > 0)
    })
    .await?;
    let (began, first) = (Instant::now(), delivered().await?);
    let pids = [poller.service.pid()?, poller.backend, stage.broker_pid()?];
    let used = || -> Result<Vec<Duration>> { pids.iter().map(|pid| Ok(processor_time(*pid)?)).collect() };
    let before = used()?;
    while delivered().await? < events {
        if let Some(status) = poller.service.exit_status()? {
            bail!(
                "the polling relay ended with {status}: {}",
                poller.service.log().join("\n")
            );
        }
        ensure!(began.elapsed() < DEADLINE, "the polling relay is too slow");
        tokio::time::sleep(LOOK).await;
    }
    let elapsed = began.elapsed();
    let count = f64::from(events - first);
    notes.note(CASE, Quantity::Rate, count / elapsed.as_secs_f64());
    let quantities = [Quantity::RelayCpu, Quantity::BackendCpu, Quantity::BrokerCpu];
    for (quantity, (before, after)) in quantities.into_iter().zip(before.iter().zip(used()?)) {
        notes.note(CASE, quantity, (after - *before).as_secs_f64() * 1e6 / count);
    }
    poller.service.kill().await?;
    stage.vhost.delete_queue(QUEUE).await?;
    stage.drop_database(&outbox.database).await
}
