//! What a run tells at its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::checker::Verdict;
use crate::history::{History, RSS_BOUND_KIB};
use crate::schedule::{Kind, Settings};

/// How many violations are told one by one.
const TOLD: usize = 20;

/// The one command that replays a run.
pub(crate) fn replay(settings: &Settings, minutes: f64) -> String {
    let ordering = if settings.strict { "strict" } else { "pipelined" };
    format!(
        "scripts/chaos --seed {} --minutes {minutes} --ordering {ordering}",
        settings.seed
    )
}

/// The table, and below it the violations.
pub(crate) fn table(history: &History, verdict: &Verdict) -> String {
    let (settings, figures) = (&history.settings, &verdict.figures);
    let rounds = &history.rounds;
    let recovery = rounds
        .iter()
        .map(|round| round.caught_up.saturating_sub(round.mended))
        .max();
    let mut lines = vec![
        ("seed", settings.seed.to_string()),
        ("run", run(history)),
        (
            "events",
            format!(
                "{} committed, {} delivered",
                history.committed.len(),
                figures.delivered
            ),
        ),
        ("lost", figures.lost.to_string()),
        ("rolled back", history.rolled_back.len().to_string()),
        ("dead letters", history.dead_letters.len().to_string()),
        ("duplicates", figures.duplicates.to_string()),
        ("longest stall", seconds(figures.longest_stall)),
        ("longest recovery", seconds(recovery.unwrap_or_default())),
        (
            "peak RSS",
            format!(
                "{:.1} MiB of {}",
                figures.peak_kib as f64 / 1024.0,
                RSS_BOUND_KIB / 1024
            ),
        ),
    ];
    let mut faults: BTreeMap<Kind, usize> = BTreeMap::new();
    let struck = rounds.iter().flat_map(|round| &round.faults);
    struck.for_each(|struck| *faults.entry(struck.fault.kind).or_default() += 1);
    let total: usize = faults.values().sum();
    lines.push(("faults", format!("{total} in {} rounds", rounds.len())));
    let mut text = String::new();
    for (name, value) in &lines {
        line(&mut text, name, value);
    }
    for (kind, count) in &faults {
        line(&mut text, &format!("  {}", kind.name()), &count.to_string());
    }
    line(&mut text, "violations", &verdict.violations.len().to_string());
    for violation in verdict.violations.iter().take(TOLD) {
        text.push_str(&format!("  {violation}\n"));
    }
    if verdict.violations.len() > TOLD {
        text.push_str("  …\n");
    }
    text
}

/// The rounds one by one, for finding out what went wrong.
pub(crate) fn rounds(history: &History) -> String {
    let mut text = String::new();
    for (number, round) in history.rounds.iter().enumerate() {
        let times = [round.began, round.mended, round.caught_up].map(seconds);
        text.push_str(&format!(
            "round {}: began {}, mended {}, caught up {}; {} links\n",
            number + 1,
            times[0],
            times[1],
            times[2],
            round.links
        ));
        for struck in &round.faults {
            text.push_str(&format!(
                "  {} to {}: {} (relay {}, detail {})\n",
                seconds(struck.from),
                seconds(struck.until),
                struck.fault.kind.name(),
                struck.fault.relay + 1,
                struck.fault.detail
            ));
        }
    }
    text
}

fn run(history: &History) -> String {
    let settings = &history.settings;
    let ordering = if settings.strict { "strict" } else { "pipelined" };
    let relays = if settings.standby {
        "a relay and a standby"
    } else {
        "one relay"
    };
    format!(
        "{}, {ordering}, window {}, {relays}, stream and {:?} queue, unroutable: {}, then: {}",
        seconds(history.lasted),
        settings.window,
        settings.queue,
        if settings.dead_letters {
            "dead letter"
        } else {
            "hold"
        },
        settings.after_publish,
    )
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn line(text: &mut String, name: &str, value: &str) {
    // Writing to a string cannot fail.
    writeln!(text, "{name:<32} {value}").unwrap_or_default();
}
