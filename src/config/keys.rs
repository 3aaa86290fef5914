//! The one table of known keys: file, environment, flags, errors and `config show` all derive from it.

use std::time::Duration;

use super::key::{Key, Kind, Presence};
use super::rules::{
    header_names, header_prefix, heartbeat, is_column, is_no_constant, is_not_absent, not_empty,
    publication_name, short_text, slot_name,
};

/// What can be done with an event that cannot be delivered.
const POLICIES: &[&str] = &["hold", "dead_letter", "discard"];

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
        check: Some(not_empty),
        ..key(
            "postgres.password",
            Kind::Password,
            Presence::Optional,
            "the database password; for the environment, in a file password_file is safer",
        )
    },
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
        "postgres.shard",
        Kind::Text,
        Presence::Optional,
        "which shard of the tables' rows is this relay's, as in 1/4, counted from 0; without it all rows",
    ),
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
    key(
        "source.messages.prefix",
        Kind::Text,
        Presence::Optional,
        "logical messages with this prefix are events too; no [[outbox]] is needed then",
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
        "outbox.unsent",
        Kind::Text,
        Presence::Optional,
        "the SQL condition that a row is not sent; absent, that sent_at is null",
    ),
    key(
        "outbox.mark_set",
        Kind::Text,
        Presence::Optional,
        "what marks a row as sent, as SQL assignments; absent, sent_at = now()",
    ),
    key(
        "outbox.preset",
        Kind::Choice(&["walrelay", "debezium"]),
        Presence::Default("walrelay"),
        "how the columns are called that outbox.columns does not name",
    ),
    key(
        "outbox.format",
        Kind::Choice(&[
            "payload",
            "cloudevents-binary",
            "cloudevents-structured",
            "envelope",
        ]),
        Presence::Default("payload"),
        "what becomes of the payload: the message's body, or a part of it",
    ),
    Key {
        check: Some(header_names),
        ..key(
            "outbox.headers",
            Kind::Named,
            Presence::Optional,
            "headers of every message, by name, with columns of the event in braces",
        )
    },
    Key {
        check: Some(short_text),
        ..key(
            "outbox.exchange",
            Kind::Template,
            Presence::Optional,
            "the exchange of this table's events; absent, rabbitmq.exchange",
        )
    },
    key(
        "outbox.routing_key",
        Kind::Template,
        Presence::Optional,
        "the routing key of this table's events; absent, rabbitmq.routing_key",
    ),
    Key {
        check: Some(header_prefix),
        ..key(
            "outbox.cloudevents.prefix",
            Kind::Text,
            Presence::Default("cloudEvents:"),
            "what the headers begin with that are attributes of a CloudEvent",
        )
    },
    key(
        "outbox.cloudevents.source",
        Kind::Template,
        Presence::Optional,
        "the attribute source, a URI-reference; absent, by the table's name",
    ),
    key(
        "outbox.cloudevents.type",
        Kind::Template,
        Presence::Default("{event_type}"),
        "the attribute type",
    ),
    Key {
        check: Some(is_column),
        ..key(
            "outbox.columns.id",
            Kind::Field,
            Presence::Optional,
            "the column of the event's id, which becomes the message id",
        )
    },
    Key {
        check: Some(is_not_absent),
        ..key(
            "outbox.columns.aggregate_type",
            Kind::Field,
            Presence::Optional,
            "the column of the kind of thing the event happened to, or { value = \"...\" }",
        )
    },
    Key {
        check: Some(is_not_absent),
        ..key(
            "outbox.columns.aggregate_id",
            Kind::Field,
            Presence::Optional,
            "the column of which thing it happened to, or { value = \"...\" }",
        )
    },
    Key {
        check: Some(is_not_absent),
        ..key(
            "outbox.columns.event_type",
            Kind::Field,
            Presence::Optional,
            "the column of what happened, or { value = \"...\" }",
        )
    },
    Key {
        check: Some(is_column),
        ..key(
            "outbox.columns.payload",
            Kind::Field,
            Presence::Optional,
            "the column of the message's body: json, jsonb, text or bytea",
        )
    },
    Key {
        check: Some(is_no_constant),
        ..key(
            "outbox.columns.headers",
            Kind::Field,
            Presence::Optional,
            "the column of a JSON object that joins the message's headers, or \"\" for none",
        )
    },
    Key {
        check: Some(is_no_constant),
        ..key(
            "outbox.columns.created_at",
            Kind::Field,
            Presence::Optional,
            "the column of the time at which the row was written, or \"\" for none",
        )
    },
    Key {
        check: Some(is_no_constant),
        ..key(
            "outbox.columns.sent_at",
            Kind::Field,
            Presence::Optional,
            "the column that is set once a row is published, or \"\" for none",
        )
    },
    key(
        "outbox.columns.routing_key",
        Kind::Field,
        Presence::Optional,
        "the column of the routing key; where it is null, the template's",
    ),
    key(
        "outbox.columns.exchange",
        Kind::Field,
        Presence::Optional,
        "the column of the exchange; where it is null, the template's",
    ),
    key(
        "outbox.columns.content_type",
        Kind::Field,
        Presence::Optional,
        "the column of the property content_type, or { value = \"...\" }; else by the payload's type",
    ),
    key(
        "outbox.columns.expiration",
        Kind::Field,
        Presence::Optional,
        "the column of the property expiration, in milliseconds, or { value = \"...\" }",
    ),
    key(
        "outbox.columns.priority",
        Kind::Field,
        Presence::Optional,
        "the column of the property priority, 0 to 255, or { value = \"...\" }",
    ),
    key(
        "outbox.columns.correlation_id",
        Kind::Field,
        Presence::Optional,
        "the column of the property correlation_id, or { value = \"...\" }",
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
    key(
        "outbox.route.when",
        Kind::Conditions,
        Presence::Optional,
        "what an event must meet; the first [[outbox.route]] that it meets says where it goes",
    ),
    Key {
        check: Some(short_text),
        ..key(
            "outbox.route.exchange",
            Kind::Template,
            Presence::Optional,
            "the exchange of these events; absent, the table's",
        )
    },
    key(
        "outbox.route.routing_key",
        Kind::Template,
        Presence::Optional,
        "the routing key of these events; absent, the table's",
    ),
    key(
        "outbox.route.on_unroutable",
        Kind::Choice(POLICIES),
        Presence::Optional,
        "what to do with these events where no queue is bound for them; absent, delivery.on_unroutable",
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
        check: Some(not_empty),
        ..key(
            "rabbitmq.password",
            Kind::Password,
            Presence::Optional,
            "the broker password; for the environment, in a file password_file is safer",
        )
    },
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
        "the routing key, with values of the event in braces",
    ),
    key(
        "rabbitmq.ca_file",
        Kind::Path,
        Presence::Optional,
        "PEM file of a private certificate authority for amqps",
    ),
    key(
        "rabbitmq.cert_file",
        Kind::Path,
        Presence::Optional,
        "PEM file of the certificate to show to the broker, read at every connect",
    ),
    key(
        "rabbitmq.key_file",
        Kind::Path,
        Presence::Optional,
        "PEM file of that certificate's key, open to nobody else",
    ),
    key(
        "rabbitmq.auth_mechanism",
        Kind::Choice(&["plain", "external"]),
        Presence::Default("plain"),
        "external: the broker takes the user from the certificate, and no password is sent",
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
        Kind::Choice(&["topic", "direct", "fanout", "headers", "x-consistent-hash"]),
        Presence::Optional,
        "declare the exchange, durable and of this type; absent, nothing is ever declared",
    ),
    Key {
        check: Some(short_text),
        ..key(
            "rabbitmq.stream.name",
            Kind::Text,
            Presence::Optional,
            "publish to this stream by RabbitMQ's stream protocol instead; needs the cargo feature stream",
        )
    },
    key(
        "rabbitmq.stream.port",
        Kind::Integer { min: 1, max: 65_535 },
        Presence::Optional,
        "the port of RabbitMQ's stream listener; absent, 5552, or 5551 with amqps",
    ),
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
