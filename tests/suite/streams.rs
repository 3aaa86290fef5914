//! Publishing to a stream by RabbitMQ's stream protocol (R26), and the stream queue by AMQP 0-9-1, which needs no feature.

use std::collections::HashSet;

use anyhow::Result;
use walrelay_testbed::QueueOptions;

use crate::world::{EXCHANGE, LONG, World};

#[cfg(feature = "stream")]
mod deduplication;
#[cfg(feature = "stream")]
mod messages;
#[cfg(feature = "stream")]
mod read_back;

/// At least once, in order; a consumer drops duplicates by the message id.
#[tokio::test]
async fn a_stream_queue_bound_to_the_exchange_has_every_event() -> Result<()> {
    const STREAM: &str = "events";
    let world = World::new().await?;
    world.vhost.declare_queue(QueueOptions::stream(STREAM)).await?;
    world.vhost.bind(STREAM, EXCHANGE, "#").await?;
    let stored = stored::Stored::read(&world.vhost, STREAM);
    let mut relay = world.running().await?;
    let mut ids = world.commit_events(50).await?;
    stored.wait_for(25).await?;
    relay.kill().await?;
    ids.extend(world.commit_events(50).await?);
    relay.start()?;
    stored.wait_for_distinct(ids.len()).await?;
    let mut seen = HashSet::new();
    let first: Vec<String> = stored
        .ids()
        .into_iter()
        .filter(|id| seen.insert(id.clone()))
        .collect();
    assert_eq!(first, ids);
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// The whole file is in order but for the one thing that this program lacks.
#[cfg(not(feature = "stream"))]
#[tokio::test]
async fn deduplication_by_the_broker_needs_the_feature() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().text("rabbitmq.stream.name", "events").build()?;
    let output = relay.run_command(&["run"]).await?;
    assert_eq!(output.code(), Some(78), "{}", output.stderr);
    assert!(
        output.stderr.contains("rabbitmq.stream.name") && output.stderr.contains("--features stream"),
        "{}",
        output.stderr
    );
    Ok(())
}

/// What a stream has, read from its beginning by AMQP 0-9-1.
pub(crate) mod stored {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex, PoisonError};

    use anyhow::Result;
    use walrelay_testbed::{Stored as Message, StreamReader, Vhost, eventually};

    use crate::world::LONG;

    /// The messages so far; reads until it is dropped.
    pub(crate) struct Stored {
        messages: Arc<Mutex<Vec<Message>>>,
        _reader: StreamReader,
    }

    impl Stored {
        /// Begins to read.
        pub(crate) fn read(vhost: &Vhost, stream: &str) -> Self {
            let messages = Arc::new(Mutex::new(Vec::new()));
            let read = messages.clone();
            let reader = StreamReader::start(vhost, stream, move |message| {
                read.lock().unwrap_or_else(PoisonError::into_inner).push(message);
            });
            Self {
                messages,
                _reader: reader,
            }
        }

        pub(crate) fn with<T>(&self, look: impl FnOnce(&[Message]) -> T) -> T {
            look(&self.messages.lock().unwrap_or_else(PoisonError::into_inner))
        }

        pub(crate) fn count(&self) -> usize {
            self.with(<[Message]>::len)
        }

        /// The message ids, in the order of the stream.
        pub(crate) fn ids(&self) -> Vec<String> {
            let id = |message: &Message| message.properties.message_id().as_ref().map(ToString::to_string);
            self.with(|messages| messages.iter().filter_map(id).collect())
        }

        /// Waits for so many messages.
        pub(crate) async fn wait_for(&self, count: usize) -> Result<()> {
            let enough = || std::future::ready(self.count() >= count);
            Ok(eventually(&format!("{count} messages in the stream"), LONG, enough).await?)
        }

        /// Waits for so many different events.
        pub(crate) async fn wait_for_distinct(&self, count: usize) -> Result<()> {
            let enough = || {
                let ids: HashSet<String> = self.ids().into_iter().collect();
                std::future::ready(ids.len() >= count)
            };
            Ok(eventually(&format!("{count} events in the stream"), LONG, enough).await?)
        }
    }
}
