//! What is around delivery: `recovery`, `admin`, `otel` and `log`.

use super::key;
use crate::config::key::{Key, Kind, Presence};

pub(super) const KEYS: &[Key] = &[
    key(
        "recovery.on_slot_lost",
        Kind::Choice(&["halt", "rescan"]),
        Presence::Default("halt"),
        "what to do when the server has dropped the slot or its write-ahead log",
    ),
    key(
        "admin.listen",
        Kind::Address,
        Presence::Default("127.0.0.1:10187"),
        "where /livez, /readyz, /metrics and the status page are served",
    ),
    key(
        "admin.token_file",
        Kind::Path,
        Presence::Optional,
        "a file that holds the token asked for at /metrics, /status and the page",
    ),
    key(
        "otel.endpoint",
        Kind::Text,
        Presence::Optional,
        "an OpenTelemetry collector that takes OTLP over HTTP, for a span of each publish; needs the cargo feature otel",
    ),
    key(
        "log.format",
        Kind::Choice(&["text", "json"]),
        Presence::Default("text"),
        "how log lines look",
    ),
    key(
        "log.level",
        Kind::LogLevels,
        Presence::Default("info"),
        "a level (error, warn, info, debug, trace or off), or levels by target as in \"info,walrelay::rabbitmq=debug\"",
    ),
];
