//! Heartbeats and the end of a connection, which both protocols keep in the same way.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::BrokerError;
use crate::net::{Progress, Stream, Wire};

/// When either side of a connection last said something.
#[derive(Debug)]
pub(super) struct Pulse {
    /// The time-out that was agreed on; none if zero.
    heartbeat: Duration,
    heard: Instant,
    sent: Instant,
}

impl Pulse {
    /// Both sides have just spoken.
    pub(super) fn new(heartbeat: Duration) -> Self {
        let now = Instant::now();
        Self {
            heartbeat,
            heard: now,
            sent: now,
        }
    }

    /// Reads and writes whatever is possible. Pending while neither makes progress. `step` is what is going on, for
    /// errors.
    ///
    /// # Errors
    /// The socket failed, or the broker hung up.
    pub(super) fn poll_io(
        &mut self,
        wire: &mut Wire<Stream>,
        cx: &mut Context<'_>,
        now: Instant,
        step: &'static str,
    ) -> Poll<Result<(), BrokerError>> {
        match ready!(wire.poll_io(cx, true))? {
            Progress::Read(_) => self.heard = now,
            Progress::Drained => self.sent = now,
            Progress::Eof => return Poll::Ready(Err(BrokerError::Eof { step })),
        }
        Poll::Ready(Ok(()))
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let heartbeat = self.heartbeat;
        (!heartbeat.is_zero()).then(|| (self.sent + heartbeat / 2).min(self.heard + heartbeat * 2))
    }

    /// Sends a heartbeat, as `encode` appends one, when one is due: after half the time-out agreed on. Finds out that the
    /// broker is silent after twice that time-out. RabbitMQ's own clients do both
    /// (<https://www.rabbitmq.com/docs/heartbeats>). One time-out would be too short: the broker looks every half of it
    /// whether it has sent anything since it last looked, so nearly a whole one may pass between its last data and its
    /// heartbeat.
    ///
    /// # Errors
    /// The broker is silent.
    pub(super) fn handle_timeout(
        &mut self,
        wire: &mut Wire<Stream>,
        now: Instant,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), BrokerError> {
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
            // With output stuck a heartbeat could not overtake it, and the broker waives its check meanwhile.
            if wire.pending_output() == 0 {
                encode(wire.output());
            }
        }
        Ok(())
    }
}

/// Waits for the broker's answer to our good-bye.
///
/// # Errors
/// There was none within `limit`.
pub(super) async fn await_close(
    limit: Duration,
    answer: impl Future<Output = Result<(), BrokerError>>,
) -> Result<(), BrokerError> {
    let step = "closing the connection";
    timeout(limit, answer)
        .await
        .map_err(|_| BrokerError::Deadline { step, limit })?
}

/// Writes out the answer to the broker's close, which it waits for.
pub(super) async fn answer_close(wire: &mut Wire<Stream>, deadline: Instant) {
    if let Ok(Err(error)) = timeout_at(deadline, wire.flush()).await {
        tracing::debug!(error = %error, "cannot answer the broker's close");
    }
}
