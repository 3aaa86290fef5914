//! The window: encoded messages that are not settled, by key. It outlives links and sessions.

mod entry;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::mem;

pub use entry::{Admission, Entry, Failure, State};

use crate::amqp::Message;
use crate::key::EventKey;
use crate::ledger::TransactionNo;
use crate::marks::Position;
use crate::order::{AggregateHash, Neighbours, Order};
use crate::row::Row;

/// Bytes of emptied message buffers that are kept for reuse, and the capacity above which one is not kept: a few large events
/// must not pin their memory for good. There are never more of them than events in a full window.
const SPARE_BYTES: usize = 4 * 1024 * 1024;
const SPARE_CAPACITY: usize = 16 * 1024;

/// The capacity of a fresh buffer: most messages fit, so that it need not grow while one is encoded.
const FRESH_CAPACITY: usize = 1024;

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
    setting_aside: usize,
    prefix: Option<Position>,
    limits: WindowLimits,
    spare: Vec<Vec<u8>>,
    /// The capacity of all of them.
    spare_bytes: usize,
}

/// How much may be unsettled at once.
#[derive(Debug, Clone, Copy)]
pub struct WindowLimits {
    /// Events, `delivery.max_in_flight`.
    pub events: usize,
    /// Bytes of encoded messages, `delivery.max_in_flight_bytes`.
    pub bytes: usize,
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
            setting_aside: 0,
            prefix: None,
            limits,
            spare: Vec::new(),
            spare_bytes: 0,
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
        let Some(buffer) = self.spare.pop() else {
            return Vec::with_capacity(FRESH_CAPACITY);
        };
        self.spare_bytes = self.spare_bytes.saturating_sub(buffer.capacity());
        buffer
    }

    /// Takes back a buffer from [`spare_buffer`](Self::spare_buffer) or of a message that is no longer needed.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let has_room = self.spare.len() < self.limits.events && self.spare_bytes + capacity <= SPARE_BYTES;
        if has_room && (1..=SPARE_CAPACITY).contains(&capacity) {
            self.spare_bytes += capacity;
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
            table,
            on_unroutable,
        } = admission;
        let place = self.first + seq(self.entries.len());
        let before = self
            .order
            .as_mut()
            .and_then(|order| order.admit(aggregate, place));
        if let Some(before) = before.and_then(|before| self.entry_mut(before)) {
            before.neighbours.after = Some(place);
        }
        self.unsettled += 1;
        let entry = Entry {
            key,
            transaction,
            state: State::Queued,
            message,
            row,
            attempts: 0,
            table,
            on_unroutable,
            aggregate,
            neighbours: Neighbours { before, after: None },
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
        self.prefix = None;
    }

    /// All events up to here are settled, of those that the current session has brought. What an earlier one had brought
    /// does not count: the server may have been restored since, and its log gone on another way (R2, R19).
    #[must_use]
    pub const fn settled_prefix(&self) -> Option<Position> {
        self.prefix
    }

    /// The next message to send, skipping what is not queued or, with strict order, not the oldest of its aggregate.
    pub fn next_queued(&mut self) -> Option<Seq> {
        if let Some(order) = &self.order {
            return order.next();
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

    /// The place of the newest event that was sent on the current link and is not answered.
    #[must_use]
    pub fn newest_sent(&self) -> Option<Seq> {
        let index = self
            .entries
            .iter()
            .rposition(|entry| entry.state == State::Sent)?;
        Some(self.first + seq(index))
    }

    /// The place of the oldest event that was sent and is not answered, or may be sent and has not failed.
    #[must_use]
    pub fn oldest_to_answer(&self) -> Option<Seq> {
        let index = self.entries.iter().position(|entry| {
            matches!(entry.state, State::Queued | State::Sent) && entry.neighbours.before.is_none()
        })?;
        Some(self.first + seq(index))
    }

    /// The oldest event that may be sent, and whether it has failed before. With strict order none that an earlier one of
    /// its aggregate stands before, whatever keeps that from being settled.
    #[must_use]
    pub fn oldest_sendable(&self) -> Option<(Seq, bool)> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.neighbours.before.is_none())
            .find_map(|(index, entry)| match &entry.state {
                State::Queued => Some((self.first + seq(index), false)),
                State::Failed(failure) if failure.is_retryable() => Some((self.first + seq(index), true)),
                State::Failed(_) | State::SettingAside(_) | State::Sent | State::Settled => None,
            })
    }

    /// The oldest event that failed.
    #[must_use]
    pub fn oldest_failed(&self) -> Option<(Seq, &Entry, &Failure)> {
        self.all_failed().next()
    }

    /// The events that failed, oldest first.
    pub fn all_failed(&self) -> impl Iterator<Item = (Seq, &Entry, &Failure)> {
        let entries = self.entries.iter().enumerate();
        entries
            .take(if self.failed == 0 { 0 } else { usize::MAX })
            .filter_map(|(index, entry)| match &entry.state {
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

    /// The places of the stream's events up to this position that are neither settled nor sent.
    #[must_use]
    pub fn waiting_through(&self, position: Position) -> Vec<Seq> {
        let entries = (self.first..).zip(&self.entries);
        entries
            .take_while(|(_, entry)| entry.key.position() <= position)
            .filter(|(_, entry)| !entry.key.transaction.is_backfill())
            .filter(|(_, entry)| !matches!(entry.state, State::Sent | State::Settled))
            .map(|(seq, _)| seq)
            .collect()
    }

    /// Whether it has an unsettled event of this commit LSN and `tx_seq`.
    #[must_use]
    pub fn has_unsettled(&self, position: (crate::Lsn, u64)) -> bool {
        self.find(position)
            .and_then(|seq| self.entry(seq))
            .is_some_and(|entry| entry.state != State::Settled)
    }

    /// The message went out on the current link. One that failed stays failed until the broker has taken it.
    pub fn sent(&mut self, seq: Seq) {
        if self.entry(seq).is_some_and(|entry| entry.state == State::Queued) {
            self.set_state(seq, State::Sent);
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
        self.all_set_aside().next()
    }

    /// The events that are to be stored as dead letters, oldest first.
    pub fn all_set_aside(&self) -> impl Iterator<Item = (Seq, &Entry, &Failure)> {
        let entries = self.entries.iter().enumerate();
        entries
            .take(if self.setting_aside == 0 { 0 } else { usize::MAX })
            .filter_map(|(index, entry)| match &entry.state {
                State::SettingAside(failure) => Some((self.first + seq(index), entry, failure)),
                State::Queued | State::Failed(_) | State::Sent | State::Settled => None,
            })
    }

    /// The event is settled. `settled` is told the oldest keys that leave the window, in stream order. Returns the
    /// event's transaction, if the current session has brought it.
    pub fn settle(&mut self, seq: Seq, settled: impl FnMut(EventKey)) -> Option<TransactionNo> {
        self.set_state(seq, State::Settled);
        let entry = self.entry_mut(seq)?;
        let (transaction, aggregate, neighbours, bytes) =
            (entry.transaction, entry.aggregate, entry.neighbours, entry.len());
        let (message, row) = (entry.message.take(), entry.row.take());
        self.bytes = self.bytes.saturating_sub(bytes);
        for buffer in [message.map(Message::into_buffer), row.map(Row::into_buffer)] {
            self.recycle(buffer.unwrap_or_default());
        }
        self.leave_order(aggregate, seq, neighbours);
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
                    order.ready(self.first + seq(index));
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
        self.prefix = None;
        if let Some(order) = &mut self.order {
            order.clear();
        }
        (self.bytes, self.unsettled, self.failed, self.setting_aside) = (0, 0, 0, 0);
    }

    /// The place of the oldest unsettled event, or of the next one to be admitted.
    #[must_use]
    pub const fn oldest_place(&self) -> Seq {
        self.first
    }

    /// The oldest unsettled event.
    #[must_use]
    pub fn oldest(&self) -> Option<&Entry> {
        self.entries.front()
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

    /// How many events are to be stored as dead letters.
    #[must_use]
    pub const fn setting_aside(&self) -> usize {
        self.setting_aside
    }

    fn pop_settled(&mut self, mut settled: impl FnMut(EventKey)) {
        while let Some(entry) = self.entries.front().filter(|entry| entry.state == State::Settled) {
            settled(entry.key);
            if entry.transaction.is_some() {
                self.prefix = Some(entry.key.position());
            }
            self.entries.pop_front();
            self.first += 1;
        }
        self.cursor = self.cursor.max(self.first);
    }

    /// With strict order: the aggregate's next event may be sent, once nothing stands before it.
    fn leave_order(&mut self, aggregate: AggregateHash, seq: Seq, neighbours: Neighbours) {
        let Some(order) = &mut self.order else { return };
        order.settled(aggregate, seq, neighbours);
        let Neighbours { before, after } = neighbours;
        if let Some(entry) = before.and_then(|before| self.entry_mut(before)) {
            entry.neighbours.after = after;
        }
        let Some(after) = after else { return };
        let Some(entry) = self.entry_mut(after) else {
            return;
        };
        entry.neighbours.before = before;
        let is_ready = before.is_none() && entry.state == State::Queued;
        if let Some(order) = self.order.as_mut().filter(|_| is_ready) {
            order.ready(after);
        }
    }

    /// Changes the state of an event that is not queued again.
    fn set_state(&mut self, seq: Seq, state: State) {
        if let Some(order) = &mut self.order {
            order.not_ready(seq);
        }
        let Some(entry) = self.entry_mut(seq) else { return };
        let before = mem::replace(&mut entry.state, state);
        let (is, was) = (entry.state.counts(), before.counts());
        self.failed = self.failed + is.0 - was.0;
        self.setting_aside = self.setting_aside + is.1 - was.1;
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
