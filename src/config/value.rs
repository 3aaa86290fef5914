//! Typed values: what a text or a TOML value becomes by the kind of its key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use secrecy::{ExposeSecret as _, SecretString};
use toml::de::DeValue;

use super::condition::ConditionValue;
use super::field::FieldValue;
use super::key::{Key, Kind};
use super::log_levels::LogLevels;
use super::named::NamedTexts;
use super::problem::ProblemKind;
use super::wording::{described, expected, impossible, nearest, range, shown};

/// A value that fits its key. It has no `Debug`, since it may be a secret in plain text.
#[derive(Clone)]
pub enum Value {
    /// Of [`Kind::Text`] and [`Kind::Template`].
    Text(String),
    /// Text of a key that is secret.
    Secret(SecretString),
    /// Of [`Kind::Password`].
    Password(SecretString),
    /// Of [`Kind::Texts`], in their order.
    Texts(Vec<String>),
    /// The same of a key that is secret.
    Secrets(Vec<SecretString>),
    /// Of [`Kind::Conditions`].
    Conditions(Vec<ConditionValue>),
    /// Of [`Kind::Field`].
    Field(FieldValue),
    /// Of [`Kind::Named`], in the order of the names.
    Named(NamedTexts),
    /// Of [`Kind::Path`].
    Path(PathBuf),
    /// Of [`Kind::Duration`].
    Duration(Duration),
    /// Bytes, of [`Kind::Size`].
    Size(u64),
    /// Of [`Kind::Integer`].
    Integer(u64),
    /// Of [`Kind::Boolean`].
    Boolean(bool),
    /// Of [`Kind::Choice`].
    Word(&'static str),
    /// Of [`Kind::Address`].
    Address(SocketAddr),
    /// Of [`Kind::LogLevels`].
    LogLevels(LogLevels),
}

impl Value {
    /// Reads the text of an environment variable or a flag.
    ///
    /// # Errors
    /// As [`from_text`](Self::from_text), and for a key that only a file can set.
    pub(super) fn from_outside(key: &'static Key, text: &str) -> Result<Self, ProblemKind> {
        match key.is_of_route() {
            true => Err(ProblemKind::InFileOnly { key }),
            false => Self::from_text(key, text),
        }
    }

    /// Reads the text of an environment variable, a flag or a default.
    ///
    /// # Errors
    /// The text is not of the key's kind, is out of range, or fails the key's check.
    pub fn from_text(key: &'static Key, text: &str) -> Result<Self, ProblemKind> {
        let found = || shown(text);
        let value = match key.kind {
            Kind::Integer { .. } => text.parse().ok().map(Self::Integer),
            Kind::Boolean => text.parse().ok().map(Self::Boolean),
            Kind::Size { .. } => text.parse().ok().map(|size: ByteSize| Self::Size(size.as_u64())),
            Kind::Text | Kind::Template if key.secret => Some(Self::Secret(text.into())),
            Kind::Text | Kind::Template => Some(Self::Text(text.to_owned())),
            Kind::Password => Some(Self::Password(text.into())),
            Kind::Texts => Some(Self::listed(key, separated(text))),
            Kind::Field => FieldValue::from_text(text).map(Self::Field),
            Kind::Named => NamedTexts::from_text(text).map(Self::Named),
            Kind::Conditions => None,
            Kind::Path => (!text.is_empty()).then(|| Self::Path(text.into())),
            Kind::Duration { .. } => humantime::parse_duration(text).ok().map(Self::Duration),
            Kind::Choice(words) => words
                .iter()
                .find(|word| **word == text)
                .map(|word| Self::Word(word)),
            Kind::Address => text.parse().ok().map(Self::Address),
            Kind::LogLevels => text.parse().ok().map(Self::LogLevels),
        };
        let value =
            value.ok_or_else(|| impossible(key, expected(key.kind), found(), nearest(key.kind, text)))?;
        value.fits(key, found)
    }

