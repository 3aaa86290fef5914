//! Looking whether PostgreSQL shuts down, in a task of its own, when the engine says that it is time to (rule 13).

use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::task::JoinHandle;
use walrelay_engine::Lsn;
use walrelay_engine::watch::ShutdownWatch;

use super::task::poll_task;
use crate::fault::chain;
use crate::postgres::{self, Connector, SlotName};

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
    look: Option<JoinHandle<bool>>,
}

impl Watch {
    /// For a session that starts `now`, with a connector that is pinned to its server.
    pub(super) fn new(connector: Connector, slot: SlotName, now: Instant) -> Self {
        Self {
            signs: ShutdownWatch::new(now),
            connector,
            slot,
            look: None,
        }
    }

    /// The flow has taken a frame, and `durable` is the durable LSN after it.
    pub(super) fn frame_taken(&mut self, payload: &[u8], durable: Option<Lsn>, now: Instant) {
        self.signs.frame_taken(payload, durable, now);
    }

    /// Starts a look if one is due, given whether reading is paused.
    pub(super) fn look_if_due(&mut self, paused: bool, now: Instant) {
        self.signs.set_paused(paused);
        if self.look.is_none() && self.signs.take_due(now) {
            let (connector, slot) = (self.connector.clone(), self.slot.clone());
            self.look = Some(tokio::spawn(async move {
                let answer = postgres::is_shutting_down(&connector, &slot).await;
                answer.unwrap_or_else(|error| {
                    tracing::debug!(
                        error = chain(&error),
                        "cannot tell whether the server is shutting down"
                    );
                    false
                })
            }));
        }
    }

    /// When the next look is due if nothing else happens.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.signs.deadline().filter(|_| self.look.is_none())
    }

    /// Whether the server shuts down, once a look has told. Pending while none runs.
    ///
    /// # Panics
    /// If the task panicked: half a relay must not live on.
    pub(super) fn poll_look(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let Some(look) = &mut self.look else {
            return Poll::Pending;
        };
        let shutting_down = ready!(poll_task(look, cx));
        self.look = None;
        Poll::Ready(shutting_down)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(look) = &self.look {
            look.abort();
        }
    }
}
