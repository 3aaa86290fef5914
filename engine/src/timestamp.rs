//! PostgreSQL's clock readings as they come over the wire.

use std::fmt;

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

    /// The moment so many seconds after 1970-01-01 00:00:00 UTC, or the latest there is.
    #[must_use]
    pub fn from_unix_seconds(seconds: u64) -> Self {
        let micros = seconds.saturating_mul(1_000_000);
        Self::from_unix_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }

    /// Prints the moment in UTC, as RFC 3339 has it (section 5.6).
    #[must_use]
    pub const fn rfc3339(self) -> Rfc3339 {
        Rfc3339(self)
    }
}

/// A moment to be printed as `2026-01-31T12:00:00.000001Z`; without a fraction where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rfc3339(PgTimestamp);

impl fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: i64 = 24 * 60 * 60;
        let micros = self.0.unix_micros();
        let (seconds, fraction) = (
            micros.div_euclid(MICROS_PER_SECOND),
            micros.rem_euclid(MICROS_PER_SECOND),
        );
        let (year, month, day) = civil(seconds.div_euclid(DAY));
        let of_day = seconds.rem_euclid(DAY);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        )?;
        match fraction {
            0 => f.write_str("Z"),
            _ => write!(f, ".{fraction:06}Z"),
        }
    }
}

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01. Years are counted from March on, so that a
/// leap day is the last of its year.
const fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_IN_400_YEARS: i64 = 146_097;
    // From 0000-03-01.
    let days = days + 719_468;
    let (era, day_of_era) = (
        days.div_euclid(DAYS_IN_400_YEARS),
        days.rem_euclid(DAYS_IN_400_YEARS),
    );
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let (month, later) = if from_march < 10 {
        (from_march + 3, 0)
    } else {
        (from_march - 9, 1)
    };
    (era * 400 + year_of_era + later, month, day)
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
    fn a_moment_is_printed_as_rfc_3339_has_it() {
        for (seconds, printed) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(
                PgTimestamp::from_unix_seconds(seconds).rfc3339().to_string(),
                printed
            );
        }
        let fraction = PgTimestamp::from_unix_micros(1_700_000_000_000_020).rfc3339();
        assert_eq!(fraction.to_string(), "2023-11-14T22:13:20.000020Z");
        assert_eq!(
            PgTimestamp::from_unix_micros(-1).rfc3339().to_string(),
            "1969-12-31T23:59:59.999999Z"
        );
        // No panic at either end.
        drop([i64::MIN, i64::MAX].map(|micros| PgTimestamp::new(micros).rfc3339().to_string()));
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
