//! The link: one connection with one publishing channel, as frames in both directions.
//!
//! It understands frames and keeps the heartbeat; what an answer means for an event is the engine's business.

use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_engine::Lsn;
use walrelay_engine::amqp::{ContentHeader, EncodeError, Frame, FrameKind, Method, encode, returned_key};
use walrelay_engine::flow::CHANNEL;

use super::BrokerError;
use super::error::Phase;
use super::pulse::{self, Pulse};
use crate::net::{Stream, Wire};

/// `reply-success`, the code of a plain good-bye (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
const REPLY_SUCCESS: u16 = 200;

/// What the broker's log shows as our reason.
const GOOD_BYE: &str = "bye";

/// What is going on while a link is up, for errors.
const STEP: &str = "publishing";

/// What both sides agreed on while connecting.
#[derive(Debug, Clone)]
pub(super) struct Negotiated {
    /// The largest frame in bytes.
    pub(super) frame_max: u32,
    /// The heartbeat time-out; none if zero.
    pub(super) heartbeat: Duration,
    /// The largest body that a server of this version takes by default, in bytes.
    pub(super) max_message_bytes: usize,
    /// The server's version, if it told.
    pub(super) version: Option<String>,
}

/// A connection that publishes.
#[derive(Debug)]
pub struct Link {
    wire: Wire<Stream>,
    negotiated: Negotiated,
    returning: Option<Returning>,
    pulse: Pulse,
    /// The broker has closed, and its answer is in the output.
    closed: bool,
}

/// A `basic.return` whose content has not been read to its end.
#[derive(Debug, Clone, Copy)]
struct Returning {
    reply_code: u16,
    /// The event's position, once the content header is read.
    position: Option<(Lsn, u64)>,
    /// Bytes of the body still to come.
    rest: u64,
}

/// What the broker says to a publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// A confirm.
    Ack {
        /// The delivery tag.
        tag: u64,
        /// Whether it counts for all before it.
        multiple: bool,
    },
    /// A refusal.
    Nack {
        /// The delivery tag.
        tag: u64,
        /// Whether it counts for all before it.
        multiple: bool,
    },
    /// A message came back, and its body has been passed over. Its ack is still to come.
    Return {
        /// Commit LSN and `tx_seq` from the message's own headers.
        position: (Lsn, u64),
        /// 312 for no route.
        reply_code: u16,
    },
    /// A stream has a message.
    Stored {
        /// Our number for the publisher.
        publisher: u8,
        /// The publishing id.
        id: u64,
    },
    /// `connection.blocked`: an alarm.
    Blocked {
        /// The broker's words.
        reason: String,
    },
    /// `connection.unblocked`.
    Unblocked,
}

impl Link {
    pub(super) fn new(wire: Wire<Stream>, negotiated: Negotiated) -> Self {
        Self {
            wire,
            pulse: Pulse::new(negotiated.heartbeat),
            negotiated,
            returning: None,
            closed: false,
        }
    }

    /// The largest frame in bytes.
    #[must_use]
    pub const fn frame_max(&self) -> u32 {
        self.negotiated.frame_max
    }

    /// The largest body in bytes that a broker of this version takes by default.
    #[must_use]
    pub const fn max_message_bytes(&self) -> usize {
        self.negotiated.max_message_bytes
    }

    /// The heartbeat time-out that was agreed on; none if zero.
    #[must_use]
    pub const fn heartbeat(&self) -> Duration {
        self.negotiated.heartbeat
    }

