//! When an event happened.

use std::fmt;

use crate::timestamp::PgTimestamp;

/// A moment that is printed as RFC 3339 has it (section 5.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventTime<'a> {
    /// What the row says.
    Written(Written<'a>),
    /// When its transaction committed.
    Committed(PgTimestamp),
}

/// A `timestamptz` as PostgreSQL prints it with `DateStyle = ISO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written<'a> {
    date: &'a str,
    time: &'a str,
    offset: &'a str,
}

impl<'a> Written<'a> {
    /// Takes a text apart; none where RFC 3339 could not say it: without an offset, with one that has seconds, or a year
    /// that has not four digits.
    pub(super) fn of(text: &'a str) -> Option<Self> {
        let (date, rest) = text.split_at_checked(10)?;
        let (separator, rest) = rest.split_at_checked(1)?;
        let (time, offset) = match rest.strip_suffix(['Z', 'z']) {
            Some(time) => (time, "+00"),
            None => rest.split_at_checked(rest.find(['+', '-'])?)?,
        };
        let (seconds, fraction) = time.split_at_checked(8)?;
        let is_fraction = fraction
            .strip_prefix('.')
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
        let fits = is_like(date, "0000-00-00")
            && matches!(separator, " " | "T" | "t")
            && is_like(seconds, "00:00:00")
            && (fraction.is_empty() || is_fraction)
            && (is_like(offset, "+00") || is_like(offset, "+00:00"));
        fits.then_some(Self { date, time, offset })
    }
}

impl fmt::Display for EventTime<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Committed(moment) => moment.rfc3339().fmt(f),
            Self::Written(Written { date, time, offset }) => {
                write!(f, "{date}T{time}")?;
                match offset.len() {
                    _ if matches!(*offset, "+00" | "+00:00") => f.write_str("Z"),
                    3 => write!(f, "{offset}:00"),
                    _ => f.write_str(offset),
                }
            }
        }
    }
}

/// Whether a text has digits where the pattern has zeros, a sign where it has `+`, and is the same elsewhere.
fn is_like(text: &str, pattern: &str) -> bool {
    let fits = |(byte, pattern): (u8, u8)| match pattern {
        b'0' => byte.is_ascii_digit(),
        b'+' => matches!(byte, b'+' | b'-'),
        other => byte == other,
    };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postgresql_prints_becomes_what_rfc_3339_has() {
        for (text, printed) in [
            ("2026-01-31 12:00:00+00", "2026-01-31T12:00:00Z"),
            (
                "2026-01-31 12:00:00.000001+05:30",
                "2026-01-31T12:00:00.000001+05:30",
            ),
            ("2026-01-31 12:00:00.5-08", "2026-01-31T12:00:00.5-08:00"),
            ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ] {
            let written = Written::of(text).map(|written| EventTime::Written(written).to_string());
            assert_eq!(written.as_deref(), Some(printed), "{text}");
        }
    }

    #[test]
    fn what_rfc_3339_cannot_say_is_no_time() {
        for text in [
            "",
            "infinity",
            "2026-01-31",
            "2026-01-31 12:00:00",
            "2026-01-31 12:00:00.+00",
            "1850-01-31 12:00:00+00:53:28",
            "10000-01-31 12:00:00+00",
            "0044-03-15 12:00:00+00 BC",
            "2026-01-31 12:00:00 Europe/Vienna",
            "zwölf Uhr und elf-Sekunden",
        ] {
            assert_eq!(Written::of(text), None, "{text}");
        }
    }
}
