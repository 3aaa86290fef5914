//! Prebuilt messages, and the best client that we can write for them.
//!
//! The frames of 10,000 messages are encoded beforehand and sent again and again from where they lie; all that is done
//! meanwhile is to read acks (those with `multiple` too) and to keep the window full.

use std::io::ErrorKind;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::Interest;
use tokio::net::TcpStream;
use walrelay_engine::Lsn;
use walrelay_engine::amqp::{EncodedHeaders, FrameKind, HeaderParts, Message, MessageParts, Method, Origin};
use walrelay_engine::confirms::{Confirms, Outcome};
use walrelay_engine::flow::CHANNEL;
use walrelay_engine::trace::TraceContext;
use walrelay_testbed::Vhost;

use crate::backlog::{AGGREGATES, payload};
use crate::link::{FRAME_MAX, Input, Link};
use crate::stage::EXCHANGE;

/// How many messages may await their confirm: the relay's default, so that the limit is that of the same promise.
const WINDOW: usize = 1_000;

/// How many bytes go to the socket at once, at most.
const WRITE_CHUNK: usize = 128 * 1024;

/// The frames of messages, one behind the other.
pub(crate) struct Prebuilt {
    bytes: Vec<u8>,
    /// Where each message ends.
    ends: Vec<usize>,
}

impl Prebuilt {
    /// The same that the relay sends for a row of the backlog.
    pub(crate) fn new() -> Result<Prebuilt> {
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

/// Sends prebuilt messages over a link of its own, as many as it is told to.
pub(crate) struct Sender<'a> {
    stream: TcpStream,
    input: Input,
    frames: &'a Prebuilt,
    confirms: Confirms,
    /// How many messages are to be sent beyond those that are counted as sent.
    pub(crate) unsent: usize,
    pub(crate) confirmed: usize,
    /// The message behind the last one that may be written, and how far the bytes up to it are written.
    next: usize,
    written: usize,
}

impl<'a> Sender<'a> {
    /// Connects. Within a runtime.
    pub(crate) fn open(vhost: &Vhost, frames: &'a Prebuilt) -> Result<Self> {
        let mut link = Link::open(vhost)?;
        link.confirm()?;
        link.stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(link.stream)?,
            input: link.input,
            frames,
            confirms: Confirms::new(),
            unsent: 0,
            confirmed: 0,
            next: 0,
            written: 0,
        })
    }

    /// Counts what has been confirmed.
    pub(crate) fn hear(&mut self) -> Result<()> {
        while let Some(frame) = self.input.frame()? {
            if frame.kind == FrameKind::Method {
                settle(
                    &mut self.confirms,
                    &mut self.confirmed,
                    &Method::decode(frame.payload)?,
                )?;
            }
        }
        Ok(())
    }

    /// Writes and reads what is possible at once; whether anything was.
    pub(crate) fn work(&mut self, now: Instant) -> Result<bool> {
        self.fill_window(now);
        let mut worked = false;
        let rest = self.rest();
        if !rest.is_empty() {
            match self.stream.try_write(rest) {
                Ok(written) => {
                    self.written += written;
                    worked = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("write to the broker"),
            }
        }
        match self.input.fill(|room| self.stream.try_read(room)) {
            Ok(0) => bail!("the broker hung up"),
            Ok(_) => worked = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("read from the broker"),
        }
        Ok(worked)
    }

    /// Waits until the broker may have said something, or takes more of what is to be written.
    pub(crate) async fn ready(&self) -> Result<()> {
        let interest = match self.rest().is_empty() {
            true => Interest::READABLE,
            false => Interest::READABLE | Interest::WRITABLE,
        };
        self.stream.ready(interest).await.context("wait for the broker")?;
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
}

fn settle(confirms: &mut Confirms, confirmed: &mut usize, method: &Method<'_>) -> Result<()> {
    let mut refused = 0;
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
            confirms.ack(delivery_tag, multiple, &mut settle)?;
        }
        Method::BasicNack {
            delivery_tag,
            multiple,
            ..
        } => confirms.nack(delivery_tag, multiple, &mut settle)?,
        ref other => bail!("the broker said {other:?}"),
    }
    ensure!(refused == 0, "the broker refused {refused} messages");
    Ok(())
}
