//! The window: encoded messages that are not settled, by key. It outlives links and sessions.

use std::collections::VecDeque;

use crate::amqp::Message;
use crate::event::InvalidRow;
use crate::key::EventKey;
use crate::ledger::TransactionNo;
use crate::order::{AggregateHash, Order, Place};
use crate::row::Row;

/// Emptied message buffers kept for reuse, and the capacity above which one is not kept: a few large events must
/// not pin their memory for good.
const SPARE_BUFFERS: usize = 256;
const SPARE_CAPACITY: usize = 16 * 1024;

/// A place in the window, rising by one with each admitted event; never reused.
pub type Seq = u64;

/// Events in stream order, from the oldest unsettled one to the newest admitted.
///
/// Bounded by count (the whole span, settled ones in it included: rule 12) and by bytes.
#[derive(Debug)]
pub struct Window {
    entries: VecDeque<Entry>,
    first: Seq,
    /// No entry before this one is [`State::Queued`].
    cursor: Seq,
    /// With strict order: which events may be sent.
    order: Option<Order>,
    bytes: usize,
    unsettled: usize,
    failed: usize,
    limits: WindowLimits,
    spare: Vec<Vec<u8>>,
}

/// How much may be unsettled at once.
#[derive(Debug, Clone, Copy)]
pub struct WindowLimits {
    /// Events, `delivery.max_in_flight`.
    pub events: usize,
    /// Bytes of encoded messages, `delivery.max_in_flight_bytes`.
    pub bytes: usize,
}

/// One admitted event.
#[derive(Debug)]
pub struct Entry {
    /// Which event it is.
    pub key: EventKey,
    /// Its transaction in the current session's ledger; none while no session has brought it again.
    pub transaction: Option<TransactionNo>,
    /// What happened to it.
    pub state: State,
    /// The message, until it is settled; none where the row cannot become one.
    pub message: Option<Message>,
    /// The row, where it may become a dead letter.
    pub row: Option<Row>,
    /// How often the broker has answered for it other than by a confirm.
    pub attempts: u32,
    aggregate: AggregateHash,
    /// With strict order: the next event of the same aggregate.
    successor: Option<Seq>,
}

/// What is admitted.
#[derive(Debug)]
pub struct Admission {
    /// Which event.
    pub key: EventKey,
    /// Its transaction.
    pub transaction: TransactionNo,
    /// The message; without one the event must be [failed](Window::fail) at once.
    pub message: Option<Message>,
    /// The row, where it may become a dead letter.
    pub row: Option<Row>,
    /// Whose event it is; of no meaning without strict order.
    pub aggregate: AggregateHash,
}

impl Entry {
    /// Whether it failed in a way that trying again may help.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(&self.state, State::Failed(failure) if failure.is_retryable())
    }

    /// Bytes held.
    fn len(&self) -> usize {
        self.message.as_ref().map_or(0, Message::len) + self.row.as_ref().map_or(0, Row::len)
    }
}

/// What happened to an event so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// To be sent on the current link, or on the next one.
    Queued,
    /// Sent on the current link; the broker has not answered.
    Sent,
    /// Needs another try or a person. It stays so while a probe of it is out, until the broker has taken it.
    Failed(Failure),
    /// Being stored as a dead letter.
    SettingAside(Failure),
    /// Final.
    Settled,
}

/// Why an event is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The broker returned it: no queue for its key.
    Unroutable {
        /// The return's code, 312 for no route.
        reply_code: u16,
    },
    /// A queue refused it.
    Nacked,
    /// The broker did not answer within `delivery.confirm_timeout`.
    Unanswered,
    /// The broker closed the channel or the connection over this very message.
    Refused {
        /// The reply code, such as 406.
        reply_code: u16,
        /// The broker's words.
        reply_text: String,
    },
    /// The row cannot become a message.
    Invalid {
        /// The row's id, where it has a usable one.
        id: Option<String>,
        /// Why.
        reason: InvalidRow,
    },
}

