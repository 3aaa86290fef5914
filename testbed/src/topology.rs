//! Exchanges, queues and bindings in a test's virtual host.

use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeBindOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, ExchangeUnbindOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, ExchangeKind};

use crate::error::{Attempt as _, Error, Result};
use crate::vhost::Vhost;

/// The kinds of queue that tests use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum QueueKind {
    /// A durable classic queue.
    #[default]
    Classic,
    /// A quorum queue.
    Quorum,
    /// A stream: an append-only log that keeps what was read (see [`StreamReader`](crate::StreamReader)).
    Stream,
}

impl QueueKind {
    /// The argument `x-queue-type`.
    fn name(self) -> &'static str {
        match self {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
            QueueKind::Stream => "stream",
        }
    }
}

/// A queue to declare: always durable.
#[derive(Debug, Clone)]
#[must_use]
pub struct QueueOptions {
    name: String,
    kind: QueueKind,
    arguments: FieldTable,
}

impl QueueOptions {
    /// A durable classic queue.
    pub fn classic(name: &str) -> QueueOptions {
        QueueOptions {
            name: name.to_owned(),
            kind: QueueKind::Classic,
            arguments: FieldTable::default(),
        }
    }

    /// A quorum queue.
    pub fn quorum(name: &str) -> QueueOptions {
        QueueOptions::of_kind(name, QueueKind::Quorum)
    }

    /// A queue of this kind.
    pub fn of_kind(name: &str, kind: QueueKind) -> QueueOptions {
        QueueOptions {
            kind,
            ..QueueOptions::classic(name)
        }
    }

    /// A stream.
    pub fn stream(name: &str) -> QueueOptions {
        QueueOptions::of_kind(name, QueueKind::Stream)
    }

    /// Adds an argument with a number (`x-max-length`).
    pub fn number(mut self, name: &str, value: i64) -> Self {
        self.arguments.insert(short(name), AMQPValue::LongLongInt(value));
        self
    }

    /// Adds an argument with a text (`x-overflow`, `reject-publish`).
    pub fn text(mut self, name: &str, value: &str) -> Self {
        self.arguments
            .insert(short(name), AMQPValue::LongString(value.into()));
        self
    }

    /// Refuses publishes (nacks) beyond `length` messages; a quorum queue lets one more in.
    pub fn refusing_beyond(self, length: i64) -> Self {
        self.number("x-max-length", length)
            .text("x-overflow", "reject-publish")
    }
}

