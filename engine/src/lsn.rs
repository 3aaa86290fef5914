//! A position in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A log sequence number: a byte position in the write-ahead log of one system id and timeline.
///
/// Printed as PostgreSQL prints `pg_lsn`: two hexadecimal halves, `16/B374D848`.
/// <https://www.postgresql.org/docs/current/datatype-pg-lsn.html>
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// `0/0`, PostgreSQL's `InvalidXLogRecPtr`: no position.
    pub const INVALID: Self = Self(0);

    /// The position at byte `position`.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// The byte position as a number, for wire formats and arithmetic.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whether this is a position at all, so not `0/0`.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 != 0
    }

    /// Bytes of WAL from `earlier` to here; zero where `earlier` is not earlier.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: one goes into every message, and `{:X}` costs some hundred instructions a half.
        let mut text = [0; TEXT_MAX];
        let mut places = text.iter_mut().rev();
        let mut used = 0;
        let mut put = |byte| {
            if let Some(place) = places.next() {
                *place = byte;
                used += 1;
            }
        };
        digits(self.0 & 0xFFFF_FFFF, &mut put);
        put(b'/');
        digits(self.0 >> 32, &mut put);
        let text = text.get(TEXT_MAX - used..).unwrap_or_default();
        f.write_str(std::str::from_utf8(text).unwrap_or_default())
    }
}

/// The longest text form in bytes: two halves and the stroke between.
const TEXT_MAX: usize = 17;

/// The hexadecimal digits of a number, the last one first.
fn digits(mut number: u64, put: &mut impl FnMut(u8)) {
    loop {
        let digit = number & 0xF;
        let digit = u8::try_from(digit).unwrap_or_default();
        put(if digit < 10 {
            b'0' + digit
        } else {
            b'A' - 10 + digit
        });
        number >>= 4;
        if number == 0 {
            return;
        }
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an LSN: expected two hexadecimal numbers such as 16/B374D848")]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Self(u64::from(half(high)?) << 32 | u64::from(half(low)?)))
    }
}

/// One half of the text form: one to eight hexadecimal digits, no sign.
fn half(digits: &str) -> Result<u32, ParseLsnError> {
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(ParseLsnError);
    }
    u32::from_str_radix(digits, 16).map_err(|_| ParseLsnError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_printed_and_read_as_postgresql_does() {
        for (text, position) in [
            ("0/0", 0),
            ("16/B374D848", 0x16_B374_D848),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            assert_eq!(Lsn::new(position).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn::new(position)));
        }
    }

    #[test]
    fn a_text_that_is_no_position_is_refused() {
        for text in [
            "",
            "0",
            "/",
            "0/",
            "/0",
            "0/+1",
            "0/1/2",
            "123456789/0",
            "x/0",
            " 0/0",
        ] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }
}
