//! Positions that wait for marks (R18).

use std::time::{Duration, Instant};

use super::Marks;
use crate::Lsn;

/// How long a position is held back for marks (rule 18).
pub const HOLD: Duration = Duration::from_secs(1);

/// Positions that move within so short a time are held back as one.
pub(super) const HOLD_STEP: Duration = Duration::from_millis(20);

/// A position that waits for marks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    durable: Lsn,
    /// It waits for the ids before this number.
    pub(super) through: u64,
    pub(super) since: Instant,
}

impl Marks {
    /// How far positions may be reported: up to `durable`, but not beyond ids that are unmarked, unless they have been
    /// waited for for [`HOLD`].
    pub fn report(&mut self, durable: Lsn, now: Instant) -> Lsn {
        let newest = self.held.back().map_or(self.released, |held| held.durable);
        if durable > newest {
            self.hold(durable, now);
        }
        while let Some(held) = self.held.front().copied() {
            if self.done_before() < held.through {
                if now < held.since + HOLD {
                    break;
                }
                self.excuse(held.through);
            }
            self.released = held.durable;
            self.held.pop_front();
        }
        self.released
    }

    /// How far positions may be reported by what the last [`report`](Self::report) knew, and when that changes by itself.
    #[must_use]
    pub fn reportable(&self, durable: Lsn) -> (Lsn, Option<Instant>) {
        match self.held.front() {
            Some(held) => (self.released, Some(held.since + HOLD)),
            None => (durable, None),
        }
    }

    /// Moves a position to the ends of those that wait, or lets it pass where nothing is unmarked.
    fn hold(&mut self, durable: Lsn, now: Instant) {
        let through = self.queue.next();
        if self.held.is_empty() && self.done_before() >= through {
            self.released = durable;
            return;
        }
        match self.held.back_mut() {
            Some(last) if now < last.since + HOLD_STEP => {
                last.durable = durable;
                last.through = through;
            }
            Some(_) | None => self.held.push_back(Held {
                durable,
                through,
                since: now,
            }),
        }
    }
}
