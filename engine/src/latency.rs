//! How long events took from their commit to the broker's confirm, as counts in buckets.

use std::time::Duration;

use crate::PgTimestamp;

/// The buckets' upper bounds in µs; what is slower is in none but the last, unbounded one.
pub const BOUNDS: [i64; 16] = [
    500,
    1_000,
    2_000,
    4_000,
    8_000,
    16_000,
    32_000,
    64_000,
    125_000,
    250_000,
    500_000,
    1_000_000,
    5_000_000,
    30_000_000,
    120_000_000,
    600_000_000,
];

/// Events by the time from commit to confirm.
///
/// Two clocks are compared, PostgreSQL's and ours; a negative difference counts as nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many took longer than the bound before and no longer than this one; the last has no bound.
    pub counts: [u64; BOUNDS.len() + 1],
    /// All of them together in µs.
    pub sum_micros: u64,
}

impl Latency {
    /// Counts an event that was committed at one time and confirmed at another.
    pub fn observe(&mut self, committed: PgTimestamp, confirmed: PgTimestamp) {
        let micros = confirmed.micros().saturating_sub(committed.micros()).max(0);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum_micros = self.sum_micros.saturating_add(u64::try_from(micros).unwrap_or(0));
    }

    /// How many events were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was counted since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = *self;
        for (count, before) in difference.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        difference.sum_micros = self.sum_micros.saturating_sub(earlier.sum_micros);
        difference
    }

    /// The bound below which a share of the events lie, such as 0.99; none without events. What lies beyond the last
    /// bound is said to be at it.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let total = self.count();
        let bounds = BOUNDS.iter().copied().chain(BOUNDS.last().copied());
        let mut seen = 0;
        for (count, bound) in self.counts.iter().zip(bounds) {
            seen += count;
            if *count > 0 && at_least(seen, total, share) {
                return u64::try_from(bound).ok().map(Duration::from_micros);
            }
        }
        None
    }
}

/// Whether `seen` of `total` are a share or more. Counts beyond 2^53 would lose their last digits, which no share needs.
#[expect(clippy::as_conversions, clippy::cast_precision_loss)]
fn at_least(seen: u64, total: u64, share: f64) -> bool {
    seen as f64 >= share * total as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taking(micros: &[i64]) -> Latency {
        let mut latency = Latency::default();
        for micros in micros {
            latency.observe(
                PgTimestamp::new(1_000),
                PgTimestamp::new(micros.saturating_add(1_000)),
            );
        }
        latency
    }

    #[test]
    fn a_bound_belongs_to_its_own_bucket() {
        let latency = taking(&[0, 500, 501, 600_000_000, 600_000_001]);
        assert_eq!(latency.counts.first(), Some(&2));
        assert_eq!(latency.counts.get(1), Some(&1));
        assert_eq!(latency.counts.get(15), Some(&1));
        assert_eq!(latency.counts.last(), Some(&1));
        assert_eq!(latency.count(), 5);
        assert_eq!(latency.sum_micros, 1_200_001_002);
    }

    #[test]
    fn clocks_that_differ_give_nothing_rather_than_less() {
        let latency = taking(&[-5_000_000]);
        assert_eq!((latency.counts.first(), latency.sum_micros), (Some(&1), 0));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        assert_eq!(Latency::default().quantile(0.5), None);
        let latency = taking(&[100, 900, 900, 3_000_000]);
        assert_eq!(latency.quantile(0.25), Some(Duration::from_micros(500)));
        assert_eq!(latency.quantile(0.5), Some(Duration::from_millis(1)));
        assert_eq!(latency.quantile(0.99), Some(Duration::from_secs(5)));
        assert_eq!(
            taking(&[i64::MAX - 1_000]).quantile(0.5),
            Some(Duration::from_secs(600))
        );
    }

    #[test]
    fn a_difference_counts_what_came_since() {
        let mut latency = taking(&[100, 900]);
        let earlier = latency;
        latency.observe(PgTimestamp::new(0), PgTimestamp::new(100));
        assert_eq!(latency.since(&earlier), taking(&[100]));
    }
}
