//! JSON's numbers as AMQP's: only where nothing of what is written is lost.

use std::fmt;
use std::io::Write as _;

use super::writer::put_u32;

/// Appends a number of JSON with its type: `l` or `d` if that holds exactly what is written, else its text.
pub(super) fn append(out: &mut Vec<u8>, written: &str) {
    let is_whole = !written.contains(['.', 'e', 'E']);
    if is_whole && let Ok(number) = written.parse::<i64>() {
        out.push(b'l');
        out.extend_from_slice(&number.to_be_bytes());
    } else if !is_whole && let Some(number) = double(written) {
        out.push(b'd');
        out.extend_from_slice(&number.to_be_bytes());
    } else {
        out.push(b'S');
        // No longer than the row that it stands in.
        put_u32(out, u32::try_from(written.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(written.as_bytes());
    }
}

/// The number as a double, if a shortest form of that is the very same number: 0.1 is, 0.10000000000000000001 and 1e400
/// are not.
fn double(written: &str) -> Option<f64> {
    let number: f64 = written.parse().ok().filter(|number: &f64| number.is_finite())?;
    let written = Decimal::of(written)?;
    let mut room = [0; 32];
    let shortest = Decimal::of(print(&mut room, format_args!("{number:e}"))?)?;
    if written.equals(&shortest) {
        return Some(number);
    }
    // Where two forms are equally short and near, the standard library prints the larger, and most others print the one
    // with the even digit: 1720895663841019.2 and .3 are both the double between them.
    let fraction = shortest.digits().count().saturating_sub(1);
    let even = Decimal::of(print(&mut room, format_args!("{number:.fraction$e}"))?)?;
    written.equals(&even).then_some(number)
}

/// Prints a double, of which the longest is -1.7976931348623157e308.
fn print<'a>(room: &'a mut [u8; 32], number: fmt::Arguments<'_>) -> Option<&'a str> {
    let mut rest = room.as_mut_slice();
    rest.write_fmt(number).ok()?;
    let left = rest.len();
    let printed = room.get(..room.len().checked_sub(left)?)?;
    std::str::from_utf8(printed).ok()
}

/// A decimal number, by its text.
struct Decimal<'a> {
    /// Without sign and exponent.
    mantissa: &'a str,
    exponent: i64,
}

impl<'a> Decimal<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        Some(Self {
            mantissa: mantissa.trim_start_matches('-'),
            exponent: exponent.parse().ok()?,
        })
    }

    /// Whether both stand for the same number, but for the sign.
    fn equals(&self, other: &Self) -> bool {
        let (mut ours, mut theirs) = (self.digits(), other.digits());
        if self.magnitude() != other.magnitude() {
            return false;
        }
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return true,
                (one, another) if one.unwrap_or(b'0') != another.unwrap_or(b'0') => return false,
                _ => {}
            }
        }
    }

    /// The digits from the first that is not zero on.
    fn digits(&self) -> impl Iterator<Item = u8> {
        let digits = self.mantissa.bytes().filter(|byte| *byte != b'.');
        digits.skip_while(|digit| *digit == b'0')
    }

    /// The power of ten that the first of [`digits`](Self::digits) counts; none for zero.
    fn magnitude(&self) -> Option<i64> {
        let first = self.mantissa.find(|c| c != '0' && c != '.')?;
        let point = self.mantissa.find('.').unwrap_or(self.mantissa.len());
        let (first, point) = (i64::try_from(first).ok()?, i64::try_from(point).ok()?);
        let place = if first < point {
            point - first - 1
        } else {
            point - first
        };
        self.exponent.checked_add(place)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(written: &str) -> Vec<u8> {
        let mut out = Vec::new();
        append(&mut out, written);
        out
    }

    fn as_long(number: i64) -> Vec<u8> {
        [&b"l"[..], &number.to_be_bytes()].concat()
    }

    fn as_double(number: f64) -> Vec<u8> {
        [&b"d"[..], &number.to_be_bytes()].concat()
    }

    fn as_text(text: &str) -> Vec<u8> {
        let length = u32::try_from(text.len()).unwrap();
        [&b"S"[..], &length.to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn whole_numbers_are_longs_up_to_64_bits_and_texts_beyond() {
        for number in [0, -1, i64::MAX, i64::MIN] {
            assert_eq!(encoded(&number.to_string()), as_long(number));
        }
        for beyond in [
            "9223372036854775808",
            "-9223372036854775809",
            "100000000000000000000000",
        ] {
            assert_eq!(encoded(beyond), as_text(beyond));
        }
    }

    #[test]
    fn other_numbers_are_doubles_if_those_are_the_same_number() {
        for (written, number) in [
            ("0.1", 0.1),
            ("-1.50", -1.5),
            ("1e2", 100.0),
            ("100.00e-2", 1.0),
            ("0.00", 0.0),
            ("0e99", 0.0),
            ("123456789.012345e10", 1.234_567_890_123_45e18),
            ("1.7976931348623157E+308", f64::MAX),
            ("5e-324", 5e-324),
            ("0.000001", 0.000_001),
            // Both are as short, and as near.
            ("1720895663841019.2", 1_720_895_663_841_019.0 + 0.25),
            ("1720895663841019.3", 1_720_895_663_841_019.0 + 0.25),
        ] {
            assert_eq!(encoded(written), as_double(number), "{written}");
        }
        for written in [
            "0.10000000000000000001",
            "1e400",
            "-1e400",
            "1e-400",
            "9007199254740993.0",
            "1720895663841019.25",
            "3.14159265358979323846",
            "1e99999999999999999999",
        ] {
            assert_eq!(encoded(written), as_text(written), "{written}");
        }
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        #[test]
        fn every_double_that_is_printed_is_read_back_as_itself(number in any::<f64>()) {
            prop_assume!(number.is_finite());
            prop_assert_eq!(encoded(&format!("{number:?}")), as_double(number));
            prop_assert_eq!(encoded(&format!("{number:e}")), as_double(number));
        }

        #[test]
        fn a_double_halfway_between_two_shortest_forms_is_either(
            whole in (1_u64 << 50)..(1 << 51),
            fraction in prop_oneof![Just("25"), Just("75")],
        ) {
            let number: f64 = format!("{whole}.{fraction}").parse().unwrap();
            prop_assert_eq!(encoded(&serde_json::to_string(&number).unwrap()), as_double(number));
            prop_assert_eq!(encoded(&format!("{number:?}")), as_double(number));
        }

        #[test]
        fn what_is_a_double_has_at_most_17_digits(written in "-?(0|[1-9][0-9]{0,24})\\.[0-9]{1,24}(e[+-]?[0-9]{1,3})?") {
            let digits = written.split('e').next().unwrap().replace(['-', '.'], "");
            let digits = digits.trim_start_matches('0').trim_end_matches('0').len();
            let is_double = encoded(&written)[0] == b'd';
            prop_assert!(!is_double || digits <= 17, "{}", written);
        }
    }
}
