//! From a row of the outbox table to an event: columns are found by name in each Relation message.

use crate::amqp::EncodeError;
use crate::pgoutput::{Relation, Tuple, Value};
use crate::route::{BoundTemplate, RenderError, Template};
use crate::trace::{TraceColumns, TraceContext};

/// Oids of the built-in types that a payload may have; fixed in PostgreSQL's `pg_type.dat`.
mod type_oid {
    pub(super) const BYTEA: u32 = 17;
    pub(super) const TEXT: u32 = 25;
    pub(super) const JSON: u32 = 114;
    pub(super) const BPCHAR: u32 = 1042;
    pub(super) const VARCHAR: u32 = 1043;
    pub(super) const JSONB: u32 = 3802;
}

/// The columns that an event needs, in the order in which faults are reported.
pub const REQUIRED_COLUMNS: [&str; 5] = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];

/// Where the messages of one table go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The exchange.
    pub exchange: Template,
    /// The routing key.
    pub routing_key: Template,
}

/// An outbox table and where its events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    /// The schema, as PostgreSQL stores it.
    pub schema: String,
    /// The name, as PostgreSQL stores it.
    pub name: String,
    /// Where its messages go.
    pub route: Route,
    /// What becomes of rows whose events are confirmed or discarded; none for [`AfterPublish::Mark`] where there is a
    /// `sent_at`, else [`AfterPublish::Keep`].
    pub after_publish: Option<AfterPublish>,
}

/// What becomes of a row whose event is confirmed or discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPublish {
    /// `sent_at` is set.
    Mark,
    /// It is deleted.
    Delete,
    /// Nothing.
    Keep,
}

impl AfterPublish {
    /// What holds for a table, by its setting and its columns.
    #[must_use]
    pub const fn of(setting: Option<Self>, has_sent_at: bool) -> Self {
        match setting {
            Some(setting) => setting,
            None if has_sent_at => Self::Mark,
            None => Self::Keep,
        }
    }
}

/// How a payload column is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadType {
    /// `json` or `jsonb`: the text as PostgreSQL sends it.
    Json,
    /// A character type: the text.
    Text,
    /// `bytea`: the bytes.
    Bytes,
}

impl PayloadType {
    /// The message's `content_type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Text => "text/plain",
            Self::Bytes => "application/octet-stream",
        }
    }

    /// The kind of a column of the type with this object id, where a body can be made of it.
    #[must_use]
    pub const fn of(type_oid: u32) -> Option<Self> {
        match type_oid {
            type_oid::JSON | type_oid::JSONB => Some(Self::Json),
            type_oid::TEXT | type_oid::VARCHAR | type_oid::BPCHAR => Some(Self::Text),
            type_oid::BYTEA => Some(Self::Bytes),
            _ => None,
        }
    }
}

/// Why a table's rows cannot become events at all: needs a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// A column that every event needs is not there.
    #[error("table {table} has no column \"{column}\"")]
    ColumnMissing {
        /// The table, as `schema.name`.
        table: String,
        /// The column.
        column: &'static str,
    },
    /// A template names a column that is not there.
    #[error("table {table} has no column \"{column}\", which the template of {setting} names")]
    TemplateColumnMissing {
        /// The table, as `schema.name`.
        table: String,
        /// The column.
        column: String,
        /// The setting at fault.
        setting: &'static str,
    },
    /// The payload's type has no text that could be a message's body.
    #[error(
        "column \"payload\" of table {table} is of the type with oid {type_oid}, not json, jsonb, text or bytea"
    )]
    PayloadType {
        /// The table, as `schema.name`.
        table: String,
        /// The type's oid.
        type_oid: u32,
    },
}

