//! Retries of dead letters, for which logical messages in the stream ask (rule 16).
//!
//! They stand beside the window. Each keeps the durable LSN from passing its request, as an event does, and holds
//! nothing else up: a retry that fails goes back to the dead letters whatever the policy. Many are under way at a time,
//! but never two for the same event.
//!
//! The shell says what a request means ([`Flow::retry_wanted`], [`Flow::retry_ignored`]), loads the dead letters that
//! [`Flow::retries_to_load`] names, and records the outcomes of [`Flow::retries_over`].

mod queue;

use std::time::Instant;

pub(super) use queue::Retries;
#[cfg(test)]
pub(super) use queue::{MAX_ACTIVE, MAX_REQUESTS};

use super::Flow;
use super::intake::Intake;
use super::stored::{StoredEvent, Unfit};
use super::streaming;
use crate::Lsn;
use crate::confirms::Outcome;
use crate::dedup::Verdict;
use crate::key::EventKey;
use crate::pgoutput::LogicalMessage;
use crate::window::{Failure, Seq};
use queue::{Active, Origin, State, Step};

/// The prefix of walrelay's logical messages.
/// <https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION-TABLE>
pub const RETRY_PREFIX: &str = "walrelay";

/// Longer contents are none of ours.
const MAX_CONTENT: usize = 256;

/// Retries are named in [`Confirms`](crate::confirms::Confirms) from here on: no place in the window comes so far.
const PLACES: Seq = 1 << 63;

/// Names a request. Never reused, so that an answer about one that is gone is told from others.
pub type RetryToken = u64;

/// Why a retry failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RetryFailure {
    /// As other events fail.
    Event(Failure),
    /// The stored row cannot become a message.
    Unfit(Unfit),
}

/// A retry that is over.
#[derive(Debug, Clone, Copy)]
pub struct RetryOver<'a> {
    /// The request.
    pub token: RetryToken,
    /// The event.
    pub key: EventKey,
    /// Its id, where it has a usable one.
    pub event_id: Option<&'a str>,
    /// Where it was published to, if it was.
    pub exchange: Option<&'a str>,
    /// The routing key it was published with, if it was.
    pub routing_key: Option<&'a str>,
    /// Why it failed; none where it was delivered.
    pub failure: Option<&'a RetryFailure>,
}

/// What retries mean for the next message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// This one is next.
    Ours(RetryToken),
    /// Nothing may be sent before a retry is answered, or all else is.
    Nobodys,
    /// They do not matter.
    Others,
}

/// The name of a retry among the messages that were sent.
pub(super) const fn place(token: RetryToken) -> Seq {
    PLACES + token
}

/// The retry of this name; none where it is an event of the window.
pub(super) const fn at_place(seq: Seq) -> Option<RetryToken> {
    seq.checked_sub(PLACES)
}

impl Flow {
    /// The newest request, if nobody has said what it means: to be looked at after every frame.
    #[must_use]
    pub fn unsorted_retry(&self) -> Option<(RetryToken, &[u8])> {
        let request = self.retries.newest()?;
        match &request.step {
            Step::Unsorted(content) => Some((request.token, content)),
            Step::Wanted(_) | Step::Active(_) => None,
        }
    }

    /// The request asks for the dead letter of this key.
    pub fn retry_wanted(&mut self, token: RetryToken, position: (Lsn, u64)) {
        self.retries.change(token, |request| {
            let is_unsorted = matches!(request.step, Step::Unsorted(_));
            if is_unsorted {
                request.step = Step::Wanted(position);
            }
            is_unsorted
        });
    }

    /// The request is not ours, or its dead letter is not being retried: it is settled.
    pub fn retry_ignored(&mut self, token: RetryToken) {
        self.settle_retry(token, Lsn::INVALID);
    }

    /// How many bytes of dead letters may be loaded now, or a single larger one; none where nothing is to be loaded. A
    /// stopping flow takes up no further retry: the slot stays before it.
    #[must_use]
    pub fn retry_room(&self) -> Option<usize> {
        self.retries.room().filter(|_| !self.stopping)
    }

