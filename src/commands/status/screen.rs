//! One look as a screen of text, and as JSON.

use bytesize::ByteSize;
use serde_json::{Value, json};

use super::super::table::{render, visible};
use super::relay::{Part, Relay, Said};
use crate::fault::Fault;
use crate::postgres::slot::WalStatus;
use crate::postgres::{Count, Overview, TableCounts};

/// What was found.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) slot: String,
    pub(super) relay: Result<Relay, String>,
    pub(super) database: Result<Overview, Fault>,
    /// Bytes of the log confirmed in a second, where there was a look before.
    pub(super) rate: Option<u64>,
}

impl Screen {
    /// Whether events would flow; without the relay's word, whether somebody streams.
    pub(super) fn is_well(&self) -> bool {
        match (&self.relay, &self.database) {
            (Ok(relay), _) => relay.said.ready,
            (Err(_), Ok(overview)) => overview.slot.active_pid.is_some(),
            (Err(_), Err(_)) => false,
        }
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        let database = match &self.database {
            Ok(overview) => database_json(overview),
            Err(fault) => json!({
                "cause": fault.kind.label(),
                "error": fault.message,
                "remedy": fault.kind.remedy(),
            }),
        };
        let relay = match &self.relay {
            Ok(relay) => relay.json.clone(),
            Err(error) => json!({ "error": error }),
        };
        let whole = json!({
            "slot": self.slot,
            "well": self.is_well(),
            "relay": relay,
            "database": database,
        });
        Ok(serde_json::to_string_pretty(&whole)? + "\n")
    }

    pub(super) fn text(&self) -> String {
        let mut lines = Lines::default();
        match &self.relay {
            Ok(relay) => of_relay(&relay.said, &mut lines),
            Err(error) => {
                lines.push("slot", &self.slot);
                lines.push("relay", &format!("no word of it: {error}"));
                lines.push("", "what follows is from the database alone");
            }
        }
        match &self.database {
            Ok(overview) => self.of_database(overview, &mut lines),
            Err(fault) => {
                lines.push("tables", &format!("cannot be looked at: {}", fault.message));
                lines.push("", &format!("→ {}", fault.kind.remedy()));
            }
        }
        lines.0
    }

    fn of_database(&self, overview: &Overview, lines: &mut Lines) {
        let slot = &overview.slot;
        let process = slot.active_pid.map_or_else(
            || "nobody streams".to_owned(),
            |process| match overview.streamer.as_deref().filter(|who| !who.is_empty()) {
                Some(who) => format!("{who} streams (server process {process})"),
                None => format!("server process {process} streams"),
            },
        );
        let status = slot.wal_status.map_or("unknown", WalStatus::label);
        lines.push("stream", &process);
        if self.relay.is_err() {
            lines.push(
                "lag",
                &format!("{} of WAL not confirmed", ByteSize(overview.behind_bytes())),
            );
        }
        if let (Err(_), Some(rate)) = (&self.relay, self.rate) {
            lines.push("rate", &format!("{}/s of WAL confirmed", ByteSize(rate)));
        }
        let confirmed = slot
            .confirmed_flush_lsn
            .map_or_else(String::new, |lsn| format!(", confirmed up to {lsn}"));
        let retained = ByteSize(overview.retained_bytes());
        lines.push(
            "WAL",
            &format!("{retained} kept for the slot, {status}{confirmed}"),
        );
        if let Some(safe) = slot.safe_wal_size {
            let safe = ByteSize(u64::try_from(safe).unwrap_or(0));
            lines.push("", &format!("{safe} more until it is in danger"));
        }
        lines.push("dead letters", &count(&overview.dead_letters));
        lines.push(
            "backfill",
            &format!("{} rows left", count(&overview.backfill_left)),
        );
        let rows: Vec<_> = overview.tables.iter().map(table_row).collect();
        if !rows.is_empty() {
            lines.0.push('\n');
            lines.0.push_str(&render(["TABLE", "ROWS", "UNSENT"], &rows));
        }
    }
}

