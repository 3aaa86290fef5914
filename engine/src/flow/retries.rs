//! Retries of dead letters, for which logical messages in the stream ask (rule 16).
//!
//! They stand beside the window. Each keeps the durable LSN from passing its request, as an event does, and holds
//! nothing else up: a retry that fails goes back to the dead letters whatever the policy. One is under way at a time,
//! so that two requests for the same event never meet.
//!
//! The shell says what a request means ([`Flow::retry_wanted`], [`Flow::retry_ignored`]), then does what
//! [`Flow::next_retry`] asks for.

use std::collections::VecDeque;
use std::time::Instant;

use super::Flow;
use super::intake::Intake;
use super::stored::{StoredEvent, Unfit};
use crate::Lsn;
use crate::amqp::Message;
use crate::confirms::Outcome;
use crate::key::{EventKey, TransactionKey};
use crate::ledger::TransactionNo;
use crate::marks::TableNo;
use crate::pgoutput::LogicalMessage;
use crate::window::{Failure, Seq};

/// The prefix of walrelay's logical messages.
/// <https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION-TABLE>
pub const RETRY_PREFIX: &str = "walrelay";

/// Requests kept; the stream waits behind more.
pub(super) const MAX_REQUESTS: usize = 1024;

/// Longer contents are none of ours.
const MAX_CONTENT: usize = 256;

/// Names the retry in [`Confirms`](crate::confirms::Confirms): no place in the window comes so far.
pub(super) const PLACE: Seq = Seq::MAX;

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

/// What the oldest retry waits for.
#[derive(Debug, Clone, Copy)]
pub enum RetryWork<'a> {
    /// Its dead letter: hand it to [`Flow::retry_loaded`], or say [`Flow::retry_ignored`] where it is not being retried.
    Load {
        /// The request.
        token: RetryToken,
        /// Which dead letter.
        position: (Lsn, u64),
    },
    /// What came of it must be recorded; then [`Flow::retry_recorded`].
    Record(RetryOver<'a>),
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

/// The requests that are not settled, oldest first.
#[derive(Debug, Default)]
pub(super) struct Retries {
    requests: VecDeque<Request>,
    next_token: RetryToken,
}

#[derive(Debug)]
struct Request {
    token: RetryToken,
    origin: Origin,
    /// Its transaction in the current session's ledger; none while no session has brought it again.
    transaction: Option<TransactionNo>,
    step: Step,
}

/// The logical message: the same one if a new session brings it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) transaction: TransactionKey,
    pub(super) lsn: Lsn,
}

#[derive(Debug)]
enum Step {
    /// Nobody has said what it means.
    Unsorted(Vec<u8>),
    /// It asks for this dead letter.
    Wanted((Lsn, u64)),
    /// Its dead letter is loaded.
    Active(Box<Active>),
}

#[derive(Debug)]
struct Active {
    key: EventKey,
    event_id: Option<String>,
    /// Its table, if that is still configured.
    table: Option<TableNo>,
    message: Option<Message>,
    /// The broker closed while it was outstanding with others: it is sent alone, to see whether it was the one.
    is_suspect: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    Ready,
    Sent,
    Over(Option<RetryFailure>),
}

/// What the retry means for the next message to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is next.
    Ours,
    /// Nothing may be sent before it is answered, or all else is.
    Nobodys,
    /// It does not matter.
    Others,
}

