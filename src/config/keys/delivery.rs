//! How events are delivered: `delivery`.

use std::time::Duration;

use super::{LONGEST, MIB, POLICIES, key};
use crate::config::key::{Key, Kind, Presence};

pub(super) const KEYS: &[Key] = &[
    key(
        "delivery.sink",
        Kind::Choice(&["rabbitmq", "stdout"]),
        Presence::Default("rabbitmq"),
        "where messages go; stdout: one JSON line each, and no broker is asked for",
    ),
    key(
        "delivery.max_in_flight",
        Kind::Integer { min: 1, max: 65_535 },
        Presence::Default("1000"),
        "how many messages may await their confirm at a time",
    ),
    key(
        "delivery.max_in_flight_bytes",
        Kind::Size {
            min: 1,
            max: 1024 * 1024 * MIB,
        },
        Presence::Default("32MiB"),
        "how many bytes may await their confirm; a single larger event goes alone",
    ),
    // https://www.rabbitmq.com/docs/configure: max_message_size is at most 512 MiB in every supported release.
    key(
        "delivery.max_message_bytes",
        Kind::Size {
            min: 1,
            max: 512 * MIB,
        },
        Presence::Optional,
        "the largest body to send; absent, by the broker's version",
    ),
    key(
        "delivery.max_event_bytes",
        Kind::Size {
            min: 1024,
            max: 256 * MIB,
        },
        Presence::Default("16MiB"),
        "the largest column to read; a row with a larger one among those it needs is invalid",
    ),
    key(
        "delivery.ordering",
        Kind::Choice(&["pipelined", "strict"]),
        Presence::Default("pipelined"),
        "strict: no event is sent while an earlier one of its aggregate is unconfirmed",
    ),
    key(
        "delivery.max_rate",
        Kind::Integer {
            min: 1,
            max: 10_000_000,
        },
        Presence::Optional,
        "the most messages to send in a second; absent, as many as the broker takes",
    ),
    key(
        "delivery.on_unroutable",
        Kind::Choice(POLICIES),
        Presence::Default("hold"),
        "what to do with an event that no queue is bound for",
    ),
    key(
        "delivery.on_invalid",
        Kind::Choice(POLICIES),
        Presence::Default("hold"),
        "what to do with a row that cannot become a message, or that the broker refuses",
    ),
    key(
        "delivery.hold_max_wal",
        Kind::Size {
            min: 1,
            max: 1024 * 1024 * MIB,
        },
        Presence::Optional,
        "WAL written during a hold before the held event is stored as a dead letter after all; absent, it holds",
    ),
    key(
        "delivery.dead_letters_max",
        Kind::Integer {
            min: 1,
            max: 1_000_000_000,
        },
        Presence::Default("10000"),
        "with so many dead letters pending, further events are held after all",
    ),
    key(
        "delivery.confirm_timeout",
        Kind::Duration {
            min: Duration::from_secs(1),
            max: LONGEST,
        },
        Presence::Default("30s"),
        "how long a message may stay unanswered before the connection is given up",
    ),
    key(
        "delivery.mark_batch",
        Kind::Integer { min: 1, max: 50_000 },
        Presence::Default("1000"),
        "how many published rows are marked at once",
    ),
    key(
        "delivery.mark_interval",
        Kind::Duration {
            min: Duration::from_millis(10),
            max: Duration::from_secs(60),
        },
        Presence::Default("1s"),
        "the longest that a published row waits for others to be marked with",
    ),
    key(
        "delivery.shutdown_grace",
        Kind::Duration {
            min: Duration::ZERO,
            max: LONGEST,
        },
        Presence::Default("10s"),
        "how long a stop waits for outstanding confirms",
    ),
];
