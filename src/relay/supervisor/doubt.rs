//! When a connection is believed again after a fault that needs a person struck its predecessor in mid-stream.
//!
//! A new connection alone tells nothing: it is struck again when delivery gets to the same point. Only what lies behind
//! that point ends the doubt, so that readiness neither flaps nor lags.

use std::time::Instant;

use walrelay_engine::Lsn;
use walrelay_engine::flow::Flow;

use super::Relay;

/// Where the last session was struck, and what the broker had confirmed before the link was up.
#[derive(Debug, Default)]
pub(super) struct Struck {
    /// The commit LSN of the transaction that the session was in the middle of.
    transaction: Option<Lsn>,
    /// How far the session had received the log.
    received: Option<Lsn>,
    /// The count of confirms when the link came up.
    confirmed: u64,
}

impl Struck {
    /// A session that was up is lost; to be told before the flow is.
    pub(super) fn session_failed(&mut self, flow: &Flow) {
        let received = flow.received();
        // A session that has not come as far as its predecessor tells nothing of that one's fault.
        let ahead = self.transaction.filter(|commit| received <= Some(*commit));
        self.transaction = flow.open_commit().max(ahead);
        self.received = received.max(self.received);
    }

    /// The log is another one, in which the positions mean nothing.
    pub(super) const fn forget_position(&mut self) {
        self.transaction = None;
        self.received = None;
    }

    /// A link is up.
    pub(super) const fn link_opened(&mut self, flow: &Flow) {
        self.confirmed = flow.counters().confirmed;
    }

    /// Whether the session is beyond the point where its predecessor was struck. Where that is not known exactly, a while
    /// has to pass as well.
    fn is_passed(&self, flow: &Flow, has_lasted: bool) -> bool {
        match self.transaction {
            Some(commit) => flow.received() > Some(commit),
            None => has_lasted && flow.received() >= self.received,
        }
    }
}

impl Relay {
    /// Believes those connections that have shown that the fault is over.
    pub(super) fn end_doubts(&mut self, now: Instant) {
        if self.database.is_in_doubt() && self.struck.is_passed(&self.flow, self.database.has_lasted(now)) {
            self.database.proved();
            self.struck.forget_position();
        }
        if self.broker.side.is_in_doubt()
            && (self.broker.side.has_lasted(now) || self.flow.counters().confirmed > self.struck.confirmed)
        {
            self.broker.proved();
        }
    }
}