impl Retries {
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.requests.len() >= MAX_REQUESTS
    }

    /// Whether a message is out, or what came of it is not recorded.
    pub(super) fn is_in_flight(&self) -> bool {
        self.active()
            .is_some_and(|active| !matches!(active.state, State::Ready))
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
    }

    /// The next session brings the requests again. What is out stays: its answer is still to come.
    pub(super) fn session_lost(&mut self) {
        self.requests.truncate(usize::from(self.is_in_flight()));
        if let Some(request) = self.requests.front_mut() {
            request.transaction = None;
        }
    }

    pub(super) fn link_lost(&mut self) {
        if let Some(active) = self.active_mut().filter(|active| active.is_sent()) {
            active.state = State::Ready;
        }
    }

    /// The broker closed while several messages were outstanding, this one perhaps among them.
    pub(super) fn suspect(&mut self) {
        if let Some(active) = self.active_mut().filter(|active| active.is_sent()) {
            active.is_suspect = true;
        }
    }

    /// Whether the message with these headers is the one that was sent.
    pub(super) fn is_sent(&self, position: (Lsn, u64)) -> bool {
        self.active()
            .is_some_and(|active| active.is_sent() && active.key.position() == position)
    }

    /// Takes a request, or recognises one that is under way.
    fn take(&mut self, origin: Origin, transaction: TransactionNo, content: &[u8]) {
        let known = self
            .requests
            .front_mut()
            .filter(|request| request.transaction.is_none() && request.origin == origin);
        if let Some(request) = known {
            request.transaction = Some(transaction);
            return;
        }
        self.requests.push_back(Request {
            token: self.next_token,
            origin,
            transaction: Some(transaction),
            step: Step::Unsorted(content.to_vec()),
        });
        self.next_token += 1;
    }

    fn active(&self) -> Option<&Active> {
        match &self.requests.front()?.step {
            Step::Active(active) => Some(active),
            Step::Unsorted(_) | Step::Wanted(_) => None,
        }
    }

    fn active_mut(&mut self) -> Option<&mut Active> {
        match &mut self.requests.front_mut()?.step {
            Step::Active(active) => Some(active),
            Step::Unsorted(_) | Step::Wanted(_) => None,
        }
    }
}

impl Active {
    const fn is_sent(&self) -> bool {
        matches!(self.state, State::Sent)
    }

    const fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }
}

impl Flow {
    /// The newest request, if nobody has said what it means: to be looked at after every frame.
    #[must_use]
    pub fn unsorted_retry(&self) -> Option<(RetryToken, &[u8])> {
        let request = self.retries.requests.back()?;
        match &request.step {
            Step::Unsorted(content) => Some((request.token, content)),
            Step::Wanted(_) | Step::Active(_) => None,
        }
    }

    /// The request asks for the dead letter of this key.
    pub fn retry_wanted(&mut self, token: RetryToken, position: (Lsn, u64)) {
        let mut requests = self.retries.requests.iter_mut();
        if let Some(request) = requests.find(|request| request.token == token)
            && matches!(request.step, Step::Unsorted(_))
        {
            request.step = Step::Wanted(position);
        }
    }

    /// The request is not ours, or its dead letter is not being retried: it is settled.
    pub fn retry_ignored(&mut self, token: RetryToken) {
        self.settle_retry(token, Lsn::INVALID);
    }

