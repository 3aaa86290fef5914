//! The ledger of one session: which transactions are unsettled, and how far the log is durable.
//!
//! Events are admitted in stream order and settled in any order. The durable LSN is the end of the newest commit
//! below which every event is settled; nothing else may ever be reported as flushed.

use std::collections::VecDeque;

use crate::Lsn;

/// A transaction's place in the ledger: the number of transactions with events admitted before it in this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionNo(u64);

/// Call order: [`begin`](Self::begin), [`admit`](Self::admit) for each event, [`commit`](Self::commit), as the stream
/// says; [`settle`](Self::settle) at any time, once for each admitted event.
///
/// Transactions without events take no room, so the ledger is never longer than the span of events from the oldest
/// unsettled one to the newest, which the window bounds (rule 12).
#[derive(Debug, Default)]
pub struct Ledger {
    /// Transactions with events, oldest first; the front one is unsettled or open.
    transactions: VecDeque<Transaction>,
    /// The number of the front transaction.
    first: u64,
    open: Option<Open>,
    unsettled: usize,
    /// Ends that are settled but wait until the stream has been received beyond a position of their own (R15).
    waiting: VecDeque<Waiting>,
    received: Lsn,
    durable: Lsn,
}

/// An end that may become durable once the stream has been received beyond `barrier`.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    end: Lsn,
    barrier: Lsn,
}

/// More waiting ends than this are merged: the durable LSN then moves in larger steps.
const WAITING_ENDS: usize = 1024;

#[derive(Debug)]
struct Transaction {
    unsettled: u32,
    /// Where the log may be acknowledged up to once this and all before are settled; none while it is open.
    end: Option<Lsn>,
    /// Beyond which position the stream must have been received before that; `0/0` for none.
    barrier: Lsn,
}

/// The transaction whose Commit has not been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    WithoutEvents,
    WithEvents,
}

impl Ledger {
    /// A ledger for a new session: nothing is durable until this session has received something (rule 2).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A ledger for a session whose first durable LSN waits until the stream has been received beyond `barrier`.
    #[must_use]
    pub fn starting_beyond(barrier: Lsn) -> Self {
        let mut ledger = Self::default();
        ledger.wait_beyond(barrier);
        ledger
    }

    /// A transaction begins.
    pub fn begin(&mut self) {
        self.open = Some(Open::WithoutEvents);
    }

    /// Admits an event of the open transaction as unsettled.
    pub fn admit(&mut self) -> TransactionNo {
        if self.open != Some(Open::WithEvents) {
            self.transactions.push_back(Transaction {
                unsettled: 0,
                end: None,
                barrier: Lsn::INVALID,
            });
            self.open = Some(Open::WithEvents);
        }
        if let Some(transaction) = self.transactions.back_mut() {
            transaction.unsettled += 1;
        }
        self.unsettled += 1;
        let later = u64::try_from(self.transactions.len().saturating_sub(1)).unwrap_or(u64::MAX);
        TransactionNo(self.first + later)
    }

    /// The open transaction has committed; the log after it begins at `end`.
    pub fn commit(&mut self, end: Lsn) {
        self.open = None;
        self.reach(end);
    }

    /// The server has sent everything up to `end` (a keepalive). Ignored within a transaction.
    ///
    /// It counts from its place in the stream: it becomes durable when all events received before it are settled.
    /// Transactions that arrive later committed beyond it, since the server decodes commits in order.
    pub fn keepalive(&mut self, end: Lsn) {
        if self.open.is_none() {
            self.reach(end);
        }
    }

    /// One event of `transaction` is settled.
    pub fn settle(&mut self, transaction: TransactionNo) {
        self.settle_beyond(transaction, Lsn::INVALID);
    }

