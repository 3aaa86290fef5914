//! What was settled lately, so that a new session does not publish it again (rule 2, invariant 7).

use std::collections::VecDeque;

use crate::key::{EventKey, TransactionKey};

/// The newest settled events of one system id and timeline, by position.
///
/// It only saves duplicates: what has been forgotten is published again, never lost.
#[derive(Debug)]
pub struct History {
    runs: VecDeque<Run>,
    capacity: usize,
}

/// The beginning of a transaction, settled as far as `through`.
#[derive(Debug)]
struct Run {
    transaction: TransactionKey,
    through: u64,
}

impl History {
    /// A history of at most `capacity` transactions.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            runs: VecDeque::new(),
            capacity,
        }
    }

    /// Notes that `key` and every event before it in its transaction are settled.
    ///
    /// Keys come in stream order, but for what a server brings again that has been forgotten.
    pub fn settled(&mut self, key: EventKey) {
        let run = Run {
            transaction: key.transaction,
            through: key.tx_seq,
        };
        let commit_lsn = key.transaction.commit_lsn;
        let at = match self.runs.back() {
            Some(last) if last.transaction.commit_lsn < commit_lsn => self.runs.len(),
            _ => self
                .runs
                .partition_point(|run| run.transaction.commit_lsn < commit_lsn),
        };
        match self.runs.get_mut(at) {
            Some(known) if known.transaction.commit_lsn == commit_lsn => *known = run,
            _ => self.runs.insert(at, run),
        }
        if self.runs.len() > self.capacity {
            self.runs.pop_front();
        }
    }

    /// Whether exactly this event was settled.
    #[must_use]
    pub fn contains(&self, key: &EventKey) -> bool {
        let commit_lsn = key.transaction.commit_lsn;
        // What the stream brings for the first time lies behind all that was settled: no search for each event.
        if self
            .runs
            .back()
            .is_none_or(|last| last.transaction.commit_lsn < commit_lsn)
        {
            return false;
        }
        let found = self
            .runs
            .binary_search_by_key(&commit_lsn, |run| run.transaction.commit_lsn);
        found
            .ok()
            .and_then(|index| self.runs.get(index))
            .is_some_and(|run| run.transaction == key.transaction && key.tx_seq <= run.through)
    }

    /// Forgets everything: another system id or timeline.
    pub fn clear(&mut self) {
        self.runs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lsn;
    use crate::timestamp::PgTimestamp;

    fn key(commit_lsn: u64, xid: u32, tx_seq: u64) -> EventKey {
        let transaction = TransactionKey {
            commit_lsn: Lsn::new(commit_lsn),
            xid,
            commit_time: PgTimestamp::new(5),
        };
        EventKey { transaction, tx_seq }
    }

    #[test]
    fn the_settled_beginning_of_a_transaction_is_remembered() {
        let mut history = History::new(10);
        history.settled(key(100, 7, 0));
        history.settled(key(200, 8, 3));
        history.settled(key(200, 8, 5));
        for (key, settled) in [
            (key(100, 7, 0), true),
            (key(200, 8, 4), true),
            (key(200, 8, 6), false),
            (key(150, 7, 0), false),
        ] {
            assert_eq!(history.contains(&key), settled, "{key}");
        }
    }

    /// R2: after a restore on the same timeline, another transaction stands where a settled one stood.
    #[test]
    fn another_transaction_at_the_same_position_is_not_taken_for_settled() {
        let mut history = History::new(10);
        history.settled(key(100, 7, 9));
        assert!(!history.contains(&key(100, 8, 0)));
    }

    #[test]
    fn what_was_forgotten_and_is_settled_again_takes_no_place_of_newer_ones() {
        let mut history = History::new(2);
        for position in [200, 300, 100, 250] {
            history.settled(key(position, 1, 0));
        }
        assert!(history.contains(&key(250, 1, 0)));
        assert!(history.contains(&key(300, 1, 0)));
        assert_eq!(history.runs.len(), 2);
    }

    #[test]
    fn the_oldest_are_forgotten_first() {
        let mut history = History::new(2);
        for position in [100, 200, 300] {
            history.settled(key(position, 1, 0));
        }
        assert!(!history.contains(&key(100, 1, 0)));
        assert!(history.contains(&key(200, 1, 0)));
        assert!(history.contains(&key(300, 1, 0)));
    }
}
