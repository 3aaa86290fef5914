//! Noticing that this process stood still: stopped by a signal, suspended with its machine, or without a processor.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Compares the boot clock from turn to turn. It runs on through a suspend, unlike the monotonic one.
/// <https://man7.org/linux/man-pages/man2/clock_gettime.2.html>
#[derive(Debug)]
pub(super) struct Wake {
    limit: Duration,
    last: Duration,
}

impl Wake {
    /// A standstill of half the take-over time counts: after all of it another process may stream from our slot.
    pub(super) fn new(take_over: Duration) -> Self {
        Self {
            limit: take_over / 2,
            last: boot_clock(),
        }
    }

    /// The longest time that may pass between two calls of [`stood_still`](Self::stood_still) of a healthy loop.
    pub(super) fn tick(&self) -> Duration {
        self.limit / 2
    }

    /// How long the process stood still since the last call, where that was too long.
    pub(super) fn stood_still(&mut self) -> Option<Duration> {
        self.advance(boot_clock())
    }

    fn advance(&mut self, now: Duration) -> Option<Duration> {
        let gap = now.saturating_sub(self.last);
        self.last = now;
        (gap > self.limit).then_some(gap)
    }
}

fn boot_clock() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_gap_of_more_than_half_the_take_over_time_is_a_standstill_and_is_told_once() {
        const SECOND: Duration = Duration::from_secs(1);
        let mut wake = Wake::new(10 * SECOND);
        assert_eq!(wake.stood_still(), None);
        let start = wake.last;
        assert_eq!(wake.advance(start + 5 * SECOND), None);
        assert_eq!(wake.advance(start + 11 * SECOND), Some(6 * SECOND));
        assert_eq!(wake.advance(start + 11 * SECOND), None);
        assert_eq!(wake.advance(start), None);
        assert!(wake.tick() * 2 <= 5 * SECOND);
    }
}
