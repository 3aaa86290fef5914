//! The one table of known keys: file, environment, flags, errors and `config show` all derive from it.

mod delivery;
mod operation;
mod outbox;
mod postgres;
mod rabbitmq;

use std::time::Duration;

use super::key::{Key, Kind, Presence};

/// What can be done with an event that cannot be delivered.
const POLICIES: &[&str] = &["hold", "dead_letter", "discard"];

/// A day: no wait is longer, so that no sum of an instant and a setting can overflow.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const MIB: u64 = 1024 * 1024;

/// The table's parts, in the order of the sample file.
const PARTS: [&[Key]; 5] = [
    postgres::KEYS,
    outbox::KEYS,
    rabbitmq::KEYS,
    delivery::KEYS,
    operation::KEYS,
];

/// Every key, in the order of the sample file.
pub static KEYS: &[Key] = &joined::<{ count(&PARTS) }>(&PARTS);

/// Shorthand for the tables of the parts.
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

const fn count(mut parts: &[&[Key]]) -> usize {
    let mut count = 0;
    while let [part, rest @ ..] = parts {
        count += part.len();
        parts = rest;
    }
    count
}

/// The parts as one array; `COUNT` is their [`count`].
const fn joined<const COUNT: usize>(mut parts: &[&[Key]]) -> [Key; COUNT] {
    let mut all = [key("", Kind::Text, Presence::Optional, ""); COUNT];
    let mut at = 0;
    while let [part, rest @ ..] = parts {
        let (place, _) = all.split_at_mut(at).1.split_at_mut(part.len());
        place.copy_from_slice(part);
        at += part.len();
        parts = rest;
    }
    all
}
