//! Reading a stream: every message that the broker stored, once, in the order in which it stored them.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, Consumer};
use tokio::task::AbortHandle;

use crate::error::{Attempt as _, Error, Result};
use crate::topology::checked;
use crate::vhost::Vhost;
use crate::wait::patience;

/// How many messages the broker may have sent without an acknowledgement.
const PREFETCH: u16 = 2000;

/// How many messages one acknowledgement covers: it only asks for more.
const ACK_EVERY: u64 = 500;

/// The argument and the header that tell a message's place.
const OFFSET: &str = "x-stream-offset";

/// A message of a stream.
#[derive(Debug)]
pub struct Stored {
    /// Its place in the stream.
    pub offset: u64,
    /// Its properties, headers included.
    pub properties: BasicProperties,
    /// Its body.
    pub body: Vec<u8>,
}

/// Reads a stream from its beginning; when the broker goes down it comes back by itself, and goes on where it was.
/// So what comes twice was stored twice: there is no redelivery. Stops on drop.
#[derive(Debug)]
pub struct StreamReader(AbortHandle);

impl StreamReader {
    /// Begins to read a queue of kind [`Stream`](crate::QueueKind::Stream).
    pub fn start(vhost: &Vhost, queue: &str, take: impl FnMut(Stored) + Send + 'static) -> StreamReader {
        StreamReader(tokio::spawn(read_for_ever(vhost.clone(), queue.to_owned(), take)).abort_handle())
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn read_for_ever(vhost: Vhost, queue: String, mut take: impl FnMut(Stored)) {
    let mut next = 0;
    loop {
        // Whatever it was, the next try tells.
        drop(read(&vhost, &queue, &mut next, &mut take).await);
        // The broker is down: wait for it here, with no knowledge of when it returns.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Begins to consume at an offset. The connection must be kept.
async fn open(vhost: &Vhost, queue: &str, next: u64) -> Result<(Connection, Channel, Consumer)> {
    let connection = vhost.connect().await?;
    let channel = connection.create_channel().await.attempt("open a channel")?;
    channel
        .basic_qos(PREFETCH, BasicQosOptions::default())
        .await
        .attempt("set the prefetch")?;
    let mut arguments = FieldTable::default();
    let from = i64::try_from(next).unwrap_or(i64::MAX);
    arguments.insert(OFFSET.into(), AMQPValue::LongLongInt(from));
    let options = BasicConsumeOptions::default();
    let consumer = channel
        .basic_consume(checked(queue)?, "".into(), options, arguments)
        .await
        .attempt(format!("read stream {queue}"))?;
    Ok((connection, channel, consumer))
}

/// Reads from `next` on until the connection ends.
async fn read(vhost: &Vhost, queue: &str, next: &mut u64, take: &mut impl FnMut(Stored)) -> Result<()> {
    // One that is cut off while it opens may never hear of it.
    let waited = patience(Duration::from_secs(10));
    let Ok(opened) = tokio::time::timeout(waited, open(vhost, queue, *next)).await else {
        let what = format!("stream {queue} to be read");
        return Err(Error::Timeout { what, waited });
    };
    let (_connection, channel, mut consumer) = opened?;
    let mut unacknowledged = 0;
    while let Some(delivery) = consumer.next().await {
        let delivery = delivery.attempt("receive a message")?;
        let tag = delivery.delivery_tag;
        let offset = offset(&delivery.properties)
            .ok_or_else(|| Error::Unexpected(format!("a message of stream {queue} without its offset")))?;
        // A stream is read by chunks; one may begin earlier.
        if offset >= *next {
            *next = offset + 1;
            take(Stored {
                offset,
                properties: delivery.properties,
                body: delivery.data,
            });
        }
        unacknowledged += 1;
        if unacknowledged == ACK_EVERY {
            let acknowledged = channel.basic_ack(tag, BasicAckOptions { multiple: true }).await;
            acknowledged.attempt("acknowledge messages")?;
            unacknowledged = 0;
        }
    }
    Ok(())
}

fn offset(properties: &BasicProperties) -> Option<u64> {
    let headers = properties.headers().as_ref()?.inner();
    headers.get(OFFSET)?.as_long_long_int()?.try_into().ok()
}
