//! Properties of a message that a column or a template gives.

use super::columns::{Columns, Source};
use super::invalid::InvalidRow;
use super::mapping::{Binder, BoundColumn, MappingError, render};
use crate::pgoutput::Tuple;
use crate::route::{BoundTemplate, Setting, Template};

/// Ten years in milliseconds. RabbitMQ closes the channel at what is no whole number or negative (406), and how far its
/// timers go is not documented (<https://www.rabbitmq.com/docs/ttl>).
const LONGEST_EXPIRATION: u64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// What an expiration has to be.
pub const EXPIRATION_RULE: &str = "a whole number of milliseconds from 0 to 315360000000, in digits";

/// What a priority has to be.
pub const PRIORITY_RULE: &str = "a whole number from 0 to 255, in digits";

/// Whether this text can be the property `expiration`.
#[must_use]
pub fn is_expiration(text: &str) -> bool {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    is_plain && text.parse::<u64>().is_ok_and(|wait| wait <= LONGEST_EXPIRATION)
}

/// The property `priority` of this text; `None`: it cannot be one.
#[must_use]
pub fn priority_of(text: &str) -> Option<u8> {
    let is_plain = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

/// The properties that one relation's rows give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundProperties {
    content_type: Property,
    correlation_id: Property,
    expiration: Property,
    priority: Property,
}

/// What they are in one row; empty or none where a row has no such.
#[derive(Debug, Clone, Copy)]
pub(super) struct Properties<'a> {
    pub(super) content_type: &'a str,
    pub(super) correlation_id: &'a str,
    pub(super) expiration: &'a str,
    pub(super) priority: Option<u8>,
}

/// Texts rendered for one row, reused for the next.
#[derive(Debug, Default)]
pub(super) struct PropertyTexts {
    content_type: String,
    correlation_id: String,
    expiration: String,
    priority: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Property {
    name: &'static str,
    setting: Setting,
    from: PropertySource,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PropertySource {
    Absent,
    Column(BoundColumn),
    Template(BoundTemplate),
}

impl BoundProperties {
    pub(super) fn bind(binder: &Binder<'_>, columns: &Columns) -> Result<Self, MappingError> {
        let bind = |name, setting: &'static str, source| Property::bind(binder, name, setting.into(), source);
        Ok(Self {
            content_type: bind(
                "content_type",
                "outbox.columns.content_type",
                &columns.content_type,
            )?,
            correlation_id: bind(
                "correlation_id",
                "outbox.columns.correlation_id",
                &columns.correlation_id,
            )?,
            expiration: bind("expiration", "outbox.columns.expiration", &columns.expiration)?,
            priority: bind("priority", "outbox.columns.priority", &columns.priority)?,
        })
    }

    pub(super) fn read<'a>(
        &self,
        row: &Tuple<'a>,
        texts: &'a mut PropertyTexts,
    ) -> Result<Properties<'a>, InvalidRow> {
        let expiration = self.expiration.text(row, &mut texts.expiration)?;
        if !expiration.is_empty() && !is_expiration(expiration) {
            return Err(self.expiration.is_not(EXPIRATION_RULE));
        }
        let priority = match self.priority.text(row, &mut texts.priority)? {
            "" => None,
            digits => Some(priority_of(digits).ok_or_else(|| self.priority.is_not(PRIORITY_RULE))?),
        };
        Ok(Properties {
            content_type: self.content_type.text(row, &mut texts.content_type)?,
            correlation_id: self.correlation_id.text(row, &mut texts.correlation_id)?,
            expiration,
            priority,
        })
    }
}

impl Property {
    fn bind(
        binder: &Binder<'_>,
        name: &'static str,
        setting: Setting,
        source: &Source,
    ) -> Result<Self, MappingError> {
        let from = match source {
            Source::Constant(text) => {
                let template =
                    Template::parse(text).map_err(|error| MappingError::Template { setting, error })?;
                PropertySource::Template(binder.template(&template, setting)?)
            }
            Source::Column(_) | Source::ColumnIfThere(_) | Source::Absent => binder
                .optional_column(name, source)?
                .map_or(PropertySource::Absent, PropertySource::Column),
        };
        Ok(Self { name, setting, from })
    }

    /// The property in this row; empty where it has none.
    fn text<'a>(&self, row: &Tuple<'a>, text: &'a mut String) -> Result<&'a str, InvalidRow> {
        match &self.from {
            PropertySource::Absent => Ok(""),
            PropertySource::Column(column) => Ok(column.optional_text(row)?.unwrap_or_default()),
            PropertySource::Template(template) => {
                render(template, row, self.setting, text)?;
                Ok(text)
            }
        }
    }

    fn is_not(&self, rule: &'static str) -> InvalidRow {
        let from = match &self.from {
            PropertySource::Column(column) => format!("column \"{}\"", column.name),
            PropertySource::Template(_) | PropertySource::Absent => format!("the value of {}", self.setting),
        };
        InvalidRow::Property {
            from,
            property: self.name,
            rule,
        }
    }
}
