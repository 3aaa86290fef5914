//! What was measured: one value a round for each case and quantity.

use std::fmt;

/// What is measured of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Events a second.
    Rate,
    /// The same, of writers that were to keep up a rate.
    Reached,
    /// Processor time an event, in µs.
    RelayCpu,
    WalsenderCpu,
    BrokerCpu,
    /// How often the relay gave the processor up for each event: few where it works on many at a time.
    RelaySwitches,
    /// Of the server processes that a polling relay keeps busy.
    BackendCpu,
    /// The most memory ever resident, in MiB.
    PeakRss,
    /// From before the INSERT to the consumer, in ms.
    P50,
    P99,
    P999,
    /// From the last confirm to the last mark, in s.
    MarkLag,
    /// Rows that were left to a sweep.
    MarksDropped,
    /// Processor time as a share of one core, in %.
    RelayShare,
    DatabaseShare,
    /// Transactions a second.
    Transactions,
    /// In ms.
    Start,
    /// In MiB.
    Size,
}

impl Quantity {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Reached => "written",
            Self::RelayCpu => "relay_cpu",
            Self::WalsenderCpu => "walsender_cpu",
            Self::BrokerCpu => "broker_cpu",
            Self::BackendCpu => "backend_cpu",
            Self::RelaySwitches => "relay_switches",
            Self::PeakRss => "peak_rss",
            Self::P50 => "p50",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::MarkLag => "mark_lag",
            Self::MarksDropped => "marks_dropped",
            Self::RelayShare => "relay_share",
            Self::DatabaseShare => "database_share",
            Self::Transactions => "transactions",
            Self::Start => "start",
            Self::Size => "size",
        }
    }

    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Rate | Self::Reached => "events/s",
            Self::RelayCpu | Self::WalsenderCpu | Self::BrokerCpu | Self::BackendCpu => "µs/event",
            Self::RelaySwitches => "an event",
            Self::PeakRss | Self::Size => "MiB",
            Self::P50 | Self::P99 | Self::P999 | Self::Start => "ms",
            Self::MarkLag => "s",
            Self::MarksDropped => "rows",
            Self::RelayShare | Self::DatabaseShare => "% of a core",
            Self::Transactions => "transactions/s",
        }
    }
}

/// The middle and the extremes of what the rounds gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// None of no values.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return None,
            count if count % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
            _ => values[middle],
        };
        Some(Spread {
            median,
            low: values[0],
            high: values[values.len() - 1],
        })
    }
}

/// The median, and the extremes where they differ from it as printed.
impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, low, high] = [self.median, self.low, self.high].map(number);
        match low == median && high == median {
            true => f.write_str(&median),
            false => write!(f, "{median} ({low}–{high})"),
        }
    }
}

/// A number with about three significant digits, thousands apart.
pub(crate) fn number(value: f64) -> String {
    let magnitude = value.abs();
    let decimals = match magnitude {
        _ if magnitude >= 100.0 || magnitude == 0.0 => 0,
        _ if magnitude >= 10.0 => 1,
        _ if magnitude >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (sign, digits) = text.split_at(usize::from(text.starts_with('-')));
    let (whole, rest) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut grouped = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// The values of one case and quantity.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) case: String,
    pub(crate) quantity: Quantity,
    /// The round, from 1, and what it gave.
    pub(crate) values: Vec<(usize, f64)>,
}

/// Everything measured, in the order in which it came first.
#[derive(Debug, Default)]
pub(crate) struct Book {
    entries: Vec<Entry>,
}

impl Book {
    pub(crate) fn note(&mut self, round: usize, case: &str, quantity: Quantity, value: f64) {
        match self.position(case, quantity) {
            Some(at) => self.entries[at].values.push((round, value)),
            None => self.entries.push(Entry {
                case: case.to_owned(),
                quantity,
                values: vec![(round, value)],
            }),
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The cases, each once, whose name begins so.
    pub(crate) fn cases(&self, prefix: &str) -> Vec<&str> {
        let mut cases: Vec<&str> = Vec::new();
        for entry in &self.entries {
            if entry.case.starts_with(prefix) && !cases.contains(&entry.case.as_str()) {
                cases.push(&entry.case);
            }
        }
        cases
    }

    pub(crate) fn spread(&self, case: &str, quantity: Quantity) -> Option<Spread> {
        Spread::of(self.values(case, quantity).iter().map(|(_, value)| *value))
    }

    /// One quantity by another, round by round, so that what slows a whole round down does not count.
    pub(crate) fn ratio(&self, over: (&str, Quantity), under: (&str, Quantity)) -> Option<Spread> {
        let under = self.values(under.0, under.1);
        let ratios = self.values(over.0, over.1).iter().filter_map(|(round, value)| {
            let (_, divisor) = under.iter().find(|(other, _)| other == round)?;
            (*divisor > 0.0).then_some(value / divisor)
        });
        Spread::of(ratios)
    }

    fn values(&self, case: &str, quantity: Quantity) -> &[(usize, f64)] {
        self.position(case, quantity)
            .map_or(&[], |at| self.entries[at].values.as_slice())
    }

    fn position(&self, case: &str, quantity: Quantity) -> Option<usize> {
        self.entries
            .iter()
            .position(|entry| entry.case == case && entry.quantity == quantity)
    }
}

/// The book, opened at a round.
pub(crate) struct Notes<'a> {
    pub(crate) book: &'a mut Book,
    pub(crate) round: usize,
}

impl Notes<'_> {
    pub(crate) fn note(&mut self, case: &str, quantity: Quantity, value: f64) {
        self.book.note(self.round, case, quantity, value);
    }

    /// What this round has noted, for a line of progress.
    pub(crate) fn said(&self, case: &str) -> String {
        let entries = self.book.entries.iter().filter(|entry| entry.case == case);
        let said = entries.filter_map(|entry| {
            let (_, value) = entry.values.iter().rfind(|(round, _)| *round == self.round)?;
            let quantity = entry.quantity;
            Some(format!(
                "{} {} {}",
                quantity.name(),
                number(*value),
                quantity.unit()
            ))
        });
        said.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_value_and_the_extremes() {
        let spread = Spread::of([3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 3.0));
        assert_eq!(Spread::of([4.0, 2.0]).unwrap().median, 3.0);
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut book = Book::default();
        for (round, case, value) in [
            (1, "a", 10.0),
            (1, "b", 5.0),
            (2, "b", 100.0),
            (3, "a", 9.0),
            (3, "b", 3.0),
        ] {
            book.note(round, case, Quantity::Rate, value);
        }
        let ratio = book.ratio(("a", Quantity::Rate), ("b", Quantity::Rate)).unwrap();
        assert_eq!((ratio.low, ratio.high), (2.0, 3.0));
    }

    #[test]
    fn numbers_have_three_digits_and_thousands_apart() {
        let shown = [0.0, 0.0123, 0.957, 14.26, 611.4, 31_204.0, 1_000_000.0].map(number);
        assert_eq!(
            shown,
            ["0", "0.012", "0.957", "14.3", "611", "31,204", "1,000,000"]
        );
    }
}
