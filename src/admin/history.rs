//! The last minutes, a sample a second, for the status page.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::sync::watch;
use walrelay_engine::latency::Latency;

use super::metrics::age_seconds;
use crate::relay::Status;

/// How far back the page looks.
const SAMPLES: usize = 600;

const INTERVAL: Duration = Duration::from_secs(1);

/// Samples, the oldest first.
#[derive(Debug, Default)]
pub(super) struct History {
    samples: VecDeque<Sample>,
    last: Option<Totals>,
}

/// One second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Sample {
    /// When it was taken, in seconds since 1970; each later than the one before it.
    at: u64,
    /// Events confirmed in it.
    confirmed: u64,
    /// Events in flight at its end.
    in_flight: usize,
    /// Bytes between the durable and the received position at its end.
    unacknowledged_bytes: u64,
    /// Age of the oldest unsettled event at its end, in seconds.
    oldest_seconds: f64,
    /// Time from commit to confirm in ms, of half the events and of 99 in 100; none without events.
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    /// Whether events would flow.
    ready: bool,
}

#[derive(Debug, Clone, Copy)]
struct Totals {
    confirmed: u64,
    latency: Latency,
}

impl History {
    /// The samples taken after `since`, which is a sample's time: all of them where there is none, or where that lies
    /// ahead, as after a clock was set back.
    pub(super) fn samples(&self, since: Option<u64>) -> impl Iterator<Item = &Sample> {
        let newest = self.samples.back().map_or(0, |sample| sample.at);
        let since = since.filter(|since| *since <= newest);
        let first = since.map_or(0, |since| {
            self.samples.partition_point(|sample| sample.at <= since)
        });
        self.samples.range(first..)
    }

    /// Events confirmed a second, over the last `seconds`.
    pub(super) fn rate(&self, seconds: usize) -> f64 {
        let recent = self.samples.iter().rev().take(seconds);
        let count = u32::try_from(recent.len().max(1)).unwrap_or(u32::MAX);
        let confirmed: u64 = recent.map(|sample| sample.confirmed).sum();
        Duration::from_secs(confirmed).as_secs_f64() / f64::from(count)
    }

    fn add(&mut self, status: &Status, time: SystemTime) {
        let totals = Totals {
            confirmed: status.counters.confirmed,
            latency: status.counters.commit_to_confirm,
        };
        let last = self.last.replace(totals).unwrap_or(totals);
        let latency = totals.latency.since(&last.latency);
        let quantile = |share| latency.quantile(share).map(|time| time.as_secs_f64() * 1e3);
        let at = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let last_at = self.samples.back().map_or(0, |sample| sample.at);
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample {
            at: at.as_secs().max(last_at + 1),
            confirmed: totals.confirmed.saturating_sub(last.confirmed),
            in_flight: status.in_flight,
            unacknowledged_bytes: unacknowledged_bytes(status),
            oldest_seconds: status.oldest_unsettled.map_or(0.0, age_seconds),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            ready: status.is_ready(),
        });
    }
}

/// What has been received and is not acknowledged.
pub(super) fn unacknowledged_bytes(status: &Status) -> u64 {
    let (durable, received) = (
        status.durable.unwrap_or_default(),
        status.received.unwrap_or_default(),
    );
    // Before the first commit nothing is durable, which is not the same as a lag from the beginning of the log.
    if durable.get() == 0 {
        0
    } else {
        received.get().saturating_sub(durable.get())
    }
}

/// Takes a sample a second until nobody reads them.
pub(super) async fn sample(status: watch::Receiver<Status>, history: watch::Sender<History>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    while !history.is_closed() {
        ticks.tick().await;
        history.send_modify(|history| history.add(&status.borrow(), SystemTime::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use walrelay_engine::PgTimestamp;

    #[test]
    fn a_sample_has_what_happened_since_the_one_before() {
        let mut status = Status::new("walrelay".to_owned());
        let mut history = History::default();
        status.counters.confirmed = 1_000_000;
        history.add(&status, SystemTime::UNIX_EPOCH);
        status.counters.confirmed += 50;
        status
            .counters
            .commit_to_confirm
            .observe(PgTimestamp::new(0), PgTimestamp::new(700));
        history.add(&status, SystemTime::UNIX_EPOCH);
        let last = history.samples(None).last().unwrap();
        assert_eq!((last.confirmed, last.p50_ms), (50, Some(1.0)));
        // The first sample counts nothing: what came before is not of its second.
        assert!((history.rate(10) - 25.0).abs() < f64::EPSILON);
        assert!((history.rate(1) - 50.0).abs() < f64::EPSILON);
    }

    #[test]
    fn old_samples_make_room() {
        let status = Status::new("walrelay".to_owned());
        let mut history = History::default();
        for _ in 0..2 * SAMPLES {
            history.add(&status, SystemTime::UNIX_EPOCH);
        }
        assert_eq!(history.samples(None).count(), SAMPLES);
    }

    #[test]
    fn who_has_samples_already_is_given_the_later_ones() {
        let status = Status::new("walrelay".to_owned());
        let mut history = History::default();
        assert_eq!(history.samples(Some(5)).count(), 0);
        // Two in one second, and a clock set back.
        for second in [100, 101, 101, 90] {
            history.add(&status, SystemTime::UNIX_EPOCH + Duration::from_secs(second));
        }
        let times = |since| history.samples(since).map(|sample| sample.at).collect::<Vec<_>>();
        assert_eq!(times(None), [100, 101, 102, 103]);
        assert_eq!(times(Some(7)), [100, 101, 102, 103]);
        assert_eq!(times(Some(101)), [102, 103]);
        assert!(times(Some(103)).is_empty());
        assert_eq!(times(Some(104)), [100, 101, 102, 103], "of another process");
    }
}
