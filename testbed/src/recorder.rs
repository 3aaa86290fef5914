//! A consumer that writes down what it receives.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::BasicProperties;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::error::{Attempt as _, Error, Result};
use crate::topology::checked;
use crate::vhost::Vhost;
use crate::wait::patience;

/// How many messages the broker may have sent without an acknowledgement.
const PREFETCH: u16 = 1000;

/// The most messages that one acknowledgement covers.
const ACK_EVERY: u32 = 200;

/// One received message.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// The property `message_id`, empty when there is none.
    pub message_id: String,
    /// The exchange that it was published to.
    pub exchange: String,
    /// The routing key that it was published with.
    pub routing_key: String,
    /// All properties, headers included.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
    /// Whether the broker says that it sent it before: to a consumer that did not acknowledge it, not
    /// necessarily by another publish.
    pub redelivered: bool,
    /// When it was received, by the clock.
    pub received_at: SystemTime,
    /// When it was received, for measuring.
    pub received: Instant,
}

/// What a [`Recorder`] keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// Every delivery, with properties and body.
    #[default]
    Everything,
    /// Only how often each message id came: for millions of messages.
    Ids,
}

#[derive(Debug, Default)]
struct Records {
    deliveries: Vec<Delivery>,
    /// How often each id came, the broker's redeliveries aside.
    ids: HashMap<Box<str>, u64>,
    total: u64,
    redelivered: u64,
    trouble: Option<String>,
}

/// Consumes a queue into memory, acknowledging by hand; when the broker goes down it comes back by itself.
/// Stops on drop.
#[derive(Debug)]
pub struct Recorder {
    queue: String,
    records: Arc<Mutex<Records>>,
    changes: watch::Receiver<()>,
    task: AbortHandle,
}

impl Recorder {
    /// Begins to consume; returns once the broker has accepted the consumer.
    ///
    /// # Errors
    /// [`Error::Amqp`] when the queue cannot be consumed.
    pub async fn start(vhost: &Vhost, queue: &str) -> Result<Recorder> {
        Recorder::keeping(vhost, queue, Keep::Everything).await
    }

