//! What the end of a stream tells: the marks of our own producer.

use std::collections::VecDeque;

use super::{Mark, Position};
use crate::amqp::mark_of;
use crate::key::EventKey;
use crate::timestamp::PgTimestamp;

/// The most marks kept: more than two windows, so all behind a floor.
const MAX_MARKS: usize = 160_000;

/// So many messages more than needed are looked at: transactions that commit at the same time have commit times in another
/// order than positions, and those must not look like another log's.
const MARGIN: u64 = 256;

/// Takes in the messages at the end of a stream, in their order.
#[derive(Debug)]
pub struct Tail {
    producer: String,
    /// The highest id that the broker knows of.
    last: u64,
    marks: VecDeque<Mark>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The mark of the highest id.
    pub newest: Mark,
    /// The latest commit time among the marks.
    pub latest_commit: PgTimestamp,
    /// The events whose messages are there, by position.
    events: Vec<(Position, PgTimestamp)>,
}

impl Tail {
    /// Nothing is read yet; the broker has this as the highest id of the producer.
    #[must_use]
    pub const fn new(producer: String, last: u64) -> Self {
        Self {
            producer,
            last,
            marks: VecDeque::new(),
        }
    }

    /// Reading begins again, at an earlier place.
    pub fn restart(&mut self) {
        self.marks.clear();
    }

    /// The next message, or as much of it as [`MESSAGE_HEAD`](crate::stream_protocol::chunk::MESSAGE_HEAD).
    pub fn message(&mut self, head: &[u8]) {
        let Some(mark) = mark_of(head).and_then(|mark| Mark::read(mark, &self.producer)) else {
            return;
        };
        if self.marks.len() == MAX_MARKS {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    /// Whether it has the newest message and every one behind that one's floor.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let Some(newest) = self.newest() else {
            return false;
        };
        let first_needed = newest.floor.id.saturating_sub(MARGIN).saturating_add(1);
        self.marks
            .iter()
            .any(|mark| mark.id != 0 && mark.id <= first_needed)
    }

    /// What was found; none where the newest message is not there. `is_whole` says that nothing lies before what was read.
    #[must_use]
    pub fn found(self, is_whole: bool) -> Option<Found> {
        let newest = self.newest()?;
        if !is_whole && !self.is_complete() {
            return None;
        }
        let latest_commit = self.marks.iter().map(|mark| mark.commit_time).max()?;
        let mut events: Vec<_> = self
            .marks
            .iter()
            .map(|mark| (mark.position, mark.commit_time))
            .collect();
        events.sort_unstable();
        events.dedup();
        Some(Found {
            newest,
            latest_commit,
            events,
        })
    }

    /// The mark of the highest id, if it is as high as the broker knows.
    fn newest(&self) -> Option<Mark> {
        let newest = self.marks.iter().max_by_key(|mark| mark.id)?;
        (newest.id != 0 && newest.id >= self.last).then_some(*newest)
    }
}

impl Found {
    /// Whether this very event's message is there.
    #[must_use]
    pub fn has(&self, key: &EventKey) -> bool {
        self.events
            .binary_search(&(key.position(), key.transaction.commit_time))
            .is_ok()
    }
}
