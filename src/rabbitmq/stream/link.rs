//! The link to a stream: one connection with two publishers, as frames in both directions.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_engine::stream_protocol::{Command, Frame, encode};

use super::connect::{FRAME_MAX, Session};
use crate::rabbitmq::pulse::{self, Pulse};
use crate::rabbitmq::{BrokerError, LinkEvent};

/// What the broker's log shows as our reason.
const GOOD_BYE: &str = "bye";

/// A connection that publishes to a stream.
#[derive(Debug)]
pub struct StreamLink {
    session: Session,
    version: Option<String>,
    /// How many ids of the confirm in front of the input have been told.
    told: usize,
    pulse: Pulse,
    /// The broker has closed, and its answer is in the output.
    closed: bool,
}

impl StreamLink {
    pub(super) fn new(session: Session, heartbeat: Duration, version: Option<String>) -> Self {
        Self {
            session,
            version,
            told: 0,
            pulse: Pulse::new(heartbeat),
            closed: false,
        }
    }

    /// The largest frame in bytes.
    #[must_use]
    pub const fn frame_max(&self) -> u32 {
        self.session.frame_max
    }

    /// The broker's version, if it told.
    #[must_use]
    pub fn server_version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// The output buffer, for frames of the publishers.
    pub fn output(&mut self) -> &mut Vec<u8> {
        self.session.wire.output()
    }

    /// Reads and writes whatever is possible. Pending while neither makes progress.
    ///
    /// # Errors
    /// The socket failed, or the broker hung up.
    pub fn poll_io(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), BrokerError>> {
        let step = self.session.step;
        self.pulse.poll_io(&mut self.session.wire, cx, now, step)
    }

    /// The next thing that the broker said, out of what has been read.
    ///
    /// # Errors
    /// The broker closed, does not store a message, or what it sent cannot be understood; the link is of no further use.
    pub fn next_event(&mut self) -> Result<Option<LinkEvent>, BrokerError> {
        loop {
            let Some((frame, size)) = Frame::decode(self.session.wire.input(), FRAME_MAX)? else {
                return Ok(None);
            };
            let mut close = None;
            let result = match Command::decode(frame)? {
                Command::Confirm { publisher, ids } => match ids.get(self.told) {
                    Some(id) => {
                        self.told += 1;
                        return Ok(Some(LinkEvent::Stored { publisher, id }));
                    }
                    None => Ok(()),
                },
                Command::Heartbeat | Command::Other { .. } => Ok(()),
                // Where a message of ours is not stored, or the stream has another leader, all that is outstanding is in doubt:
                // the next link looks for it.
                Command::PublishError { code, .. } | Command::MetadataUpdate { code } => {
                    Err(self.session.refused(code))
                }
                Command::Close {
                    correlation, code, ..
                } => {
                    close = Some(correlation);
                    Err(self.session.refused(code))
                }
                Command::Response { .. } | Command::Tune { .. } | Command::Deliver => {
                    Err(self.session.unexpected("what nobody asked for"))
                }
            };
            self.told = 0;
            self.session.wire.consume(size);
            if let Some(correlation) = close {
                encode::close_ok(self.session.wire.output(), correlation);
                self.closed = true;
            }
            result?;
        }
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
        self.pulse
            .handle_timeout(&mut self.session.wire, now, encode::heartbeat)
    }

    /// Says good-bye and waits for the answer for at most `limit`, then drops the socket either way.
    ///
    /// # Errors
    /// The good-bye was not answered; nothing depends on it.
    pub async fn close(mut self, limit: Duration) -> Result<(), BrokerError> {
        let correlation = self.session.next_correlation();
        encode::close(self.session.wire.output(), correlation, GOOD_BYE);
        pulse::await_close(limit, self.await_close_ok(correlation)).await
    }

    /// Drops the socket; where the broker has closed, only after writing out the answer that it waits for. What else is
    /// unwritten is not sent any more: the next link sends it.
    ///
    /// Cancel safety: dropping the future drops the socket.
    pub async fn dismiss(mut self, deadline: Instant) {
        if self.closed {
            pulse::answer_close(&mut self.session.wire, deadline).await;
        }
    }

    async fn await_close_ok(&mut self, asked: u32) -> Result<(), BrokerError> {
        self.session.wire.flush().await?;
        loop {
            let Some((frame, size)) = Frame::decode(self.session.wire.input(), FRAME_MAX)? else {
                self.session.fill().await?;
                continue;
            };
            let is_answer = matches!(
                Command::decode(frame)?,
                Command::Response { correlation, .. } if correlation == asked
            );
            self.session.wire.consume(size);
            if is_answer {
                return Ok(());
            }
        }
    }
}