/// Why one row cannot become a message. Such a row is *invalid* and held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRow {
    /// A column is NULL that must not be.
    #[error("column \"{0}\" is null")]
    Null(&'static str),
    /// A column is empty that must not be.
    #[error("column \"{0}\" is empty")]
    Empty(&'static str),
    /// A column's text is not UTF-8.
    #[error("column \"{0}\" is not UTF-8")]
    NotUtf8(&'static str),
    /// A bytea column did not come in the `hex` format that the session asks for.
    #[error("column \"{0}\" is not in PostgreSQL's hex format of bytea")]
    NotHex(&'static str),
    /// A column of a template is NULL.
    #[error("column {column} of the row is null, which the template of {setting} names")]
    NullInTemplate {
        /// The column's place in the row, from 1.
        column: usize,
        /// The setting whose template it is.
        setting: &'static str,
    },
    /// A column of a template is not UTF-8.
    #[error("column {column} of the row is not UTF-8, which the template of {setting} names")]
    NotUtf8InTemplate {
        /// The column's place in the row, from 1.
        column: usize,
        /// The setting whose template it is.
        setting: &'static str,
    },
    /// A column's value was too large to be kept while the row was read.
    #[error("column \"{column}\" has {length} bytes; there is room for {limit} (delivery.max_event_bytes)")]
    ColumnTooLarge {
        /// The column.
        column: &'static str,
        /// Its length in bytes, as PostgreSQL sends it.
        length: u64,
        /// How long it might have been: the limit, or what the row's columns before it left of twice that.
        limit: u64,
    },
    /// A column of a template was too large to be kept while the row was read.
    #[error(
        "column {column} of the row, which the template of {setting} names, has {length} bytes; there is room for \
         {limit} (delivery.max_event_bytes)"
    )]
    TooLargeInTemplate {
        /// The column's place in the row, from 1.
        column: usize,
        /// The setting whose template it is.
        setting: &'static str,
        /// Its length in bytes, as PostgreSQL sends it.
        length: u64,
        /// How long it might have been, as for [`ColumnTooLarge`](Self::ColumnTooLarge).
        limit: u64,
    },
    /// What AMQP cannot carry, such as a routing key over 255 bytes.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The headers do not fit into one frame.
    #[error("the message's properties and headers do not fit into a frame of {frame_max} bytes")]
    HeadersTooLarge {
        /// The negotiated maximum in bytes.
        frame_max: u32,
    },
    /// The body is larger than the broker takes.
    #[error("the body has {length} bytes; the limit is {limit} (delivery.max_message_bytes)")]
    BodyTooLarge {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// How the columns of one Relation become an event; made anew for every Relation message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    id: usize,
    aggregate_type: usize,
    aggregate_id: usize,
    event_type: usize,
    payload: usize,
    payload_type: PayloadType,
    sent_at: Option<usize>,
    trace: TraceColumns,
    exchange: BoundTemplate,
    routing_key: BoundTemplate,
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

/// A payload as the stream carries it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    /// How to understand it.
    pub payload_type: PayloadType,
    text: &'a [u8],
}

/// The size only: payloads are never logged.
impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {} bytes", self.payload_type, self.text.len())
    }
}

impl Payload<'_> {
    /// The body's length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.payload_type {
            PayloadType::Json | PayloadType::Text => self.text.len(),
            // Two digits a byte, after `\x`.
            PayloadType::Bytes => (self.text.len() / 2).saturating_sub(1),
        }
    }

    /// Whether there is no body.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the body: the column's text byte for byte, or the bytes of a bytea.
    ///
    /// # Errors
    /// A bytea that is not in hex format; `out` may then hold a part of it.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), InvalidRow> {
        match self.payload_type {
            PayloadType::Json | PayloadType::Text => {
                out.extend_from_slice(self.text);
                Ok(())
            }
            PayloadType::Bytes => append_hex(self.text, out).ok_or(InvalidRow::NotHex("payload")),
        }
    }
}

impl Mapping {
    /// Finds the columns of `relation` by name.
    ///
    /// # Errors
    /// A required column is missing, or the payload's type cannot be carried.
    pub fn bind(relation: &Relation<'_>, route: &Route) -> Result<Self, MappingError> {
        let table = || format!("{}.{}", relation.namespace, relation.name);
        let index_of = |name: &str| relation.columns().position(|column| column.name == name);
        let [id, aggregate_type, aggregate_id, event_type, payload] = REQUIRED_COLUMNS.map(|column| {
            index_of(column).ok_or_else(|| MappingError::ColumnMissing {
                table: table(),
                column,
            })
        });
        let (id, aggregate_type, aggregate_id) = (id?, aggregate_type?, aggregate_id?);
        let (event_type, payload) = (event_type?, payload?);
        let type_oid = relation
            .columns()
            .nth(payload)
            .map_or(0, |column| column.type_oid);
        let bind = |template: &Template, setting| {
            template
                .bind(index_of)
                .map_err(|column| MappingError::TemplateColumnMissing {
                    table: table(),
                    column,
                    setting,
                })
        };
        Ok(Self {
            id,
            aggregate_type,
            aggregate_id,
            event_type,
            payload,
            payload_type: PayloadType::of(type_oid).ok_or_else(|| MappingError::PayloadType {
                table: table(),
                type_oid,
            })?,
            sent_at: index_of("sent_at"),
            trace: TraceColumns::bind(index_of),
            exchange: bind(&route.exchange, "rabbitmq.exchange")?,
            routing_key: bind(&route.routing_key, "rabbitmq.routing_key")?,
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
        let sent_at = self.sent_at.and_then(|column| row.value(column));
        matches!(
            sent_at,
            Some(Value::Text(_) | Value::Binary(_) | Value::Oversized { .. })
        )
    }

    /// The row's id as text, where it has a usable one; for naming an invalid row.
    #[must_use]
    pub fn id<'a>(&self, row: &Tuple<'a>) -> Option<&'a str> {
        filled_text(row, self.id, "id").ok()
    }

