//! `/status`: everything at a glance, for `walrelay status` and the page.

use serde::Serialize;

use super::health::{Readiness, readiness};
use super::history::{History, Sample, unacknowledged_bytes};
use super::metrics::age_seconds;
use crate::relay::Status;

/// `/status`.
#[derive(Debug, Serialize)]
struct Overview<'a> {
    version: &'static str,
    #[serde(flatten)]
    readiness: Readiness<'a>,
    in_flight: InFlight,
    rate: Rate,
    position: Position,
    totals: Totals,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_progress: Option<String>,
}

#[derive(Debug, Serialize)]
struct InFlight {
    events: usize,
    bytes: usize,
    held: usize,
    oldest_seconds: f64,
}

/// Events confirmed a second.
#[derive(Debug, Serialize)]
struct Rate {
    last_10s: f64,
    last_60s: f64,
}

#[derive(Debug, Serialize)]
struct Position {
    durable: Option<String>,
    received: Option<String>,
    unacknowledged_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Totals {
    read: u64,
    published: u64,
    confirmed: u64,
    returned: u64,
    nacked: u64,
    unanswered: u64,
    invalid: u64,
    dead_lettered: u64,
    discarded: u64,
    skipped: u64,
    sessions: u64,
    links: u64,
}

/// The relay's status as JSON.
pub(super) fn overview(status: &Status, history: &History) -> String {
    let counters = &status.counters;
    json(&Overview {
        version: env!("CARGO_PKG_VERSION"),
        readiness: readiness(status),
        in_flight: InFlight {
            events: status.in_flight,
            bytes: status.in_flight_bytes,
            held: status.held,
            oldest_seconds: status.oldest_unsettled.map_or(0.0, age_seconds),
        },
        rate: Rate {
            last_10s: history.rate(10),
            last_60s: history.rate(60),
        },
        position: Position {
            durable: status.durable.map(|lsn| lsn.to_string()),
            received: status.received.map(|lsn| lsn.to_string()),
            unacknowledged_bytes: unacknowledged_bytes(status),
        },
        totals: Totals {
            read: counters.read,
            published: counters.published,
            confirmed: counters.confirmed,
            returned: counters.returned,
            nacked: counters.nacked,
            unanswered: counters.unanswered,
            invalid: counters.invalid,
            dead_lettered: counters.dead_lettered,
            discarded: counters.discarded,
            skipped: counters.skipped,
            sessions: status.sessions,
            links: status.links,
        },
        last_progress: status
            .progressed
            .map(|time| humantime::format_rfc3339_seconds(time).to_string()),
    })
}

/// The samples of the last minutes as JSON, the oldest first; only those taken after `since`, where that is given.
pub(super) fn samples(history: &History, since: Option<u64>) -> String {
    let samples: Vec<&Sample> = history.samples(since).collect();
    serde_json::to_string(&samples).unwrap_or_default()
}

/// Serializing plain strings and numbers cannot fail; were it to, an empty body would be noticed.
pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}
