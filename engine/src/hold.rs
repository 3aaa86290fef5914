//! How long to wait before a failed event is tried again, alone (rules 9 and 11).

use std::time::{Duration, Instant};

/// The first pause; it doubles with each failed probe.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The pauses between probes while an event is held.
#[derive(Debug, Default)]
pub struct Hold {
    waiting: Option<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    pause: Duration,
    probe_at: Instant,
}

impl Hold {
    /// An event failed at `now`: the first one of this hold, one that was in flight with it, or a probe.
    pub fn failed(&mut self, probe: bool, now: Instant) {
        match &mut self.waiting {
            None => {
                self.waiting = Some(Waiting {
                    pause: FIRST_PAUSE,
                    probe_at: now + FIRST_PAUSE,
                })
            }
            Some(waiting) if probe => {
                waiting.pause = (waiting.pause * 2).min(LONGEST_PAUSE);
                waiting.probe_at = now + waiting.pause;
            }
            Some(_) => {}
        }
    }

    /// A probe was confirmed: the next held event need not wait, and pauses start anew.
    pub const fn probe_confirmed(&mut self, now: Instant) {
        if let Some(waiting) = &mut self.waiting {
            waiting.pause = FIRST_PAUSE;
            waiting.probe_at = now;
        }
    }

    /// No event is held any more.
    pub const fn release(&mut self) {
        self.waiting = None;
    }

    /// When the next probe may go out; none where nothing is held.
    #[must_use]
    pub fn probe_at(&self) -> Option<Instant> {
        self.waiting.as_ref().map(|waiting| waiting.probe_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn pauses_double_up_to_five_minutes_and_start_anew_after_a_success() {
        let mut now = Instant::now();
        let mut hold = Hold::default();
        hold.failed(false, now);
        let mut pauses = Vec::new();
        for _ in 0..11 {
            let probe_at = hold.probe_at().unwrap();
            pauses.push((probe_at - now).as_secs());
            now = probe_at;
            hold.failed(true, now);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        hold.probe_confirmed(now);
        assert_eq!(hold.probe_at(), Some(now));
        hold.failed(true, now);
        assert_eq!(hold.probe_at(), Some(now + 2 * FIRST_PAUSE));
        hold.release();
        assert_eq!(hold.probe_at(), None);
    }
}