    /// What the oldest request waits for. A stopping flow takes up no other: the slot stays before it.
    #[must_use]
    pub fn next_retry(&self) -> Option<RetryWork<'_>> {
        let request = self.retries.requests.front()?;
        let token = request.token;
        match &request.step {
            Step::Wanted(position) if !self.stopping => Some(RetryWork::Load {
                token,
                position: *position,
            }),
            Step::Active(active) => {
                let State::Over(failure) = &active.state else {
                    return None;
                };
                let message = active.message.as_ref();
                Some(RetryWork::Record(RetryOver {
                    token,
                    key: active.key,
                    event_id: active.event_id.as_deref(),
                    exchange: message.and_then(|message| message.exchange()),
                    routing_key: message.and_then(|message| message.routing_key()),
                    failure: failure.as_ref(),
                }))
            }
            Step::Unsorted(_) | Step::Wanted(_) => None,
        }
    }

    /// The dead letter that the oldest request asks for. Without effect if that request is gone.
    pub fn retry_loaded(&mut self, token: RetryToken, event: StoredEvent) {
        let Some(request) = self.retries.requests.front_mut() else {
            return;
        };
        if request.token != token || !matches!(request.step, Step::Wanted(_)) {
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
        request.step = Step::Active(Box::new(Active {
            key: event.key,
            event_id: event.event_id,
            table,
            message,
            is_suspect: false,
            state,
        }));
    }

    /// What came of a retry is recorded, by a transaction that ends at or before `end`: the durable LSN passes the
    /// request once the stream has been received beyond that (R15). Without effect if the request is gone.
    pub fn retry_recorded(&mut self, token: RetryToken, end: Lsn, now: Instant) {
        let Some(active) = self.retries.active() else {
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
                self.marks.queue(table, &id, None, now);
            }
        }
    }

    /// Whether a retry is out, or what came of it is not recorded.
    #[must_use]
    pub fn has_retry_in_flight(&self) -> bool {
        self.retries.is_in_flight()
    }

    /// A logical message of the stream. Only one within a transaction counts: another may be of one that rolled back.
    pub(super) fn logical(&mut self, message: &LogicalMessage<'_>) -> Intake {
        let Some(session) = &mut self.session else {
            return Intake::Taken;
        };
        let is_request = message.is_transactional()
            && message.prefix == RETRY_PREFIX
            && message.content.len() <= MAX_CONTENT;
        let Some(transaction) = session.stream.transaction_key().filter(|_| is_request) else {
            return Intake::Taken;
        };
        if !self.retries.is_full() {
            let origin = Origin {
                transaction,
                lsn: message.lsn,
            };
            self.retries.take(origin, session.ledger.admit(), message.content);
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
        let Some(active) = self.retries.active() else {
            return Turn::Others;
        };
        let (is_suspect, is_ready, position) = (active.is_suspect, active.is_ready(), active.key.position());
        if is_suspect && active.is_sent() {
            return Turn::Nobodys;
        }
        // Its return could not be told from that of the same event of the stream.
        let is_in_window = self.window.has_unsettled(position);
        if !is_ready || is_in_window || self.stopping || self.is_probing() {
            return Turn::Others;
        }
        match (is_suspect, self.confirms.outstanding()) {
            (true, 0) => Turn::Ours,
            (true, _) => Turn::Nobodys,
            (false, _) if self.is_isolating() => Turn::Others,
            (false, _) => Turn::Ours,
        }
    }

    /// Appends the retry's frames to `out`. `false` where it failed instead.
    pub(super) fn publish_retry(
        &mut self,
        frame_max: u32,
        max_body: usize,
        out: &mut Vec<u8>,
        now: Instant,
    ) -> bool {
        let Some(active) = self.retries.active_mut() else {
            return false;
        };
        let Some(message) = &active.message else {
            return false;
        };
        if let Some(reason) = super::delivery::unfit(message, frame_max, max_body) {
            let id = message.message_id().map(str::to_owned);
            self.fail_retry(Failure::Invalid { id, reason });
            return false;
        }
        message.write_frames(super::CHANNEL, frame_max, out);
        active.state = State::Sent;
        self.confirms.published(PLACE, now);
        true
    }

    /// The broker answered for the retry.
    pub(super) fn retry_outcome(&mut self, outcome: Outcome) {
        let failure = match outcome {
            Outcome::Confirmed => {
                if let Some(active) = self.retries.active_mut() {
                    active.state = State::Over(None);
                    self.counters.confirmed += 1;
                }
                return;
            }
            Outcome::Returned { reply_code } => Failure::Unroutable { reply_code },
            Outcome::Nacked => Failure::Nacked,
        };
        self.fail_retry(failure);
    }

    /// The retry failed: it goes back to the dead letters, whatever the policy.
    pub(super) fn fail_retry(&mut self, failure: Failure) {
        self.count(&failure);
        if let Some(active) = self.retries.active_mut() {
            active.state = State::Over(Some(RetryFailure::Event(failure)));
        }
    }

    fn settle_retry(&mut self, token: RetryToken, end: Lsn) -> bool {
        let requests = &mut self.retries.requests;
        let index = requests.iter().position(|request| request.token == token);
        let Some(request) = index.and_then(|index| requests.remove(index)) else {
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
