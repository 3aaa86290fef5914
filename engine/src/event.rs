//! From a row of the outbox table to an event: columns are found by name in each Relation message.

use crate::amqp::EncodeError;
use crate::pgoutput::{Relation, Tuple, Value};
use crate::route::{BoundTemplate, RenderError, Template};

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
mod tests {
    use super::*;
    use crate::pgoutput::sample::{Cell, Sample, SampleColumn};
    use crate::pgoutput::{Insert, Message};

    const UUID: u32 = 2950;
    const BIGINT: u32 = 20;
    const TIMESTAMPTZ: u32 = 1184;

    /// The columns of the issue's own table, each with a value that a relayed row may have.
    const OUTBOX: [(&str, u32, Option<&[u8]>); 6] = [
        ("id", UUID, Some(b"7d5f1c5e-0000-4000-8000-000000000000")),
        ("aggregate_type", type_oid::TEXT, Some(b"order")),
        ("aggregate_id", BIGINT, Some(b"42")),
        ("event_type", type_oid::TEXT, Some(b"created")),
        ("payload", type_oid::JSONB, Some(b"{}")),
        ("sent_at", TIMESTAMPTZ, None),
    ];

    /// A table and one row of it.
    #[derive(Clone)]
    struct Table(Vec<(&'static str, u32, Cell)>);

    impl Table {
        fn outbox() -> Self {
            let columns = OUTBOX.iter().map(|(name, type_oid, value)| {
                let cell = value.map_or(Cell::Null, |value| Cell::Text(value.to_vec()));
                (*name, *type_oid, cell)
            });
            Self(columns.collect())
        }

        fn set(mut self, column: &str, cell: Cell) -> Self {
            let found = self.0.iter_mut().find(|(name, ..)| *name == column);
            found.unwrap().2 = cell;
            self
        }

        fn payload(mut self, type_oid: u32, value: &[u8]) -> Self {
            let found = self.0.iter_mut().find(|(name, ..)| *name == "payload");
            let (_, oid, cell) = found.unwrap();
            *oid = type_oid;
            *cell = text(value);
            self
        }

        fn without(mut self, column: &str) -> Self {
            self.0.retain(|(name, ..)| *name != column);
            self
        }

        fn bind(&self) -> Result<Mapping, MappingError> {
            self.bind_to(&route("{aggregate_type}.{event_type}"))
        }

        fn bind_to(&self, route: &Route) -> Result<Mapping, MappingError> {
            let columns = self.0.iter().map(|(name, type_oid, _)| SampleColumn {
                flags: 0,
                name: (*name).to_owned(),
                type_oid: *type_oid,
                type_modifier: -1,
            });
            let frame = Sample::Relation {
                oid: 1,
                namespace: "shop".to_owned(),
                name: "outbox_events".to_owned(),
                replica_identity: b'd',
                columns: columns.collect(),
            }
            .encode();
            let Ok(Message::Relation(relation)) = Message::decode(&frame) else {
                panic!("not a relation")
            };
            Mapping::bind(&relation, route)
        }

        /// Binds the table and hands its row to `check`.
        fn with_row<T>(&self, check: impl FnOnce(&Mapping, &Tuple<'_>) -> T) -> T {
            let mapping = self.bind().unwrap();
            let new = self.0.iter().map(|(_, _, cell)| cell.clone()).collect();
            let frame = Sample::Insert { oid: 1, new }.encode();
            let Ok(Message::Insert(Insert { new, .. })) = Message::decode(&frame) else {
                panic!("not an insert")
            };
            check(&mapping, &new)
        }

        fn invalid(&self) -> InvalidRow {
            self.with_row(|mapping, row| mapping.read(row).unwrap_err())
        }

        /// The body, and the content type.
        fn body(&self) -> (Result<Vec<u8>, InvalidRow>, &'static str) {
            self.with_row(|mapping, row| {
                let payload = mapping.read(row).unwrap().payload;
                let mut body = Vec::new();
                let result = payload.append_to(&mut body);
                (result.map(|()| body), payload.payload_type.content_type())
            })
        }
    }

    fn route(routing_key: &str) -> Route {
        Route {
            exchange: Template::parse("outbox").unwrap(),
            routing_key: Template::parse(routing_key).unwrap(),
        }
    }

    fn text(value: &[u8]) -> Cell {
        Cell::Text(value.to_vec())
    }

    #[test]
    fn columns_are_found_by_name_in_any_order_and_among_others() {
        let mut table = Table::outbox();
        table.0.reverse();
        table
            .0
            .insert(0, ("created_at", TIMESTAMPTZ, text(b"2026-01-01")));
        table.0.insert(3, ("headers", type_oid::JSONB, Cell::Null));
        table.with_row(|mapping, row| {
            let event = mapping.read(row).unwrap();
            assert_eq!(
                (
                    event.id,
                    event.aggregate_type,
                    event.aggregate_id,
                    event.event_type
                ),
                ("7d5f1c5e-0000-4000-8000-000000000000", "order", "42", "created")
            );
            assert_eq!(mapping.id(row), Some(event.id));
            let (mut exchange, mut routing_key) = ("old".to_owned(), "old".to_owned());
            mapping.render_exchange(row, &mut exchange).unwrap();
            mapping.render_routing_key(row, &mut routing_key).unwrap();
            assert_eq!(
                (exchange.as_str(), routing_key.as_str()),
                ("outbox", "order.created")
            );
        });
    }

    #[test]
    fn a_missing_column_is_named_the_first_one_first() {
        for column in REQUIRED_COLUMNS {
            let error = Table::outbox().without(column).bind().unwrap_err();
            let table = "shop.outbox_events".to_owned();
            assert_eq!(error, MappingError::ColumnMissing { table, column });
        }
        let error = Table::outbox().without("payload").without("id").bind();
        assert_eq!(
            error.unwrap_err().to_string(),
            "table shop.outbox_events has no column \"id\""
        );
    }

    #[test]
    fn a_template_with_an_unknown_column_names_it_and_its_setting() {
        let outbox = Table::outbox();
        let mut route = route("{colour}");
        let error = outbox.bind_to(&route).unwrap_err();
        assert_eq!(
            error.to_string(),
            "table shop.outbox_events has no column \"colour\", which the template of rabbitmq.routing_key names"
        );
        route.exchange = Template::parse("{shade}").unwrap();
        let error = outbox.bind_to(&route).unwrap_err();
        assert!(error.to_string().ends_with("rabbitmq.exchange names"), "{error}");
    }

    /// I4.
    #[test]
    fn the_payload_is_carried_byte_for_byte() {
        let document = "{\"n\": 0.10000000000000000001,  \"ü\": [\"\\u00e4\", \"😀\", {\"e\u{301}\": null}], \"n\": 1E400}";
        for (type_oid, content_type) in [
            (type_oid::JSON, "application/json"),
            (type_oid::JSONB, "application/json"),
            (type_oid::TEXT, "text/plain"),
            (type_oid::VARCHAR, "text/plain"),
            (type_oid::BPCHAR, "text/plain"),
        ] {
            let (body, found) = Table::outbox().payload(type_oid, document.as_bytes()).body();
            assert_eq!((body.as_deref(), found), (Ok(document.as_bytes()), content_type));
        }
        let not_utf8 = Table::outbox().payload(type_oid::TEXT, b"\xFF\x00").body().0;
        assert_eq!(not_utf8, Ok(b"\xFF\x00".to_vec()), "never looked into");
    }

    #[test]
    fn a_bytea_is_carried_as_its_bytes() {
        let (body, content_type) = Table::outbox().payload(type_oid::BYTEA, b"\\x00fF7a").body();
        assert_eq!(
            (body, content_type),
            (Ok(vec![0, 0xFF, 0x7A]), "application/octet-stream")
        );
        Table::outbox()
            .payload(type_oid::BYTEA, b"\\x00ff7a")
            .with_row(|mapping, row| assert_eq!(mapping.read(row).unwrap().payload.len(), 3));
        for not_hex in ["\\x00f", "\\x0g00", "\\\\001abc", "x00ff", "\\x+1+1"] {
            let (body, _) = Table::outbox()
                .payload(type_oid::BYTEA, not_hex.as_bytes())
                .body();
            assert_eq!(body, Err(InvalidRow::NotHex("payload")), "{not_hex}");
        }
    }

    #[test]
    fn a_payload_of_another_type_is_an_error_that_names_it() {
        let error = Table::outbox().payload(BIGINT, b"7").bind().unwrap_err();
        assert!(
            matches!(error, MappingError::PayloadType { type_oid: BIGINT, .. }),
            "{error}"
        );
    }

    #[test]
    fn a_row_is_sent_if_sent_at_is_set_and_there_is_such_a_column() {
        let is_sent = |table: &Table| table.with_row(Mapping::is_sent);
        let outbox = Table::outbox();
        assert!(!is_sent(&outbox));
        assert!(is_sent(
            &outbox.clone().set("sent_at", text(b"2026-01-01 00:00:00+00"))
        ));
        assert!(!is_sent(&outbox.without("sent_at")));
    }

    #[test]
    fn a_null_column_makes_the_row_invalid() {
        for column in REQUIRED_COLUMNS {
            let table = Table::outbox().set(column, Cell::Null);
            assert_eq!(table.invalid(), InvalidRow::Null(column));
        }
        let table = Table::outbox().set("id", Cell::Null);
        assert!(table.with_row(|mapping, row| mapping.id(row).is_none()));
    }

    #[test]
    fn an_empty_id_event_type_or_payload_makes_the_row_invalid_and_no_other_column() {
        for column in ["id", "event_type", "payload"] {
            let table = Table::outbox().set(column, text(b""));
            assert_eq!(table.invalid(), InvalidRow::Empty(column));
        }
        let table = Table::outbox().payload(type_oid::BYTEA, b"\\x");
        assert_eq!(table.invalid(), InvalidRow::Empty("payload"));
        let table = Table::outbox()
            .set("aggregate_type", text(b""))
            .set("aggregate_id", text(b""));
        table.with_row(|mapping, row| assert_eq!(mapping.read(row).unwrap().aggregate_id, ""));
    }

    #[test]
    fn a_column_that_is_not_utf8_makes_the_row_invalid() {
        for column in ["id", "aggregate_type", "aggregate_id", "event_type"] {
            let table = Table::outbox().set(column, text(b"\xC3"));
            assert_eq!(table.invalid(), InvalidRow::NotUtf8(column));
        }
    }

    #[test]
    fn a_template_over_a_null_names_the_columns_place_and_the_setting() {
        let table = Table::outbox().set("event_type", Cell::Null);
        let error =
            table.with_row(|mapping, row| mapping.render_routing_key(row, &mut String::new()).unwrap_err());
        assert_eq!(
            error.to_string(),
            "column 4 of the row is null, which the template of rabbitmq.routing_key names"
        );
    }

    /// Payloads are never logged.
    #[test]
    fn debug_shows_the_size_of_the_payload_not_the_payload() {
        let table = Table::outbox().payload(type_oid::JSONB, b"{\"secret\": 1}");
        let debug = table.with_row(|mapping, row| format!("{:?}", mapping.read(row).unwrap()));
        assert!(
            debug.contains("Json of 13 bytes") && !debug.contains("secret"),
            "{debug}"
        );
    }
}
