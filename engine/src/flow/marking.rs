//! Marks within the flow: which events' rows are to be marked, and the settled prefix (rules 18 to 21).

use std::time::Instant;

use super::{Flow, failure};
use crate::Lsn;
use crate::event::AfterPublish;
use crate::marks::{MarkBatch, MarkCounters, Marked, Marks, Position, TableNo};
use crate::window::Seq;

/// Whoever marks rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// It takes a batch.
    Free,
    /// It does something else.
    Busy,
    /// There is none in this session.
    Absent,
}

impl Flow {
    /// Everything up to `position` was settled before this session, as the database that it streams from has it on record:
    /// the stream is passed over up to there (R19). Where that counts on a dead letter, nothing is durable before the
    /// stream has been received beyond `barrier`, the end of the log when that was read (R15); `0/0` where it does not. To
    /// be called before the session's first frame.
    ///
    /// What waits here although it was settled is another process's doing: it is not to be sent, held or stored any more. A
    /// row that the stream does not bring is on no such record.
    pub fn settled_before(&mut self, position: Position, barrier: Lsn, now: Instant) {
        self.passed = Some(position);
        self.barrier = self.barrier.max(barrier);
        if let Some(session) = &mut self.session {
            session.ledger.wait_beyond(barrier);
        }
        for seq in self.window.waiting_through(position) {
            if self.probe != Some(seq) {
                self.settle(seq, Lsn::INVALID);
            }
        }
        self.resolved(false, now);
    }

    /// No settled prefix is stored while something that it would cover is not on record (a skip).
    pub const fn hold_prefix(&mut self, is_held: bool) {
        self.is_prefix_held = is_held;
    }

    /// Whether rows can be marked at all in this session, and whether whoever does it has nothing else to do: until then
    /// no batch is due.
    pub const fn set_marker(&mut self, marker: Marker) {
        self.marker = marker;
    }

    /// The rows to mark next, if a batch is due and none is out. What comes of it goes to
    /// [`handle_marked`](Self::handle_marked) or [`handle_marks_failed`](Self::handle_marks_failed).
    pub fn poll_marks(&mut self, now: Instant) -> Option<MarkBatch> {
        self.free_marker()?;
        let (prefix, is_idle) = (self.prefix_to_store(), self.is_idle());
        self.marks.poll_batch(prefix, is_idle, now)
    }

    /// A batch of marks is committed.
    pub fn handle_marked(&mut self, batch: MarkBatch, marked: Marked, now: Instant) {
        self.marks.handle_marked(batch, marked, now);
    }

    /// A batch of marks has failed, and is tried again later.
    pub fn handle_marks_failed(&mut self, batch: MarkBatch, now: Instant) {
        self.marks.handle_failed(batch, now);
    }

    /// A batch of marks has failed over one of its rows, by the look of it.
    pub fn handle_mark_refused(&mut self, batch: MarkBatch, now: Instant) {
        self.marks.handle_row_failed(batch, now);
    }

    /// Rows of the table with this place in the configuration cannot be marked, or can again (R20).
    pub fn refuse_marks(&mut self, table: TableNo, refused: bool) {
        self.marks.refuse(table, refused);
    }

    /// The process before this one may have left rows unmarked (R21).
    pub const fn suspect_lost_marks(&mut self) {
        self.marks.suspect_losses();
    }

    /// Whether marks are lost that no sweep has made good; the number is for [`marks_swept`](Self::marks_swept).
    #[must_use]
    pub fn wants_sweep(&self) -> Option<u64> {
        self.marks.wants_sweep()
    }

    /// A sweep has marked what was lost when [`wants_sweep`](Self::wants_sweep) said `losses`: all rows that were written
    /// by transactions before `before`.
    pub const fn marks_swept(&mut self, losses: u64, before: u64) {
        self.marks.swept(losses, before);
    }

    /// Totals of the marks.
    #[must_use]
    pub const fn mark_counters(&self) -> &MarkCounters {
        self.marks.counters()
    }

    /// What is to be marked, and how far that is.
    #[must_use]
    pub const fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Something waits for the marks of all that is settled: they are due at once. Returns the number before which their ids
    /// are queued.
    pub fn urge_marks(&mut self) -> u64 {
        self.marks.urge()
    }

    /// Ids that wait for their mark.
    #[must_use]
    pub fn unmarked(&self) -> usize {
        self.marks.queued()
    }

    pub(super) fn marks_deadline(&self) -> Option<Instant> {
        self.free_marker()?;
        self.marks.deadline(self.prefix_to_store(), self.is_idle())
    }

    /// Without a session nothing can be marked.
    pub(super) fn are_marks_drained(&self) -> bool {
        self.session.is_none()
            || self.marker == Marker::Absent
            || self.marks.is_drained(self.prefix_to_store(), self.is_idle())
    }

    /// A Relation message has told the table's columns.
    pub(super) fn want_marks(&mut self, table: TableNo, has_sent_at: bool) {
        let setting = self
            .config
            .tables
            .get(usize::from(table))
            .and_then(|table| table.after_publish);
        self.marks.want(
            table,
            AfterPublish::of(setting, has_sent_at) != AfterPublish::Keep,
        );
    }

    /// An event is confirmed or discarded, and about to be settled: its row is to be marked, if it has a usable id.
    pub(super) fn mark(&mut self, seq: Seq, now: Instant) {
        let Some(entry) = self.window.entry(seq) else {
            return;
        };
        if !self.marks.wants(entry.table) {
            self.marks.pass(entry.table);
        } else if let Some(id) = failure::event_id(entry) {
            let row = (id, entry.key.transaction.xid);
            self.marks.queue(entry.table, row, self.prefix_to_store(), now);
        }
    }

    /// Only within a session, and while nothing else is done.
    fn free_marker(&self) -> Option<()> {
        (self.session.is_some() && self.marker == Marker::Free).then_some(())
    }

    fn prefix_to_store(&self) -> Option<Position> {
        self.window.settled_prefix().filter(|_| !self.is_prefix_held)
    }

    fn is_idle(&self) -> bool {
        self.window.unsettled() == 0
    }
}
