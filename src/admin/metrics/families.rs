//! The shapes that metrics come in: how each is written.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use walrelay_engine::latency::{BOUNDS, Latency};

use crate::relay::{Failures, SlotSample};

pub(super) fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> Result<(), fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// A gauge that is 1 for each of the label's values that applies now.
pub(super) fn labelled<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    values: impl Iterator<Item = &'a str>,
) -> Result<(), fmt::Error> {
    let gauges = Family::<[(&'static str, String); 1], Gauge>::default();
    for value in values {
        gauges.get_or_create(&[(label, value.to_owned())]).set(1);
    }
    family(encoder, name, help, &gauges)
}

/// A gauge of what is not known at all times.
pub(super) fn sampled(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: Option<i64>,
) -> Result<(), fmt::Error> {
    let gauges = Family::<[(&'static str, &'static str); 0], Gauge>::default();
    if let Some(value) = value {
        gauges.get_or_create(&[]).set(value);
    }
    family(encoder, name, help, &gauges)
}

/// A number as a gauge has it.
pub(super) fn whole_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The slot as the guard saw it last; nothing before it has looked.
pub(super) fn slot(
    encoder: &mut DescriptorEncoder<'_>,
    sample: Option<&SlotSample>,
) -> Result<(), fmt::Error> {
    let bytes = |value: Option<u64>| value.map(whole_gauge);
    for (name, help, value) in [
        (
            "slot_retained_wal_bytes",
            "WAL that the slot retains, sampled by the guard",
            bytes(sample.map(|sample| sample.retained_bytes)),
        ),
        (
            "slot_safe_wal_bytes",
            "WAL that may be written before the slot is lost, where max_slot_wal_keep_size sets a limit",
            sample.and_then(|sample| sample.safe_bytes),
        ),
        (
            "server_lsn",
            "The end of the server's log as a byte position, sampled by the guard",
            bytes(sample.map(|sample| sample.end.get())),
        ),
    ] {
        sampled(encoder, name, help, value)?;
    }
    let state = sample.and_then(|sample| sample.wal_status);
    labelled(
        encoder,
        "slot_wal_status",
        "PostgreSQL's word for whether the slot's WAL is still kept",
        "status",
        state.into_iter(),
    )
}

/// The histogram of the time from commit to confirm.
pub(super) fn latency(encoder: &mut DescriptorEncoder<'_>, latency: &Latency) -> Result<(), fmt::Error> {
    let bounds = BOUNDS
        .iter()
        .map(|micros| seconds(*micros))
        .chain([f64::INFINITY]);
    let buckets: Vec<_> = bounds.zip(latency.counts).collect();
    let sum = seconds(i64::try_from(latency.sum_micros).unwrap_or(i64::MAX));
    encoder
        .encode_descriptor(
            "commit_to_confirm_seconds",
            "Time from an event's commit to the broker's confirm, by PostgreSQL's clock and ours",
            None,
            MetricType::Histogram,
        )?
        .encode_histogram::<NoLabelSet>(sum, latency.count(), &buckets, None)
}

/// A counter for each cause that has happened.
pub(super) fn failures(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    failures: &Failures,
) -> Result<(), fmt::Error> {
    let counters = Family::<[(&'static str, &'static str); 1], Counter>::default();
    for (kind, count) in failures.iter() {
        counters.get_or_create(&[("cause", kind.label())]).inc_by(count);
    }
    family(encoder, name, help, &counters)
}

/// Precise to the microsecond for centuries.
#[expect(clippy::cast_precision_loss)]
pub(super) fn seconds(micros: i64) -> f64 {
    micros as f64 / 1e6
}
