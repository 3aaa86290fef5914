//! Marks by the notes of a backfill, in small steps between two batches, for as long as there are such notes.

use std::time::{Duration, Instant};

use crate::postgres::marks::{self, TablePlan};
use crate::postgres::{ControlSession, Error, SlotName};

/// The pause between two steps: the database has other things to do.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause after a failure, and where a row was locked or its table's marks are refused.
const RETRY: Duration = Duration::from_secs(5);

/// Whether there are notes, and how far they have been gone through.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// When the next step is due; none where no note is known of.
    due: Option<Instant>,
    next: Step,
    /// Notes that stay were met on this way.
    are_left: bool,
}

/// What to do next: the notes behind a number, of the table with this place in the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Step {
    table: usize,
    after: i64,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    /// None at the end.
    next: Option<Step>,
    are_left: bool,
    rows: u64,
    /// The place of the table of which rows are still unsent though they were marked.
    pub(super) endless: Option<usize>,
}

impl Notes {
    /// There are some, or more.
    pub(super) fn are_there(&mut self, now: Instant) {
        if self.due.is_none() {
            *self = Self {
                due: Some(now),
                ..Self::default()
            };
        } else {
            // They may lie behind what has been gone through.
            self.are_left = true;
        }
    }

    pub(super) fn next(&self, now: Instant) -> Option<Step> {
        self.due.filter(|due| now >= *due).map(|_| self.next)
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// A step is over.
    pub(super) fn done(&mut self, done: Done, now: Instant) {
        if done.rows > 0 {
            tracing::info!(
                rows = done.rows,
                "rows of a backfill whose marks came late are marked"
            );
        }
        self.are_left |= done.are_left;
        self.next = done.next.unwrap_or_default();
        self.due = match done.next {
            Some(_) => Some(now + PAUSE),
            None => std::mem::take(&mut self.are_left).then_some(now + RETRY),
        };
    }

    /// A step has failed, or the session is lost.
    pub(super) fn failed(&mut self, now: Instant) {
        self.next = Step::default();
        self.due = self.due.map(|_| now + RETRY);
    }
}

/// Carries out a step.
pub(super) async fn carry_out(
    session: &ControlSession,
    slot: &SlotName,
    plans: &[TablePlan],
    step: Step,
) -> Result<Done, Error> {
    let next_table = Step {
        table: step.table + 1,
        after: 0,
    };
    let Some(plan) = plans.get(step.table) else {
        marks::drop_needless(session, slot, plans).await?;
        return Ok(Done {
            next: None,
            are_left: false,
            rows: 0,
            endless: None,
        });
    };
    if !plan.is_marked() {
        return Ok(Done {
            next: Some(next_table),
            are_left: plan.refusal.is_some() && marks::has_notes(session, slot, plan).await?,
            rows: 0,
            endless: None,
        });
    }
    let noted = marks::mark_noted(session, slot, plan, step.after).await?;
    let same_table = |after| Step { after, ..step };
    Ok(Done {
        next: Some(noted.last.map_or(next_table, same_table)),
        are_left: noted.locked > 0,
        rows: noted.rows,
        endless: (noted.unsent > 0).then_some(step.table),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(next: Option<Step>, are_left: bool) -> Done {
        Done {
            next,
            are_left,
            rows: 0,
            endless: None,
        }
    }

    #[test]
    fn notes_are_gone_through_again_until_none_is_left() {
        let now = Instant::now();
        let mut notes = Notes::default();
        assert_eq!((notes.next(now), notes.deadline()), (None, None));
        notes.are_there(now);
        let first = notes.next(now);
        assert_eq!(first, Some(Step::default()));
        let second = Step { table: 0, after: 7 };
        notes.done(done(Some(second), true), now);
        assert_eq!(notes.next(now), None, "the database has other things to do");
        assert_eq!(notes.next(now + PAUSE), Some(second));
        notes.done(done(None, false), now);
        assert_eq!(notes.next(now + RETRY), first, "a row was locked");
        notes.failed(now);
        assert_eq!(notes.deadline(), Some(now + RETRY));
        // One more comes when the way is past it.
        notes.done(done(Some(second), false), now);
        notes.are_there(now);
        notes.done(done(None, false), now);
        assert_eq!(notes.deadline(), Some(now + RETRY));
        notes.done(done(None, false), now);
        assert_eq!(notes.deadline(), None);
    }
}
