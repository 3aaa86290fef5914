//! Keeps the reference pages in docs/ as the tables of the code have them.
//!
//! `WALRELAY_UPDATE_DOCS=1 cargo test -p walrelay --lib reference` writes them anew.

use std::path::Path;
use std::{env, fs};

use crate::admin::metrics;
use crate::fault::{Class, Fault, FaultKind};
use crate::relay::Status;

const BEGIN: &str = "<!-- written by a test: see src/reference.rs -->\n";
const END: &str = "<!-- end -->\n";

#[test]
fn the_page_of_faults_lists_each_with_its_class_and_remedy() {
    let mut kinds: Vec<_> = FaultKind::ALL.iter().collect();
    kinds.sort_by_key(|kind| kind.label());
    let sections = [
        Class::Halted,
        Class::Unavailable,
        Class::Held,
        Class::Degraded,
        Class::Risk,
    ]
    .map(|class| {
        let of_class = kinds.iter().filter(|kind| kind.class() == class);
        let rows: String = of_class
            .map(|kind| format!("| `{}` | {} |\n", kind.label(), cell(kind.remedy())))
            .collect();
        format!(
            "\n## {}\n\n| cause | what to do |\n|---|---|\n{rows}\n",
            class.label()
        )
    });
    check("docs/faults.md", &sections.concat());
}

#[test]
fn the_page_of_metrics_lists_each_with_its_type_and_help() {
    let text = metrics::encode(&busy()).expect("a status can be written");
    let mut rows = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let kind = lines
            .peek()
            .and_then(|line| line.rsplit(' ').next())
            .unwrap_or_default();
        // The format names a counter's family, but its sample ends in _total.
        let suffix = if kind == "counter" { "_total" } else { "" };
        rows.push(format!(
            "| `{name}{suffix}` | {kind} | {} |\n",
            cell(help.trim_end_matches('.'))
        ));
    }
    rows.sort();
    assert!(rows.len() > 30, "{rows:?}");
    check(
        "docs/metrics.md",
        &format!(
            "\n| metric | type | meaning |\n|---|---|---|\n{}\n",
            rows.concat()
        ),
    );
}

/// A status in which every metric has a value.
fn busy() -> Status {
    let fault = |kind| Fault {
        kind,
        message: String::new(),
    };
    let mut status = Status::new("walrelay".to_owned());
    status.database.fault = Some(fault(FaultKind::SlotLost));
    status.risks.push(fault(FaultKind::StandbyBehind));
    status
}

/// A text within a row of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Compares what stands between the marks of a page with `expected`.
fn check(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let (before, rest) = text.split_once(BEGIN).expect("the page has its mark");
    let (found, after) = rest.split_once(END).expect("the page has its mark");
    if found == expected {
        return;
    }
    if env::var_os("WALRELAY_UPDATE_DOCS").is_some() {
        let text = [before, BEGIN, expected, END, after].concat();
        fs::write(&path, text).unwrap_or_else(|error| panic!("{page}: {error}"));
        return;
    }
    panic!(
        "{page} is not what the code says: run WALRELAY_UPDATE_DOCS=1 cargo test -p walrelay --lib reference"
    );
}