    /// One event of `transaction` is settled by a write to the database that ends at `barrier`: the durable LSN passes
    /// it only once the stream has been received beyond that write (R15). Nothing else waits for it meanwhile.
    pub fn settle_beyond(&mut self, transaction: TransactionNo, barrier: Lsn) {
        let index = transaction
            .0
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok());
        let Some(entry) = index.and_then(|index| self.transactions.get_mut(index)) else {
            debug_assert!(
                false,
                "settled an event of a transaction that was settled already"
            );
            return;
        };
        debug_assert!(entry.unsettled > 0, "settled more events than were admitted");
        entry.unsettled = entry.unsettled.saturating_sub(1);
        entry.barrier = entry.barrier.max(barrier);
        self.unsettled = self.unsettled.saturating_sub(1);
        self.advance();
    }

    /// Something that this session has yet to bring was settled by a write that ends at `barrier`: what is received from
    /// now on becomes durable only once the stream has been received beyond that write (R15).
    pub fn wait_beyond(&mut self, barrier: Lsn) {
        if barrier <= self.received {
            return;
        }
        match self.transactions.back_mut() {
            Some(last) => last.barrier = last.barrier.max(barrier),
            None => self.wait(self.waiting.back().map_or(self.durable, |last| last.end), barrier),
        }
    }

    /// The durable LSN; `0/0` until this session has received something.
    #[must_use]
    pub const fn durable(&self) -> Lsn {
        self.durable
    }

    /// Events admitted and not settled.
    #[must_use]
    pub const fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Transactions from the oldest that is unsettled to the newest.
    #[must_use]
    pub fn transactions(&self) -> usize {
        self.transactions.len()
    }

    /// Whether a transaction's Commit is still to come.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// No unsettled event and no open transaction: a keepalive's position may be reported (rule 3).
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.transactions.is_empty() && self.waiting.is_empty() && self.open.is_none()
    }

    /// Everything received so far ends at `end`.
    fn reach(&mut self, end: Lsn) {
        self.received = self.received.max(end);
        if let Some(last) = self.transactions.back_mut() {
            last.end = last.end.max(Some(end));
        } else if let Some(last) = self.waiting.back_mut() {
            last.end = last.end.max(end);
        } else {
            self.durable = self.durable.max(end);
        }
        self.advance();
    }

    fn advance(&mut self) {
        while let Some(Transaction {
            unsettled: 0,
            end: Some(end),
            barrier,
        }) = self.transactions.front()
        {
            let (end, barrier) = (*end, *barrier);
            self.wait(end, barrier);
            self.transactions.pop_front();
            self.first += 1;
        }
        while let Some(waiting) = self
            .waiting
            .front()
            .filter(|waiting| waiting.barrier <= self.received)
        {
            self.durable = self.durable.max(waiting.end);
            self.waiting.pop_front();
        }
    }

    /// An end is settled; it becomes durable after those before it, and beyond its barrier.
    fn wait(&mut self, end: Lsn, barrier: Lsn) {
        let full = self.waiting.len() >= WAITING_ENDS;
        match self.waiting.back_mut() {
            // Behind one that waits for as much anyway, nothing is lost by waiting with it.
            Some(last) if full || barrier <= last.barrier => {
                *last = Waiting {
                    end,
                    barrier: last.barrier.max(barrier),
                };
            }
            Some(_) | None => self.waiting.push_back(Waiting { end, barrier }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lsn(position: u64) -> Lsn {
        Lsn::new(position)
    }

    #[test]
    fn the_durable_lsn_waits_for_the_oldest_unsettled_event() {
        let mut ledger = Ledger::new();
        ledger.begin();
        let first = ledger.admit();
        ledger.commit(lsn(10));
        ledger.begin();
        let second = ledger.admit();
        ledger.commit(lsn(20));
        ledger.settle(second);
        assert_eq!(ledger.durable(), Lsn::INVALID);
        ledger.settle(first);
        assert_eq!(ledger.durable(), lsn(20));
    }

    #[test]
    fn a_settled_transaction_waits_for_its_commit() {
        let mut ledger = Ledger::new();
        ledger.begin();
        let event = ledger.admit();
        ledger.settle(event);
        assert_eq!(ledger.durable(), Lsn::INVALID);
        assert!(!ledger.is_idle());
        ledger.commit(lsn(10));
        assert_eq!(ledger.durable(), lsn(10));
        assert!(ledger.is_idle());
    }

    #[test]
    fn a_keepalive_within_a_transaction_is_ignored() {
        let mut ledger = Ledger::new();
        ledger.begin();
        ledger.keepalive(lsn(15));
        assert_eq!(ledger.durable(), Lsn::INVALID);
        ledger.commit(lsn(20));
        assert_eq!(ledger.durable(), lsn(20));
    }

    #[test]
    fn a_keepalive_behind_an_unsettled_event_waits_for_it() {
        let mut ledger = Ledger::new();
        ledger.begin();
        let event = ledger.admit();
        ledger.commit(lsn(10));
        ledger.keepalive(lsn(500));
        assert_eq!(ledger.durable(), Lsn::INVALID);
        ledger.settle(event);
        assert_eq!(ledger.durable(), lsn(500));
    }

    #[test]
    fn transactions_without_events_take_no_room() {
        let mut ledger = Ledger::new();
        ledger.begin();
        let event = ledger.admit();
        ledger.commit(lsn(1));
        for position in 2..1000 {
            ledger.begin();
            ledger.commit(lsn(position));
        }
        assert_eq!(ledger.transactions.len(), 1);
        ledger.settle(event);
        assert_eq!(ledger.durable(), lsn(999));
    }

    /// R15.
    #[test]
    fn a_dead_letters_transaction_waits_until_its_commit_has_been_received() {
        let mut ledger = Ledger::new();
        ledger.begin();
        let event = ledger.admit();
        ledger.commit(lsn(10));
        ledger.settle_beyond(event, lsn(500));
        ledger.begin();
        ledger.commit(lsn(499));
        assert_eq!(ledger.durable(), Lsn::INVALID);
        assert!(!ledger.is_idle());
        ledger.keepalive(lsn(500));
        assert_eq!(ledger.durable(), lsn(500));
        assert!(ledger.is_idle());
    }

    /// R15: another session's ledger never counted the event that became a dead letter.
    #[test]
    fn what_is_received_after_a_dead_letter_of_an_event_still_to_come_waits_for_its_commit() {
        let mut ledger = Ledger::new();
        ledger.keepalive(lsn(5));
        ledger.wait_beyond(lsn(5));
        ledger.keepalive(lsn(6));
        assert_eq!(ledger.durable(), lsn(6), "received already");
        ledger.wait_beyond(lsn(500));
        ledger.begin();
        ledger.commit(lsn(10));
        assert_eq!(ledger.durable(), lsn(6));
        ledger.begin();
        let open = ledger.admit();
        ledger.wait_beyond(lsn(600));
        ledger.settle(open);
        ledger.commit(lsn(20));
        ledger.keepalive(lsn(500));
        assert_eq!(ledger.durable(), lsn(10));
        ledger.keepalive(lsn(600));
        assert_eq!(ledger.durable(), lsn(600));
        assert!(ledger.is_idle());
    }

    #[test]
    fn any_number_of_ends_wait_in_bounded_memory() {
        let mut ledger = Ledger::new();
        for position in 1..10_000 {
            ledger.begin();
            let event = ledger.admit();
            ledger.commit(lsn(position));
            ledger.settle_beyond(event, lsn(100_000 + position));
        }
        assert!(ledger.waiting.len() <= WAITING_ENDS && ledger.transactions.is_empty());
        ledger.keepalive(lsn(200_000));
        assert_eq!(ledger.durable(), lsn(200_000));
    }

    /// What the stream or the broker may do next.
    #[derive(Debug, Clone)]
    enum Step {
        Begin,
        Admit,
        Commit,
        Keepalive,
        Settle(prop::sample::Index),
        /// Settled by a write that ends so far beyond what has been received.
        SettleBeyond(prop::sample::Index, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Begin),
            5 => Just(Step::Admit),
            2 => Just(Step::Commit),
            1 => Just(Step::Keepalive),
            5 => any::<prop::sample::Index>().prop_map(Step::Settle),
            1 => (any::<prop::sample::Index>(), 0..20u64).prop_map(|(index, ahead)| Step::SettleBeyond(index, ahead)),
        ]
    }

    /// The naive model: everything received, in stream order, never forgotten.
    #[derive(Debug, Default)]
    struct Model {
        received: Vec<Received>,
    }

    #[derive(Debug)]
    enum Received {
        /// Settled with the position that the stream must have been received beyond, if it is.
        Event {
            settled: Option<Lsn>,
        },
        Position(Lsn),
    }

    impl Model {
        fn durable(&self) -> Lsn {
            let positions = self.received.iter().filter_map(|received| match received {
                Received::Position(position) => Some(*position),
                Received::Event { .. } => None,
            });
            let reached = positions.max().unwrap_or_default();
            let mut durable = Lsn::INVALID;
            for received in &self.received {
                match received {
                    Received::Event {
                        settled: Some(barrier),
                    } if *barrier <= reached => {}
                    Received::Event { .. } => break,
                    Received::Position(position) => durable = durable.max(*position),
                }
            }
            durable
        }
    }

    impl Model {
        /// Events from the oldest unsettled one to the newest.
        fn span(&self) -> usize {
            let events = self
                .received
                .iter()
                .filter(|received| matches!(received, Received::Event { .. }));
            events
                .skip_while(|received| matches!(received, Received::Event { settled: Some(_) }))
                .count()
        }
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        /// I1.
        #[test]
        fn the_durable_lsn_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 0..200)) {
            let (mut ledger, mut model) = (Ledger::new(), Model::default());
            let mut unsettled: Vec<(TransactionNo, usize)> = Vec::new();
            let mut open = false;
            let mut position = 0;
            let mut before = Lsn::INVALID;
            for step in steps {
                position += 1;
                match step {
                    Step::Begin if !open => {
                        open = true;
                        ledger.begin();
                    }
                    Step::Admit if open => {
                        unsettled.push((ledger.admit(), model.received.len()));
                        model.received.push(Received::Event { settled: None });
                    }
                    Step::Commit if open => {
                        open = false;
                        ledger.commit(lsn(position));
                        model.received.push(Received::Position(lsn(position)));
                    }
                    Step::Keepalive => {
                        ledger.keepalive(lsn(position));
                        if !open {
                            model.received.push(Received::Position(lsn(position)));
                        }
                    }
                    Step::Settle(index) if !unsettled.is_empty() => {
                        let (transaction, event) = unsettled.swap_remove(index.index(unsettled.len()));
                        ledger.settle(transaction);
                        model.received[event] = Received::Event { settled: Some(Lsn::INVALID) };
                    }
                    Step::SettleBeyond(index, ahead) if !unsettled.is_empty() => {
                        let (transaction, event) = unsettled.swap_remove(index.index(unsettled.len()));
                        let barrier = lsn(position + ahead);
                        ledger.settle_beyond(transaction, barrier);
                        model.received[event] = Received::Event { settled: Some(barrier) };
                    }
                    Step::Begin | Step::Admit | Step::Commit | Step::Settle(_) | Step::SettleBeyond(..) => {}
                }
                prop_assert_eq!(ledger.durable(), model.durable());
                prop_assert!(ledger.durable() >= before, "the durable LSN went back");
                before = ledger.durable();
                prop_assert_eq!(ledger.unsettled(), unsettled.len());
                prop_assert!(ledger.transactions.len() <= model.span() + usize::from(open));
            }
            // Drains completely, in whatever order.
            if open {
                position += 1;
                ledger.commit(lsn(position));
                model.received.push(Received::Position(lsn(position)));
            }
            for (transaction, event) in unsettled.into_iter().rev() {
                ledger.settle(transaction);
                model.received[event] = Received::Event { settled: Some(Lsn::INVALID) };
            }
            // Beyond every barrier.
            position += 100;
            ledger.keepalive(lsn(position));
            prop_assert!(ledger.is_idle());
            prop_assert_eq!(ledger.durable(), lsn(position));
        }
    }
}
