//! A batch of marks: what the shell is to commit, and what came of it.

use super::{Position, TableNo};
use crate::Lsn;

/// What to mark in one transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkBatch {
    /// The ids by table; empty where only the prefix is to be stored.
    pub tables: Vec<TableIds>,
    /// What to store about the slot, if it has changed.
    pub prefix: Option<SettledPrefix>,
    pub(super) through: u64,
    /// So many ids before `through` are left out, since their table's marks are refused.
    pub(super) given_up: u64,
    /// Those that were locked before are tried again.
    pub(super) are_locked_due: bool,
}

/// Ids of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableIds {
    /// The table.
    pub table: TableNo,
    pub(super) text: Vec<u8>,
    pub(super) ends: Vec<usize>,
    pub(super) xids: Vec<u32>,
}

/// What is stored about the slot together with marks (rule 19).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledPrefix {
    /// All events up to here are settled, and their rows marked but for those that others had locked.
    pub position: Position,
    /// Nothing is left to be marked or settled: a crash now costs no mark.
    pub is_complete: bool,
    /// Rows written by transactions before this one need no sweep any more.
    pub swept_before: Option<u64>,
}

impl SettledPrefix {
    /// What is stored where the batch has marked all its rows, or some were locked.
    #[must_use]
    pub fn with(self, marked_all: bool) -> Self {
        Self {
            is_complete: self.is_complete && marked_all,
            swept_before: self.swept_before.filter(|_| marked_all),
            ..self
        }
    }
}

/// What came of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marked {
    /// Rows that were marked.
    pub rows: u64,
    /// Ids of rows that others had locked, or whose transaction other sessions do not see yet; with that transaction's id.
    pub locked: Vec<(TableNo, String, u32)>,
    /// Ids that were left out, since their table's marks turned out to be refused.
    pub given_up: u64,
    /// Tables of which rows are still unsent though the mark was set: they count neither as marked nor as left out.
    pub endless: Vec<TableNo>,
    /// The end of the log and, before that was read, the oldest transaction id that was still running: what is older was
    /// decided before that end.
    pub seen: Option<(Lsn, u64)>,
}

impl Marked {
    /// Whether nothing was left out.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.locked.is_empty() && self.given_up == 0 && self.endless.is_empty()
    }
}

impl TableIds {
    /// The ids as text.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts
            .zip(&self.ends)
            .map(|(start, end)| self.text.get(*start..*end).unwrap_or_default())
            // Queued as text.
            .map(|text| std::str::from_utf8(text).unwrap_or_default())
    }

    /// For each id the transaction that wrote its row, 0 where it is not known: the stream brings a commit before other
    /// sessions see it, so an unseen row of such a transaction is not gone.
    #[must_use]
    pub fn xids(&self) -> &[u32] {
        &self.xids
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

impl TableIds {
    pub(super) fn push(&mut self, first: &[u8], second: &[u8], xid: u32) {
        self.text.extend_from_slice(first);
        self.text.extend_from_slice(second);
        self.ends.push(self.text.len());
        self.xids.push(xid);
    }
}

/// The ids of a table, in a batch of few tables.
pub(super) fn of_table<'a>(
    tables: &'a mut Vec<TableIds>,
    spare: &mut Vec<TableIds>,
    table: TableNo,
) -> &'a mut TableIds {
    let known = tables.iter().position(|ids| ids.table == table);
    let index = known.unwrap_or_else(|| {
        let empty = TableIds {
            table,
            text: Vec::new(),
            ends: Vec::new(),
            xids: Vec::new(),
        };
        let ids = spare.pop().map_or(empty, |spare| TableIds { table, ..spare });
        tables.push(ids);
        tables.len() - 1
    });
    // In bounds: found or pushed above.
    #[expect(clippy::indexing_slicing, reason = "the index was found or pushed just now")]
    &mut tables[index]
}