fn of_relay(said: &Said, lines: &mut Lines) {
    lines.push("slot", &said.slot);
    lines.push("relay", &format!("{}, version {}", said.role, said.version));
    let sink = match said.sink.as_deref() {
        Some("stdout") => "stdout",
        _ => "broker",
    };
    for (name, part) in [
        ("delivery", &said.delivery),
        ("database", &said.database),
        (sink, &said.broker),
    ] {
        lines.part(name, part);
    }
    said.degraded.iter().for_each(|part| lines.part("degraded", part));
    said.risks.iter().for_each(|part| lines.part("risk", part));
    let flight = &said.in_flight;
    lines.push(
        "lag",
        &format!(
            "{} not acknowledged; the oldest unsettled event is {:.1} s old",
            ByteSize(said.position.unacknowledged_bytes),
            flight.oldest_seconds
        ),
    );
    lines.push(
        "in flight",
        &format!(
            "{} events, {}, {} held",
            flight.events,
            ByteSize(flight.bytes),
            flight.held
        ),
    );
    lines.push(
        "rate",
        &format!(
            "{:.1}/s over 10 s, {:.1}/s over a minute",
            said.rate.last_10s, said.rate.last_60s
        ),
    );
    let totals = &said.totals;
    lines.push(
        "totals",
        &format!(
            "{} confirmed, {} returned, {} nacked, {} dead-lettered, {} discarded, {} skipped",
            totals.confirmed,
            totals.returned,
            totals.nacked,
            totals.dead_lettered,
            totals.discarded,
            totals.skipped
        ),
    );
    let progress = said.last_progress.as_deref().unwrap_or("no event yet");
    let durable = said.position.durable.as_deref().unwrap_or("nothing");
    lines.push("progress", &format!("{progress}, durable up to {durable}"));
}

/// A name before each line, or nothing where it goes on.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn push(&mut self, name: &str, text: &str) {
        self.0.push_str(&format!("{name:13} {}\n", visible(text)));
    }

    fn part(&mut self, name: &str, part: &Part) {
        let mut text = part.state.clone().unwrap_or_default();
        if let Some(since) = &part.since {
            text.push_str(&format!(" since {since}"));
        }
        if let Some(left) = part.rows_left {
            text.push_str(&format!(", {left} rows left"));
        }
        if let Some(cause) = &part.cause {
            let separator = if text.is_empty() { "" } else { ", " };
            text.push_str(&format!("{separator}{cause}"));
        }
        self.push(name, &text);
        if let Some(error) = &part.error {
            self.push("", error);
        }
        if let Some(remedy) = &part.remedy {
            self.push("", &format!("→ {remedy}"));
        }
    }
}

fn count(count: &Count) -> String {
    match count {
        Count::Exactly(number) => number.to_string(),
        Count::AtLeast(number) => format!("{number} or more"),
        Count::Unknown(why) => format!("? ({why})"),
    }
}

fn table_row(counts: &TableCounts) -> [String; 3] {
    let rows = counts
        .rows
        .map_or_else(|| "?".to_owned(), |rows| format!("about {rows}"));
    [counts.table.to_string(), rows, count(&counts.unsent)]
}

fn database_json(overview: &Overview) -> Value {
    let slot = &overview.slot;
    let tables: Vec<_> = overview
        .tables
        .iter()
        .map(|counts| {
            json!({
                "table": counts.table.to_string(),
                "rows_estimate": counts.rows,
                "unsent": count_json(&counts.unsent),
            })
        })
        .collect();
    json!({
        "slot": {
            "active_pid": slot.active_pid,
            "streamer": overview.streamer,
            "wal_status": slot.wal_status.map(WalStatus::label),
            "retained_bytes": overview.retained_bytes(),
            "safe_wal_bytes": slot.safe_wal_size,
            "behind_bytes": overview.behind_bytes(),
            "confirmed_flush_lsn": slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()),
        },
        "server_lsn": overview.end.to_string(),
        "dead_letters": count_json(&overview.dead_letters),
        "backfill_rows_left": count_json(&overview.backfill_left),
        "tables": tables,
    })
}

/// A number, or null where it is not known.
fn count_json(count: &Count) -> Value {
    match count {
        Count::Exactly(number) | Count::AtLeast(number) => (*number).into(),
        Count::Unknown(_) => Value::Null,
    }
}
