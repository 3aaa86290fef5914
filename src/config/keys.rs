//! The one table of known keys: file, environment, flags, errors and `config show` all derive from it.

use std::time::Duration;

use super::rules::{Rule, heartbeat, not_empty, publication_name, short_text, slot_name};

/// The section that may occur several times, as `[[outbox]]`.
pub(super) const OUTBOX: &str = "outbox";

/// One setting that walrelay knows.
#[derive(Debug)]
pub struct Key {
    /// Where it stands in the file, as `postgres.url`.
    pub path: &'static str,
    /// What its value must be.
    pub kind: Kind,
    /// What holds when nobody sets it.
    pub presence: Presence,
    /// Whether its value may carry a password, so that nothing may print it.
    pub secret: bool,
    /// What the value must fulfil beyond its kind; the error completes "must be ...".
    pub check: Option<Rule>,
    /// One line on what it is for.
    pub help: &'static str,
}

/// What a key's value must be.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Any text.
    Text,
    /// One text or a list of texts; in a variable or a flag, with commas between them.
    Texts,
    /// Text with `{placeholders}`; its own module parses it.
    Template,
    /// A path, relative to the current folder; never empty.
    Path,
    /// A duration in humantime's syntax ("10s", "100ms"), from `min` to `max`.
    Duration {
        /// The shortest that is allowed.
        min: Duration,
        /// The longest that is allowed.
        max: Duration,
    },
    /// A number of bytes, plain or in bytesize's syntax ("32MiB"), from `min` to `max`.
    Size {
        /// The smallest that is allowed.
        min: u64,
        /// The largest that is allowed.
        max: u64,
    },
    /// A whole number from `min` to `max`.
    Integer {
        /// The smallest that is allowed.
        min: u64,
        /// The largest that is allowed.
        max: u64,
    },
    /// `true` or `false`.
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// An IP address and port.
    Address,
    /// A level, or levels by target (see [`LogLevels`](super::LogLevels)).
    LogLevels,
}

/// What can be done with an event that cannot be delivered.
const POLICIES: &[&str] = &["hold", "dead_letter", "discard"];

/// What holds when nobody sets a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Then this value, in the form of an environment variable's text.
    Default(&'static str),
    /// Then the setting is off, or found out at run time.
    Optional,
    /// Then nothing can start.
    Required,
}

/// A day: no wait is longer, so that no sum of an instant and a setting can overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Only ever subtracted from the time of day, by the database. A year is humantime's, of 365.25 days.
const TEN_YEARS: Duration = Duration::from_secs(10 * 31_557_600);
const MIB: u64 = 1024 * 1024;

/// Shorthand for the table below.
const fn key(path: &'static str, kind: Kind, presence: Presence, help: &'static str) -> Key {
    Key {
        path,
        kind,
        presence,
        secret: false,
        check: None,
        help,
    }
}

