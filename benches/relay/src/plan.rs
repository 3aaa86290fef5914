//! How much is measured: sizes that fit the time there is.

use std::time::Duration;

/// Sizes and durations of one run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) quick: bool,
    /// How often everything is measured, one thing after the other.
    pub(crate) rounds: usize,
    /// The backlog that is drained, and what the publisher alone sends.
    pub(crate) backlog: u32,
    /// The backlog of one aggregate in strict order, which waits for each confirm.
    pub(crate) hot: u32,
    /// What the polling relay drains: its rate does not depend on how much there is.
    pub(crate) polled: u32,
    /// Events a second, and for how long once they have begun to flow.
    pub(crate) steady: Vec<(u32, Duration)>,
    /// The rate at which the polling relay is compared.
    pub(crate) compared: u32,
    /// Committed while the broker is down; and in one transaction.
    pub(crate) outage: u32,
    /// How often the start is timed.
    pub(crate) starts: usize,
    /// How long nothing happens.
    pub(crate) idle: Duration,
}

impl Plan {
    /// What the figures of docs/benchmarks are made of.
    pub(crate) fn full() -> Plan {
        Plan {
            quick: false,
            rounds: 3,
            backlog: 200_000,
            hot: 2_000,
            polled: 40_000,
            steady: [(100, 4), (1_000, 5), (5_000, 3)]
                .map(|(rate, seconds)| (rate, Duration::from_secs(seconds)))
                .to_vec(),
            compared: 1_000,
            outage: 1_000_000,
            starts: 9,
            idle: Duration::from_secs(60),
        }
    }

    /// Whether all is well, in two minutes. Too little for figures.
    pub(crate) fn quick() -> Plan {
        Plan {
            quick: true,
            rounds: 1,
            backlog: 20_000,
            hot: 300,
            polled: 5_000,
            steady: [(100, 2), (1_000, 3), (5_000, 2)]
                .map(|(rate, seconds)| (rate, Duration::from_secs(seconds)))
                .to_vec(),
            outage: 50_000,
            starts: 3,
            idle: Duration::from_secs(5),
            ..Plan::full()
        }
    }
}
