//! `/metrics`, by Prometheus' conventions: <https://prometheus.io/docs/practices/naming/>.

mod families;

use std::fmt;
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode as encode_registry;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use walrelay_engine::PgTimestamp;

use crate::fault::FaultKind;
use crate::relay::{SideStatus, Status};
use families::{failures, family, labelled, latency, sampled, slot, whole_gauge};

/// The OpenMetrics text format, which Prometheus reads.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes a status as metrics.
///
/// # Errors
/// Those of the formatter.
pub(crate) fn encode(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("walrelay");
    registry.register_collector(Box::new(Snapshot(status.clone())));
    let mut text = String::new();
    encode_registry(&mut text, &registry)?;
    Ok(text)
}

/// One status as a collector, so that all values of a scrape are of one moment.
#[derive(Debug)]
struct Snapshot(Status);

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Self(status) = self;
        let (counters, marks) = (&status.counters, &status.marks.counters);
        // prometheus-client appends `_total` to counters by itself.
        for (name, help, value) in [
            ("events_read", "Events read from the stream", counters.read),
            (
                "backfilled",
                "Rows admitted that the stream does not bring",
                counters.backfilled,
            ),
            (
                "backfill_deleted",
                "Rows noted for backfill that were deleted before their turn",
                status.backfill.deleted,
            ),
            (
                "backfill_marked",
                "Rows noted for backfill that were marked as sent before their turn",
                status.backfill.marked,
            ),
            (
                "published",
                "Messages sent, again or for the first time",
                counters.published,
            ),
            ("confirmed", "Events confirmed by the broker", counters.confirmed),
            ("returned", "Messages returned as unroutable", counters.returned),
            ("nacked", "Messages refused by a queue", counters.nacked),
            (
                "unanswered",
                "Messages not confirmed within the time-out",
                counters.unanswered,
            ),
            ("invalid", "Rows that cannot become a message", counters.invalid),
            (
                "headers_overridden",
                "Headers of rows left out since the message has one of its own by that name",
                counters.headers_overridden,
            ),
            (
                "refused",
                "Messages over which the broker closed the channel or the connection",
                counters.refused,
            ),
            (
                "dead_lettered",
                "Events stored as dead letters",
                counters.dead_lettered,
            ),
            ("discarded", "Events dropped by policy", counters.discarded),
            ("retried", "Dead letters delivered on request", counters.retried),
            ("skipped", "Held events skipped by hand", counters.skipped),
            (
                "already_sent",
                "Rows inserted with sent_at already set",
                counters.already_sent,
            ),
            (
                "ignored",
                "Rows inserted into tables of postgres.ignore_tables",
                counters.ignored,
            ),
            (
                "messages_refused",
                "Logical messages with the prefix of source.messages that were of no transaction",
                counters.refused_messages,
            ),
            (
                "recognised",
                "Events brought again that were settled or in flight",
                counters.recognised,
            ),
            ("marked", "Rows marked or deleted after publishing", marks.marked),
            (
                "marks_dropped",
                "Marks given up for want of room or of a right",
                marks.dropped,
            ),
            (
                "marks_late",
                "Events acknowledged before their rows were marked",
                marks.late,
            ),
            (
                "spans_dropped",
                "Spans of publishes that there was no room for",
                status.spans_dropped,
            ),
            (
                "transactions",
                "Transactions received whole",
                counters.transactions,
            ),
            (
                "status_updates",
                "Positions reported to PostgreSQL",
                status.status_updates,
            ),
            (
                "retention_deleted",
                "Rows deleted because they were sent long ago",
                status.retention.deleted,
            ),
            (
                "retention_failures",
                "Rounds of deleting old rows that failed",
                status.retention.failures,
            ),
            ("sessions", "Replication sessions opened", status.sessions),
            ("links", "Broker links opened", status.links),
        ] {
            family(&mut encoder, name, help, &ConstCounter::new(value))?;
        }
        for (name, help, value) in [
            (
                "ready",
                "Whether a committed event would be delivered now; on a standby, whether it could take over",
                u64::from(status.is_ready()),
            ),
            (
                "backfill_rows_left",
                "Rows that go out before the stream is read",
                status.backfill_left.unwrap_or(0),
            ),
            (
                "in_flight_events",
                "Events admitted and not settled",
                whole(status.in_flight),
            ),
            (
                "marks_queued",
                "Published rows that wait for their mark",
                whole(status.marks.unmarked),
            ),
            (
                "marks_failed_timestamp_seconds",
                "When marking last failed, seconds since 1970; 0 for never",
                status.marks.failed_at.map_or(0, unix_seconds),
            ),
            ("held_events", "Events that are held", whole(status.held)),
            (
                "in_flight_bytes",
                "Bytes of messages in flight",
                whole(status.in_flight_bytes),
            ),
            (
                "database_up",
                "Whether PostgreSQL's side is of use; a standby's is, too",
                up(&status.database),
            ),
            (
                "broker_up",
                "Whether the side of RabbitMQ, or of what takes its place (walrelay_sink), is of use",
                up(&status.broker),
            ),
            (
                "broker_blocked",
                "Whether RabbitMQ has blocked the connection because of an alarm",
                u64::from(
                    status
                        .faults()
                        .any(|fault| fault.kind == FaultKind::BrokerBlocked),
                ),
            ),
            (
                "lag_bytes",
                "WAL between the durable LSN and the end of the server's log as it was last seen",
                lag_bytes(status),
            ),
            (
                "durable_lsn",
                "The durable LSN as a byte position",
                status.durable.map_or(0, |lsn| lsn.get()),
            ),
            (
                "received_lsn",
                "The received LSN as a byte position",
                status.received.map_or(0, |lsn| lsn.get()),
            ),
            (
                "last_progress_timestamp_seconds",
                "When an event was last settled, seconds since 1970",
                status.progressed.map_or(0, unix_seconds),
            ),
        ] {
            family(
                &mut encoder,
                name,
                help,
                &ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)),
            )?;
        }
        family(
            &mut encoder,
            "oldest_unsettled_event_age_seconds",
            "Time since the oldest unsettled event was committed, by our clock; 0 without one",
            &ConstGauge::new(status.oldest_unsettled.map_or(0.0, age_seconds)),
        )?;
        latency(&mut encoder, &counters.commit_to_confirm)?;
        slot(&mut encoder, status.slot_sample.as_ref())?;
        sampled(
            &mut encoder,
            "dead_letters_pending",
            "Dead letters that wait for a person or are being retried; nothing where the role may not read them",
            status.dead_letters.map(whole_gauge),
        )?;
        failures(
            &mut encoder,
            "database_failures",
            "Sessions lost and tries that failed, by cause",
            &status.database_failures,
        )?;
        failures(
            &mut encoder,
            "broker_failures",
            "Links lost and tries that failed, by cause",
            &status.broker_failures,
        )?;
        labelled(
            &mut encoder,
            "role",
            "Whose turn it is to stream from the slot: ours (active) or another process's (standby)",
            "role",
            std::iter::once(status.role.label()),
        )?;
        let sink = std::iter::once(status.sink.label());
        labelled(&mut encoder, "sink", "Where messages go", "sink", sink)?;
        labelled(
            &mut encoder,
            "halted",
            "Causes that need a person",
            "reason",
            status.halts().map(|kind| kind.label()),
        )?;
        let causes = status.faults().map(|fault| fault.kind.label());
        labelled(
            &mut encoder,
            "fault",
            "Causes that stand in the way of delivery",
            "cause",
            causes,
        )?;
        labelled(
            &mut encoder,
            "risk",
            "What could be lost or go wrong later, though events pass now",
            "cause",
            status.risks.iter().map(|risk| risk.kind.label()),
        )?;
        let degraded = status.marks.degraded.iter().chain(&status.retention.fault);
        labelled(
            &mut encoder,
            "degraded",
            "Causes that need a person, though delivery goes on",
            "cause",
            degraded.map(|fault| fault.kind.label()),
        )?;
        labelled(
            &mut encoder,
            "slot_info",
            "The slot that this relay is for",
            "slot",
            std::iter::once(status.slot.as_str()),
        )?;
        let version = [env!("CARGO_PKG_VERSION")].into_iter();
        labelled(
            &mut encoder,
            "build_info",
            "The version of walrelay",
            "version",
            version,
        )
    }
}