/// Every key, in the order of the sample file.
pub static KEYS: &[Key] = &[
    Key {
        secret: true,
        check: Some(not_empty),
        ..key(
            "postgres.url",
            Kind::Text,
            Presence::Required,
            "the database, as a libpq URL or key=value string",
        )
    },
    key(
        "postgres.password_file",
        Kind::Path,
        Presence::Optional,
        "a file that holds the database password, read at every connect",
    ),
    Key {
        check: Some(slot_name),
        ..key(
            "postgres.slot",
            Kind::Text,
            Presence::Default("walrelay"),
            "the logical replication slot; one relay per slot",
        )
    },
    Key {
        check: Some(publication_name),
        ..key(
            "postgres.publication",
            Kind::Text,
            Presence::Default("walrelay"),
            "the publication that lists the outbox tables",
        )
    },
    key(
        "postgres.ignore_tables",
        Kind::Texts,
        Presence::Default(""),
        "tables of the publication that are no outbox; a row of any other one halts delivery",
    ),
    key(
        "postgres.wal_sender_timeout",
        Kind::Duration {
            min: Duration::from_secs(1),
            max: LONGEST,
        },
        Presence::Default("10s"),
        "of the relay's own session: how soon a standby can take over from a frozen peer",
    ),
    key(
        "postgres.status_interval",
        Kind::Duration {
            min: Duration::from_millis(10),
            max: LONGEST,
        },
        Presence::Default("1s"),
        "how often the acknowledged position is reported while nothing moves",
    ),
    key(
        "postgres.guard_interval",
        Kind::Duration {
            min: Duration::from_secs(1),
            max: LONGEST,
        },
        Presence::Default("30s"),
        "how often the publication is compared with what setup left",
    ),
    Key {
        check: Some(not_empty),
        ..key(
            "outbox.table",
            Kind::Text,
            Presence::Default("public.outbox_events"),
            "an outbox table, as schema.table; one [[outbox]] for each",
        )
    },
    key(
        "outbox.after_publish",
        Kind::Choice(&["mark", "delete", "keep"]),
        Presence::Optional,
        "what becomes of published rows: sent_at set, deleted or kept; absent, mark where there is a sent_at",
    ),
    key(
        "outbox.retention.keep_sent",
        Kind::Duration {
            min: Duration::from_secs(1),
            max: TEN_YEARS,
        },
        Presence::Optional,
        "how long rows stay after they were marked as sent; without it for ever",
    ),
    Key {
        secret: true,
        check: Some(not_empty),
        ..key(
            "rabbitmq.uri",
            Kind::Texts,
            Presence::Required,
            "the broker, as an amqp or amqps URI; of a list each is tried in turn",
        )
    },
    key(
        "rabbitmq.password_file",
        Kind::Path,
        Presence::Optional,
        "a file that holds the broker password, read at every connect",
    ),
    Key {
        check: Some(short_text),
        ..key(
            "rabbitmq.exchange",
            Kind::Template,
            Presence::Default("outbox"),
            "the exchange to publish to; \"\" is the default exchange",
        )
    },
    key(
        "rabbitmq.routing_key",
        Kind::Template,
        Presence::Default("{aggregate_type}.{event_type}"),
        "the routing key, with columns of the event in braces",
    ),
    key(
        "rabbitmq.ca_file",
        Kind::Path,
        Presence::Optional,
        "PEM file of a private certificate authority for amqps",
    ),
    Key {
        secret: true,
        check: Some(not_empty),
        ..key(
            "rabbitmq.management",
            Kind::Text,
            Presence::Optional,
            "URL of the management API; `walrelay doctor --routes` asks it for bindings",
        )
    },
    Key {
        check: Some(heartbeat),
        ..key(
            "rabbitmq.heartbeat",
            Kind::Duration {
                min: Duration::ZERO,
                max: Duration::from_secs(600),
            },
            Presence::Default("30s"),
            "how long the connection may stay silent; 0 turns heartbeats off",
        )
    },
    Key {
        check: Some(short_text),
        ..key(
            "rabbitmq.app_id",
            Kind::Text,
            Presence::Default("walrelay"),
            "the app_id property of every message",
        )
    },
    key(
        "rabbitmq.declare.exchange_type",
        Kind::Choice(&["topic", "direct", "fanout", "headers"]),
        Presence::Optional,
        "declare the exchange, durable and of this type; absent, nothing is ever declared",
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
        "log.format",
        Kind::Choice(&["text", "json"]),
        Presence::Default("text"),
        "how log lines look",
    ),
    key(
        "log.level",
        Kind::LogLevels,
        Presence::Default("info"),
        "a level, or levels by target as in \"info,lapin=debug\"",
    ),
];

impl Key {
    /// The key of this path, if walrelay knows it.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.path == path)
    }

    /// The name of its environment variable: `WALRELAY_POSTGRES_URL` for `postgres.url`.
    #[must_use]
    pub fn env_name(&self) -> String {
        format!(
            "{}{}",
            super::env::PREFIX,
            self.path.replace('.', "_").to_ascii_uppercase()
        )
    }

    /// The table of the file it stands in: `rabbitmq.declare` for `rabbitmq.declare.exchange_type`.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Whether it stands below an `[[outbox]]`.
    #[must_use]
    pub fn is_of_outbox(&self) -> bool {
        self.path.starts_with("outbox.")
    }

    /// Its name inside its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The section as written in a file: `[postgres]`, `[[outbox]]`.
    #[must_use]
    pub fn header(&self) -> String {
        let section = self.section();
        if section == OUTBOX {
            format!("[[{section}]]")
        } else {
            format!("[{section}]")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::value::Value;
    use super::*;

    #[test]
    fn paths_and_environment_names_are_unique() {
        let paths: BTreeSet<_> = KEYS.iter().map(|key| key.path).collect();
        let names: BTreeSet<_> = KEYS.iter().map(Key::env_name).collect();
        assert_eq!(paths.len(), KEYS.len());
        assert_eq!(names.len(), KEYS.len());
        assert!(!names.contains(super::super::env::CONFIG));
    }

    #[test]
    fn an_environment_name_is_the_path_in_capitals() {
        let key = Key::find("rabbitmq.declare.exchange_type").expect("a known key");
        assert_eq!(key.env_name(), "WALRELAY_RABBITMQ_DECLARE_EXCHANGE_TYPE");
        assert_eq!(key.header(), "[rabbitmq.declare]");
        assert_eq!(key.name(), "exchange_type");
    }

    #[test]
    fn every_default_is_a_valid_value_of_its_key() {
        for key in KEYS {
            if let Presence::Default(text) = key.presence {
                assert!(Value::from_text(key, text).is_ok(), "{}", key.path);
            }
        }
    }

    #[test]
    fn every_help_is_one_line() {
        for key in KEYS {
            assert!(
                !key.help.is_empty() && !key.help.contains('\n') && !key.help.ends_with('.'),
                "{}",
                key.path
            );
        }
    }
}
