//! From a row of the outbox table to an event: columns are found by name in each Relation message.

use super::OutboxTable;
use super::binder::{Binder, BoundColumn, BoundSource};
use super::content::{BoundContent, ContentScratch, MessageContent};
use super::invalid::InvalidRow;
use super::payload::{Payload, PayloadType};
use crate::pgoutput::{Relation, Tuple, Value};
use crate::route::{BoundTemplate, Destination, Router, Setting, TemplateError};
use crate::timestamp::PgTimestamp;
use crate::trace::{TraceColumns, TraceContext};

/// Why a table's rows cannot become events at all: needs a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// A column that every event needs, or that the configuration names, is not there.
    #[error("table {table} has no column \"{column}\"{}", named_for(column, field))]
    ColumnMissing {
        /// The table, as `schema.name`.
        table: String,
        /// The column.
        column: String,
        /// The field of the event that it was to be.
        field: &'static str,
    },
    /// A template or a rule names a column that is not there.
    #[error("table {table} has no column \"{column}\", which {setting} names")]
    TemplateColumnMissing {
        /// The table, as `schema.name`.
        table: String,
        /// The column.
        column: String,
        /// The setting at fault.
        setting: Setting,
    },
    /// What a setting gives for every event is no template.
    #[error("the value of {setting}: {error}")]
    Template {
        /// The setting at fault.
        setting: Setting,
        /// What is wrong with it.
        error: TemplateError,
    },
    /// The payload's type has no text that could be a message's body.
    #[error(
        "column \"{column}\" of table {table} is of the type with oid {type_oid}, not json, jsonb, text or bytea"
    )]
    PayloadType {
        /// The table, as `schema.name`.
        table: String,
        /// The column.
        column: String,
        /// The type's oid.
        type_oid: u32,
    },
}

/// How the columns of one Relation become an event; made anew for every Relation message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    id: BoundColumn,
    aggregate_type: BoundSource,
    aggregate_id: BoundSource,
    event_type: BoundSource,
    payload: BoundColumn,
    payload_type: PayloadType,
    sent_at: Option<BoundColumn>,
    trace: TraceColumns,
    router: Router,
    content: BoundContent,
}

/// A row as an event, borrowing from the frame that brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The event's id: the message id.
    pub id: &'a str,
    /// The kind of thing it happened to.
    pub aggregate_type: &'a str,
    /// Which one, as text.
    pub aggregate_id: &'a str,
    /// What happened.
    pub event_type: &'a str,
    /// The message's body.
    pub payload: Payload<'a>,
}

impl Mapping {
    /// Finds the columns of `relation` by name.
    ///
    /// # Errors
    /// A column that is required, or that the configuration names, is missing, or the payload's type cannot be carried.
    pub fn bind(relation: &Relation<'_>, outbox: &OutboxTable) -> Result<Self, MappingError> {
        let columns = &outbox.columns;
        let binder = Binder { relation, columns };
        let id = binder.column("id", &columns.id)?;
        let aggregate_type = binder.source("aggregate_type", &columns.aggregate_type)?;
        let aggregate_id = binder.source("aggregate_id", &columns.aggregate_id)?;
        let event_type = binder.source("event_type", &columns.event_type)?;
        let payload = binder.column("payload", &columns.payload)?;
        let type_oid = relation
            .columns()
            .nth(payload.at)
            .map_or(0, |column| column.type_oid);
        Ok(Self {
            payload_type: PayloadType::of(type_oid).ok_or_else(|| MappingError::PayloadType {
                table: binder.table(),
                column: payload.name.clone(),
                type_oid,
            })?,
            id,
            aggregate_type,
            aggregate_id,
            event_type,
            payload,
            sent_at: binder.optional_column("sent_at", &columns.sent_at)?,
            trace: TraceColumns::bind(|name| match name {
                "headers" => columns.headers.column().and_then(|name| binder.index_of(name)),
                name => binder.index_of(name),
            }),
            router: Router::bind(relation, outbox)?,
            content: BoundContent::bind(&binder, &outbox.content)?,
        })
    }

    /// Whether the table has a column `sent_at`.
    #[must_use]
    pub const fn has_sent_at(&self) -> bool {
        self.sent_at.is_some()
    }

    /// Whether the row was inserted with `sent_at` already set: somebody else has sent it.
    #[must_use]
    pub fn is_sent(&self, row: &Tuple<'_>) -> bool {
        let sent_at = self.sent_at.as_ref().and_then(|column| row.value(column.at));
        matches!(
            sent_at,
            Some(Value::Text(_) | Value::Binary(_) | Value::Oversized { .. })
        )
    }

