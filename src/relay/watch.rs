//! Looking whether PostgreSQL shuts down, in a task of its own, when the engine says that it is time to (rule 13).

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use walrelay_engine::Lsn;
use walrelay_engine::watch::ShutdownWatch;

use super::task::poll_task;
use crate::fault::chain;
use crate::net::ConnectError;
use crate::postgres::{self, Connector, Error, SlotName};

/// Watches one session.
///
/// While reading is paused, and only then, it opens about one connection a second and closes it without a word: that costs
/// the server a short-lived process each, and a line of its log with `log_connections`.
#[derive(Debug)]
pub(super) struct Watch {
    signs: ShutdownWatch,
    /// Pinned to the session's server: of several, only that one counts.
    connector: Connector,
    slot: SlotName,
    look: Option<JoinHandle<Seen>>,
    /// When the first of those looks began that nobody has answered.
    unanswered_since: Option<Instant>,
}

/// What a look has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// The server is there, or nothing can be told.
    Nothing,
    /// The server shuts down.
    Shutdown,
    /// Nobody answered within the time allowed.
    Silence,
}

impl Watch {
    /// For a session that starts `now`, with a connector that is pinned to its server.
    pub(super) fn new(connector: Connector, slot: SlotName, now: Instant) -> Self {
        Self {
            signs: ShutdownWatch::new(now),
            connector,
            slot,
            look: None,
            unanswered_since: None,
        }
    }

    /// The flow has taken a frame, and `durable` is the durable LSN after it.
    pub(super) fn frame_taken(&mut self, payload: &[u8], durable: Option<Lsn>, now: Instant) {
        self.signs.frame_taken(payload, durable, now);
        self.unanswered_since = None;
    }

    /// Starts a look if one is due, given whether reading is paused.
    pub(super) fn look_if_due(&mut self, paused: bool, now: Instant) {
        self.signs.set_paused(paused);
        if self.look.is_none() && self.signs.take_due(now) {
            let (connector, slot) = (self.connector.clone(), self.slot.clone());
            self.look = Some(tokio::spawn(async move {
                match postgres::is_shutting_down(&connector, &slot).await {
                    Ok(true) => Seen::Shutdown,
                    Ok(false) => Seen::Nothing,
                    Err(error) => {
                        tracing::debug!(
                            error = chain(&error),
                            "cannot tell whether the server is shutting down"
                        );
                        seen_by(&error)
                    }
                }
            }));
            self.unanswered_since.get_or_insert(now);
        }
    }

    /// When the next look is due if nothing else happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.signs.deadline().filter(|_| self.look.is_none())
    }

    /// What a look has shown, once it is over. Pending while none runs.
    ///
    /// # Panics
    /// If the task panicked: half a relay must not live on.
    pub(super) fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<Seen> {
        let Some(look) = &mut self.look else {
            return Poll::Pending;
        };
        let seen = ready!(poll_task(look, cx));
        self.look = None;
        if seen != Seen::Silence {
            self.unanswered_since = None;
        }
        Poll::Ready(seen)
    }

    /// For how long all looks have stayed without an answer.
    pub(super) fn unanswered_for(&self, now: Instant) -> Duration {
        self.unanswered_since
            .map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

/// A server that is there lets a new connection in or refuses it. Other errors say nothing of it: a name service that is
/// away, no free descriptor.
const fn seen_by(error: &Error) -> Seen {
    let unanswered = matches!(
        error,
        Error::Deadline { .. } | Error::Unreachable(ConnectError::Deadline { .. })
    );
    if unanswered { Seen::Silence } else { Seen::Nothing }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(look) = &self.look {
            look.abort();
        }
    }
}
