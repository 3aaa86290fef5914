//! What comes of a run: a table, JSON, plots, and the figures in the page.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::backlog::Shape;
use crate::book::{Book, Quantity, number};
use crate::drain::{Drain, KINDS, kind_name};
use crate::plan::Plan;
use crate::targets::{Target, targets};
use crate::{bare, outage, plot, polling, publisher, rest};

/// Between these lines of the page stand the figures.
const BEGIN: &str = "<!-- figures: written by scripts/bench -->";
const END: &str = "<!-- end of the figures -->";

/// One run, as it is reported.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) book: Book,
    /// What failed, and how.
    pub(crate) failures: Vec<(String, String)>,
    pub(crate) took: Duration,
    /// Date, command, machine, versions, settings.
    pub(crate) about: Value,
}

impl Run {
    pub(crate) fn targets(&self) -> Vec<Target> {
        targets(&self.book, &self.plan)
    }

    /// Everything as JSON.
    pub(crate) fn json(&self) -> Value {
        let measured: Vec<Value> = self
            .book
            .entries()
            .iter()
            .map(|entry| {
                let values: Vec<f64> = entry.values.iter().map(|(_, value)| round(*value)).collect();
                let spread = self.book.spread(&entry.case, entry.quantity);
                json!({
                    "case": entry.case,
                    "quantity": entry.quantity.name(),
                    "unit": entry.quantity.unit(),
                    "rounds": values,
                    "median": spread.map(|spread| round(spread.median)),
                })
            })
            .collect();
        let targets: Vec<Value> = self
            .targets()
            .iter()
            .map(|target| {
                json!({
                    "what": target.what,
                    "target": target.bound(),
                    "measured": target.measured.map(|spread| round(spread.median)),
                    "low": target.measured.map(|spread| round(spread.low)),
                    "high": target.measured.map(|spread| round(spread.high)),
                    "met": target.is_met(),
                })
            })
            .collect();
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(|(scenario, error)| json!({"scenario": scenario, "error": error}))
            .collect();
        json!({
            "about": self.about,
            "quick": self.plan.quick,
            "rounds": self.plan.rounds,
            "backlog": self.plan.backlog,
            "seconds": self.took.as_secs(),
            "targets": targets,
            "measured": measured,
            "failures": failures,
        })
    }

    /// The figures as Markdown: for the page, and readable on a terminal.
    pub(crate) fn figures(&self) -> String {
        let mut text = self.introduction();
        text += "\n### Numbers to reach\n\n| what | to reach | measured | |\n|---|---|---|---|\n";
        for target in self.targets() {
            let measured = target
                .measured
                .map_or("–".to_owned(), |spread| spread.to_string());
            row(
                &mut text,
                &[&target.what, &target.bound(), &measured, target.verdict()],
            );
        }
        self.beside_bare_relay(&mut text);
        text += "\n### Draining, and the limits of either side\n\n";
        self.images(&mut text, &["drain.svg", "cpu.svg"]);
        self.table(
            &mut text,
            &self.drains(),
            &[
                Quantity::Rate,
                Quantity::RelayCpu,
                Quantity::WalsenderCpu,
                Quantity::BackendCpu,
                Quantity::BrokerCpu,
                Quantity::RelaySwitches,
                Quantity::PeakRss,
            ],
        );
        text += "\n### Marks\n\n";
        let marked: Vec<&str> = (self.book.cases("drain / ").into_iter())
            .filter(|case| self.book.spread(case, Quantity::MarkLag).is_some())
            .collect();
        self.table(
            &mut text,
            &marked,
            &[
                Quantity::Rate,
                Quantity::BackendCpu,
                Quantity::MarkLag,
                Quantity::MarksDropped,
            ],
        );
        text += "\n### Steady state\n\n";
        self.images(&mut text, &["latency.svg"]);
        self.table(
            &mut text,
            &self.book.cases("steady / "),
            &[
                Quantity::Reached,
                Quantity::P50,
                Quantity::P99,
                Quantity::P999,
                Quantity::RelayCpu,
                Quantity::WalsenderCpu,
                Quantity::BackendCpu,
                Quantity::BrokerCpu,
            ],
        );
        text += "\n### Outage, start, size, idleness\n\n";
        self.images(&mut text, &["memory.svg"]);
        let rest = [
            outage::DOWN,
            outage::AFTER,
            outage::SINGLE,
            rest::START,
            rest::BINARY,
            rest::IMAGE,
            rest::IDLE,
            rest::IDLE_NOW,
            rest::IDLE_POLLING,
        ];
        self.table(
            &mut text,
            &rest,
            &[
                Quantity::Rate,
                Quantity::PeakRss,
                Quantity::Start,
                Quantity::Size,
                Quantity::RelayShare,
                Quantity::DatabaseShare,
                Quantity::Transactions,
            ],
        );
        if !self.failures.is_empty() {
            text += "\n### Failed\n\n";
            for (scenario, error) in &self.failures {
                writeln!(text, "- {scenario}: {}", error.lines().next().unwrap_or_default()).ok();
            }
        }
        text
    }