impl Failure {
    /// Whether trying again may help: a row that cannot become a message never does.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unroutable { .. } | Self::Nacked | Self::Unanswered | Self::Refused { .. } => true,
            Self::Invalid { .. } => false,
        }
    }
}

/// Whether an event that the stream brings is known already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Located {
    /// It lies beyond everything admitted.
    New,
    /// It is in the window and unsettled.
    Unsettled(Seq),
    /// It is in the window and settled.
    Settled,
    /// It lies before everything in the window: settled so long ago that it was forgotten, or of a restored log.
    Earlier,
    /// It should be in the window but is not: the log is not the one that was read before.
    Diverged,
}

impl Window {
    /// An empty window; with `strict`, of each aggregate only the oldest unsettled event is sent.
    #[must_use]
    pub fn new(limits: WindowLimits, strict: bool) -> Self {
        Self {
            entries: VecDeque::new(),
            first: 0,
            cursor: 0,
            order: strict.then(Order::default),
            bytes: 0,
            unsettled: 0,
            failed: 0,
            limits,
            spare: Vec::new(),
        }
    }

    /// Whether a message of `bytes` may be admitted; an empty window takes any one event.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.entries.is_empty()
            || (self.entries.len() < self.limits.events
                && self.bytes.saturating_add(bytes) <= self.limits.bytes)
    }

    /// An empty buffer to encode the next message into.
    pub fn spare_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a buffer from [`spare_buffer`](Self::spare_buffer) or of a message that is no longer needed.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_CAPACITY {
            self.spare.push(buffer);
        }
    }

    /// Admits an event behind all others.
    pub fn admit(&mut self, admission: Admission) -> Seq {
        let Admission {
            key,
            transaction,
            message,
            row,
            aggregate,
        } = admission;
        let place = self.first + seq(self.entries.len());
        if let Some(order) = &mut self.order
            && let Place::After(before) = order.admit(aggregate, place)
            && let Some(before) = self.entry_mut(before)
        {
            before.successor = Some(place);
        }
        self.unsettled += 1;
        let entry = Entry {
            key,
            transaction: Some(transaction),
            state: State::Queued,
            message,
            row,
            attempts: 0,
            aggregate,
            successor: None,
        };
        self.bytes += entry.len();
        self.entries.push_back(entry);
        place
    }

    /// Looks an event up that a new session brings again.
    #[must_use]
    pub fn locate(&self, key: &EventKey) -> Located {
        let position = key.position();
        let Some((first, last)) = self.entries.front().zip(self.entries.back()) else {
            return Located::New;
        };
        if position > last.key.position() {
            return Located::New;
        }
        if position < first.key.position() {
            return Located::Earlier;
        }
        let found = self
            .entries
            .binary_search_by_key(&position, |entry| entry.key.position());
        match found
            .ok()
            .and_then(|index| self.entries.get(index).map(|entry| (index, entry)))
        {
            Some((_, entry)) if entry.key != *key => Located::Diverged,
            Some((_, entry)) if entry.state == State::Settled => Located::Settled,
            Some((index, _)) => Located::Unsettled(self.first + seq(index)),
            None => Located::Diverged,
        }
    }

    /// The session's ledger now counts this unsettled event.
    pub fn attach(&mut self, seq: Seq, transaction: TransactionNo) {
        if let Some(entry) = self.entry_mut(seq) {
            entry.transaction = Some(transaction);
        }
    }

    /// The session is lost, and its ledger with it.
    pub fn detach_all(&mut self) {
        for entry in &mut self.entries {
            entry.transaction = None;
        }
    }

    /// The next message to send, skipping what is not queued or, with strict order, not the oldest of its aggregate.
    pub fn next_queued(&mut self) -> Option<Seq> {
        if let Some(order) = &mut self.order {
            while let Some(seq) = order.next() {
                let index = seq
                    .checked_sub(self.first)
                    .and_then(|index| usize::try_from(index).ok());
                let entry = index.and_then(|index| self.entries.get(index));
                if entry.is_some_and(|entry| entry.state == State::Queued) {
                    return Some(seq);
                }
                order.sent();
            }
            return None;
        }
        while let Some(entry) = self.entry(self.cursor) {
            if entry.state == State::Queued {
                return Some(self.cursor);
            }
            self.cursor += 1;
        }
        None
    }

    /// An event by its place.
    #[must_use]
    pub fn entry(&self, seq: Seq) -> Option<&Entry> {
        self.entries.get(self.index(seq)?)
    }

    /// The place of the oldest event; of the next one to be admitted, where the window is empty.
    #[must_use]
    pub const fn first(&self) -> Seq {
        self.first
    }

    /// The place of the newest event.
    #[must_use]
    pub fn newest(&self) -> Option<Seq> {
        Some(self.first + seq(self.entries.len().checked_sub(1)?))
    }

    /// The oldest event that a probe could be made with, and whether it has failed before.
    #[must_use]
    pub fn oldest_sendable(&self) -> Option<(Seq, bool)> {
        self.entries
            .iter()
            .enumerate()
            .find_map(|(index, entry)| match &entry.state {
                State::Queued => Some((self.first + seq(index), false)),
                State::Failed(failure) if failure.is_retryable() => Some((self.first + seq(index), true)),
                State::Failed(_) | State::SettingAside(_) | State::Sent | State::Settled => None,
            })
    }

    /// The oldest event that failed.
    #[must_use]
    pub fn oldest_failed(&self) -> Option<(Seq, &Entry, &Failure)> {
        if self.failed == 0 {
            return None;
        }
        self.entries
            .iter()
            .enumerate()
            .find_map(|(index, entry)| match &entry.state {
                State::Failed(failure) => Some((self.first + seq(index), entry, failure)),
                State::Queued | State::SettingAside(_) | State::Sent | State::Settled => None,
            })
    }

    /// An event that failed, by its place.
    #[must_use]
    pub fn failed_entry(&self, seq: Seq) -> Option<(&Entry, &Failure)> {
        let entry = self.entry(seq)?;
        match &entry.state {
            State::Failed(failure) => Some((entry, failure)),
            State::Queued | State::SettingAside(_) | State::Sent | State::Settled => None,
        }
    }

    /// The place of an unsettled event by commit LSN and `tx_seq`.
    #[must_use]
    pub fn find(&self, position: (crate::Lsn, u64)) -> Option<Seq> {
        let index = self
            .entries
            .binary_search_by_key(&position, |entry| entry.key.position())
            .ok()?;
        Some(self.first + seq(index))
    }

    /// The message went out on the current link. One that failed stays failed until the broker has taken it.
    pub fn sent(&mut self, seq: Seq) {
        if let Some(entry) = self.entry_mut(seq).filter(|entry| entry.state == State::Queued) {
            entry.state = State::Sent;
        }
    }

    /// The event failed. Its message, if it has one, is kept for another try.
    pub fn fail(&mut self, seq: Seq, failure: Failure) {
        if let Some(entry) = self.entry_mut(seq) {
            entry.attempts += 1;
        }
        self.set_state(seq, State::Failed(failure));
    }

    /// The event, which has failed, is to be stored as a dead letter; it is unsettled until then.
    pub fn set_aside(&mut self, seq: Seq) {
        let Some(State::Failed(failure)) = self.entry(seq).map(|entry| entry.state.clone()) else {
            return;
        };
        self.set_state(seq, State::SettingAside(failure));
    }

    /// The oldest event that is to be stored as a dead letter.
    #[must_use]
    pub fn oldest_set_aside(&self) -> Option<(Seq, &Entry, &Failure)> {
        self.entries
            .iter()
            .enumerate()
            .find_map(|(index, entry)| match &entry.state {
                State::SettingAside(failure) => Some((self.first + seq(index), entry, failure)),
                State::Queued | State::Failed(_) | State::Sent | State::Settled => None,
            })
    }

    /// The event is settled. `settled` is told the oldest keys that leave the window, in stream order. Returns the
    /// event's transaction, if the current session has brought it.
    pub fn settle(&mut self, seq: Seq, settled: impl FnMut(EventKey)) -> Option<TransactionNo> {
        self.set_state(seq, State::Settled);
        let entry = self.entry_mut(seq)?;
        let (transaction, aggregate, successor, bytes) =
            (entry.transaction, entry.aggregate, entry.successor, entry.len());
        let (message, _) = (entry.message.take(), entry.row.take());
        self.bytes = self.bytes.saturating_sub(bytes);
        if let Some(message) = message {
            self.recycle(message.into_buffer());
        }
        if let Some(order) = &mut self.order {
            order.settled(aggregate, seq, successor);
        }
        self.unsettled = self.unsettled.saturating_sub(1);
        self.pop_settled(settled);
        transaction
    }

    /// The link is lost: everything sent and unanswered counts as unsent, and is sent again in order.
    pub fn requeue_sent(&mut self) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.state == State::Sent {
                entry.state = State::Queued;
                if let Some(order) = &mut self.order {
                    order.unsent(self.first + seq(index));
                }
            }
        }
        self.cursor = self.first;
    }

    /// Drops everything: the log is another one.
    pub fn clear(&mut self) {
        self.first += seq(self.entries.len());
        self.cursor = self.first;
        self.entries.clear();
        if let Some(order) = &mut self.order {
            order.clear();
        }
        (self.bytes, self.unsettled, self.failed) = (0, 0, 0);
    }

    /// Events admitted and not settled.
    #[must_use]
    pub const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Bytes of unsettled messages.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many events have failed and wait.
    #[must_use]
    pub const fn failed(&self) -> usize {
        self.failed
    }

    fn pop_settled(&mut self, mut settled: impl FnMut(EventKey)) {
        while let Some(entry) = self.entries.front().filter(|entry| entry.state == State::Settled) {
            settled(entry.key);
            self.entries.pop_front();
            self.first += 1;
        }
        self.cursor = self.cursor.max(self.first);
    }

    fn set_state(&mut self, seq: Seq, state: State) {
        let Some(entry) = self.entry_mut(seq) else { return };
        let was_failed = matches!(entry.state, State::Failed(_));
        let is_failed = matches!(state, State::Failed(_));
        entry.state = state;
        self.failed = self.failed + usize::from(is_failed) - usize::from(was_failed);
    }

    fn entry_mut(&mut self, seq: Seq) -> Option<&mut Entry> {
        let index = self.index(seq)?;
        self.entries.get_mut(index)
    }

    fn index(&self, seq: Seq) -> Option<usize> {
        seq.checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok())
    }
}

