//! One publish, encoded once.

use std::fmt;
use std::mem;

use super::constants::{FRAME_OVERHEAD, class, header, method, property};
use super::error::EncodeError;
use super::frame::{FrameKind, at_least_min};
use super::headers::EncodedHeaders;
use super::writer::{TableWriter, frame, method_id, put_u16, put_u64, short_string, table};
use crate::Lsn;
use crate::trace::TraceContext;

/// A message's `basic.publish`, properties and body in one buffer, bound to no channel and no `frame_max`, so
/// that it can be kept and sent again over another link.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The body, then the method's payload, then the content header's. The body comes first so that its
    /// length is known when the header is written.
    buffer: Vec<u8>,
    body_end: usize,
    method_end: usize,
}

/// What a message says, but for its body. An empty `message_id`, `message_type`, `content_type`, `correlation_id`,
/// `expiration` or `app_id` leaves that property out. There is no `user_id`: at one that is not the connection's user,
/// RabbitMQ closes the channel.
#[derive(Debug, Clone, Copy)]
pub struct MessageParts<'a> {
    /// The exchange, at most 255 bytes, as all texts here.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Whether the broker returns the message where no queue takes it.
    pub mandatory: bool,
    /// Whether queues keep the message on disk (delivery mode 2) or not (1).
    pub persistent: bool,
    /// The event's id.
    pub message_id: &'a str,
    /// The event's type.
    pub message_type: &'a str,
    /// The body's media type.
    pub content_type: &'a str,
    /// What the message belongs to.
    pub correlation_id: &'a str,
    /// For how many milliseconds a queue keeps the message: a number in digits.
    pub expiration: &'a str,
    /// The message's priority in queues that know such.
    pub priority: Option<u8>,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// The sender's name.
    pub app_id: &'a str,
    /// The header table's entries.
    pub headers: HeaderParts<'a>,
}

/// The entries of a message's header table.
#[derive(Debug, Clone, Copy)]
pub struct HeaderParts<'a> {
    /// The kind of the aggregate.
    pub aggregate_type: &'a str,
    /// The aggregate.
    pub aggregate_id: &'a str,
    /// What a return is recognised by.
    pub origin: Origin,
    /// The trace that the event belongs to.
    pub trace: TraceContext<'a>,
    /// All others, of other names.
    pub more: EncodedHeaders<'a>,
}

/// Where a message comes from; the broker gives it back with a returned message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The stream: headers `commit_lsn` and `tx_seq`.
    Stream {
        /// The transaction's commit LSN, sent as text.
        commit_lsn: Lsn,
        /// The event's number in its transaction, from 0.
        tx_seq: u64,
        /// Whether the row came from the table and not from the stream; without the header `backfill` otherwise.
        backfill: bool,
    },
    /// The table, on request: headers `replayed`, which is true, and `replay_seq`. A table does not tell where the
    /// transaction committed.
    Replay {
        /// The message's number in its replay, from 0.
        seq: u64,
    },
}

impl MessageParts<'_> {
    /// Says where the message comes from, that it is mandatory and persistent, and nothing else.
    #[must_use]
    pub fn empty(origin: Origin) -> Self {
        Self {
            exchange: "",
            routing_key: "",
            mandatory: true,
            persistent: true,
            message_id: "",
            message_type: "",
            content_type: "",
            correlation_id: "",
            expiration: "",
            priority: None,
            timestamp: 0,
            app_id: "",
            headers: HeaderParts {
                aggregate_type: "",
                aggregate_id: "",
                origin,
                trace: TraceContext::default(),
                more: EncodedHeaders::default(),
            },
        }
    }
}

impl Message {
    /// Encodes a message into `buffer`, whose old content is dropped and whose capacity is reused.
    ///
    /// The buffer is taken over by the message; [`Message::into_buffer`] gives it back. On an error it stays
    /// with the caller, empty.
    ///
    /// # Errors
    /// A text or number that AMQP cannot carry, by name: the message can never be sent as it is.
    pub fn encode(buffer: &mut Vec<u8>, parts: &MessageParts<'_>, body: &[u8]) -> Result<Self, EncodeError> {
        Self::encode_with(buffer, parts, |out| {
            out.extend_from_slice(body);
            Ok(())
        })
    }

    /// As [`Message::encode`], with the body written by `write_body` into the empty buffer it is handed, for
    /// bodies that are decoded on the way.
    ///
    /// # Errors
    /// Those of `write_body`, and those of [`Message::encode`] turned into the same type.
    pub fn encode_with<E: From<EncodeError>>(
        buffer: &mut Vec<u8>,
        parts: &MessageParts<'_>,
        write_body: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<Self, E> {
        buffer.clear();
        let written = write_body(buffer).and_then(|()| Ok(append_envelope(buffer, parts)?));
        match written {
            Ok((body_end, method_end)) => Ok(Self {
                buffer: mem::take(buffer),
                body_end,
                method_end,
            }),
            Err(error) => {
                buffer.clear();
                Err(error)
            }
        }
    }

    /// The buffer, with its capacity, for the next message.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Bytes held, which is near what is sent; the buffer's spare capacity is not counted.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a message is never empty: it has at least a method"
    )]
    pub const fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Bytes of the body.
    #[must_use]
    pub const fn body_len(&self) -> usize {
        self.body_end
    }

    /// Whether the method and the content header, which cannot be split, go into a frame each. RabbitMQ ends
    /// the whole connection (501) where one does not.
    #[must_use]
    pub fn fits(&self, frame_max: u32) -> bool {
        let largest = chunk_size(frame_max);
        let (_, method, header) = self.split();
        method.len() <= largest && header.len() <= largest
    }

    /// Appends the message's frames to `out`: method, content header, and the body in pieces of `frame_max` -
    /// 8 bytes, none for an empty body (specification, section 4.2.6, "Content Framing").
    ///
    /// `frame_max` is as in [`Frame::decode`](super::Frame::decode). The message must have been found to
    /// [fit](Message::fits).
    pub fn write_frames(&self, channel: u16, frame_max: u32, out: &mut Vec<u8>) {
        let (body, method, header) = self.split();
        frame(out, FrameKind::Method, channel, method);
        frame(out, FrameKind::Header, channel, header);
        for piece in body.chunks(chunk_size(frame_max)) {
            frame(out, FrameKind::Body, channel, piece);
        }
    }

    /// Body, method and header.
    pub(super) fn split(&self) -> (&[u8], &[u8], &[u8]) {
        let (front, header) = self.buffer.split_at_checked(self.method_end).unwrap_or_default();
        let (body, method) = front.split_at_checked(self.body_end).unwrap_or_default();
        (body, method, header)
    }
}

