//! What a setting is: its place, its kind, and what holds without it. The settings themselves are in [`KEYS`].

use std::time::Duration;

use super::keys::KEYS;
use super::rules::Rule;

/// The section that may occur several times, as `[[outbox]]`.
pub(super) const OUTBOX: &str = "outbox";

/// The key that names an outbox table.
pub(super) const TABLE: &str = "outbox.table";

/// The section that makes outbox tables optional.
pub(super) const MESSAGES: &str = "source.messages";

/// The key that makes outbox tables optional.
pub(super) const MESSAGES_PREFIX: &str = "source.messages.prefix";

/// The section below it that may occur several times, as `[[outbox.route]]`.
pub(super) const ROUTE: &str = "outbox.route";

/// One setting that walrelay knows.
#[derive(Debug, Clone, Copy)]
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
    /// Text that nothing may print; never empty.
    Password,
    /// Text with `{placeholders}`; its own module parses it.
    Template,
    /// What values of a row must be, as `{ aggregate_type = "order", "payload.country" = ["DE", "AT"] }`; never empty.
    Conditions,
    /// Where a field of an event comes from: a column's name, `{ value = "..." }`, or "" for nowhere.
    Field,
    /// A table of texts under names that are not ours.
    Named,
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

    /// Whether it stands in an `[[outbox.route]]`: only a file can say in which.
    #[must_use]
    pub fn is_of_route(&self) -> bool {
        self.section() == ROUTE
    }

    /// Whether nothing may repeat what was written for it.
    #[must_use]
    pub(super) const fn hides_its_value(&self) -> bool {
        self.secret || matches!(self.kind, Kind::Password)
    }

    /// Its name inside its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The section as written in a file: `[postgres]`, `[[outbox]]`, `[[outbox.route]]`.
    #[must_use]
    pub fn header(&self) -> String {
        let section = self.section();
        if [OUTBOX, ROUTE].contains(&section) {
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
