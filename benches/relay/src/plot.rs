//! Plots as SVG, without anything to draw them with: bars with the spread of the rounds as whiskers.

use std::fmt::Write as _;

use crate::backlog::Shape;
use crate::book::{Quantity, Spread, number};
use crate::drain::{KINDS, kind_name};
use crate::report::{Run, plain};
use crate::steady::{self, Relayer};
use crate::{bare, outage, polling, publisher, rest};

const WIDTH: f64 = 900.0;
/// Where bars begin, and where the longest ends.
const LEFT: f64 = 300.0;
const RIGHT: f64 = 760.0;
const TOP: f64 = 56.0;
const ROW: f64 = 22.0;
const BAR: f64 = 14.0;
/// Above the first bar of a group.
const GAP: f64 = 10.0;

/// Told apart without colour too, by their order and the legend.
const COLOURS: [&str; 4] = ["#8a8f98", "#2b6cb0", "#63a4dd", "#b5d3ef"];

/// One bar, of one or several parts.
struct Bar {
    label: String,
    /// Each with the colour's place in [`COLOURS`].
    parts: Vec<(usize, f64)>,
    /// Of the whole.
    spread: Option<Spread>,
    /// First of a group.
    first: bool,
}

struct Chart {
    title: &'static str,
    unit: &'static str,
    legend: Vec<(&'static str, usize)>,
    bars: Vec<Bar>,
    /// Bars as long as the logarithm, from this value on.
    logarithmic_from: Option<f64>,
}

/// The files' names, titles and content; those without anything to show are left out.
pub(crate) fn plots(run: &Run) -> Vec<(&'static str, &'static str, String)> {
    [
        ("drain.svg", drain(run)),
        ("cpu.svg", cpu(run)),
        ("latency.svg", latency(run)),
        ("memory.svg", memory(run)),
    ]
    .into_iter()
    .filter(|(_, chart)| !chart.bars.is_empty())
    .map(|(name, chart)| (name, chart.title, chart.svg()))
    .collect()
}

fn drain(run: &Run) -> Chart {
    let mut bars = Vec::new();
    for kind in KINDS {
        let alone = (
            format!("{}: publisher alone", kind_name(kind)),
            publisher::case(kind),
            0,
        );
        let bare = (
            format!("bare relay, {}", Shape::OneRow.name()),
            bare::case(kind, Shape::OneRow),
            2,
        );
        let drains = Shape::ALL.map(|shape| (format!("walrelay, {}", shape.name()), plain(kind, shape), 1));
        let polling = ("polling relay".to_owned(), polling::CASE.to_owned(), 3);
        let cases = [alone, bare].into_iter().chain(drains);
        let cases = cases.chain((kind == KINDS[0]).then_some(polling));
        bars.extend(simple(run, cases, Quantity::Rate));
    }
    Chart {
        title: "Draining a backlog",
        unit: "events/s",
        legend: vec![
            ("the limit", 0),
            ("both limits at once", 2),
            ("walrelay", 1),
            ("polling", 3),
        ],
        bars,
        logarithmic_from: None,
    }
}

fn cpu(run: &Run) -> Chart {
    let parts = [
        (Quantity::BrokerCpu, 0),
        (Quantity::WalsenderCpu, 2),
        (Quantity::BackendCpu, 2),
        (Quantity::RelayCpu, 1),
    ];
    let mut cases: Vec<(String, String)> = Vec::new();
    for kind in KINDS {
        for shape in [Shape::OneRow, Shape::Thousand] {
            cases.push((
                format!("{}, {}", kind_name(kind), shape.name()),
                plain(kind, shape),
            ));
        }
    }
    cases.push(("polling relay, classic".to_owned(), polling::CASE.to_owned()));
    let bars = cases.into_iter().filter_map(|(label, case)| {
        let parts = parts
            .iter()
            .filter_map(|(quantity, colour)| Some((*colour, run.book.spread(&case, *quantity)?.median)));
        let parts: Vec<(usize, f64)> = parts.collect();
        (!parts.is_empty()).then_some(Bar {
            first: label.ends_with("one-row transactions"),
            label,
            parts,
            spread: None,
        })
    });
    Chart {
        title: "Processor time an event while draining",
        unit: "µs",
        legend: vec![("broker", 0), ("database", 2), ("relay", 1)],
        bars: bars.collect(),
        logarithmic_from: None,
    }
}

fn latency(run: &Run) -> Chart {
    let mut bars = Vec::new();
    for (rate, _) in &run.plan.steady {
        for relayer in [Relayer::Walrelay, Relayer::Polling] {
            let case = steady::case(relayer, *rate);
            let name = if relayer == Relayer::Walrelay {
                "walrelay"
            } else {
                "polling relay"
            };
            let quantities = [(Quantity::P50, 1), (Quantity::P99, 2), (Quantity::P999, 3)];
            let cases = quantities.into_iter().filter_map(|(quantity, colour)| {
                let spread = run.book.spread(&case, quantity)?;
                Some(Bar {
                    label: format!("{name}, {} events/s, {}", number((*rate).into()), quantity.name()),
                    parts: vec![(colour, spread.median)],
                    spread: Some(spread),
                    first: quantity == Quantity::P50,
                })
            });
            bars.extend(cases);
        }
    }
    Chart {
        title: "From before the INSERT to the consumer (logarithmic)",
        unit: "ms",
        legend: vec![("p50", 1), ("p99", 2), ("p99.9", 3)],
        bars,
        logarithmic_from: Some(0.1),
    }
}

fn memory(run: &Run) -> Chart {
    let draining = Shape::ALL.map(|shape| (format!("draining, {}", shape.name()), plain(KINDS[0], shape), 1));
    let cases = [("idle".to_owned(), rest::IDLE.to_owned(), 1)]
        .into_iter()
        .chain(draining)
        .chain([
            (
                "broker down, events waiting".to_owned(),
                outage::DOWN.to_owned(),
                1,
            ),
            ("one huge transaction".to_owned(), outage::SINGLE.to_owned(), 1),
        ]);
    Chart {
        title: "The most memory ever resident",
        unit: "MiB",
        legend: vec![("walrelay", 1)],
        bars: simple(run, cases, Quantity::PeakRss),
        logarithmic_from: None,
    }
}

/// A group of bars of one part each: label, case and colour.
fn simple(
    run: &Run,
    cases: impl IntoIterator<Item = (String, String, usize)>,
    quantity: Quantity,
) -> Vec<Bar> {
    let spreads = cases
        .into_iter()
        .filter_map(|(label, case, colour)| Some((label, colour, run.book.spread(&case, quantity)?)));
    spreads
        .enumerate()
        .map(|(index, (label, colour, spread))| Bar {
            label,
            parts: vec![(colour, spread.median)],
            spread: Some(spread),
            first: index == 0,
        })
        .collect()
}

impl Chart {
    fn svg(&self) -> String {
        let gaps = self.bars.iter().filter(|bar| bar.first).count();
        let height = TOP + self.bars.len() as f64 * ROW + gaps as f64 * GAP + 16.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <title>{title}, {unit}</title>\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"16\" y=\"24\" font-size=\"16\" font-weight=\"bold\">{title}, {unit}</text>\n",
            title = escaped(self.title),
            unit = self.unit,
        );
        let mut x = LEFT;
        for (name, colour) in &self.legend {
            put(
                &mut svg,
                format_args!(
                    "<rect x=\"{x}\" y=\"34\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{}\" y=\"45\">{}</text>",
                    COLOURS[*colour],
                    x + 18.0,
                    escaped(name),
                ),
            );
            x += 110.0;
        }
        let scale = self.scale();
        let mut y = TOP;
        for bar in &self.bars {
            y += if bar.first { GAP } else { 0.0 };
            self.bar(&mut svg, bar, y, &scale);
            y += ROW;
        }
        svg + "</svg>\n"
    }