/// Sizes only: the body must not reach a log.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("len", &self.len())
            .field("body_len", &self.body_len())
            .finish()
    }
}

impl HeaderParts<'_> {
    fn write(&self, headers: &mut TableWriter<'_>) -> Result<(), EncodeError> {
        headers.text(header::AGGREGATE_TYPE, self.aggregate_type)?;
        headers.text(header::AGGREGATE_ID, self.aggregate_id)?;
        for (name, value) in [
            (header::TRACEPARENT, self.trace.traceparent),
            (header::TRACESTATE, self.trace.tracestate),
        ] {
            if let Some(value) = value {
                headers.display(name, value)?;
            }
        }
        match self.origin {
            Origin::Stream {
                commit_lsn,
                tx_seq,
                backfill,
            } => {
                headers.display(header::COMMIT_LSN, commit_lsn)?;
                headers.number(header::TX_SEQ, tx_seq)?;
                if backfill {
                    headers.bool(header::BACKFILL, true)?;
                }
            }
            Origin::Replay { seq } => {
                headers.bool(header::REPLAYED, true)?;
                headers.number(header::REPLAY_SEQ, seq)?;
            }
        }
        headers.encoded(self.more.bytes());
        Ok(())
    }
}

/// Appends method and content header to the body, and says where body and method end.
fn append_envelope(buffer: &mut Vec<u8>, parts: &MessageParts<'_>) -> Result<(usize, usize), EncodeError> {
    let body_end = buffer.len();
    append_method(buffer, parts)?;
    let method_end = buffer.len();
    append_header(buffer, parts, body_end)?;
    Ok((body_end, method_end))
}

/// `basic.publish` (<https://www.rabbitmq.com/amqp-0-9-1-reference#basic.publish>).
fn append_method(out: &mut Vec<u8>, parts: &MessageParts<'_>) -> Result<(), EncodeError> {
    method_id(out, method::BASIC_PUBLISH);
    // reserved-1
    put_u16(out, 0);
    short_string(out, "exchange", parts.exchange)?;
    short_string(out, "routing key", parts.routing_key)?;
    // then immediate, which RabbitMQ does not know
    out.push(u8::from(parts.mandatory));
    Ok(())
}

/// The content header (specification, section 4.2.6.1): class, weight, body size, flags, then the properties
/// set in the order of their flags.
fn append_header(out: &mut Vec<u8>, parts: &MessageParts<'_>, body_len: usize) -> Result<(), EncodeError> {
    put_u16(out, class::BASIC);
    // weight
    put_u16(out, 0);
    put_u64(out, u64::try_from(body_len).unwrap_or(u64::MAX));
    let texts = [
        (property::CONTENT_TYPE, parts.content_type),
        (property::CORRELATION_ID, parts.correlation_id),
        (property::EXPIRATION, parts.expiration),
        (property::MESSAGE_ID, parts.message_id),
        (property::TYPE, parts.message_type),
        (property::APP_ID, parts.app_id),
    ];
    let always = property::HEADERS | property::DELIVERY_MODE | property::TIMESTAMP;
    let flags = texts
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .fold(always, |flags, (flag, _)| flags | flag);
    let flags = parts.priority.map_or(flags, |_| flags | property::PRIORITY);
    put_u16(out, flags);
    property_text(out, "content type", parts.content_type)?;
    table(out, "headers", |headers| parts.headers.write(headers))?;
    out.push(if parts.persistent { 2 } else { 1 });
    out.extend(parts.priority);
    property_text(out, "correlation id", parts.correlation_id)?;
    property_text(out, "expiration", parts.expiration)?;
    property_text(out, "message id", parts.message_id)?;
    put_u64(out, parts.timestamp);
    property_text(out, "message type", parts.message_type)?;
    property_text(out, "app id", parts.app_id)
}

/// A text property, which an empty text leaves out.
fn property_text(out: &mut Vec<u8>, field: &'static str, text: &str) -> Result<(), EncodeError> {
    if text.is_empty() {
        Ok(())
    } else {
        short_string(out, field, text)
    }
}

/// The largest payload of a frame, in bytes.
fn chunk_size(frame_max: u32) -> usize {
    usize::try_from(at_least_min(frame_max) - FRAME_OVERHEAD).unwrap_or(usize::MAX)
}