/// An index as a distance between places.
fn seq(index: usize) -> Seq {
    u64::try_from(index).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lsn;
    use crate::amqp::{HeaderParts, MessageParts};
    use crate::key::TransactionKey;
    use crate::ledger::Ledger;
    use crate::timestamp::PgTimestamp;

    fn key(commit_lsn: u64, xid: u32, tx_seq: u64) -> EventKey {
        let transaction = TransactionKey {
            commit_lsn: Lsn::new(commit_lsn),
            xid,
            commit_time: PgTimestamp::new(5),
        };
        EventKey { transaction, tx_seq }
    }

    fn window(events: usize, bytes: usize) -> Window {
        Window::new(WindowLimits { events, bytes }, false)
    }

    /// Admits a message of exactly `bytes`.
    fn admit(window: &mut Window, key: EventKey, bytes: usize) {
        let mut buffer = window.spare_buffer();
        let parts = MessageParts {
            exchange: "",
            routing_key: "",
            mandatory: true,
            persistent: true,
            message_id: "",
            message_type: "",
            content_type: "",
            timestamp: 0,
            app_id: "",
            headers: HeaderParts {
                aggregate_type: "",
                aggregate_id: "",
                commit_lsn: Lsn::new(0x1000_0000),
                tx_seq: 0,
            },
        };
        let envelope = Message::encode(&mut buffer, &parts, b"").unwrap();
        let body = vec![b'x'; bytes - envelope.len()];
        buffer = envelope.into_buffer();
        let message = Message::encode(&mut buffer, &parts, &body).unwrap();
        assert_eq!(message.len(), bytes);
        window.admit(admission(key, Some(message)));
    }

    fn admission(key: EventKey, message: Option<Message>) -> Admission {
        Admission {
            key,
            transaction: transaction(),
            message,
            row: None,
            aggregate: 0,
        }
    }

    fn transaction() -> TransactionNo {
        let mut ledger = Ledger::new();
        ledger.begin();
        ledger.admit()
    }

    fn settle(window: &mut Window, seq: Seq) -> Vec<String> {
        let mut left = Vec::new();
        window.settle(seq, |key| left.push(key.to_string()));
        left
    }

    fn drain_queue(window: &mut Window) -> Vec<Seq> {
        let mut queued = Vec::new();
        while let Some(seq) = window.next_queued() {
            window.sent(seq);
            queued.push(seq);
        }
        queued
    }

    /// R12: one unsettled event must not let any number of settled ones pile up behind it.
    #[test]
    fn room_is_counted_from_the_oldest_unsettled_event_settled_ones_included() {
        let mut window = window(3, 1_000_000);
        for tx_seq in 0..3 {
            assert!(window.has_room(200));
            admit(&mut window, key(100, 1, tx_seq), 200);
        }
        assert!(!window.has_room(0));
        assert!(settle(&mut window, 1).is_empty());
        assert!(settle(&mut window, 2).is_empty());
        assert_eq!((window.unsettled(), window.has_room(0)), (1, false));
        assert_eq!(settle(&mut window, 0), ["0/64:0", "0/64:1", "0/64:2"]);
        assert!(window.has_room(0));
    }

    #[test]
    fn room_is_counted_in_bytes_of_what_is_unsettled() {
        let mut window = window(100, 1_000);
        admit(&mut window, key(100, 1, 0), 400);
        admit(&mut window, key(100, 1, 1), 400);
        assert_eq!((window.has_room(200), window.has_room(201)), (true, false));
        settle(&mut window, 1);
        assert_eq!(
            (window.bytes(), window.has_room(600), window.has_room(601)),
            (400, true, false)
        );
        assert!(!window.has_room(usize::MAX), "does not overflow");
    }

    #[test]
    fn an_empty_window_takes_one_event_however_large_and_then_no_other() {
        let mut window = window(100, 1_000);
        assert!(window.has_room(5_000));
        admit(&mut window, key(100, 1, 0), 5_000);
        assert!(!window.has_room(0));
        settle(&mut window, 0);
        assert!(window.has_room(5_000));
    }

    /// R2.
    #[test]
    fn an_event_is_located_by_its_whole_key() {
        let mut window = window(10, 10_000);
        assert_eq!(window.locate(&key(100, 1, 0)), Located::New);
        for (commit_lsn, tx_seq) in [(100, 0), (100, 2), (300, 0)] {
            admit(&mut window, key(commit_lsn, 1, tx_seq), 200);
        }
        settle(&mut window, 1);
        for (key, located) in [
            (key(100, 1, 0), Located::Unsettled(0)),
            (key(100, 1, 2), Located::Settled),
            (key(300, 1, 0), Located::Unsettled(2)),
            (key(300, 1, 1), Located::New),
            (key(301, 1, 0), Located::New),
            (key(99, 1, 7), Located::Earlier),
            (key(100, 1, 1), Located::Diverged),
            (key(200, 1, 0), Located::Diverged),
            (key(100, 2, 0), Located::Diverged),
        ] {
            assert_eq!(window.locate(&key), located, "{key:?}");
        }
        settle(&mut window, 0);
        assert_eq!(window.locate(&key(100, 1, 2)), Located::Earlier);
        assert_eq!(window.find((Lsn::new(300), 0)), Some(2));
        assert_eq!(window.find((Lsn::new(100), 2)), None);
    }

    #[test]
    fn a_lost_link_queues_again_what_was_sent_and_nothing_else() {
        let mut window = window(10, 10_000);
        for tx_seq in 0..5 {
            admit(&mut window, key(100, 1, tx_seq), 200);
        }
        assert_eq!(drain_queue(&mut window), [0, 1, 2, 3, 4]);
        settle(&mut window, 1);
        window.fail(3, Failure::Nacked);
        window.requeue_sent();
        assert_eq!(drain_queue(&mut window), [0, 2, 4]);
        assert_eq!(window.failed(), 1);
    }

    /// I9: while a probe is out, its event is still what stops delivery.
    #[test]
    fn a_failed_event_stays_failed_until_it_is_settled() {
        let mut window = window(10, 10_000);
        admit(&mut window, key(100, 1, 0), 200);
        admit(&mut window, key(100, 1, 1), 200);
        drain_queue(&mut window);
        window.fail(0, Failure::Nacked);
        window.fail(0, Failure::Unroutable { reply_code: 312 });
        assert_eq!((window.failed(), window.oldest_sendable()), (1, Some((0, true))));
        window.sent(0);
        let (_, entry, failure) = window.oldest_failed().unwrap();
        assert_eq!(
            (entry.key, failure),
            (key(100, 1, 0), &Failure::Unroutable { reply_code: 312 })
        );
        settle(&mut window, 0);
        assert_eq!((window.failed(), window.oldest_failed().is_some()), (0, false));
    }

    #[test]
    fn a_row_without_a_message_is_failed_from_the_start_and_never_sendable() {
        let mut window = window(10, 10_000);
        let failure = Failure::Invalid {
            id: None,
            reason: InvalidRow::Null("id"),
        };
        let seq = window.admit(admission(key(100, 1, 0), None));
        window.fail(seq, failure);
        assert_eq!((window.failed(), window.unsettled(), window.bytes()), (1, 1, 0));
        assert_eq!((window.next_queued(), window.oldest_sendable()), (None, None));
        admit(&mut window, key(100, 1, 1), 200);
        assert_eq!(window.oldest_sendable(), Some((1, false)));
    }

    #[test]
    fn an_event_belongs_to_the_ledger_of_the_current_session_only() {
        let mut window = window(10, 10_000);
        admit(&mut window, key(100, 1, 0), 200);
        window.detach_all();
        assert_eq!(window.settle(0, drop), None);
        admit(&mut window, key(200, 1, 0), 200);
        window.detach_all();
        window.attach(1, transaction());
        assert_eq!(window.settle(1, drop), Some(transaction()));
    }

    #[test]
    fn places_are_not_reused_after_everything_was_dropped() {
        let mut window = window(10, 10_000);
        admit(&mut window, key(100, 1, 0), 200);
        window.fail(0, Failure::Nacked);
        window.clear();
        assert_eq!((window.unsettled(), window.bytes(), window.failed()), (0, 0, 0));
        admit(&mut window, key(100, 1, 0), 200);
        assert_eq!(window.next_queued(), Some(1));
        assert!(settle(&mut window, 0).is_empty(), "a late answer settles nothing");
        assert_eq!(window.unsettled(), 1);
    }

    /// I5.
    #[test]
    fn buffers_are_used_again_but_large_ones_are_not_kept() {
        let mut window = window(10, 1_000_000);
        admit(&mut window, key(100, 1, 0), 2_000);
        settle(&mut window, 0);
        let buffer = window.spare_buffer();
        assert!(buffer.is_empty() || buffer.capacity() >= 2_000);
        assert!((2_000..=SPARE_CAPACITY).contains(&buffer.capacity()));
        admit(&mut window, key(200, 1, 0), 10 * SPARE_CAPACITY);
        settle(&mut window, 1);
        assert_eq!(window.spare_buffer().capacity(), 0);
        for _ in 0..2 * SPARE_BUFFERS {
            window.recycle(Vec::with_capacity(10));
        }
        assert_eq!(window.spare.len(), SPARE_BUFFERS);
    }
}
