//! What a template or a rule names: a column of the row, or a value inside a column of JSON.

use std::fmt;

use super::parse::{self, TemplateError};
use super::path::{Found, Step, find};
use crate::json::Unescaped;
use crate::pgoutput::{Tuple, Value};

/// The key of the configuration in which a template or condition stands, for naming it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    key: &'static str,
    rule: Option<usize>,
}

impl Setting {
    /// The exchange of tables that do not name one.
    pub const EXCHANGE: Self = Self {
        key: "rabbitmq.exchange",
        rule: None,
    };
    /// The routing key of tables that do not have one.
    pub const ROUTING_KEY: Self = Self {
        key: "rabbitmq.routing_key",
        rule: None,
    };
    /// The key of a rule's conditions.
    pub const WHEN: &'static str = "outbox.route.when";

    /// A key of the rule with this number among those of its table, counted from 1.
    #[must_use]
    pub const fn of_rule(key: &'static str, number: usize) -> Self {
        Self {
            key,
            rule: Some(number),
        }
    }
}

impl From<&'static str> for Setting {
    fn from(key: &'static str) -> Self {
        Self { key, rule: None }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rule {
            None => f.write_str(self.key),
            Some(number) => write!(f, "{} (rule {number})", self.key),
        }
    }
}

/// A column or field, and the path to a value inside of it: `event_type`, `payload.items.0.sku`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    pub(super) column: String,
    pub(super) path: Vec<Step>,
}

/// Printed as it is written.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.column)?;
        self.path
            .iter()
            .try_for_each(|step| write!(f, ".{}", step.name()))
    }
}

impl Reference {
    /// Parses a reference as it stands between the braces of a template.
    ///
    /// # Errors
    /// It is no name, or no path of names.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        parse::reference(text, 0)
    }

    /// The field or column that it names or goes through.
    #[must_use]
    pub fn column(&self) -> &str {
        &self.column
    }

    /// Whether it looks into the column's JSON.
    #[must_use]
    pub const fn has_path(&self) -> bool {
        !self.path.is_empty()
    }
}

/// A value that a template or a rule cannot take, and what names it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{{{reference}}} {fault}")]
pub struct RenderError {
    /// What was asked for, as written.
    pub reference: String,
    /// Why there is nothing to be had.
    pub fault: ValueFault,
}

/// Why a value cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ValueFault {
    /// It is NULL, was not sent, or is not in the JSON.
    #[error("is null or missing")]
    Missing,
    /// The column's text is not UTF-8.
    #[error("is not UTF-8")]
    NotUtf8,
    /// The column's value was too large to be kept.
    #[error("has {length} bytes; there is room for {limit} (delivery.max_event_bytes)")]
    TooLarge {
        /// Its length in bytes, as PostgreSQL sends it.
        length: u64,
        /// How long it might have been: the limit, or what the row's columns before it left of twice that.
        limit: u64,
    },
    /// The column has no JSON in which there could be a path.
    #[error("cannot be looked up: the column holds no JSON")]
    NotJson,
    /// It is an object or an array.
    #[error("is an object or an array, not a text, a number or a boolean")]
    Nested,
    /// It has an escape of JSON that stands for no character.
    #[error("has an escape that stands for no character")]
    BadEscape,
}

/// A value as it stands in the row: as it is, or as a string of JSON writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text<'a> {
    pub(super) raw: &'a str,
    pub(super) is_escaped: bool,
}

impl Text<'_> {
    /// Appends the characters that it stands for.
    pub(super) fn push_to(&self, out: &mut String) {
        match self.is_escaped {
            false => out.push_str(self.raw),
            true => out.extend(Unescaped(self.raw).flatten()),
        }
    }

    /// Whether it is this text.
    pub(super) fn is(&self, text: &str) -> bool {
        match self.is_escaped {
            false => self.raw == text,
            true => Unescaped(self.raw).flatten().eq(text.chars()),
        }
    }

    /// Whether it begins with this text.
    pub(super) fn begins_with(&self, text: &str) -> bool {
        match self.is_escaped {
            false => self.raw.starts_with(text),
            true => {
                let mut characters = Unescaped(self.raw).flatten();
                text.chars().all(|c| characters.next() == Some(c))
            }
        }
    }
}

/// A reference whose column has been found in one relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundReference {
    pub(super) column: usize,
    pub(super) path: Vec<Step>,
}

impl BoundReference {
    /// The value in a row; `None` where it is NULL or not there.
    pub(super) fn value<'a>(&self, row: &Tuple<'a>) -> Result<Option<Text<'a>>, ValueFault> {
        let bytes = match row.value(self.column) {
            Some(Value::Text(text) | Value::Binary(text)) => text,
            Some(Value::Oversized { length, limit }) => return Err(ValueFault::TooLarge { length, limit }),
            Some(Value::Null | Value::Unchanged) | None => return Ok(None),
        };
        let raw = std::str::from_utf8(bytes).map_err(|_| ValueFault::NotUtf8)?;
        if self.path.is_empty() {
            return Ok(Some(Text {
                raw,
                is_escaped: false,
            }));
        }
        match find(raw, &self.path).ok_or(ValueFault::NotJson)? {
            Found::Text(text) => Ok(Some(text)),
            Found::Missing => Ok(None),
            Found::Nested => Err(ValueFault::Nested),
            Found::BadEscape => Err(ValueFault::BadEscape),
        }
    }
}
