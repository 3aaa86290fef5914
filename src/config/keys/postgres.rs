//! Where events come from: `postgres` and `source.messages`.

use std::time::Duration;

use super::{LONGEST, key};
use crate::config::key::{Key, Kind, Presence};
use crate::config::rules::{not_empty, publication_name, slot_name};

pub(super) const KEYS: &[Key] = &[
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
];
