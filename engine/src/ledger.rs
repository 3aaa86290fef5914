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
mod tests;
