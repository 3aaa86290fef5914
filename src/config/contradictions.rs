//! Rules that span several values.

use std::collections::BTreeSet;
use std::time::Duration;

use super::fields::Field as _;
use super::key::Presence;
use super::layers::{OutboxEntry, Settings};
use super::problem::{Origin, Problem, ProblemKind};

/// What contradicts what.
pub(super) fn of(settings: &Settings) -> Vec<Problem> {
    let mut problems = Vec::new();
    let duration = |path| {
        settings
            .values
            .get(path)
            .and_then(|setting| Duration::of(&setting.value))
    };
    let (interval, timeout) = ("postgres.status_interval", "postgres.wal_sender_timeout");
    if let (Some(of_interval), Some(of_timeout)) = (duration(interval), duration(timeout))
        && of_interval >= of_timeout / 2
    {
        // Whoever set one of the two is to be told; the other one is named in the text.
        let set = |path| settings.origin(path).filter(|origin| **origin != Origin::Default);
        let kind = ProblemKind::Contradiction(format!(
            "{interval} ({}) must be less than half of {timeout} ({})",
            humantime::format_duration(of_interval),
            humantime::format_duration(of_timeout)
        ));
        problems.push(Problem {
            origin: set(interval).or(set(timeout)).cloned(),
            kind,
        });
    }
    for entry in &settings.outbox {
        for (one, other) in [
            ("outbox.unsent", "outbox.mark_set"),
            ("outbox.mark_set", "outbox.unsent"),
        ] {
            if let Some(alone) = entry
                .values
                .get(one)
                .filter(|_| !entry.values.contains_key(other))
            {
                problems.push(Problem {
                    origin: Some(alone.origin.clone()),
                    kind: ProblemKind::Contradiction(format!(
                        "{one} and {other} belong together: {other} is missing"
                    )),
                });
            }
        }
        problems.extend(without_marks(entry));
        problems.extend(without_attributes(entry));
    }
    for (one, other) in [
        ("rabbitmq.cert_file", "rabbitmq.key_file"),
        ("rabbitmq.key_file", "rabbitmq.cert_file"),
    ] {
        if let Some(alone) = settings
            .values
            .get(one)
            .filter(|_| !settings.values.contains_key(other))
        {
            problems.push(Problem {
                origin: Some(alone.origin.clone()),
                kind: ProblemKind::Contradiction(format!(
                    "{one} and {other} belong together: {other} is missing"
                )),
            });
        }
    }
    let ignored = settings.values.get("postgres.ignore_tables");
    let mut seen = BTreeSet::new();
    for setting in settings
        .outbox
        .iter()
        .filter_map(|entry| entry.values.get("outbox.table"))
    {
        if let Some(ignored) = ignored
            && ignored.value.texts().contains(&setting.value.text())
        {
            let kind = ProblemKind::Contradiction(format!(
                "postgres.ignore_tables names {:?}, which is an outbox.table",
                setting.value.text()
            ));
            problems.push(Problem {
                origin: Some(ignored.origin.clone()),
                kind,
            });
        }
        if !seen.insert(setting.value.text()) {
            let kind = ProblemKind::OutboxTwice(setting.value.text().to_owned());
            problems.push(Problem {
                origin: Some(setting.origin.clone()),
                kind,
            });
        }
    }
    problems
}

/// What goes by marks, in a table whose published rows get none.
fn without_marks(entry: &OutboxEntry) -> Option<Problem> {
    let after_publish = entry.values.get("outbox.after_publish")?.value.text();
    let instead = match after_publish {
        "keep" => "marks none",
        "delete" => "deletes each as soon as it is published",
        _ => return None,
    };
    let goes_by_marks = |path| entry.values.get(path);
    let (setting, what) = if let Some(retention) = goes_by_marks("outbox.retention.keep_sent") {
        (
            retention,
            "outbox.retention.keep_sent deletes rows that are marked as sent",
        )
    } else {
        let mark_set = goes_by_marks("outbox.mark_set")?;
        (mark_set, "outbox.unsent and outbox.mark_set mark published rows")
    };
    Some(Problem {
        origin: Some(setting.origin.clone()),
        kind: ProblemKind::Contradiction(format!(
            "{what}, but the table's after_publish = {after_publish:?} {instead}"
        )),
    })
}

/// What is said about the attributes of a CloudEvent, in a table whose messages are none. A value that is the default anyway
/// promises nothing.
fn without_attributes(entry: &OutboxEntry) -> Vec<Problem> {
    let Some(format) = entry.values.get("outbox.format") else {
        return Vec::new();
    };
    let format = format.value.text();
    let keys: &[(&str, &str)] = match format {
        "cloudevents-binary" => return Vec::new(),
        "cloudevents-structured" => &[("outbox.cloudevents.prefix", "cloudevents-binary")],
        _ => &[
            ("outbox.cloudevents.prefix", "cloudevents-binary"),
            (
                "outbox.cloudevents.source",
                "cloudevents-binary\" or \"cloudevents-structured",
            ),
            (
                "outbox.cloudevents.type",
                "cloudevents-binary\" or \"cloudevents-structured",
            ),
        ],
    };
    let set = keys.iter().filter_map(|(path, formats)| {
        let setting = entry.values.get(path)?;
        let is_default = matches!(setting.key.presence, Presence::Default(text) if setting.value.text() == text);
        (!is_default).then(|| Problem {
            origin: Some(setting.origin.clone()),
            kind: ProblemKind::Contradiction(format!(
                "{path} has no effect with the table's format = \"{format}\": set format = \"{formats}\", or leave it out"
            )),
        })
    });
    set.collect()
}