/// The end of the log is known from the guard's last look or, where that is newer, from what was received.
fn lag_bytes(status: &Status) -> u64 {
    let end = status
        .slot_sample
        .as_ref()
        .map(|sample| sample.end)
        .max(status.received);
    match (end, status.durable) {
        // Nothing is durable before the first commit, which is no lag from the beginning of the log.
        (Some(end), Some(durable)) if durable.get() > 0 => end.get().saturating_sub(durable.get()),
        _ => 0,
    }
}

/// The time since an event was committed, in seconds.
pub(super) fn age_seconds(committed: PgTimestamp) -> f64 {
    let committed = Duration::from_micros(u64::try_from(committed.unix_micros()).unwrap_or(0));
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + committed);
    age.unwrap_or_default().as_secs_f64()
}

fn up(side: &SideStatus) -> u64 {
    u64::from(side.is_of_use())
}

fn whole(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use walrelay_engine::Lsn;

    #[test]
    fn the_lag_is_known_once_something_is_durable() {
        let mut status = Status::new("walrelay".to_owned());
        status.received = Some(Lsn::new(5_000));
        assert!(encode(&status).unwrap().contains("walrelay_lag_bytes 0\n"));
        status.durable = Some(Lsn::new(4_000));
        assert!(encode(&status).unwrap().contains("walrelay_lag_bytes 1000\n"));
    }

    #[test]
    fn an_alarm_of_the_broker_shows() {
        let mut status = Status::new("walrelay".to_owned());
        assert!(encode(&status).unwrap().contains("walrelay_broker_blocked 0\n"));
        status.broker.fault = Some(Fault {
            kind: FaultKind::BrokerBlocked,
            message: "low on memory".to_owned(),
        });
        assert!(encode(&status).unwrap().contains("walrelay_broker_blocked 1\n"));
    }

    #[test]
    fn a_status_is_written_with_help_and_a_bounded_set_of_labels() {
        let mut status = Status::new("walrelay".to_owned());
        status.counters.confirmed = 7;
        let latency = &mut status.counters.commit_to_confirm;
        latency.observe(PgTimestamp::new(0), PgTimestamp::new(3_000));
        status.database.fault = Some(Fault {
            kind: FaultKind::SlotLost,
            message: "gone".to_owned(),
        });
        status.risks.push(Fault {
            kind: FaultKind::StandbyBehind,
            message: "nothing holds the slot back".to_owned(),
        });
        let text = encode(&status).unwrap();
        for line in [
            "# HELP walrelay_confirmed Events confirmed by the broker",
            "# TYPE walrelay_confirmed counter",
            "walrelay_confirmed_total 7",
            "walrelay_ready 0",
            "walrelay_role{role=\"active\"} 1",
            "walrelay_sink{sink=\"rabbitmq\"} 1",
            "walrelay_slot_info{slot=\"walrelay\"} 1",
            "walrelay_halted{reason=\"slot_lost\"} 1",
            "walrelay_commit_to_confirm_seconds_bucket{le=\"0.004\"} 1",
            "walrelay_commit_to_confirm_seconds_bucket{le=\"+Inf\"} 1",
            "walrelay_commit_to_confirm_seconds_sum 0.003",
            "walrelay_oldest_unsettled_event_age_seconds 0.0",
            "walrelay_risk{cause=\"standby_behind\"} 1",
            "# EOF",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is missing in\n{text}"
            );
        }
    }
}