impl Vhost {
    /// Declares a durable exchange.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn declare_exchange(&self, name: &str, kind: ExchangeKind) -> Result<()> {
        self.declare_exchange_with(name, kind, &[]).await
    }

    /// Declares a durable exchange with arguments (`alternate-exchange`).
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn declare_exchange_with(
        &self,
        name: &str,
        kind: ExchangeKind,
        arguments: &[(&str, &str)],
    ) -> Result<()> {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let declare = async |channel: &Channel| {
            channel
                .exchange_declare(checked(name)?, kind, options, texts(arguments))
                .await
                .attempt("declare an exchange")
        };
        self.on_channel(declare).await
    }

    /// Deletes an exchange.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn delete_exchange(&self, name: &str) -> Result<()> {
        let delete = async |channel: &Channel| {
            channel
                .exchange_delete(checked(name)?, ExchangeDeleteOptions::default())
                .await
                .attempt("delete an exchange")
        };
        self.on_channel(delete).await
    }

    /// Declares a queue.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn declare_queue(&self, queue: QueueOptions) -> Result<()> {
        let mut arguments = queue.arguments;
        if queue.kind != QueueKind::Classic {
            arguments.insert(
                short("x-queue-type"),
                AMQPValue::LongString(queue.kind.name().into()),
            );
        }
        let options = QueueDeclareOptions {
            durable: true,
            ..Default::default()
        };
        let declare = async |channel: &Channel| {
            channel
                .queue_declare(checked(&queue.name)?, options, arguments)
                .await
                .attempt("declare a queue")
        };
        self.on_channel(declare).await.map(drop)
    }

    /// Binds a queue to an exchange.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) -> Result<()> {
        self.bind_with(queue, exchange, routing_key, &[]).await
    }

    /// Binds a queue to an exchange with arguments (`x-match` and headers).
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn bind_with(
        &self,
        queue: &str,
        exchange: &str,
        routing_key: &str,
        arguments: &[(&str, &str)],
    ) -> Result<()> {
        let bind = async |channel: &Channel| {
            let (queue, exchange, key) = (checked(queue)?, checked(exchange)?, checked(routing_key)?);
            let options = QueueBindOptions::default();
            channel
                .queue_bind(queue, exchange, key, options, texts(arguments))
                .await
                .attempt("bind a queue")
        };
        self.on_channel(bind).await
    }

    /// Binds an exchange to another: what `source` takes with this key goes on to `destination`.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn bind_exchange(&self, destination: &str, source: &str, routing_key: &str) -> Result<()> {
        let bind = async |channel: &Channel| {
            let (destination, source, key) = (checked(destination)?, checked(source)?, checked(routing_key)?);
            let options = ExchangeBindOptions::default();
            channel
                .exchange_bind(destination, source, key, options, FieldTable::default())
                .await
                .attempt("bind an exchange")
        };
        self.on_channel(bind).await
    }

    /// Takes [`bind_exchange`](Self::bind_exchange) back.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn unbind_exchange(&self, destination: &str, source: &str, routing_key: &str) -> Result<()> {
        let unbind = async |channel: &Channel| {
            let (destination, source, key) = (checked(destination)?, checked(source)?, checked(routing_key)?);
            let options = ExchangeUnbindOptions::default();
            channel
                .exchange_unbind(destination, source, key, options, FieldTable::default())
                .await
                .attempt("unbind an exchange")
        };
        self.on_channel(unbind).await
    }

    /// The number of messages that wait in a queue.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn queue_length(&self, queue: &str) -> Result<u32> {
        let options = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let ask = async |channel: &Channel| {
            channel
                .queue_declare(checked(queue)?, options, FieldTable::default())
                .await
                .attempt("look at a queue")
        };
        Ok(self.on_channel(ask).await?.message_count())
    }

    /// Throws away the messages that wait in a queue.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn purge_queue(&self, queue: &str) -> Result<()> {
        let purge = async |channel: &Channel| {
            channel
                .queue_purge(checked(queue)?, QueuePurgeOptions::default())
                .await
                .attempt("purge a queue")
        };
        self.on_channel(purge).await.map(drop)
    }

    /// Deletes a queue.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn delete_queue(&self, queue: &str) -> Result<()> {
        let delete = async |channel: &Channel| {
            channel
                .queue_delete(checked(queue)?, QueueDeleteOptions::default())
                .await
                .attempt("delete a queue")
        };
        self.on_channel(delete).await.map(drop)
    }

    /// Publishes one message straight to a queue; whether the broker says that the queue has it. A broker that has just
    /// started may know a stream only a moment later.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn store(&self, queue: &str, properties: BasicProperties, body: &[u8]) -> Result<bool> {
        let store = async |channel: &Channel| {
            let confirming = channel.confirm_select(ConfirmSelectOptions::default());
            confirming.await.attempt("ask for confirms")?;
            let options = BasicPublishOptions {
                mandatory: true,
                ..Default::default()
            };
            let publishing = channel.basic_publish("".into(), checked(queue)?, options, body, properties);
            let confirm = publishing.await.attempt("publish")?;
            let confirmation = confirm.await.attempt("wait for the confirm")?;
            // Acknowledged all the same, a message that no queue took comes back before.
            Ok(confirmation.is_ack() && confirmation.take_message().is_none())
        };
        self.on_channel(store).await
    }

    /// What most tests need: a topic exchange and a classic queue that receives everything from it.
    ///
    /// # Errors
    /// [`Error::Amqp`].
    pub async fn declare_route(&self, exchange: &str, queue: &str) -> Result<()> {
        self.declare_exchange(exchange, ExchangeKind::Topic).await?;
        self.declare_queue(QueueOptions::classic(queue)).await?;
        self.bind(queue, exchange, "#").await
    }

    /// A connection for each call: a failed declaration closes its channel, and tests declare little.
    async fn on_channel<T>(&self, work: impl AsyncFnOnce(&Channel) -> Result<T>) -> Result<T> {
        let connection = self.connect().await?;
        let channel = connection.create_channel().await.attempt("open a channel")?;
        let done = work(&channel).await;
        if done.is_ok() {
            connection
                .close(200, short("done"))
                .await
                .attempt("close the connection")?;
        }
        done
    }
}

/// A name that a test gave: at most 255 bytes.
pub(crate) fn checked(name: &str) -> Result<ShortString> {
    ShortString::try_new(name)
        .map_err(|_too_long| Error::Unexpected(format!("longer than 255 bytes: {name:.40}…")))
}

/// Arguments that are texts.
fn texts(arguments: &[(&str, &str)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(short(name), AMQPValue::LongString((*value).into()));
    }
    table
}

/// A short string of our own, known to be short.
fn short(text: &str) -> ShortString {
    text.into()
}
