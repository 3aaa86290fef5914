//! The shell's and a person's part: dead letters are stored, discards taken, held events skipped or set aside.

use super::{Failing, Fate, Position, World, commit_lsn, position};
use crate::Lsn;
use crate::flow::tests::rig::COMMIT_SIZE;
use crate::policy::Policy;
use crate::window::Seq;

/// A dead letter on its way into the database.
#[derive(Debug, Clone, Copy)]
pub(super) struct Store {
    seq: Seq,
    position: Position,
    /// Of which log the event is.
    timeline: u32,
}

impl World {
    /// The shell begins to store the oldest dead letter.
    pub(in crate::flow::tests) fn store_begins(&mut self) {
        if self.store.is_some() {
            return;
        }
        let Some(event) = self.flow.next_set_aside() else {
            return;
        };
        let (seq, position) = (event.seq, position(&event.event.key));
        let book = &self.books.events[&position];
        let columns = event.row.columns();
        if book.fate != Fate::Invalid {
            let payload = String::from_utf8(book.payload.clone()).unwrap();
            assert!(
                columns.contains(&("payload".to_owned(), Some(payload))),
                "{columns:?}"
            );
            assert_eq!(event.event.exchange, Some("outbox"));
        }
        self.store = Some(Store {
            seq,
            position,
            timeline: self.server.timeline,
        });
    }

    /// It is committed so far behind the written log; the answer may be lost, and then it is stored again.
    pub(in crate::flow::tests) fn store_ends(&mut self, ahead: u64, is_answer_lost: bool) {
        let Some(Store {
            seq,
            position,
            timeline,
        }) = self.store.take()
        else {
            return;
        };
        if timeline != self.server.timeline {
            // Stored or not, it is of a log that is gone.
            let before = *self.flow.counters();
            self.flow
                .stored(seq, Lsn::new(commit_lsn(self.written)), self.now);
            assert_eq!(*self.flow.counters(), before, "stored what is forgotten");
            return;
        }
        let end = (commit_lsn(self.written) - 100 + COMMIT_SIZE + ahead).max(self.server.extra_end);
        self.server.extra_end = end;
        if is_answer_lost {
            return;
        }
        self.flow.stored(seq, Lsn::new(end), self.now);
        if self.books.set_aside.remove(&position) {
            self.books.book(position).stored = Some(end);
        }
    }

    pub(super) fn store_all(&mut self) -> bool {
        let mut progress = false;
        while self.store.is_some() || self.flow.next_set_aside().is_some() {
            self.store_begins();
            self.store_ends(3, false);
            progress = true;
        }
        progress
    }

    /// A person skips what is held.
    pub(in crate::flow::tests) fn skip(&mut self) -> bool {
        let oldest = self.books.oldest_failing();
        let expected = oldest.filter(|position| !self.is_under_way(*position));
        let is_skipped = self.flow.skip_held(self.now);
        assert_eq!(is_skipped, expected.is_some(), "R9: skip {oldest:?}");
        if let Some(position) = expected {
            self.books.failing.remove(&position);
            self.books.book(position).is_skipped = true;
        }
        is_skipped
    }

    /// Skips what will never be delivered.
    pub(super) fn skip_what_is_doomed(&mut self) -> bool {
        let Some(position) = self.books.oldest_failing() else {
            return false;
        };
        match self.fate(position) {
            Fate::Deliverable => false,
            Fate::Invalid | Fate::Unroutable | Fate::Poison => self.skip(),
        }
    }

    /// It has been held for too long (R10).
    pub(in crate::flow::tests) fn set_held_aside(&mut self) {
        let oldest = self.books.failing.first_key_value();
        let expected =
            oldest
                .map(|(position, failing)| (*position, *failing))
                .filter(|(position, failing)| {
                    !matches!(failing, Failing::Nacked | Failing::Unanswered)
                        && self.plan.keep_rows
                        && !self.are_dead_letters_full
                        && !self.is_under_way(*position)
                });
        assert_eq!(self.flow.set_held_aside(self.now), expected.is_some(), "R10");
        if let Some((position, _)) = expected {
            self.books.failing.remove(&position);
            self.books.set_aside.insert(position);
        }
    }

    pub(in crate::flow::tests) fn dead_letters_full(&mut self, full: bool) {
        self.are_dead_letters_full = full;
        self.flow.set_dead_letters_full(full);
        if full || !self.plan.keep_rows {
            return;
        }
        let failing = self.books.failing.clone();
        for (position, failing) in failing {
            if self.policy_of(failing) == Policy::DeadLetter && !self.is_under_way(position) {
                self.books.failing.remove(&position);
                self.books.set_aside.insert(position);
            }
        }
    }

    /// Each is told once, in the order in which they failed.
    pub(super) fn take_discarded(&mut self) {
        for discarded in self.flow.take_discarded() {
            assert_eq!(Some(position(&discarded.key)), self.books.discarded.pop_front());
        }
        assert_eq!(self.books.discarded.pop_front(), None, "discarded and not told");
    }

    /// Whether it can be delivered by now.
    pub(super) fn fate(&self, position: Position) -> Fate {
        match self.books.events[&position].fate {
            Fate::Unroutable | Fate::Poison if self.is_healed => Fate::Deliverable,
            fate => fate,
        }
    }

    fn is_under_way(&self, position: Position) -> bool {
        self.pipe.as_ref().is_some_and(|pipe| pipe.holds(position))
    }
}