    /// The aggregate's type and id as the stream has them, empty for NULL: also where the row cannot become a message.
    #[must_use]
    pub fn aggregate<'a>(&self, row: &Tuple<'a>) -> [&'a [u8]; 2] {
        [self.aggregate_type, self.aggregate_id].map(|column| match row.value(column) {
            Some(Value::Text(text) | Value::Binary(text)) => text,
            Some(Value::Null | Value::Unchanged | Value::Oversized { .. }) | None => &[],
        })
    }

    /// Reads a row.
    ///
    /// # Errors
    /// Why the row cannot become a message.
    pub fn read<'a>(&self, row: &Tuple<'a>) -> Result<Event<'a>, InvalidRow> {
        let payload = Payload {
            payload_type: self.payload_type,
            text: value(row, self.payload, "payload")?,
        };
        if payload.is_empty() {
            return Err(InvalidRow::Empty("payload"));
        }
        Ok(Event {
            id: filled_text(row, self.id, "id")?,
            aggregate_type: text(row, self.aggregate_type, "aggregate_type")?,
            aggregate_id: text(row, self.aggregate_id, "aggregate_id")?,
            event_type: filled_text(row, self.event_type, "event_type")?,
            payload,
        })
    }

    /// The trace that the row names.
    #[must_use]
    pub fn trace<'a>(&self, row: &Tuple<'a>) -> TraceContext<'a> {
        self.trace.of(row)
    }

    /// Renders the exchange for a row into `out`, which is cleared first.
    ///
    /// # Errors
    /// A column of the template is NULL or not UTF-8.
    pub fn render_exchange(&self, row: &Tuple<'_>, out: &mut String) -> Result<(), InvalidRow> {
        render(&self.exchange, row, "rabbitmq.exchange", out)
    }

    /// Renders the routing key for a row into `out`, which is cleared first.
    ///
    /// # Errors
    /// A column of the template is NULL or not UTF-8.
    pub fn render_routing_key(&self, row: &Tuple<'_>, out: &mut String) -> Result<(), InvalidRow> {
        render(&self.routing_key, row, "rabbitmq.routing_key", out)
    }
}

fn render(
    template: &BoundTemplate,
    row: &Tuple<'_>,
    setting: &'static str,
    out: &mut String,
) -> Result<(), InvalidRow> {
    template.render(row, out).map_err(|error| match error {
        RenderError::Null { column } => InvalidRow::NullInTemplate {
            column: column + 1,
            setting,
        },
        RenderError::NotUtf8 { column } => InvalidRow::NotUtf8InTemplate {
            column: column + 1,
            setting,
        },
        RenderError::TooLarge {
            column,
            length,
            limit,
        } => InvalidRow::TooLargeInTemplate {
            column: column + 1,
            setting,
            length,
            limit,
        },
    })
}

/// The bytes of a column that must have a value.
fn value<'a>(row: &Tuple<'a>, index: usize, column: &'static str) -> Result<&'a [u8], InvalidRow> {
    match row.value(index) {
        Some(Value::Text(text) | Value::Binary(text)) => Ok(text),
        Some(Value::Oversized { length, limit }) => Err(InvalidRow::ColumnTooLarge {
            column,
            length,
            limit,
        }),
        Some(Value::Null | Value::Unchanged) | None => Err(InvalidRow::Null(column)),
    }
}

/// A column as text.
fn text<'a>(row: &Tuple<'a>, index: usize, column: &'static str) -> Result<&'a str, InvalidRow> {
    std::str::from_utf8(value(row, index, column)?).map_err(|_| InvalidRow::NotUtf8(column))
}

/// A column as text that is not empty.
fn filled_text<'a>(row: &Tuple<'a>, index: usize, column: &'static str) -> Result<&'a str, InvalidRow> {
    let text = text(row, index, column)?;
    if text.is_empty() {
        Err(InvalidRow::Empty(column))
    } else {
        Ok(text)
    }
}

/// Decodes bytea's hex format: `\x` and two digits a byte.
/// <https://www.postgresql.org/docs/current/datatype-binary.html>
fn append_hex(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (pairs, rest) = text.strip_prefix(b"\\x")?.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    out.reserve(pairs.len());
    for [high, low] in pairs {
        out.push(hex_digit(*high)? << 4 | hex_digit(*low)?);
    }
    Some(())
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
