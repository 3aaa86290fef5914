//! When to report to PostgreSQL: a timer of its own, and at once, at a bounded rate, when the server asks.

use std::time::{Duration, Instant};

use crate::Lsn;

/// How soon a durable LSN that moved is reported.
const MOVING_INTERVAL: Duration = Duration::from_millis(100);

/// At most one answer to the server's questions in this time: a server that shuts down asks some ten thousand times
/// a second for as long as our flush position stays behind.
const REPLY_INTERVAL: Duration = Duration::from_millis(100);

/// Decides when the next status update is due. It holds no position of its own but the last one reported.
#[derive(Debug)]
pub struct Report {
    /// The longest silence towards the server.
    status_interval: Duration,
    /// So many settled events are reported at once.
    settled_limit: usize,
    settled: usize,
    reported: Lsn,
    last: Instant,
    last_reply: Option<Instant>,
    reply_wanted: bool,
}

impl Report {
    /// For a session that starts `now`.
    #[must_use]
    pub const fn new(status_interval: Duration, settled_limit: usize, now: Instant) -> Self {
        Self {
            status_interval,
            settled_limit,
            settled: 0,
            reported: Lsn::INVALID,
            last: now,
            last_reply: None,
            reply_wanted: false,
        }
    }

    /// The server asked for a status update.
    pub const fn reply_requested(&mut self) {
        self.reply_wanted = true;
    }

    /// One more event is settled.
    pub const fn settled(&mut self) {
        self.settled = self.settled.saturating_add(1);
    }

    /// When a status update is due, given the durable LSN.
    #[must_use]
    pub fn deadline(&self, durable: Lsn) -> Instant {
        let mut deadline = self.last + self.status_interval;
        if durable > self.reported {
            let moving = if self.settled >= self.settled_limit {
                self.last
            } else {
                self.last + MOVING_INTERVAL
            };
            deadline = deadline.min(moving);
        }
        if self.reply_wanted {
            deadline = deadline.min(self.last_reply.map_or(self.last, |reply| reply + REPLY_INTERVAL));
        }
        deadline
    }

    /// Whether to report `durable` now; if so, it counts as reported.
    pub fn take_due(&mut self, durable: Lsn, now: Instant) -> bool {
        if now < self.deadline(durable) {
            return false;
        }
        self.reported(durable, now);
        true
    }

    /// A status update with `durable` was sent, whether due or not.
    pub fn reported(&mut self, durable: Lsn, now: Instant) {
        if self.reply_wanted {
            self.last_reply = Some(now);
        }
        self.reply_wanted = false;
        self.settled = 0;
        self.reported = durable;
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const MILLISECOND: Duration = Duration::from_millis(1);

    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn report() -> (Report, Instant) {
        let start = Instant::now();
        (Report::new(SECOND, 1000, start), start)
    }

    #[test]
    fn without_news_the_status_interval_counts() {
        let (mut report, start) = report();
        assert!(!report.take_due(Lsn::INVALID, start + SECOND - MILLISECOND));
        assert!(report.take_due(Lsn::INVALID, start + SECOND));
        assert!(!report.take_due(Lsn::INVALID, start + SECOND));
    }

    #[test]
    fn a_durable_lsn_that_moved_is_reported_within_a_tenth_of_a_second() {
        let (mut report, start) = report();
        let durable = Lsn::new(10);
        assert!(!report.take_due(durable, start + 99 * MILLISECOND));
        assert!(report.take_due(durable, start + 100 * MILLISECOND));
        assert!(!report.take_due(durable, start + 300 * MILLISECOND));
    }

    #[test]
    fn a_window_of_settled_events_is_reported_at_once() {
        let (mut report, start) = report();
        (0..999).for_each(|_| report.settled());
        assert!(!report.take_due(Lsn::new(10), start));
        report.settled();
        assert!(report.take_due(Lsn::new(10), start));
    }

    #[test]
    fn a_server_that_asks_ten_thousand_times_a_second_gets_ten_answers() {
        let (mut report, start) = report();
        let answers = (0..10_000u32).filter(|turn| {
            report.reply_requested();
            report.take_due(Lsn::INVALID, start + *turn * (SECOND / 10_000))
        });
        assert_eq!(answers.count(), 10);
    }
}
