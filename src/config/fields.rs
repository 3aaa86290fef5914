//! From the settings of one table to the fields of a plain value.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::choices::{
    AfterPublish, AuthMechanism, ExchangeType, FailurePolicy, LogFormat, OnSlotLost, Ordering, SinkChoice,
};
use super::condition::ConditionValue;
use super::field::FieldValue;
use super::key::Key;
use super::layers::Entry;
use super::log_levels::LogLevels;
use super::problem::{Problem, ProblemKind};
use super::tables::Preset;
use super::types::missing;
use super::value::Value;

/// The settings of one table, read by path.
pub(super) struct Fields<'a> {
    pub(super) entry: &'a Entry,
    pub(super) file: &'a str,
}

impl Fields<'_> {
    pub(super) fn optional<T: Field>(&self, path: &str) -> Option<T> {
        self.entry.get(path).and_then(|setting| T::of(&setting.value))
    }

    pub(super) fn required<T: Field>(&self, path: &'static str) -> Result<T, Problem> {
        self.optional(path).ok_or_else(|| match Key::find(path) {
            Some(key) => missing(key, self.file),
            // Cannot be: a test builds the defaults, and so asks for every path.
            None => Problem {
                origin: None,
                kind: ProblemKind::Contradiction(format!("{path} is unknown")),
            },
        })
    }
}

/// A type that a field of the configuration may have.
pub(super) trait Field: Sized {
    /// The value, if it is of this type.
    fn of(value: &Value) -> Option<Self>;
}

/// Implements [`Field`] for the type that one variant of [`Value`] holds.
macro_rules! fields {
    ($($field:ty: $variant:ident($held:ident) => $made:expr;)+) => {$(
        impl Field for $field {
            fn of(value: &Value) -> Option<Self> {
                if let Value::$variant($held) = value { $made } else { None }
            }
        }
    )+};
}

impl Field for SecretString {
    fn of(value: &Value) -> Option<Self> {
        if let Value::Secret(text) | Value::Password(text) = value {
            Some(text.clone())
        } else {
            None
        }
    }
}

fields! {
    String: Text(text) => Some(text.clone());
    Vec<String>: Texts(texts) => Some(texts.clone());
    Vec<SecretString>: Secrets(texts) => Some(texts.clone());
    PathBuf: Path(path) => Some(path.clone());
    Duration: Duration(wait) => Some(*wait);
    u64: Size(bytes) => Some(*bytes);
    u16: Integer(number) => u16::try_from(*number).ok();
    u32: Integer(number) => u32::try_from(*number).ok();
    SinkChoice: Word(word) => match *word {
        "rabbitmq" => Some(Self::Rabbitmq),
        "stdout" => Some(Self::Stdout),
        _ => None,
    };
    Ordering: Word(word) => match *word {
        "pipelined" => Some(Self::Pipelined),
        "strict" => Some(Self::Strict),
        _ => None,
    };
    AuthMechanism: Word(word) => match *word {
        "plain" => Some(Self::Plain),
        "external" => Some(Self::External),
        _ => None,
    };
    OnSlotLost: Word(word) => match *word {
        "halt" => Some(Self::Halt),
        "rescan" => Some(Self::Rescan),
        _ => None,
    };
    AfterPublish: Word(word) => match *word {
        "mark" => Some(Self::Mark),
        "delete" => Some(Self::Delete),
        "keep" => Some(Self::Keep),
        _ => None,
    };
    FieldValue: Field(field) => Some(field.clone());
    Vec<ConditionValue>: Conditions(conditions) => Some(conditions.clone());
    Preset: Word(word) => match *word {
        "walrelay" => Some(Self::Walrelay),
        "debezium" => Some(Self::Debezium),
        _ => None,
    };
    FailurePolicy: Word(word) => match *word {
        "hold" => Some(Self::Hold),
        "dead_letter" => Some(Self::DeadLetter),
        "discard" => Some(Self::Discard),
        _ => None,
    };
    SocketAddr: Address(address) => Some(*address);
    LogLevels: LogLevels(levels) => Some(levels.clone());
    LogFormat: Word(word) => match *word {
        "text" => Some(Self::Text),
        "json" => Some(Self::Json),
        _ => None,
    };
    ExchangeType: Word(word) => {
        let kinds = [Self::Topic, Self::Direct, Self::Fanout, Self::Headers, Self::ConsistentHash];
        kinds.into_iter().find(|kind| kind.as_str() == *word)
    };
}