    /// The requests whose dead letters are to be loaded, oldest first, with their keys. Hand each to
    /// [`retry_loaded`](Self::retry_loaded), or say [`retry_ignored`](Self::retry_ignored) where it is not being retried;
    /// the youngest may be left for the next time.
    #[must_use]
    pub fn retries_to_load(&self) -> Vec<(RetryToken, (Lsn, u64))> {
        match self.stopping {
            true => Vec::new(),
            false => self.retries.to_load(),
        }
    }

    /// Whether [`retries_over`](Self::retries_over) has any.
    #[must_use]
    pub const fn has_retries_over(&self) -> bool {
        self.retries.has_over()
    }

    /// The retries whose outcome must be recorded; then [`retry_recorded`](Self::retry_recorded) for each.
    pub fn retries_over(&self) -> impl Iterator<Item = RetryOver<'_>> {
        self.retries.over().map(|(token, active)| {
            let message = active.message.as_ref();
            RetryOver {
                token,
                key: active.key,
                event_id: active.event_id.as_deref(),
                exchange: message.and_then(|message| message.exchange()),
                routing_key: message.and_then(|message| message.routing_key()),
                failure: match &active.state {
                    State::Over(failure) => failure.as_ref(),
                    State::Ready | State::Sent => None,
                },
            }
        })
    }

    /// The dead letter that a request asks for: the oldest of [`retries_to_load`](Self::retries_to_load) that has had no
    /// answer. Without effect if that request is gone.
    pub fn retry_loaded(&mut self, token: RetryToken, event: StoredEvent) {
        if !self.retries.is_next_to_load(token) {
            return;
        }
        let table = event.configured(&self.config.tables).map(|(table, _)| table);
        let message = event.message(&self.config.tables, &self.config.app_id, &mut self.scratch);
        let (message, state) = match message {
            Ok(message) => (Some(message), State::Ready),
            Err(unfit) => {
                self.counters.invalid += 1;
                (None, State::Over(Some(RetryFailure::Unfit(unfit))))
            }
        };
        let active = Active {
            key: event.key,
            event_id: event.event_id,
            table,
            message,
            is_suspect: false,
            state,
        };
        self.retries.change(token, |request| {
            request.step = Step::Active(Box::new(active));
            true
        });
    }

    /// What came of a retry is recorded, by a transaction that ends at or before `end`: the durable LSN passes the
    /// request once the stream has been received beyond that (R15). Without effect if the request is gone.
    pub fn retry_recorded(&mut self, token: RetryToken, end: Lsn, now: Instant) {
        let Some(active) = self.retries.active(token) else {
            return;
        };
        let State::Over(failure) = &active.state else {
            return;
        };
        let was_delivered = failure.is_none();
        let (table, id) = (active.table, active.event_id.clone());
        if self.settle_retry(token, end) && was_delivered {
            self.counters.retried += 1;
            if let (Some(table), Some(id)) = (table.filter(|table| self.marks.wants(*table)), id) {
                self.marks.queue(table, (&id, 0), None, now);
            }
        }
    }

    /// Whether a retry is out, or what came of one is not recorded.
    #[must_use]
    pub const fn has_retry_in_flight(&self) -> bool {
        self.retries.is_in_flight()
    }

    /// A logical message of the stream. Only one within a transaction counts: another may be of one that rolled back.
    pub(super) fn logical(&mut self, message: &LogicalMessage<'_>) -> Intake {
        let Some(session) = &mut self.session else {
            return Intake::Taken;
        };
        let is_request = message.is_transactional() && message.prefix == RETRY_PREFIX;
        let content = message
            .content
            .bytes()
            .filter(|content| content.len() <= MAX_CONTENT);
        let (Some(transaction), Some(content), true) =
            (session.stream.transaction_key(), content, is_request)
        else {
            return Intake::Taken;
        };
        if !self.retries.is_full() {
            let origin = Origin {
                transaction,
                lsn: message.lsn,
            };
            self.retries.take(origin, session.ledger.admit(), content);
            Intake::Taken
        } else if self.stopping {
            // Never settled in this session: the slot stays before it, and the next relay gets it.
            session.ledger.admit();
            Intake::Taken
        } else {
            Intake::NoRoom
        }
    }

    /// Whose turn it is to be sent.
    pub(super) fn retry_turn(&mut self) -> Turn {
        if self.retries.is_suspect_out() {
            return Turn::Nobodys;
        }
        let Some((token, next)) = self.retries.next_ready() else {
            return Turn::Others;
        };
        let (is_suspect, position) = (next.is_suspect, next.key.position());
        // Its return could not be told from that of the same event of the stream.
        let is_in_window = self.window.has_unsettled(position);
        if is_in_window || self.stopping || self.is_probing() {
            return Turn::Others;
        }
        match (is_suspect, self.confirms.outstanding()) {
            (true, 0) => Turn::Ours(token),
            (true, _) => Turn::Nobodys,
            (false, _) if self.is_isolating() => Turn::Others,
            (false, _) => Turn::Ours(token),
        }
    }

    /// Appends the retry's frames to `out`. `false` where it failed instead.
    pub(super) fn publish_retry(
        &mut self,
        token: RetryToken,
        frame_max: u32,
        max_body: usize,
        out: &mut Vec<u8>,
        now: Instant,
    ) -> bool {
        let active = self.retries.active(token);
        let Some(message) = active.and_then(|active| active.message.as_ref()) else {
            return false;
        };
        let reason = super::delivery::unfit(message, frame_max, max_body)
            .or_else(|| streaming::unfit(self.dedup.as_ref(), message, frame_max));
        if let Some(reason) = reason {
            let id = message.message_id().map(str::to_owned);
            self.fail_retry(token, Failure::Invalid { id, reason });
            return false;
        }
        match &mut self.dedup {
            Some(dedup) => dedup.write(Verdict::Uncounted, None, message, out),
            None => message.write_frames(super::CHANNEL, frame_max, out),
        }
        self.set_retry(token, State::Sent);
        let tag = self.confirms.published(place(token), now);
        if let Some(dedup) = &mut self.dedup {
            dedup.sent(Verdict::Uncounted, tag);
        }
        true
    }

    /// The broker answered for the retry.
    pub(super) fn retry_outcome(&mut self, token: RetryToken, outcome: Outcome) {
        let failure = match outcome {
            Outcome::Confirmed => {
                if self.set_retry(token, State::Over(None)) {
                    self.counters.confirmed += 1;
                }
                return;
            }
            Outcome::Returned { reply_code } => Failure::Unroutable { reply_code },
            Outcome::Nacked => Failure::Nacked,
        };
        self.fail_retry(token, failure);
    }

    /// The retry failed: it goes back to the dead letters, whatever the policy.
    pub(super) fn fail_retry(&mut self, token: RetryToken, failure: Failure) {
        self.count(&failure);
        self.set_retry(token, State::Over(Some(RetryFailure::Event(failure))));
    }

    #[cfg(test)]
    pub(super) fn check_retries(&self) {
        self.retries.check();
    }

    fn set_retry(&mut self, token: RetryToken, state: State) -> bool {
        self.retries.change(token, |request| match request.active_mut() {
            Some(active) => {
                active.state = state;
                true
            }
            None => false,
        })
    }

    fn settle_retry(&mut self, token: RetryToken, end: Lsn) -> bool {
        let Some(request) = self.retries.remove(token) else {
            return false;
        };
        self.barrier = self.barrier.max(end);
        if let Some(session) = &mut self.session {
            match request.transaction {
                Some(transaction) => {
                    session.ledger.settle_beyond(transaction, end);
                    session.report.settled();
                }
                // This session has yet to bring the request, and will find its dead letter dealt with.
                None => session.ledger.wait_beyond(end),
            }
        }
        true
    }
}