    /// As [`start`](Self::start), choosing what to keep.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn keeping(vhost: &Vhost, queue: &str, keep: Keep) -> Result<Recorder> {
        let records = Arc::new(Mutex::new(Records::default()));
        let (changed, changes) = watch::channel(());
        let (started, first) = oneshot::channel();
        let consuming = consume_for_ever(
            vhost.clone(),
            queue.to_owned(),
            keep,
            records.clone(),
            changed,
            started,
        );
        let task = tokio::spawn(consuming).abort_handle();
        let recorder = Recorder {
            queue: queue.to_owned(),
            records,
            changes,
            task,
        };
        first
            .await
            .map_err(|_gone| Error::Unexpected("the recorder's task has ended".to_owned()))??;
        Ok(recorder)
    }

    /// Everything received so far, in the order of receipt; empty with [`Keep::Ids`].
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.with(|records| records.deliveries.clone())
    }

    /// As [`deliveries`](Self::deliveries), without the first `start`.
    pub fn deliveries_from(&self, start: usize) -> Vec<Delivery> {
        self.with(|records| records.deliveries.get(start..).unwrap_or_default().to_vec())
    }

    /// The message ids so far, in the order of receipt; empty with [`Keep::Ids`].
    pub fn message_ids(&self) -> Vec<String> {
        self.with(|records| {
            records
                .deliveries
                .iter()
                .map(|delivery| delivery.message_id.clone())
                .collect()
        })
    }

    /// How many messages came, the broker's redeliveries included.
    pub fn count(&self) -> u64 {
        self.with(|records| records.total)
    }

    /// The different message ids.
    pub fn distinct_ids(&self) -> HashSet<String> {
        self.with(|records| records.ids.keys().map(|id| id.to_string()).collect())
    }

    /// How many different message ids came.
    pub fn distinct_count(&self) -> usize {
        self.with(|records| records.ids.len())
    }

    /// How many messages were published again with an id that had come before. What the broker merely sent
    /// twice does not count.
    pub fn duplicates(&self) -> u64 {
        self.with(|records| {
            records.total
                - records.redelivered
                - records.ids.values().filter(|times| **times > 0).count() as u64
        })
    }

    /// Waits until `count` messages have come, and returns all of them (none with [`Keep::Ids`]).
    ///
    /// # Errors
    /// [`Error::Timeout`], saying how many came.
    pub async fn wait_for(&self, count: u64, deadline: Duration) -> Result<Vec<Delivery>> {
        self.wait(&format!("{count} messages"), deadline, |records| {
            records.total >= count
        })
        .await?;
        Ok(self.deliveries())
    }

    /// Waits until `count` different message ids have come.
    ///
    /// # Errors
    /// [`Error::Timeout`], saying how many came.
    pub async fn wait_for_distinct(&self, count: usize, deadline: Duration) -> Result<()> {
        self.wait(&format!("{count} different messages"), deadline, |records| {
            records.ids.len() >= count
        })
        .await
    }

    /// As [`wait_for_distinct`](Self::wait_for_distinct), for so many that their number says more about the machine than
    /// about the relay: `standstill` is how long nothing new may come.
    ///
    /// # Errors
    /// As [`wait_for_distinct`](Self::wait_for_distinct).
    pub async fn wait_for_many(&self, count: usize, standstill: Duration) -> Result<()> {
        loop {
            let before = self.distinct_count();
            match self.wait_for_distinct(count, standstill).await {
                Err(Error::Timeout { .. }) if self.distinct_count() > before => {}
                other => return other,
            }
        }
    }

    /// Waits until `condition` holds for what has come.
    ///
    /// # Errors
    /// [`Error::Timeout`], saying how many came.
    pub async fn wait_until<C>(&self, what: &str, deadline: Duration, mut condition: C) -> Result<()>
    where
        C: FnMut(&[Delivery]) -> bool,
    {
        self.wait(what, deadline, |records| condition(&records.deliveries))
            .await
    }

    async fn wait(
        &self,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut(&Records) -> bool,
    ) -> Result<()> {
        let waited = patience(deadline);
        let mut changes = self.changes.clone();
        let waiting = async {
            while !self.with(&mut condition) {
                if changes.changed().await.is_err() {
                    std::future::pending().await
                }
            }
        };
        tokio::time::timeout(waited, waiting).await.map_err(|_elapsed| {
            let came = self.with(|records| {
                let trouble = records
                    .trouble
                    .as_deref()
                    .map(|text| format!("; last trouble: {text}"))
                    .unwrap_or_default();
                format!("{} came, {} different{trouble}", records.total, records.ids.len())
            });
            Error::Timeout {
                what: format!("{what} in queue {} ({came})", self.queue),
                waited,
            }
        })
    }

    fn with<T>(&self, look: impl FnOnce(&Records) -> T) -> T {
        look(&self.records.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn consume_for_ever(
    vhost: Vhost,
    queue: String,
    keep: Keep,
    records: Arc<Mutex<Records>>,
    changed: watch::Sender<()>,
    started: oneshot::Sender<Result<()>>,
) {
    let mut started = Some(started);
    loop {
        let ended = consume(&vhost, &queue, keep, &records, &changed, &mut started).await;
        match (ended, started.take()) {
            // The first failure belongs to the caller of `start`, who gets no recorder then.
            (Err(error), Some(started)) => return drop(started.send(Err(error))),
            (Err(error), None) => lock(&records).trouble = Some(format!("{error:?}")),
            (Ok(()), _) => lock(&records).trouble = Some("the consumer was cancelled".to_owned()),
        }
        // The broker is down: wait for it here, with no knowledge of when it returns.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Consumes until the connection or the consumer ends.
async fn consume(
    vhost: &Vhost,
    queue: &str,
    keep: Keep,
    records: &Mutex<Records>,
    changed: &watch::Sender<()>,
    started: &mut Option<oneshot::Sender<Result<()>>>,
) -> Result<()> {
    let connection = vhost.connect().await?;
    let channel = connection.create_channel().await.attempt("open a channel")?;
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await
        .attempt("set the prefetch")?;
    let options = BasicConsumeOptions::default();
    let consuming = channel
        .basic_consume(checked(queue)?, "".into(), options, FieldTable::default())
        .await;
    let mut consumer = consuming.attempt(format!("consume queue {queue}"))?;
    if let Some(started) = started.take() {
        drop(started.send(Ok(())));
    }
    let mut unacknowledged = 0;
    let mut next = consumer.next().await;
    while let Some(delivery) = next {
        let delivery = delivery.attempt("receive a message")?;
        let tag = delivery.delivery_tag;
        record(&mut lock(records), delivery, keep);
        changed.send_replace(());
        unacknowledged += 1;
        let waiting = if unacknowledged < ACK_EVERY {
            consumer.next().now_or_never()
        } else {
            None
        };
        next = match waiting {
            Some(next) => next,
            None => {
                let acknowledged = channel.basic_ack(tag, BasicAckOptions { multiple: true }).await;
                acknowledged.attempt("acknowledge messages")?;
                unacknowledged = 0;
                consumer.next().await
            }
        };
    }
    Ok(())
}

fn record(records: &mut Records, delivery: lapin::message::Delivery, keep: Keep) {
    let message_id = delivery
        .properties
        .message_id()
        .as_ref()
        .map(|id| id.to_string())
        .unwrap_or_default();
    records.total += 1;
    let times = records.ids.entry(message_id.as_str().into()).or_default();
    if delivery.redelivered {
        records.redelivered += 1;
    } else {
        *times += 1;
    }
    if keep == Keep::Everything {
        records.deliveries.push(Delivery {
            message_id,
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
            properties: delivery.properties,
            body: delivery.data,
            redelivered: delivery.redelivered,
            received_at: SystemTime::now(),
            received: Instant::now(),
        });
    }
}

fn lock(records: &Mutex<Records>) -> std::sync::MutexGuard<'_, Records> {
    records.lock().unwrap_or_else(PoisonError::into_inner)
}
