//! What identifies an event within one slot (rules 1 and 2). Its id is for consumers; ids repeat.

use std::fmt;

use crate::Lsn;
use crate::timestamp::PgTimestamp;

/// A committed transaction as the stream names it.
///
/// All three are compared: after a restore on the same timeline another transaction may stand at the same position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionKey {
    /// Begin's final LSN: where the commit record stands.
    pub commit_lsn: Lsn,
    /// The transaction's id.
    pub xid: u32,
    /// When it committed.
    pub commit_time: PgTimestamp,
}

impl TransactionKey {
    /// Stands for the transaction of a row that the stream does not bring (R22). No transaction has the id 0, and no commit
    /// record stands where this one does: the caller takes a position that is no record's.
    #[must_use]
    pub const fn backfill(position: Lsn, copied_at: PgTimestamp) -> Self {
        Self {
            commit_lsn: position,
            xid: 0,
            commit_time: copied_at,
        }
    }

    /// Whether it stands for a row that the stream does not bring.
    #[must_use]
    pub const fn is_backfill(&self) -> bool {
        self.xid == 0
    }
}

/// An event: its transaction and its place in it. Printed `LSN:SEQ`, as commands take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventKey {
    /// The transaction.
    pub transaction: TransactionKey,
    /// The event's place among **all** Insert frames and logical messages of its transaction, from 0, so that a change
    /// of configuration does not shift it.
    pub tx_seq: u64,
}

impl EventKey {
    /// What orders events within one system id and timeline.
    #[must_use]
    pub const fn position(&self) -> (Lsn, u64) {
        (self.transaction.commit_lsn, self.tx_seq)
    }
}

impl fmt::Display for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.transaction.commit_lsn, self.tx_seq)
    }
}
