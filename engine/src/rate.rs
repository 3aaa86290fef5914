//! `max_rate`: draining a backlog without tripping the broker's alarms.

use std::time::{Duration, Instant};

/// How far sending may run ahead of its pace, so that timers need not be finer than this.
const TOLERANCE: Duration = Duration::from_millis(50);

/// An even pace of messages (the generic cell rate algorithm): one instant is all its state.
#[derive(Debug)]
pub struct Rate {
    interval: Duration,
    /// When the next message is due at the pace.
    due: Option<Instant>,
}

impl Rate {
    /// At most `per_second` messages, which must not be zero.
    #[must_use]
    pub fn new(per_second: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            due: None,
        }
    }

    /// Whether a message may go out now.
    #[must_use]
    pub fn allows(&self, now: Instant) -> bool {
        self.next().is_none_or(|next| now >= next)
    }

    /// When the next message may go out; none: at once.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.due.and_then(|due| due.checked_sub(TOLERANCE))
    }

    /// A message went out.
    pub fn sent(&mut self, now: Instant) {
        self.due = Some(self.due.map_or(now, |due| due.max(now)) + self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn over_a_second_as_many_go_out_as_allowed_and_after_a_pause_no_more() {
        let start = Instant::now();
        let mut rate = Rate::new(1000);
        let mut count = |from: u64, to: u64| {
            let mut sent = 0;
            for millisecond in from..to {
                let now = start + Duration::from_millis(millisecond);
                while rate.allows(now) {
                    rate.sent(now);
                    sent += 1;
                }
            }
            sent
        };
        assert!((1000..=1060).contains(&count(0, 1000)));
        assert!(
            (1000..=1060).contains(&count(60_000, 61_000)),
            "a pause saves nothing up"
        );
    }
}