    fn bar(&self, svg: &mut String, bar: &Bar, y: f64, scale: &dyn Fn(f64) -> f64) {
        let middle = y + BAR / 2.0;
        let text = middle + 4.5;
        put(
            svg,
            format_args!(
                "<text x=\"{}\" y=\"{text:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                escaped(&bar.label),
            ),
        );
        let mut total = 0.0;
        for (colour, value) in &bar.parts {
            let (from, to) = (scale(total), scale(total + value));
            put(
                svg,
                format_args!(
                    "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"/>",
                    (to - from).max(0.5),
                    COLOURS[*colour],
                ),
            );
            total += value;
        }
        let mut end = scale(total);
        if let Some(spread) = bar.spread.filter(|spread| spread.low < spread.high) {
            let (low, high) = (scale(spread.low), scale(spread.high));
            put(
                svg,
                format_args!(
                    "<path d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {0:.1}V{1:.1}M{high:.1} {0:.1}V{1:.1}\" stroke=\"#1a202c\" fill=\"none\"/>",
                    middle - 4.0,
                    middle + 4.0,
                ),
            );
            end = end.max(high);
        }
        let value = match bar.parts.len() {
            1 => number(total),
            _ => {
                let parts = bar.parts.iter().map(|(_, value)| number(*value));
                parts.collect::<Vec<_>>().join(" + ")
            }
        };
        put(
            svg,
            format_args!("<text x=\"{:.1}\" y=\"{text:.1}\">{value}</text>", end + 6.0),
        );
    }

    /// From a value to its place.
    fn scale(&self) -> Box<dyn Fn(f64) -> f64> {
        let longest = |bar: &Bar| {
            let total: f64 = bar.parts.iter().map(|(_, value)| value).sum();
            bar.spread.map_or(total, |spread| spread.high.max(total))
        };
        let most = self.bars.iter().map(longest).fold(f64::MIN_POSITIVE, f64::max);
        match self.logarithmic_from {
            None => Box::new(move |value| LEFT + (RIGHT - LEFT) * value / most),
            Some(from) => {
                let decades = (most / from).max(10.0).ln();
                Box::new(move |value| LEFT + (RIGHT - LEFT) * (value.max(from) / from).ln() / decades)
            }
        }
    }
}

fn put(svg: &mut String, element: std::fmt::Arguments<'_>) {
    // A String takes whatever is written.
    writeln!(svg, "{element}").ok();
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_bar_and_a_label_for_each_case() {
        let bar = |label: &str, value| Bar {
            label: label.to_owned(),
            parts: vec![(1, value)],
            spread: Spread::of([value, value * 1.1]),
            first: false,
        };
        let chart = Chart {
            title: "a < b",
            unit: "ms",
            legend: vec![("x", 1)],
            bars: vec![bar("one", 1.0), bar("two", 2_000.0)],
            logarithmic_from: Some(0.1),
        };
        let svg = chart.svg();
        assert!(svg.contains("a &lt; b, ms"), "{svg}");
        assert_eq!(svg.matches("<path").count(), 2, "{svg}");
        assert!(
            svg.contains(">two</text>") && svg.contains(">2,000</text>"),
            "{svg}"
        );
        assert_eq!(svg.matches('<').count(), svg.matches('>').count());
    }
}
