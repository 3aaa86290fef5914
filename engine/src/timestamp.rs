//! PostgreSQL's clock readings as they come over the wire.

/// 2000-01-01 00:00:00 UTC in seconds since 1970: where PostgreSQL's timestamps start.
/// <https://www.postgresql.org/docs/current/protocol-replication.html>
const EPOCH_UNIX_SECONDS: i64 = 946_684_800;

const MICROS_PER_SECOND: i64 = 1_000_000;

const EPOCH_UNIX_MICROS: i64 = EPOCH_UNIX_SECONDS * MICROS_PER_SECOND;

/// A moment in µs since 2000-01-01 00:00:00 UTC; negative before that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgTimestamp(i64);

impl PgTimestamp {
    /// The moment `micros` µs after 2000-01-01 00:00:00 UTC.
    #[must_use]
    pub const fn new(micros: i64) -> Self {
        Self(micros)
    }

    /// The moment `micros` µs after 1970-01-01 00:00:00 UTC, or the earliest there is.
    #[must_use]
    pub const fn from_unix_micros(micros: i64) -> Self {
        Self(micros.saturating_sub(EPOCH_UNIX_MICROS))
    }

    /// µs since 2000-01-01 00:00:00 UTC, as the wire has it.
    #[must_use]
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// µs since 1970-01-01 00:00:00 UTC, or `i64::MAX` for what lies beyond.
    #[must_use]
    pub const fn unix_micros(self) -> i64 {
        self.0.saturating_add(EPOCH_UNIX_MICROS)
    }

    /// Whole seconds since 1970-01-01 00:00:00 UTC; zero for what lies before.
    #[must_use]
    pub fn unix_seconds(self) -> u64 {
        // Cannot overflow: a millionth of any i64 leaves room for the offset.
        u64::try_from(self.0.div_euclid(MICROS_PER_SECOND) + EPOCH_UNIX_SECONDS).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_epoch_is_the_start_of_the_year_2000() {
        let epoch = PgTimestamp::new(0);
        assert_eq!(epoch.unix_seconds(), 946_684_800);
        assert_eq!(epoch.unix_micros(), 946_684_800_000_000);
        assert_eq!(PgTimestamp::from_unix_micros(946_684_800_000_001).micros(), 1);
    }

    #[test]
    fn a_part_of_a_second_is_rounded_down() {
        assert_eq!(PgTimestamp::new(1_999_999).unix_seconds(), 946_684_801);
        assert_eq!(PgTimestamp::new(-1).unix_seconds(), 946_684_799);
    }

    #[test]
    fn the_ends_of_the_range_saturate() {
        assert_eq!(PgTimestamp::from_unix_micros(-1).unix_seconds(), 0);
        assert_eq!(PgTimestamp::new(i64::MIN).unix_seconds(), 0);
        assert_eq!(PgTimestamp::new(i64::MAX).unix_micros(), i64::MAX);
        assert_eq!(PgTimestamp::from_unix_micros(i64::MIN).micros(), i64::MIN);
        assert_eq!(
            PgTimestamp::new(i64::MAX).unix_seconds(),
            9_223_372_036_854 + 946_684_800
        );
    }
}
