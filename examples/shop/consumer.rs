//! What the three consumers have in common: a queue of their own, and one transaction for each message, in which the
//! event's id is noted and the work is done. No effect before the commit, and no ack before it either.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Transaction};
use uuid::Uuid;
use walrelay_outbox::{Arrival, Inbox};

use crate::database;
use crate::orders::OrderEvent;
use crate::topology;

/// How many messages the broker sends ahead: each of them comes again when this process dies.
const PREFETCH: u16 = 32;

/// How long to wait before the broker or the database is tried again.
const PAUSE: Duration = Duration::from_millis(500);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long ids are kept: far longer than the outbox keeps its rows (a week, say), since a replay sends those again.
const KEEP_PROCESSED: Duration = Duration::from_secs(30 * 24 * 3600);

const RETENTION_EVERY: Duration = Duration::from_secs(3600);

/// How many ids are deleted in one statement.
const RETENTION_BATCH: u32 = 1000;

/// What a consumer does for an event.
pub trait Worker {
    /// Its name: of its schema, and of its queue after `shop.`.
    const NAME: &'static str;

    /// Its tables, for a migration that can be run again.
    const SCHEMA: &'static str;

    /// Does the work for an event in this transaction, which notes the event as processed too, and nothing anywhere else.
    fn work(
        &self,
        transaction: &Transaction<'_>,
        message: &Message,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// An event as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The message id, by which duplicates are known.
    pub event_id: Uuid,
    /// The body.
    pub event: OrderEvent,
}

/// Why an event was not processed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It never will be: the message itself is at fault.
    #[error("{0}")]
    Poison(String),
    /// What PostgreSQL says.
    #[error("the database failed")]
    Database(#[from] tokio_postgres::Error),
}

impl Failure {
    /// Whether the message is at fault, and not the database's state: then it is given back, and after as many deliveries as
    /// the queue allows it goes to the dead letters. With everything else it is kept and tried again, however long that
    /// takes: a database that is down must not make dead letters of good messages.
    fn is_poison(&self) -> bool {
        match self {
            Failure::Poison(_) => true,
            // Class 22, data exception; class 23, integrity constraint violation.
            Failure::Database(error) => error
                .code()
                .map(SqlState::code)
                .is_some_and(|code| code.starts_with("22") || code.starts_with("23")),
        }
    }
}

/// Where the events come from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The broker, `amqp://…`.
    pub uri: String,
    /// The exchange that walrelay publishes to.
    pub exchange: String,
    /// How often a message is delivered before it goes to the dead letters. The death of a consumer counts too.
    pub delivery_limit: u32,
}

/// Consumes until `stop` ends. Outlives the broker's and the database's absence.
pub async fn run<W: Worker>(worker: &W, database: &Config, source: &Source, stop: impl Future<Output = ()>) {
    let mut config = database::with_settings(database);
    let options = config.get_options().unwrap_or_default();
    let options = format!("{options} -c search_path={}", W::NAME);
    config.options(options);
    let mut desk = Desk {
        worker,
        config,
        client: None,
    };
    let consuming = async {
        loop {
            if let Err(error) = desk.consume(source).await {
                tracing::warn!(error = format!("{error:#}"), "the broker is tried again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    // Whatever is cut off here was not committed, or was not acknowledged: it is delivered again.
    tokio::select! {
        () = stop => {}
        () = consuming => {}
    }
}

/// A worker with its session.
struct Desk<'a, W> {
    worker: &'a W,
    config: Config,
    client: Option<Client>,
}

impl<W: Worker> Desk<'_, W> {
    /// Consumes until the connection to the broker breaks.
    async fn consume(&mut self, source: &Source) -> anyhow::Result<()> {
        let connecting = Connection::connect(&source.uri, ConnectionProperties::default());
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await??;
        let channel = connection.create_channel().await?;
        let queue = topology::declare(&channel, W::NAME, source).await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let mut deliveries = channel
            .basic_consume(
                queue.as_str().into(),
                W::NAME.into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        tracing::info!(queue, "consuming");
        let mut retention = tokio::time::interval(RETENTION_EVERY);
        loop {
            tokio::select! {
                delivery = deliveries.next() => match delivery {
                    Some(delivery) => self.handle(&delivery?).await?,
                    None => anyhow::bail!("the broker has ended the consumer"),
                },
                _ = retention.tick() => self.forget().await,
            }
        }
    }

    /// One delivery to its end: acknowledged, or given back.
    async fn handle(&mut self, delivery: &Delivery) -> lapin::Result<()> {
        let failure = loop {
            match self.process(delivery).await {
                Ok(arrival) => {
                    tracing::debug!(?arrival, "processed");
                    delivery.ack(BasicAckOptions::default()).await?;
                    return Ok(());
                }
                Err(failure) if failure.is_poison() => break failure,
                Err(failure) => {
                    tracing::warn!(error = chain(&failure), "the database is tried again");
                    // Its state is not known.
                    self.client = None;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        let message_id = delivery.properties.message_id().as_ref().map(|id| id.as_str());
        tracing::error!(message_id, error = chain(&failure), "cannot be processed");
        let requeue = BasicNackOptions {
            requeue: true,
            ..Default::default()
        };
        delivery.nack(requeue).await?;
        Ok(())
    }

    /// The one transaction. A duplicate finds the id noted and does nothing.
    async fn process(&mut self, delivery: &Delivery) -> Result<Arrival, Failure> {
        let message = Message::parse(delivery)?;
        let worker = self.worker;
        let transaction = self.session().await?.transaction().await?;
        let arrival = Inbox::once(&transaction, message.event_id).await?;
        if arrival == Arrival::First {
            worker.work(&transaction, &message).await?;
        }
        transaction.commit().await?;
        Ok(arrival)
    }

    async fn session(&mut self) -> Result<&mut Client, tokio_postgres::Error> {
        let client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            _ => {
                let mut client = database::connect(&self.config).await?;
                let schema = format!(
                    "create schema if not exists {};\n{}\n{}",
                    W::NAME,
                    Inbox::SCHEMA,
                    W::SCHEMA
                );
                database::migrate(&mut client, "processed_events", &schema).await?;
                client
            }
        };
        Ok(self.client.insert(client))
    }

    /// Deletes ids that were processed long ago; what fails is tried again with the next round.
    async fn forget(&mut self) {
        let deleted = async {
            let client = self.session().await?;
            Inbox::delete_older_than(client, KEEP_PROCESSED, RETENTION_BATCH).await
        };
        match deleted.await {
            Ok(rows) => tracing::debug!(rows, "deleted old ids"),
            Err(error) => tracing::warn!(error = chain(&error), "old ids stay for now"),
        }
    }
}

impl Message {
    fn parse(delivery: &Delivery) -> Result<Message, Failure> {
        let poison = |what: &str| Failure::Poison(what.to_owned());
        let message_id = delivery.properties.message_id().as_ref();
        let event_id = message_id.and_then(|id| Uuid::parse_str(id.as_str()).ok());
        Ok(Message {
            event_id: event_id.ok_or_else(|| poison("the message id is no UUID"))?,
            event: serde_json::from_slice(&delivery.data)
                .map_err(|error| Failure::Poison(format!("the body is no event of an order: {error}")))?,
        })
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |error| error.source());
    sources.fold(error.to_string(), |text, error| format!("{text}: {error}"))
}
