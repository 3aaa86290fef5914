//! The outbox tables, their columns and where their events go: `outbox`.

use std::time::Duration;

use super::{POLICIES, key};
use crate::config::key::{Key, Kind, Presence};
use crate::config::rules::{
    header_names, header_prefix, is_column, is_no_constant, is_not_absent, not_empty, short_text,
};

/// Only ever subtracted from the time of day, by the database. A year is humantime's, of 365.25 days.
const TEN_YEARS: Duration = Duration::from_secs(10 * 31_557_600);

pub(super) const KEYS: &[Key] = &[
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
];
