//! How long to wait before the next try.

use std::time::Duration;

use crate::fault::Class;

/// Pauses that double up to a limit, with jitter so that relays do not come back all at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

/// The first pause and the longest one, by what the fault means.
const UNAVAILABLE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
const HALTED: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

impl Backoff {
    /// The pause after one more failure: between half and all of the doubled one.
    pub(super) fn next(&mut self, class: Class) -> Duration {
        let (first, longest) = match class {
            Class::Unavailable | Class::Held | Class::Risk | Class::Degraded => UNAVAILABLE,
            Class::Halted => HALTED,
        };
        let doubled = first.saturating_mul(2u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        doubled.min(longest).mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// A connection has proved itself.
    pub(super) const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..100).map(|_| backoff.next(Class::Unavailable)).collect();
        assert!(pauses[0] >= Duration::from_millis(50) && pauses[0] <= Duration::from_millis(100));
        assert!(pauses[4] >= Duration::from_millis(800) && pauses[4] <= Duration::from_millis(1600));
        assert!(pauses[99] >= Duration::from_millis(2500) && pauses[99] <= Duration::from_secs(5));
        backoff.reset();
        assert!(backoff.next(Class::Halted) <= Duration::from_secs(1));
    }
}
