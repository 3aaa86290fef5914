//! What goes wrong again and again is said at once, and then once a minute with how often it came.

use std::time::{Duration, Instant};

/// At most one line in so long of what merely repeats.
const INTERVAL: Duration = Duration::from_secs(60);

/// How many different things are kept apart; the one that has not come for longest is forgotten first.
const KEPT: usize = 16;

/// What has been said, and how often it came since.
#[derive(Debug)]
pub struct Repeats<K> {
    said: Vec<Said<K>>,
}

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        Self { said: Vec::new() }
    }
}

#[derive(Debug)]
struct Said<K> {
    what: K,
    /// When the last line of it was written.
    at: Instant,
    since_then: u64,
}

/// What to do about something that has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// It is new: say it.
    News,
    /// Say that it came so often since it was last spoken of.
    Repeated {
        /// How often, this time included.
        repeated: u64,
        /// In how many seconds.
        seconds: u64,
    },
    /// It has been said.
    Quiet,
}

impl<K: PartialEq> Repeats<K> {
    /// Something has happened.
    pub fn note(&mut self, what: K, now: Instant) -> Telling {
        let Some(place) = self.said.iter().position(|said| said.what == what) else {
            self.said.truncate(KEPT - 1);
            self.said.insert(
                0,
                Said {
                    what,
                    at: now,
                    since_then: 0,
                },
            );
            return Telling::News;
        };
        let mut said = self.said.remove(place);
        said.since_then += 1;
        let passed = now.saturating_duration_since(said.at);
        let telling = if passed >= INTERVAL {
            let repeated = std::mem::take(&mut said.since_then);
            said.at = now;
            Telling::Repeated {
                repeated,
                seconds: passed.as_secs(),
            }
        } else {
            Telling::Quiet
        };
        self.said.insert(0, said);
        telling
    }

    /// It is all over: the next of it is news. Returns how often something came that was not spoken of.
    pub fn over(&mut self) -> u64 {
        self.said.drain(..).map(|said| said.since_then).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_at_once_and_the_rest_once_a_minute_with_its_count() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(repeats.note("away", at(0)), Telling::News);
        for second in 1..60 {
            assert_eq!(repeats.note("away", at(second)), Telling::Quiet);
        }
        let repeated = |repeated, seconds| Telling::Repeated { repeated, seconds };
        assert_eq!(repeats.note("away", at(61)), repeated(60, 61));
        assert_eq!(repeats.note("away", at(120)), Telling::Quiet);
        assert_eq!(repeats.note("away", at(121)), repeated(2, 60));
        assert_eq!(repeats.note("away", at(122)), Telling::Quiet);
        assert_eq!(repeats.over(), 1);
        assert_eq!(repeats.note("away", at(123)), Telling::News);
    }

    #[test]
    fn things_that_come_in_turn_are_each_said_once() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for turn in 0..100 {
            for what in ["one", "other"] {
                assert_eq!(repeats.note(what, now) == Telling::News, turn == 0, "{what}");
            }
        }
    }

    #[test]
    fn what_never_comes_twice_does_not_fill_the_memory() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        for number in 0..1000 {
            assert_eq!(repeats.note(number, now), Telling::News);
        }
        assert_eq!(repeats.said.len(), KEPT);
    }
}
