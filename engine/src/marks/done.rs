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
