//! The broker and the messages: `rabbitmq`.

use std::time::Duration;

use super::key;
use crate::config::key::{Key, Kind, Presence};
use crate::config::rules::{heartbeat, not_empty, short_text};

pub(super) const KEYS: &[Key] = &[
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
];
