//! The link to a stream: one connection with two publishers, as frames in both directions.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use walrelay_engine::stream_protocol::{Command, Frame, encode};

use super::connect::{FRAME_MAX, Session};
use crate::net::Progress;
use crate::rabbitmq::{BrokerError, LinkEvent};

/// What the broker's log shows as our reason.
const GOOD_BYE: &str = "bye";

/// A connection that publishes to a stream.
#[derive(Debug)]
pub struct StreamLink {
    session: Session,
    heartbeat: Duration,
    version: Option<String>,
    /// How many ids of the confirm in front of the input have been told.
    told: usize,
    heard: Instant,
    sent: Instant,
    /// The broker has closed, and its answer is in the output.
    closed: bool,
}

impl StreamLink {
    pub(super) fn new(session: Session, heartbeat: Duration, version: Option<String>) -> Self {
        let now = Instant::now();
        Self {
            session,
            heartbeat,
            version,
            told: 0,
            heard: now,
            sent: now,
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
        let progress = std::task::ready!(self.session.wire.poll_io(cx, true));
        Poll::Ready(match progress {
            Ok(Progress::Read(_)) => {
                self.heard = now;
                Ok(())
            }
            Ok(Progress::Drained) => {
                self.sent = now;
                Ok(())
            }
            Ok(Progress::Eof) => Err(BrokerError::Eof {
                step: self.session.step,
            }),
            Err(error) => Err(error.into()),
        })
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
        let heartbeat = self.heartbeat;
        if heartbeat.is_zero() {
            return None;
        }
        Some((self.sent + heartbeat / 2).min(self.heard + heartbeat * 2))
    }

    /// Sends a heartbeat when one is due, and finds out that the broker is silent, in the times of
    /// [`Link`](crate::rabbitmq::Link).
    ///
    /// # Errors
    /// The broker is silent.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), BrokerError> {
        let heartbeat = self.heartbeat;
        if heartbeat.is_zero() {
            return Ok(());
        }
        if now >= self.heard + heartbeat * 2 {
            return Err(BrokerError::Silent {
                silence: now - self.heard,
            });
        }
        if now >= self.sent + heartbeat / 2 {
            self.sent = now;
            // With output stuck a heartbeat could not overtake it.
            if self.session.wire.pending_output() == 0 {
                encode::heartbeat(self.session.wire.output());
            }
        }
        Ok(())
    }

    /// Says good-bye and waits for the answer for at most `limit`, then drops the socket either way.
    ///
    /// # Errors
    /// The good-bye was not answered; nothing depends on it.
    pub async fn close(mut self, limit: Duration) -> Result<(), BrokerError> {
        let correlation = self.session.next_correlation();
        encode::close(self.session.wire.output(), correlation, GOOD_BYE);
        timeout(limit, self.await_close_ok(correlation))
            .await
            .map_err(|_| BrokerError::Deadline {
                step: "closing the connection",
                limit,
            })?
    }

    /// Drops the socket; where the broker has closed, only after writing out the answer that it waits for. What else is
    /// unwritten is not sent any more: the next link sends it.
    ///
    /// Cancel safety: dropping the future drops the socket.
    pub async fn dismiss(mut self, deadline: Instant) {
        if !self.closed {
            return;
        }
        if let Ok(Err(error)) = timeout_at(deadline, self.session.wire.flush()).await {
            tracing::debug!(error = %error, "cannot answer the broker's close");
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