    /// Reads a value of a TOML document: texts as texts, numbers as numbers, nothing converted.
    ///
    /// # Errors
    /// The value is not of the key's kind, is out of range, or fails the key's check.
    pub fn from_toml(key: &'static Key, value: &DeValue<'_>) -> Result<Self, ProblemKind> {
        match (key.kind, value) {
            (Kind::Integer { .. } | Kind::Size { .. }, DeValue::Integer(number)) => {
                let found = || number.to_string();
                let number_read = u64::from_str_radix(number.as_str(), number.radix())
                    .map_err(|_| impossible(key, range(key.kind), found(), String::new()))?;
                let is_size = matches!(key.kind, Kind::Size { .. });
                let value = if is_size {
                    Self::Size(number_read)
                } else {
                    Self::Integer(number_read)
                };
                value.fits(key, found)
            }
            (Kind::Boolean, DeValue::Boolean(on)) => Ok(Self::Boolean(*on)),
            (Kind::Integer { .. } | Kind::Boolean, other) => Err(impossible(
                key,
                expected(key.kind),
                described(other),
                String::new(),
            )),
            (Kind::Texts, DeValue::String(text)) => {
                Self::listed(key, vec![text.as_ref()]).fits(key, || described(value))
            }
            (Kind::Texts, DeValue::Array(items)) => {
                let mut texts = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let Some(text) = item.get_ref().as_str() else {
                        let hint = format!("; item {} is no text", index + 1);
                        return Err(impossible(key, expected(key.kind), described(value), hint));
                    };
                    texts.push(text);
                }
                Self::listed(key, texts).fits(key, || described(value))
            }
            (Kind::Field, DeValue::Table(table)) => {
                let field = FieldValue::from_table(table)
                    .ok_or_else(|| impossible(key, expected(key.kind), described(value), String::new()))?;
                let found = field.to_toml();
                Self::Field(field).fits(key, || found.clone())
            }
            (Kind::Named, DeValue::Table(table)) => {
                let texts = NamedTexts::from_table(table)
                    .map_err(|found| impossible(key, expected(key.kind), found, String::new()))?;
                let found = texts.described();
                Self::Named(texts).fits(key, || found.clone())
            }
            (Kind::Conditions, DeValue::Table(table)) => ConditionValue::from_table(table)
                .map(Self::Conditions)
                .map_err(|found| impossible(key, expected(key.kind), found, String::new())),
            (Kind::Named | Kind::Conditions, other) => Err(impossible(
                key,
                expected(key.kind),
                described(other),
                String::new(),
            )),
            (_, DeValue::String(text)) => Self::from_text(key, text),
            (_, other) => Err(impossible(
                key,
                expected(key.kind),
                described(other),
                String::new(),
            )),
        }
    }

    fn listed(key: &'static Key, texts: Vec<&str>) -> Self {
        match key.secret {
            true => Self::Secrets(texts.into_iter().map(SecretString::from).collect()),
            false => Self::Texts(texts.into_iter().map(str::to_owned).collect()),
        }
    }

    /// The text of a text, in plain even where it is secret; empty for other kinds.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Secret(text) | Self::Password(text) => text.expose_secret(),
            Self::Word(word) => word,
            Self::Texts(_)
            | Self::Secrets(_)
            | Self::Field(_)
            | Self::Named(_)
            | Self::Conditions(_)
            | Self::Path(_)
            | Self::Duration(_)
            | Self::Size(_)
            | Self::Integer(_)
            | Self::Boolean(_)
            | Self::Address(_)
            | Self::LogLevels(_) => "",
        }
    }

    /// The texts of a list, or of names; a field's constant; what conditions look at; else the one [`text`](Self::text).
    pub(super) fn texts(&self) -> Vec<&str> {
        if let Self::Field(FieldValue::Constant(text)) = self {
            return vec![text];
        }
        if let Self::Named(texts) = self {
            return texts.iter().map(|(_, text)| text).collect();
        }
        if let Self::Texts(texts) = self {
            return texts.iter().map(String::as_str).collect();
        }
        if let Self::Secrets(texts) = self {
            return texts.iter().map(SecretString::expose_secret).collect();
        }
        if let Self::Conditions(conditions) = self {
            return conditions.iter().map(|condition| condition.of.as_str()).collect();
        }
        vec![self.text()]
    }

    /// Checks the range of the key's kind, then the key's own check.
    fn fits(self, key: &'static Key, found: impl Fn() -> String) -> Result<Self, ProblemKind> {
        let in_range = match (&self, key.kind) {
            (Self::Duration(wait), Kind::Duration { min, max }) => (min..=max).contains(wait),
            (Self::Size(number), Kind::Size { min, max })
            | (Self::Integer(number), Kind::Integer { min, max }) => (min..=max).contains(number),
            _ => true,
        };
        if !in_range {
            return Err(impossible(key, range(key.kind), found(), String::new()));
        }
        match key.check.map(|check| check(&self)) {
            Some(Err(expected)) => Err(impossible(key, expected.to_owned(), found(), String::new())),
            Some(Ok(())) | None => Ok(self),
        }
    }
}