    /// The row's id as text, where it has a usable one; for naming an invalid row.
    #[must_use]
    pub fn id<'a>(&self, row: &Tuple<'a>) -> Option<&'a str> {
        filled(self.id.text(row), &self.id.name).ok()
    }

    /// The aggregate's type and id as the stream has them, empty for NULL: also where the row cannot become a message.
    #[must_use]
    pub fn aggregate<'a>(&'a self, row: &Tuple<'a>) -> [&'a [u8]; 2] {
        [&self.aggregate_type, &self.aggregate_id].map(|source| source.bytes(row).unwrap_or_default())
    }

    /// Reads a row.
    ///
    /// # Errors
    /// Why the row cannot become a message.
    pub fn read<'a>(&'a self, row: &Tuple<'a>) -> Result<Event<'a>, InvalidRow> {
        let payload = Payload {
            payload_type: self.payload_type,
            text: self.payload.bytes(row)?,
            column: &self.payload.name,
        };
        if payload.is_empty() {
            return Err(InvalidRow::Empty(self.payload.name.clone()));
        }
        Ok(Event {
            id: filled(self.id.text(row), &self.id.name)?,
            aggregate_type: self.aggregate_type.text(row)?,
            aggregate_id: self.aggregate_id.text(row)?,
            event_type: filled(self.event_type.text(row), self.event_type.name())?,
            payload,
        })
    }

    /// The trace that the row names.
    #[must_use]
    pub fn trace<'a>(&self, row: &Tuple<'a>) -> TraceContext<'a> {
        self.trace.of(row)
    }

    /// What the message of a row carries beside its destination and the headers of every message. `event` is the row's, as
    /// [`read`](Self::read) has it, `trace` as [`trace`](Self::trace) has it; `committed` is the event's time where the row
    /// does not tell one.
    ///
    /// # Errors
    /// Why the row cannot become a message.
    pub fn content<'a>(
        &self,
        row: &Tuple<'a>,
        event: &Event<'a>,
        trace: TraceContext<'a>,
        committed: PgTimestamp,
        scratch: &'a mut ContentScratch,
    ) -> Result<MessageContent<'a>, InvalidRow> {
        self.content.read(row, event, trace, committed, scratch)
    }

    /// Finds where a row goes.
    ///
    /// # Errors
    /// A template or a rule asks for a value that the row has not; `out` is then of no use.
    pub fn route(&self, row: &Tuple<'_>, out: &mut Destination) -> Result<(), InvalidRow> {
        self.router.route(row, out)
    }
}

/// Renders a template of `setting` for a row into `out`, which is cleared first.
pub(super) fn render(
    template: &BoundTemplate,
    row: &Tuple<'_>,
    setting: Setting,
    out: &mut String,
) -> Result<(), InvalidRow> {
    template
        .render(row, out)
        .map_err(|error| InvalidRow::Template { setting, error })
}

impl BoundColumn {
    /// The bytes of a column that must have a value.
    fn bytes<'a>(&self, row: &Tuple<'a>) -> Result<&'a [u8], InvalidRow> {
        match row.value(self.at) {
            Some(Value::Text(text) | Value::Binary(text)) => Ok(text),
            Some(Value::Oversized { length, limit }) => Err(InvalidRow::ColumnTooLarge {
                column: self.name.clone(),
                length,
                limit,
            }),
            Some(Value::Null | Value::Unchanged) | None => Err(InvalidRow::Null(self.name.clone())),
        }
    }

    /// A column as text.
    fn text<'a>(&self, row: &Tuple<'a>) -> Result<&'a str, InvalidRow> {
        std::str::from_utf8(self.bytes(row)?).map_err(|_| InvalidRow::NotUtf8(self.name.clone()))
    }

    /// A column as text; none where it is NULL.
    pub(crate) fn optional_text<'a>(&self, row: &Tuple<'a>) -> Result<Option<&'a str>, InvalidRow> {
        match row.value(self.at) {
            Some(Value::Null | Value::Unchanged) | None => Ok(None),
            Some(Value::Text(_) | Value::Binary(_) | Value::Oversized { .. }) => self.text(row).map(Some),
        }
    }
}

impl BoundSource {
    /// The column's name; empty for a constant.
    fn name(&self) -> &str {
        match self {
            Self::Column(column) => &column.name,
            Self::Constant(_) => "",
        }
    }

    fn bytes<'a>(&'a self, row: &Tuple<'a>) -> Result<&'a [u8], InvalidRow> {
        match self {
            Self::Column(column) => column.bytes(row),
            Self::Constant(text) => Ok(text.as_bytes()),
        }
    }

    fn text<'a>(&'a self, row: &Tuple<'a>) -> Result<&'a str, InvalidRow> {
        match self {
            Self::Column(column) => column.text(row),
            Self::Constant(text) => Ok(text),
        }
    }
}

/// A text that must not be empty.
fn filled<'a>(text: Result<&'a str, InvalidRow>, column: &str) -> Result<&'a str, InvalidRow> {
    match text? {
        "" => Err(InvalidRow::Empty(column.to_owned())),
        text => Ok(text),
    }
}

/// What a configured name of a column was to be, where that is not plain.
fn named_for(column: &str, field: &str) -> String {
    match column == field {
        true => String::new(),
        false => format!(", which is to be the event's {field}"),
    }
}
