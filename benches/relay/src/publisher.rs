//! The broker's limit: prebuilt messages straight to the exchange, by the best client that we can write.
//!
//! One task and one socket. The frames of 10,000 messages are encoded beforehand and sent again and again from where they lie;
//! all that is done meanwhile is to read acks (those with `multiple` too) and to keep the window full.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::Interest;
use tokio::net::TcpStream;
use walrelay_engine::Lsn;
use walrelay_engine::amqp::{EncodedHeaders, FrameKind, HeaderParts, Message, MessageParts, Method, Origin};
use walrelay_engine::confirms::{Confirms, Outcome};
use walrelay_engine::flow::CHANNEL;
use walrelay_engine::trace::TraceContext;
use walrelay_testbed::{QueueKind, Vhost, processor_time};

use crate::backlog::{AGGREGATES, payload};
use crate::book::{Notes, Quantity};
use crate::drain::kind_name;
use crate::link::{FRAME_MAX, Link};
use crate::stage::{EXCHANGE, Stage};

/// How many messages may await their confirm: the relay's default, so that the limit is that of the same promise.
pub(crate) const WINDOW: usize = 1_000;

/// How many bytes go to the socket at once, at most.
const WRITE_CHUNK: usize = 128 * 1024;

/// How long the broker may answer nothing.
const SILENCE: Duration = Duration::from_secs(30);

pub(crate) fn case(kind: QueueKind) -> String {
    format!("publisher alone / {}", kind_name(kind))
}

/// Measures how fast the broker takes messages for a queue of this kind.
pub(crate) async fn measure(stage: &Stage, notes: &mut Notes<'_>, kind: QueueKind, count: u32) -> Result<()> {
    stage.fresh_queue(kind).await?;
    let case = case(kind);
    let (vhost, broker) = (stage.vhost.clone(), stage.broker_pid()?);
    let count = usize::try_from(count)?;
    let (elapsed, broker_time) = tokio::task::spawn_blocking(move || {
        let frames = Prebuilt::new()?;
        let before = processor_time(broker)?;
        let elapsed = publish(&vhost, &frames, count)?;
        anyhow::Ok((elapsed, processor_time(broker)? - before))
    })
    .await??;
    let events = count as f64;
    notes.note(&case, Quantity::Rate, events / elapsed.as_secs_f64());
    notes.note(
        &case,
        Quantity::BrokerCpu,
        broker_time.as_secs_f64() * 1e6 / events,
    );
    Ok(())
}

/// The frames of messages, one behind the other.
struct Prebuilt {
    bytes: Vec<u8>,
    /// Where each message ends.
    ends: Vec<usize>,
}

impl Prebuilt {
    /// The same that the relay sends for a row of the backlog.
    fn new() -> Result<Prebuilt> {
        let mut prebuilt = Prebuilt {
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        for number in 0..AGGREGATES {
            let aggregate = number.to_string();
            let id = format!("{number:08x}-0000-4000-8000-000000000000");
            let parts = MessageParts {
                exchange: EXCHANGE,
                routing_key: "order.OrderCreated",
                mandatory: true,
                persistent: true,
                message_id: &id,
                message_type: "OrderCreated",
                content_type: "application/json",
                correlation_id: "",
                expiration: "",
                priority: None,
                timestamp: 1_790_000_000,
                app_id: "walrelay",
                headers: HeaderParts {
                    aggregate_type: "order",
                    aggregate_id: &aggregate,
                    origin: Origin::Stream {
                        commit_lsn: Lsn::new(0x16_b374_d848 + u64::from(number)),
                        tx_seq: 0,
                        backfill: false,
                    },
                    trace: TraceContext::default(),
                    more: EncodedHeaders::default(),
                },
            };
            let body = payload(u64::from(number));
            let message = Message::encode(&mut Vec::new(), &parts, body.as_bytes())?;
            message.write_frames(CHANNEL, FRAME_MAX, &mut prebuilt.bytes);
            prebuilt.ends.push(prebuilt.bytes.len());
        }
        Ok(prebuilt)
    }
}

/// Publishes so many messages, never waiting while the window has room; how long it took until the last was confirmed.
fn publish(vhost: &Vhost, frames: &Prebuilt, count: usize) -> Result<Duration> {
    let mut link = Link::open(vhost)?;
    link.confirm()?;
    link.stream.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let stream = TcpStream::from_std(link.stream)?;
        let mut sender = Sender {
            frames,
            confirms: Confirms::new(),
            unsent: count,
            confirmed: 0,
            next: 0,
            written: 0,
        };
        let began = Instant::now();
        loop {
            while let Some(frame) = link.input.frame()? {
                if frame.kind == FrameKind::Method {
                    sender.hear(&Method::decode(frame.payload)?)?;
                }
            }
            if sender.confirmed == count {
                return Ok(began.elapsed());
            }
            sender.fill_window(began);
            let mut worked = false;
            let rest = sender.rest();
            if !rest.is_empty() {
                match stream.try_write(rest) {
                    Ok(written) => {
                        sender.wrote(written);
                        worked = true;
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("write to the broker"),
                }
            }
            match link.input.fill(|room| stream.try_read(room)) {
                Ok(0) => bail!("the broker hung up"),
                Ok(_) => worked = true,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("read from the broker"),
            }
            if !worked {
                let interest = match sender.rest().is_empty() {
                    true => Interest::READABLE,
                    false => Interest::READABLE | Interest::WRITABLE,
                };
                tokio::time::timeout(SILENCE, stream.ready(interest))
                    .await
                    .context("the broker does not answer")??;
            }
        }
    })
}

struct Sender<'a> {
    frames: &'a Prebuilt,
    confirms: Confirms,
    unsent: usize,
    confirmed: usize,
    /// The message behind the last one that may be written, and how far the bytes up to it are written.
    next: usize,
    written: usize,
}

impl Sender<'_> {
    fn hear(&mut self, method: &Method<'_>) -> Result<()> {
        let mut refused = 0;
        let confirmed = &mut self.confirmed;
        let mut settle = |_, outcome| match outcome {
            Outcome::Confirmed => *confirmed += 1,
            Outcome::Returned { .. } | Outcome::Nacked => refused += 1,
        };
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "whatever else comes is out of place"
        )]
        match *method {
            Method::BasicAck {
                delivery_tag,
                multiple,
            } => {
                self.confirms.ack(delivery_tag, multiple, &mut settle)?;
            }
            Method::BasicNack {
                delivery_tag,
                multiple,
                ..
            } => self.confirms.nack(delivery_tag, multiple, &mut settle)?,
            ref other => bail!("the broker said {other:?}"),
        }
        ensure!(refused == 0, "the broker refused {refused} messages");
        Ok(())
    }

    /// Counts messages as sent while there is room; at the end of the prebuilt ones it goes on with the first.
    fn fill_window(&mut self, now: Instant) {
        if self.next == self.frames.ends.len() && self.rest().is_empty() {
            (self.next, self.written) = (0, 0);
        }
        while self.unsent > 0 && self.next < self.frames.ends.len() && self.confirms.outstanding() < WINDOW {
            self.confirms.published(0, now);
            self.next += 1;
            self.unsent -= 1;
        }
    }

    fn rest(&self) -> &[u8] {
        let end = self.next.checked_sub(1).map_or(0, |last| self.frames.ends[last]);
        let end = end.min(self.written + WRITE_CHUNK);
        &self.frames.bytes[self.written..end]
    }

    const fn wrote(&mut self, count: usize) {
        self.written += count;
    }
}