/// The parts between commas. A comma within double quotes, as a quoted name of SQL may hold, separates nothing.
fn separated(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let mut quoted = false;
    text.split(|c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .map(str::trim)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::key::Presence;
    use crate::config::wording::size_text;

    static FLAG: Key = Key {
        path: "test.flag",
        kind: Kind::Boolean,
        presence: Presence::Optional,
        secret: false,
        check: None,
        help: "a switch",
    };

    fn error(path: &str, text: &str) -> String {
        match Value::from_text(Key::find(path).expect("a known key"), text) {
            Ok(_) => panic!("{path} takes {text}"),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn a_boolean_is_true_or_false() {
        assert!(matches!(
            Value::from_text(&FLAG, "true"),
            Ok(Value::Boolean(true))
        ));
        let problem = Value::from_text(&FLAG, "flase").err().expect("refused");
        assert_eq!(
            problem.to_string(),
            "test.flag must be true or false, not \"flase\"; did you mean false?"
        );
    }

    #[test]
    fn a_size_is_a_number_of_bytes_or_has_a_unit() {
        let key = Key::find("delivery.max_in_flight_bytes").expect("a known key");
        for (text, bytes) in [
            ("1000", 1000),
            ("32MiB", 32 << 20),
            ("1kB", 1000),
            ("1.5 KiB", 1536),
        ] {
            assert!(
                matches!(Value::from_text(key, text), Ok(Value::Size(size)) if size == bytes),
                "{text}"
            );
        }
    }

    #[test]
    fn values_out_of_range_name_the_range() {
        assert_eq!(
            error("delivery.max_in_flight", "65536"),
            "delivery.max_in_flight must be from 1 to 65535, not \"65536\""
        );
        assert_eq!(
            error("postgres.wal_sender_timeout", "999ms"),
            "postgres.wal_sender_timeout must be from 1s to 1day, not \"999ms\""
        );
        assert_eq!(
            error("delivery.max_message_bytes", "1GiB"),
            "delivery.max_message_bytes must be from 1B to 512MiB, not \"1GiB\""
        );
        assert_eq!(
            error("rabbitmq.heartbeat", "1500ms"),
            "rabbitmq.heartbeat must be a whole number of seconds, or 0 for none, not \"1500ms\""
        );
    }

    #[test]
    fn a_slot_name_is_checked_before_any_server_sees_it() {
        assert_eq!(
            error("postgres.slot", "My-Slot"),
            "postgres.slot must be 1 to 63 lower-case letters, digits and underscores, not \"My-Slot\""
        );
        assert!(error("postgres.slot", "").ends_with("not \"\""));
        assert!(error("postgres.publication", &"x".repeat(64)).contains("1 to 63 bytes"));
    }

    #[test]
    fn a_size_is_shown_exactly() {
        for (bytes, text) in [(0, "0B"), (1000, "1000B"), (32 << 20, "32MiB"), (1 << 40, "1TiB")] {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn shown_text_is_one_short_line() {
        assert_eq!(shown("a\nb"), "\"a\\nb\"");
        assert!(shown(&"é".repeat(1000)).chars().count() < 80);
    }
}