    /// The version of TLS; none without TLS.
    #[must_use]
    pub fn tls_version(&self) -> Option<&'static str> {
        self.wire.stream().tls_version()
    }

    /// The broker's version, if it told.
    #[must_use]
    pub fn server_version(&self) -> Option<&str> {
        self.negotiated.version.as_deref()
    }

    /// The output buffer, for frames of the publishing channel.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.wire.output()
    }

    /// Reads and writes whatever is possible. Pending while neither makes progress.
    ///
    /// # Errors
    /// The socket failed, or the broker hung up.
    pub fn poll_io(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), BrokerError>> {
        self.pulse.poll_io(&mut self.wire, cx, now, STEP)
    }

    /// The next thing that the broker said, out of what has been read.
    ///
    /// # Errors
    /// The broker closed, or what it sent cannot be understood; the link is of no further use.
    pub fn next_event(&mut self) -> Result<Option<LinkEvent>, BrokerError> {
        loop {
            let Some((frame, size)) = Frame::decode(self.wire.input(), self.negotiated.frame_max)? else {
                return Ok(None);
            };
            let (mut closed, mut flow_ok) = (None, None);
            #[expect(
                clippy::wildcard_enum_match_arm,
                reason = "whatever else comes is out of place"
            )]
            let event = match (frame.kind, &mut self.returning) {
                (FrameKind::Heartbeat, _) => Ok(None),
                (FrameKind::Header, Some(returning)) if returning.position.is_none() => {
                    let header = ContentHeader::decode(frame.payload)?;
                    returning.position = returned_key(frame.payload)?;
                    returning.rest = header.body_size;
                    Ok(None)
                }
                (FrameKind::Body, Some(returning)) => {
                    let length = u64::try_from(frame.payload.len()).unwrap_or(u64::MAX);
                    returning.rest = returning.rest.saturating_sub(length);
                    Ok(None)
                }
                (FrameKind::Header | FrameKind::Body, _) => Err(unexpected("a message")),
                (FrameKind::Method, Some(_)) => Err(unexpected("a method within a returned message")),
                (FrameKind::Method, None) => match Method::decode(frame.payload)? {
                    Method::BasicAck {
                        delivery_tag: tag,
                        multiple,
                    } => Ok(Some(LinkEvent::Ack { tag, multiple })),
                    Method::BasicNack {
                        delivery_tag: tag,
                        multiple,
                        ..
                    } => Ok(Some(LinkEvent::Nack { tag, multiple })),
                    Method::BasicReturn(returned) => {
                        self.returning = Some(Returning {
                            reply_code: returned.reply_code,
                            position: None,
                            rest: u64::MAX,
                        });
                        Ok(None)
                    }
                    Method::ConnectionBlocked { reason } => Ok(Some(LinkEvent::Blocked {
                        reason: String::from_utf8_lossy(reason).into_owned(),
                    })),
                    Method::ConnectionUnblocked => Ok(Some(LinkEvent::Unblocked)),
                    Method::ChannelFlow { active } => {
                        // RabbitMQ never sends it to publishers, and the specification wants an answer.
                        flow_ok = Some(active);
                        Ok(None)
                    }
                    Method::ConnectionClose(close) => {
                        closed = Some(false);
                        Err(BrokerError::closed(false, Phase::Publishing, &close))
                    }
                    Method::ChannelClose(close) => {
                        closed = Some(true);
                        Err(BrokerError::closed(true, Phase::Publishing, &close))
                    }
                    other => Err(BrokerError::unexpected(&other, STEP)),
                },
            };
            self.wire.consume(size);
            if let Some(channel) = closed {
                append_close_answer(self.wire.output(), channel)?;
                self.closed = true;
            }
            if let Some(active) = flow_ok {
                encode::channel_flow_ok(self.wire.output(), CHANNEL, active);
            }
            if let Some(event) = event?.or(self.take_returned()?) {
                return Ok(Some(event));
            }
        }
    }

    /// A returned message whose body has been passed over.
    fn take_returned(&mut self) -> Result<Option<LinkEvent>, BrokerError> {
        let Some(Returning {
            reply_code, position, ..
        }) = self.returning.take_if(|returning| returning.rest == 0)
        else {
            return Ok(None);
        };
        let position = position.ok_or_else(|| unexpected("a returned message that is not ours"))?;
        Ok(Some(LinkEvent::Return { position, reply_code }))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.pulse.deadline()
    }

    /// Sends a heartbeat when one is due, and finds out that the broker is silent.
    ///
    /// # Errors
    /// The broker is silent.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), BrokerError> {
        self.pulse.handle_timeout(&mut self.wire, now, encode::heartbeat)
    }

    /// Says good-bye and waits for the answer for at most `limit`, then drops the socket either way.
    ///
    /// # Errors
    /// The good-bye was not answered; nothing depends on it.
    pub async fn close(mut self, limit: Duration) -> Result<(), BrokerError> {
        encode::connection_close(self.wire.output(), REPLY_SUCCESS, GOOD_BYE)?;
        pulse::await_close(limit, self.await_close_ok()).await
    }

    /// Drops the socket; where the broker has closed, only after writing out the answer that it waits for. What else is
    /// unwritten is not sent any more: the next link sends it.
    ///
    /// Cancel safety: dropping the future drops the socket.
    pub async fn dismiss(mut self, deadline: Instant) {
        if self.closed {
            pulse::answer_close(&mut self.wire, deadline).await;
        }
    }

    async fn await_close_ok(&mut self) -> Result<(), BrokerError> {
        self.wire.flush().await?;
        loop {
            let Some((frame, size)) = Frame::decode(self.wire.input(), self.negotiated.frame_max)? else {
                if self.wire.fill().await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                continue;
            };
            let closed = frame.kind == FrameKind::Method
                && matches!(Method::decode(frame.payload), Ok(Method::ConnectionCloseOk));
            self.wire.consume(size);
            if closed {
                return Ok(());
            }
        }
    }
}

/// Appends the answer to a close of the broker's: of the connection, or of the channel, behind which we say good-bye
/// to the connection too.
pub(super) fn append_close_answer(out: &mut Vec<u8>, channel: bool) -> Result<(), EncodeError> {
    if !channel {
        encode::connection_close_ok(out);
        return Ok(());
    }
    encode::channel_close_ok(out, CHANNEL);
    encode::connection_close(out, REPLY_SUCCESS, GOOD_BYE)
}

fn unexpected(received: &str) -> BrokerError {
    BrokerError::Unexpected {
        received: received.to_owned(),
        step: STEP,
    }
}
