//! The numbers to reach, compared with what was measured.

use walrelay_testbed::QueueKind;

use crate::backlog::Shape;
use crate::book::{Book, Quantity, Spread, number};
use crate::drain::{Drain, KINDS, kind_name};
use crate::plan::Plan;
use crate::steady::Relayer;
use crate::{outage, polling, publisher, rest, steady};

/// A bound on a number.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A number to reach, and what was measured.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) what: String,
    bound: Bound,
    unit: &'static str,
    pub(crate) measured: Option<Spread>,
}

impl Target {
    /// The bound in words.
    pub(crate) fn bound(&self) -> String {
        let (sign, bound) = match self.bound {
            Bound::AtLeast(bound) => ('≥', bound),
            Bound::AtMost(bound) => ('≤', bound),
        };
        format!("{sign} {} {}", number(bound), self.unit)
            .trim_end()
            .to_owned()
    }

    /// Whether the median reaches it; none where nothing was measured.
    pub(crate) fn is_met(&self) -> Option<bool> {
        let median = self.measured?.median;
        Some(match self.bound {
            Bound::AtLeast(bound) => median >= bound,
            Bound::AtMost(bound) => median <= bound,
        })
    }

    pub(crate) fn verdict(&self) -> &'static str {
        match self.is_met() {
            Some(true) => "met",
            Some(false) => "**not met**",
            None => "not measured",
        }
    }
}

/// All of them, in the order of the page.
pub(crate) fn targets(book: &Book, plan: &Plan) -> Vec<Target> {
    let mut targets = Vec::new();
    for kind in KINDS {
        for shape in Shape::ALL {
            let drain = Drain::plain(kind, shape).case();
            targets.push(Target {
                what: format!("drain ÷ publisher alone, {}, {}", kind_name(kind), shape.name()),
                bound: Bound::AtLeast(0.95),
                unit: "",
                measured: book.ratio((&drain, Quantity::Rate), (&publisher::case(kind), Quantity::Rate)),
            });
        }
    }
    let plain = |kind| Drain::plain(kind, Shape::OneRow).case();
    for kind in KINDS {
        let case = plain(kind);
        targets.push(at_most(
            format!("relay CPU an event, draining, {}", kind_name(kind)),
            3.0,
            "µs",
            book.spread(&case, Quantity::RelayCpu),
        ));
        let share = book.ratio((&case, Quantity::RelayCpu), (&case, Quantity::BrokerCpu));
        targets.push(at_most(
            format!("relay CPU ÷ broker CPU, draining, {}", kind_name(kind)),
            0.08,
            "",
            share,
        ));
    }
    let one_row = plain(QueueKind::Classic);
    targets.push(Target {
        what: "drain ÷ polling relay, classic".to_owned(),
        bound: Bound::AtLeast(1.9),
        unit: "",
        measured: book.ratio((&one_row, Quantity::Rate), (polling::CASE, Quantity::Rate)),
    });
    let [ours, theirs] =
        [Relayer::Walrelay, Relayer::Polling].map(|relayer| steady::case(relayer, plan.compared));
    targets.push(at_most(
        format!(
            "p50 ÷ that of the polling relay, {} events/s",
            number(plan.compared.into())
        ),
        1.0 / 40.0,
        "",
        book.ratio((&ours, Quantity::P50), (&theirs, Quantity::P50)),
    ));
    let latency = steady::case(Relayer::Walrelay, 1_000);
    for (quantity, bound) in [(Quantity::P50, 1.2), (Quantity::P99, 4.0)] {
        targets.push(at_most(
            format!("INSERT to delivery at 1,000 events/s, {}", quantity.name()),
            bound,
            "ms",
            book.spread(&latency, quantity),
        ));
    }
    for kind in [QueueKind::Classic, QueueKind::Quorum] {
        let keep = Drain::plain(kind, Shape::Thousand);
        let mark = Drain {
            after_publish: "mark",
            ..keep
        };
        targets.push(Target {
            what: format!("drain with mark ÷ with keep, {}", kind_name(kind)),
            bound: Bound::AtLeast(0.85),
            unit: "",
            measured: book.ratio((&mark.case(), Quantity::Rate), (&keep.case(), Quantity::Rate)),
        });
    }
    let draining = Spread::of(
        book.cases("drain / ")
            .into_iter()
            .filter_map(|case| Some(book.spread(case, Quantity::PeakRss)?.high)),
    );
    // Of all drains the worst.
    let draining = draining.map(|spread| Spread {
        median: spread.high,
        ..spread
    });
    let peak = |case| book.spread(case, Quantity::PeakRss);
    for (what, bound, measured) in [
        ("idle", 10.0, peak(rest::IDLE)),
        ("draining, the highest of all drains", 20.0, draining),
        ("broker down, events waiting", 20.0, peak(outage::DOWN)),
        ("one huge transaction", 32.0, peak(outage::SINGLE)),
    ] {
        targets.push(at_most(format!("peak RSS, {what}"), bound, "MiB", measured));
    }
    targets.push(at_most(
        "idle CPU".to_owned(),
        0.1,
        "% of a core",
        book.spread(rest::IDLE, Quantity::RelayShare),
    ));
    targets.push(at_most(
        "exec to the first message, everything set up".to_owned(),
        150.0,
        "ms",
        book.spread(rest::START, Quantity::Start),
    ));
    targets.push(at_most(
        "stripped release binary".to_owned(),
        12.0,
        "MiB",
        book.spread(rest::BINARY, Quantity::Size),
    ));
    targets
}

fn at_most(what: String, bound: f64, unit: &'static str, measured: Option<Spread>) -> Target {
    Target {
        what,
        bound: Bound::AtMost(bound),
        unit,
        measured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_by_the_median_and_never_by_nothing() {
        let mut book = Book::default();
        for (round, value) in [(1, 140.0), (2, 160.0), (3, 145.0)] {
            book.note(round, rest::START, Quantity::Start, value);
        }
        let targets = targets(&book, &Plan::full());
        let find = |what: &str| {
            targets
                .iter()
                .find(|target| target.what.starts_with(what))
                .unwrap()
        };
        assert_eq!(find("exec to").is_met(), Some(true));
        assert_eq!(find("exec to").bound(), "≤ 150 ms");
        assert_eq!(find("stripped").is_met(), None);
    }
}
