//! Ids that wait for their mark, in the order in which their events were settled.

use std::collections::VecDeque;
use std::time::Instant;

use super::{Position, TableNo};

/// A bounded queue of ids. Their texts lie in one ring of bytes that is used again and again: an id costs no allocation.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<Entry>,
    bytes: VecDeque<u8>,
    first: u64,
}

/// One id; its text lies in the ring, behind those before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) table: TableNo,
    length: u16,
    /// The transaction that wrote its row, or 0.
    pub(super) xid: u32,
    /// What was settled in stream order when it came: every event up to there has its id before this one.
    pub(super) prefix: Position,
    pub(super) queued: Instant,
}

impl Queue {
    /// How many ids are queued.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The number of the oldest id; they rise by one with each that is queued.
    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    /// The number that the next id will have.
    pub(super) fn next(&self) -> u64 {
        self.first + number(self.entries.len())
    }

    /// When the oldest id was queued.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.entries.front().map(|entry| entry.queued)
    }

    /// Queues an id, unless there are `max_ids` already, or more than `max_bytes` would be needed.
    pub(super) fn push(
        &mut self,
        (table, id, xid): (TableNo, &str, u32),
        prefix: Position,
        queued: Instant,
        (max_ids, max_bytes): (usize, usize),
    ) -> bool {
        let Ok(length) = u16::try_from(id.len()) else {
            return false;
        };
        if self.entries.len() >= max_ids || self.bytes.len().saturating_add(id.len()) > max_bytes {
            return false;
        }
        self.bytes.extend(id.as_bytes());
        self.entries.push_back(Entry {
            table,
            length,
            xid,
            prefix,
            queued,
        });
        true
    }

    /// Hands the oldest `count` ids to `take`, each with its text in two pieces: the ring may end within it.
    pub(super) fn oldest_ids(&self, count: usize, mut take: impl FnMut(&Entry, &[u8], &[u8])) {
        let (mut front, mut back) = self.bytes.as_slices();
        for entry in self.entries.iter().take(count) {
            let length = usize::from(entry.length);
            let in_front = length.min(front.len());
            let (first, rest) = front.split_at(in_front);
            let (second, rest_of_back) = back.split_at((length - in_front).min(back.len()));
            take(entry, first, second);
            (front, back) = (rest, rest_of_back);
        }
    }

    /// The number of this id, which is among those before number `through`.
    pub(super) fn number_of(&self, (table, id): (TableNo, &str), through: u64) -> Option<u64> {
        let count = usize::try_from(through.saturating_sub(self.first)).ok()?;
        let (mut number, mut found) = (self.first, None);
        self.oldest_ids(count, |entry, first, second| {
            let is_same = entry.table == table && id.as_bytes().strip_prefix(first) == Some(second);
            found = found.or_else(|| is_same.then_some(number));
            number += 1;
        });
        found
    }

    /// The tables of the oldest `count` ids.
    pub(super) fn tables(&self, count: usize) -> impl Iterator<Item = TableNo> {
        self.entries.iter().take(count).map(|entry| entry.table)
    }

    /// What was settled when the last of the oldest `count` ids came, and its number.
    pub(super) fn prefix_of(&self, count: usize) -> Option<(Position, u64)> {
        let index = count.checked_sub(1)?;
        let entry = self.entries.get(index)?;
        Some((entry.prefix, self.first + number(index)))
    }

    /// Drops the ids before number `through`.
    pub(super) fn drop_before(&mut self, through: u64) {
        while self.first < through {
            let Some(entry) = self.entries.pop_front() else {
                return;
            };
            self.bytes.drain(..usize::from(entry.length));
            self.first += 1;
        }
    }
}

fn number(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}
