//! The shell's marker: batches of marks are committed, refused, or their answers lost; and what the database then says.

use std::collections::BTreeSet;
use std::time::Instant;

use super::{Position, World, new_flow, number};
use crate::Lsn;
use crate::flow::Flow;
use crate::marks::{HOLD, MarkBatch, Marked};

/// The ids of the rows in this world: their positions.
pub(super) fn id((commit_lsn, tx_seq): Position) -> String {
    format!("{commit_lsn}:{tx_seq}")
}

fn position_of(id: &str) -> Position {
    let (commit_lsn, tx_seq) = id.split_once(':').unwrap();
    (commit_lsn.parse().unwrap(), tx_seq.parse().unwrap())
}

/// What the marker and its database know.
#[derive(Default)]
pub(super) struct Marker {
    batch: Option<(MarkBatch, u32)>,
    marked: BTreeSet<Position>,
    /// The stored settled prefix: commit LSN, `tx_seq`, and whether a crash costs no mark.
    stored: Option<(Position, bool)>,
    /// Marks may be missing: a process died with them, or they were of another log.
    may_be_lost: bool,
    /// Somebody had rows locked.
    had_locked: bool,
}

impl Marker {
    /// The process is another one.
    pub(super) fn forget(&mut self) {
        self.batch = None;
    }

    pub(super) fn lose(&mut self) {
        self.may_be_lost = true;
    }

    pub(super) const fn stored(&self) -> Option<(Position, bool)> {
        self.stored
    }

    /// The database is an older state of itself.
    pub(super) fn set_back(&mut self, flow: &mut Flow, stored: Option<(Position, bool)>, now: Instant) {
        if let Some((batch, _)) = self.batch.take() {
            flow.handle_marks_failed(batch, now);
        }
        self.stored = stored;
        self.lose();
    }
}

impl World {
    /// The shell takes a batch, if one is due.
    pub(in crate::flow::tests) fn marks_begin(&mut self) {
        if self.marker.batch.is_none() {
            let batch = self.flow.poll_marks(self.now);
            self.marker.batch = batch.map(|batch| (batch, self.server.timeline));
        }
    }

    /// It is committed, or fails, or its answer is lost, or some of its rows are locked.
    pub(in crate::flow::tests) fn marks_end(
        &mut self,
        is_committed: bool,
        is_answer_lost: bool,
        locked: usize,
    ) {
        let Some((batch, timeline)) = self.marker.batch.take() else {
            return;
        };
        // By the walsender's process id: another server takes nothing.
        let is_ours = self.server.sender.is_some() && timeline == self.server.timeline;
        if !is_committed || !is_ours {
            return self.flow.handle_marks_failed(batch, self.now);
        }
        let mut marked = Marked::default();
        for ids in &batch.tables {
            for id in ids.iter() {
                let position = position_of(id);
                let book = &self.books.events[&position];
                assert!(!book.is_message, "marked, and in no table");
                assert!(
                    book.is_accepted || book.is_discarded,
                    "R18: marked, and neither confirmed nor discarded: {position:?} {book:?}"
                );
                if marked.locked.len() < locked {
                    self.marker.had_locked = true;
                    marked.locked.push((ids.table, id.to_owned(), 0));
                } else {
                    marked.rows += 1;
                    self.marker.marked.insert(position);
                }
            }
        }
        if let Some(prefix) = batch.prefix.map(|prefix| prefix.with(marked.locked.is_empty())) {
            let (commit_lsn, tx_seq) = prefix.position;
            let position = (commit_lsn.get(), tx_seq);
            // What this server does not have any more was acknowledged.
            for (event, book) in self.books.events.range(..=position) {
                assert!(
                    book.is_settled(),
                    "R19: {event:?} lies before {position:?} and is {book:?}"
                );
            }
            self.marker.stored = Some((position, prefix.is_complete));
        }
        if is_answer_lost {
            return self.flow.handle_marks_failed(batch, self.now);
        }
        self.flow.handle_marked(batch, marked, self.now);
    }

    pub(super) fn mark_all(&mut self) -> bool {
        let mut progress = false;
        loop {
            self.marks_begin();
            if self.marker.batch.is_none() {
                return progress;
            }
            self.marks_end(true, false, 0);
            progress = true;
        }
    }

    /// The relay is killed; another process begins with what the database has on record.
    pub(in crate::flow::tests) fn killed(&mut self) {
        self.server.sender = None;
        (self.pipe, self.store) = (None, None);
        self.marker.forget();
        let stored = self.marker.stored;
        // What is settled beyond the slot and the stored prefix is read again.
        self.books
            .restart(self.server.confirmed, stored.map(|(position, _)| position));
        // Only these are not sent again: beyond all else neither the slot nor the stored prefix has gone.
        let counters = self.flow.mark_counters();
        if counters.late > 0 || counters.dropped > 0 || self.marker.had_locked {
            self.marker.lose();
        }
        self.flow = new_flow(&self.plan);
        self.are_dead_letters_full = false;
    }

    /// What was stored, for a session that begins.
    pub(super) fn pass_over(&mut self) {
        let Some((position, _)) = self.marker.stored else {
            return;
        };
        let mut passed = self
            .books
            .events
            .range((self.server.confirmed, 0)..=position.max((self.server.confirmed, 0)));
        let barrier = match passed.any(|(_, book)| book.stored.is_some()) {
            true => self.server.extra_end,
            false => 0,
        };
        let (commit_lsn, tx_seq) = position;
        self.flow
            .settled_before((Lsn::new(commit_lsn), tx_seq), Lsn::new(barrier), self.now);
    }

    /// R18: a position is reported only beyond rows that are marked, or have waited for their marks for a second.
    pub(super) fn check_marked(&self, reported: u64) {
        if !self.plan.marks || self.marker.may_be_lost {
            return;
        }
        for (event, book) in self
            .books
            .events
            .range((self.server.confirmed, 0)..(reported.max(self.server.confirmed), 0))
        {
            // Positions that move soon after one another wait together.
            let has_waited = book
                .waits_since
                .is_some_and(|since| self.now + HOLD / 50 >= since + HOLD);
            assert!(
                !book.is_to_be_marked() || has_waited || self.marker.marked.contains(event),
                "R18: {reported} is reported before {event:?} is marked"
            );
        }
    }

    /// After all is done, all is marked that is confirmed or discarded before a position.
    pub(super) fn check_all_marked(&self, before: u64) {
        if !self.plan.marks || self.marker.may_be_lost {
            return;
        }
        for (event, book) in self.books.events.range(..(before, 0)) {
            assert!(
                !book.is_to_be_marked() || self.marker.marked.contains(event),
                "unmarked: {event:?} {book:?}"
            );
        }
        assert_eq!(self.flow.mark_counters().dropped, number(0));
    }
}
