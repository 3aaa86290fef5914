//! How far the ids that were queued are marked.

use super::Marks;

impl Marks {
    /// Ids that are not marked.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len() + self.locked.len()
    }

    /// Something waits for the ids that are queued: they are due at once. Returns the number that the next id will have.
    pub fn urge(&mut self) -> u64 {
        self.urgent = self.queue.next();
        self.urgent
    }

    /// All ids before this number are marked, or were given up.
    #[must_use]
    pub fn marked_before(&self) -> u64 {
        let locked = self.locked.iter().map(|locked| locked.number).min();
        let first = self.queue.first();
        locked.map_or(first, |locked| locked.min(first))
    }

    /// How many events have been settled whose rows no queued id will mark: their marks are refused, or were given up.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.missed
    }

    /// All ids before this number are marked, given up or excused.
    pub(super) fn done_before(&self) -> u64 {
        let locked = self.locked.iter().map(|locked| locked.number);
        let locked = locked.filter(|number| *number >= self.excused).min();
        let first = self.queue.first().max(self.excused);
        locked.map_or(first, |locked| locked.min(first))
    }

    pub(super) fn excuse(&mut self, through: u64) {
        let queued = through.saturating_sub(self.queue.first().max(self.excused));
        let late = self.locked.iter().map(|locked| locked.number);
        let locked = late
            .filter(|number| (self.excused..through).contains(number))
            .count();
        self.counters.late += queued + u64::try_from(locked).unwrap_or(u64::MAX);
        self.excused = self.excused.max(through);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{MAX_ID, MarkSettings, Marked, Marks};

    const SECOND: Duration = Duration::from_secs(1);

    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn marks() -> (Marks, Instant) {
        let settings = MarkSettings {
            batch: 10,
            interval: 60 * SECOND,
        };
        let mut marks = Marks::new(settings, 100, 2);
        marks.want(0, true);
        (marks, Instant::now())
    }

    #[test]
    fn what_is_urged_is_due_at_once_and_done_when_no_row_is_locked_any_more() {
        let (mut marks, mut now) = marks();
        for id in ["1", "2"] {
            marks.queue(0, (id, 0), None, now);
        }
        assert_eq!(marks.poll_batch(None, false, now), None);
        let through = marks.urge();
        let batch = marks.poll_batch(None, false, now).unwrap();
        assert_eq!(marks.marked_before(), 0);
        let locked = Marked {
            locked: vec![(0, "1".to_owned(), 0)],
            ..Marked::default()
        };
        marks.handle_marked(batch, locked, now);
        assert!(marks.marked_before() < through, "one is locked");
        now += SECOND;
        let batch = marks.poll_batch(None, false, now).unwrap();
        marks.handle_marked(batch, Marked::default(), now);
        assert_eq!((marks.marked_before(), marks.missed()), (through, 0));
    }

    #[test]
    fn rows_that_no_queued_id_will_mark_are_missed() {
        let (mut marks, now) = marks();
        marks.queue(0, (&"x".repeat(MAX_ID + 1), 0), None, now);
        assert_eq!(marks.missed(), 1, "too long");
        marks.queue(0, ("1", 0), None, now);
        marks.refuse(0, true);
        marks.pass(0);
        assert_eq!(marks.missed(), 2, "refused");
        marks.pass(1);
        assert_eq!(marks.missed(), 2, "nobody wants rows of that table marked");
        let through = marks.urge();
        let batch = marks.poll_batch(None, false, now).unwrap();
        marks.handle_marked(batch, Marked::default(), now);
        assert_eq!((marks.marked_before(), marks.missed()), (through, 3), "given up");
    }
}