    /// Writes results.json, the plots, and the figures into the page.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
        write("results.json", &format!("{:#}\n", self.json()))?;
        for (name, _, svg) in plot::plots(self) {
            write(name, &svg)?;
        }
        let figures = format!("{BEGIN}\n\n{}\n{END}", self.figures());
        let page = std::fs::read_to_string(folder.join("README.md")).unwrap_or_default();
        let around = page
            .split_once(BEGIN)
            .and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
        match around {
            Some((before, after)) => write("README.md", &format!("{before}{figures}{after}")),
            None => write("README.md", &format!("# Benchmarks\n\n{figures}\n")),
        }
    }

    /// What of the distance to the publisher alone is walrelay's, and what the walsender's on the same processors.
    fn beside_bare_relay(&self, text: &mut String) {
        let ratio = |over: &str, under: &str| {
            let ratio = self.book.ratio((over, Quantity::Rate), (under, Quantity::Rate));
            ratio.map_or("–".to_owned(), |ratio| ratio.to_string())
        };
        *text += "\n### Beside a bare relay, one-row transactions\n\n\
                  | queue | bare relay ÷ publisher alone | walrelay ÷ bare relay |\n|---|---|---|\n";
        for kind in KINDS {
            let bare = bare::case(kind, Shape::OneRow);
            let beside = [
                ratio(&bare, &publisher::case(kind)),
                ratio(&plain(kind, Shape::OneRow), &bare),
            ];
            row(text, &[kind_name(kind), &beside[0], &beside[1]]);
        }
    }

    /// Those plots that there are.
    fn images(&self, text: &mut String, names: &[&str]) {
        for (name, title, _) in plot::plots(self) {
            if names.contains(&name) {
                writeln!(text, "![{title}]({name})\n").ok();
            }
        }
    }

    fn introduction(&self) -> String {
        let about = |path: &str| match self.about.pointer(path) {
            None | Some(Value::Null) => "?".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let mut text = format!(
            "Measured {} by `{}` on {} cores ({}, {} GiB, {}, Linux {}), in {} min; load before it began {}. {} at {}, {}; \
             PostgreSQL {}, RabbitMQ {} on Erlang {}. {} round{}, a backlog of {} events; the median, and in brackets the lowest and \
             the highest round.\n",
            about("/date"),
            about("/command"),
            about("/machine/cores"),
            about("/machine/processor"),
            about("/machine/memory_gib"),
            about("/machine/system"),
            about("/machine/kernel"),
            number((self.took.as_secs_f64() / 60.0).max(0.1)),
            about("/load"),
            about("/versions/walrelay"),
            about("/versions/commit"),
            about("/versions/rustc"),
            about("/versions/postgresql"),
            about("/versions/rabbitmq"),
            about("/versions/erlang"),
            self.plan.rounds,
            if self.plan.rounds == 1 { "" } else { "s" },
            number(self.plan.backlog.into()),
        );
        if self.plan.quick {
            text += "\nThis was a quick run: too short for figures.\n";
        }
        text
    }

    /// The limits first, then what drains against them.
    pub(crate) fn drains(&self) -> Vec<&str> {
        let mut cases = self.book.cases("walsender alone / ");
        for kind in KINDS {
            cases.extend(self.book.cases(&publisher::case(kind)));
            cases.extend(self.book.cases(&bare::case(kind, Shape::OneRow)));
            cases.extend(self.book.cases(&format!("drain / {} / ", kind_name(kind))));
        }
        cases.extend(self.book.cases(polling::CASE));
        cases
    }

    /// A row for each case, a column for each quantity that any of them has.
    fn table(&self, text: &mut String, cases: &[&str], quantities: &[Quantity]) {
        let measured = |case: &str, quantity| self.book.spread(case, quantity);
        let quantities: Vec<Quantity> = quantities
            .iter()
            .copied()
            .filter(|quantity| cases.iter().any(|case| measured(case, *quantity).is_some()))
            .collect();
        if quantities.is_empty() {
            text.push_str("Not measured.\n");
            return;
        }
        let heads = quantities.iter().map(|quantity| {
            let name = quantity
                .name()
                .replace('_', " ")
                .replace("cpu", "CPU")
                .replace("rss", "RSS");
            format!("{name}, {}", quantity.unit())
        });
        let heads: Vec<String> = std::iter::once("case".to_owned()).chain(heads).collect();
        row(text, &heads.iter().map(String::as_str).collect::<Vec<_>>());
        writeln!(text, "|---|{}", "--:|".repeat(quantities.len())).ok();
        for case in cases {
            let cells: Vec<String> = quantities
                .iter()
                .map(|quantity| measured(case, *quantity).map_or(String::new(), |spread| spread.to_string()))
                .collect();
            if cells.iter().all(String::is_empty) {
                continue;
            }
            let mut line = vec![*case];
            line.extend(cells.iter().map(String::as_str));
            row(text, &line);
        }
    }
}

/// The case of a drain, for plots.
pub(crate) fn plain(kind: walrelay_testbed::QueueKind, shape: Shape) -> String {
    Drain::plain(kind, shape).case()
}

fn row(text: &mut String, cells: &[&str]) {
    writeln!(text, "| {} |", cells.join(" | ")).ok();
}

/// Six significant digits: more say nothing.
fn round(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}
