//! Rows as events.

use super::payload::type_oid;
use super::*;
use crate::pgoutput::sample::{Cell, Sample, SampleColumn};
use crate::pgoutput::{Insert, Message, Tuple};
use crate::route::{Destination, Template};

const UUID: u32 = 2950;
const BIGINT: u32 = 20;
const TIMESTAMPTZ: u32 = 1184;

/// The columns that an event needs, in the order in which faults are reported.
const REQUIRED_COLUMNS: [&str; 5] = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];

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
pub(super) struct Table(pub(super) Vec<(&'static str, u32, Cell)>);

impl Table {
    pub(super) fn outbox() -> Self {
        let columns = OUTBOX.iter().map(|(name, type_oid, value)| {
            let cell = value.map_or(Cell::Null, |value| Cell::Text(value.to_vec()));
            (*name, *type_oid, cell)
        });
        Self(columns.collect())
    }

    pub(super) fn set(mut self, column: &str, cell: Cell) -> Self {
        let found = self.0.iter_mut().find(|(name, ..)| *name == column);
        found.unwrap().2 = cell;
        self
    }

    pub(super) fn payload(mut self, type_oid: u32, value: &[u8]) -> Self {
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
        self.bind_as(&outbox_table(route))
    }

    fn bind_as(&self, table: &OutboxTable) -> Result<Mapping, MappingError> {
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
        Mapping::bind(&relation, table)
    }

    /// Binds the table and hands its row to `check`.
    fn with_row<T>(&self, check: impl FnOnce(&Mapping, &Tuple<'_>) -> T) -> T {
        self.with_columns(Columns::default(), check)
    }

    fn with_columns<T>(&self, columns: Columns, check: impl FnOnce(&Mapping, &Tuple<'_>) -> T) -> T {
        self.with_settings(columns, Content::default(), check)
    }

    pub(super) fn with_settings<T>(
        &self,
        columns: Columns,
        content: Content,
        check: impl FnOnce(&Mapping, &Tuple<'_>) -> T,
    ) -> T {
        let table = OutboxTable {
            columns,
            content,
            ..outbox_table(&route("{aggregate_type}.{event_type}"))
        };
        let mapping = self.bind_as(&table).unwrap();
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

fn outbox_table(route: &Route) -> OutboxTable {
    OutboxTable {
        schema: "shop".to_owned(),
        name: "outbox_events".to_owned(),
        columns: Columns::default(),
        route: route.clone(),
        content: Content::default(),
        after_publish: None,
    }
}

fn route(routing_key: &str) -> Route {
    Route {
        exchange: Template::parse("outbox").unwrap(),
        routing_key: Template::parse(routing_key).unwrap(),
        rules: Vec::new(),
    }
}

pub(super) fn text(value: &[u8]) -> Cell {
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
        let mut destination = Destination {
            routing_key: "old".to_owned(),
            ..Destination::default()
        };
        mapping.route(row, &mut destination).unwrap();
        assert_eq!(
            (destination.exchange.as_str(), destination.routing_key.as_str()),
            ("outbox", "order.created")
        );
    });
}

#[test]
fn a_missing_column_is_named_the_first_one_first() {
    for column in REQUIRED_COLUMNS {
        let error = Table::outbox().without(column).bind().unwrap_err();
        let table = "shop.outbox_events".to_owned();
        let (field, column) = (column, column.to_owned());
        assert_eq!(error, MappingError::ColumnMissing { table, column, field });
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
        "table shop.outbox_events has no column \"colour\", which rabbitmq.routing_key names"
    );
    route.exchange = Template::parse("{shade}").unwrap();
    let error = outbox.bind_to(&route).unwrap_err();
    assert!(error.to_string().ends_with("rabbitmq.exchange names"), "{error}");
}

/// I4.
#[test]
fn the_payload_is_carried_byte_for_byte() {
    let document =
        "{\"n\": 0.10000000000000000001,  \"ü\": [\"\\u00e4\", \"😀\", {\"e\u{301}\": null}], \"n\": 1E400}";
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
        assert_eq!(body, Err(InvalidRow::NotHex("payload".to_owned())), "{not_hex}");
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
        assert_eq!(table.invalid(), InvalidRow::Null(column.to_owned()));
    }
    let table = Table::outbox().set("id", Cell::Null);
    assert!(table.with_row(|mapping, row| mapping.id(row).is_none()));
}

#[test]
fn an_empty_id_event_type_or_payload_makes_the_row_invalid_and_no_other_column() {
    for column in ["id", "event_type", "payload"] {
        let table = Table::outbox().set(column, text(b""));
        assert_eq!(table.invalid(), InvalidRow::Empty(column.to_owned()));
    }
    let table = Table::outbox().payload(type_oid::BYTEA, b"\\x");
    assert_eq!(table.invalid(), InvalidRow::Empty("payload".to_owned()));
    let table = Table::outbox()
        .set("aggregate_type", text(b""))
        .set("aggregate_id", text(b""));
    table.with_row(|mapping, row| assert_eq!(mapping.read(row).unwrap().aggregate_id, ""));
}

#[test]
fn a_column_that_is_not_utf8_makes_the_row_invalid() {
    for column in ["id", "aggregate_type", "aggregate_id", "event_type"] {
        let table = Table::outbox().set(column, text(b"\xC3"));
        assert_eq!(table.invalid(), InvalidRow::NotUtf8(column.to_owned()));
    }
}

#[test]
fn a_template_over_a_null_names_the_field_and_the_setting() {
    let table = Table::outbox().set("event_type", Cell::Null);
    let error = table.with_row(|mapping, row| mapping.route(row, &mut Destination::default()).unwrap_err());
    assert_eq!(
        error.to_string(),
        "{event_type} is null or missing, which rabbitmq.routing_key asks for"
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

#[test]
fn a_trace_is_taken_from_columns_of_its_own_and_else_from_headers() {
    let headers = text(br#"{"traceparent": "by key", "tracestate": "by key", "other": 1}"#);
    let mut table = Table::outbox();
    table.0.push(("headers", type_oid::JSONB, headers));
    let traced = |table: &Table| {
        table.with_row(|mapping, row| {
            let trace = mapping.trace(row);
            [trace.traceparent, trace.tracestate].map(|value| value.map(|value| value.to_string()))
        })
    };
    assert_eq!(
        traced(&table),
        [Some("by key".to_owned()), Some("by key".to_owned())]
    );
    table.0.push(("traceparent", type_oid::TEXT, text(b"by column")));
    table.0.push(("tracestate", type_oid::TEXT, Cell::Null));
    assert_eq!(
        traced(&table),
        [Some("by column".to_owned()), Some("by key".to_owned())]
    );
    let table = table.set("headers", Cell::Text(b"\xff".to_vec()));
    assert_eq!(traced(&table), [Some("by column".to_owned()), None]);
    assert_eq!(traced(&Table::outbox()), [None, None]);
}

/// A row of the table that Debezium's outbox event router reads.
fn debezium() -> Table {
    Table(vec![
        ("id", BIGINT, text(b"7")),
        ("aggregatetype", type_oid::VARCHAR, text(b"order")),
        ("aggregateid", type_oid::VARCHAR, text(b"42")),
        ("type", type_oid::VARCHAR, text(b"created")),
        ("payload", type_oid::VARCHAR, text(b"{}")),
    ])
}

#[test]
fn columns_of_other_names_are_the_fields_that_the_configuration_says_in_templates_too() {
    let columns = Columns {
        aggregate_id: Source::Constant("all".to_owned()),
        ..Columns::debezium()
    };
    debezium().with_columns(columns, |mapping, row| {
        let event = mapping.read(row).unwrap();
        assert_eq!(
            (
                event.id,
                event.aggregate_type,
                event.aggregate_id,
                event.event_type
            ),
            ("7", "order", "all", "created")
        );
        let mut destination = Destination::default();
        mapping.route(row, &mut destination).unwrap();
        assert_eq!(destination.routing_key, "order.created");
        assert_eq!(mapping.aggregate(row), [&b"order"[..], b"all"]);
    });
}

#[test]
fn a_constant_is_rendered_in_a_template() {
    let columns = Columns {
        event_type: Source::Constant("happened".to_owned()),
        ..Columns::default()
    };
    Table::outbox().with_columns(columns, |mapping, row| {
        let mut destination = Destination::default();
        mapping.route(row, &mut destination).unwrap();
        assert_eq!(destination.routing_key, "order.happened");
    });
}

#[test]
fn a_named_column_that_is_missing_is_named_with_its_field() {
    let columns = Columns {
        sent_at: Source::Column("done".to_owned()),
        ..Columns::default()
    };
    let table = OutboxTable {
        columns,
        ..outbox_table(&route(""))
    };
    assert_eq!(
        Table::outbox().bind_as(&table).unwrap_err().to_string(),
        "table shop.outbox_events has no column \"done\", which is to be the event's sent_at"
    );
}

#[test]
fn a_mapped_column_is_named_where_its_value_is_of_no_use() {
    let table = debezium().set("type", Cell::Null);
    let error = table.with_columns(Columns::debezium(), |mapping, row| mapping.read(row).unwrap_err());
    assert_eq!(error.to_string(), "\"type\" is null or missing");
}
