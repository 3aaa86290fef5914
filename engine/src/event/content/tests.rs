//! Headers, properties and bodies by a table's settings.

mod formats;

use serde_json::Value as Json;

use super::super::payload::type_oid;
use super::super::tests::{Table, text};
use super::super::{AttributeFault, CloudEvents, Columns, Source};
use super::*;
use crate::amqp::{
    ContentHeader, FieldValue, Frame, HeaderParts, HeadersFault, Message, MessageParts, Origin,
};
use crate::pgoutput::sample::Cell;

/// What one message carries, read back.
#[derive(Debug, PartialEq)]
struct Carried {
    /// Content type, correlation id, expiration.
    texts: [String; 3],
    priority: Option<u8>,
    /// Names and values of the headers that not every message has.
    headers: Vec<(String, String)>,
    overridden: u64,
    body: Vec<u8>,
}

impl Carried {
    fn json(&self) -> Json {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// 2026-01-31 12:00:00.5 UTC.
fn committed() -> PgTimestamp {
    PgTimestamp::from_unix_micros(1_769_860_800_500_000)
}

fn carried(table: &Table, columns: Columns, content: Content) -> Result<Carried, InvalidRow> {
    table.with_settings(columns, content, |mapping, row| {
        let event = mapping.read(row).unwrap();
        let trace = mapping.trace(row);
        let mut scratch = ContentScratch::default();
        // What an earlier row left behind must not show.
        scratch.headers.text("of an earlier row", "x").unwrap();
        let content = mapping.content(row, &event, trace, committed(), &mut scratch)?;
        let empty = MessageParts::empty(Origin::Replay { seq: 0 });
        let parts = MessageParts {
            content_type: content.content_type,
            correlation_id: content.correlation_id,
            expiration: content.expiration,
            priority: content.priority,
            headers: HeaderParts {
                more: content.headers,
                ..empty.headers
            },
            ..empty
        };
        let message = Message::encode_with(&mut Vec::new(), &parts, |out| content.append_body(out))?;
        let mut body = Vec::new();
        content.append_body(&mut body)?;
        Ok(Carried {
            texts: [content.content_type, content.correlation_id, content.expiration].map(str::to_owned),
            priority: content.priority,
            headers: headers_of(&message),
            overridden: content.overridden,
            body,
        })
    })
}

fn headers_of(message: &Message) -> Vec<(String, String)> {
    let mut out = Vec::new();
    message.write_frames(1, 131_072, &mut out);
    let (_, method) = Frame::decode(&out, 131_072).unwrap().unwrap();
    let (header, _) = Frame::decode(&out[method..], 131_072).unwrap().unwrap();
    let headers = ContentHeader::decode(header.payload)
        .unwrap()
        .properties
        .headers();
    let headers = headers.unwrap();
    let own = ["aggregate_type", "aggregate_id", "replayed", "replay_seq"];
    let entries = headers.iter().map(Result::unwrap).map(|(name, value)| {
        let value = if let FieldValue::Text(text) = value {
            String::from_utf8(text.to_vec()).unwrap()
        } else {
            format!("{value:?}")
        };
        (String::from_utf8(name.to_vec()).unwrap(), value)
    });
    entries
        .filter(|(name, _)| !own.contains(&name.as_str()))
        .collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    owned.collect()
}

fn with(mut table: Table, column: &'static str, value: &str) -> Table {
    table.0.push((column, type_oid::TEXT, text(value.as_bytes())));
    table
}

fn template(text: &str) -> Template {
    Template::parse(text).unwrap()
}

fn cloud_events() -> CloudEvents {
    CloudEvents {
        source: template("//shop/{aggregate_type}"),
        event_type: template("shop.{event_type}"),
    }
}

fn formatted(format: Format) -> Content {
    Content {
        format,
        ..Content::default()
    }
}

fn structured(table: &Table) -> Result<Carried, InvalidRow> {
    let format = Format::CloudEventsStructured(cloud_events());
    carried(table, Columns::default(), formatted(format))
}

#[test]
fn the_headers_of_a_row_join_those_of_the_table_and_win() {
    let content = Content {
        headers: vec![
            ("tenant".to_owned(), template("acme")),
            ("kind".to_owned(), template("a {aggregate_type}")),
        ],
        ..Content::default()
    };
    let table = with(
        Table::outbox(),
        "headers",
        r#" {"n": 1, "tenant": "other", "tx_seq": 5, "traceparent": "x"} "#,
    );
    let found = carried(&table, Columns::default(), content.clone()).unwrap();
    assert_eq!(
        found.headers,
        pairs(&[("kind", "a order"), ("n", "I64(1)"), ("tenant", "other")])
    );
    assert_eq!(found.overridden, 1, "the trace is passed on, not overridden");
    let fixed = pairs(&[("tenant", "acme"), ("kind", "a order")]);
    for none in ["", "  ", "null"] {
        let table = with(Table::outbox(), "headers", none);
        assert_eq!(
            carried(&table, Columns::default(), content.clone())
                .unwrap()
                .headers,
            fixed
        );
    }
    let table = with(Table::outbox(), "headers", "").set("headers", Cell::Null);
    assert_eq!(
        carried(&table, Columns::default(), content.clone())
            .unwrap()
            .headers,
        fixed
    );
    assert_eq!(
        carried(&Table::outbox(), Columns::default(), content)
            .unwrap()
            .headers,
        fixed
    );
}

#[test]
fn headers_that_cannot_be_such_name_their_column_and_why() {
    let columns = || Columns {
        headers: Source::Column("meta".to_owned()),
        ..Columns::default()
    };
    let table = with(Table::outbox(), "meta", "[1]");
    let error = carried(&table, columns(), Content::default()).unwrap_err();
    let fault = HeadersFault::NotAnObject;
    assert_eq!(
        error,
        InvalidRow::Headers {
            column: "meta".to_owned(),
            fault
        }
    );
    assert_eq!(
        error.to_string(),
        "column \"meta\" cannot become headers: it is no JSON object"
    );
    let table = with(Table::outbox(), "meta", "").set("meta", text(b"{\xff}"));
    let error = carried(&table, columns(), Content::default()).unwrap_err();
    assert_eq!(error, InvalidRow::NotUtf8("meta".to_owned()));
}

fn properties(source: impl Fn(&str) -> Source) -> Columns {
    Columns {
        content_type: source("media"),
        correlation_id: source("cause"),
        expiration: source("ttl"),
        priority: source("prio"),
        ..Columns::default()
    }
}

#[test]
fn properties_come_from_columns_and_are_absent_where_those_are_null_or_empty() {
    let columns = || properties(|name| Source::Column(name.to_owned()));
    let mut table = Table::outbox();
    for (column, value) in [
        ("media", "application/x"),
        ("cause", "c-1"),
        ("ttl", "60000"),
        ("prio", "255"),
    ] {
        table = with(table, column, value);
    }
    let found = carried(&table, columns(), Content::default()).unwrap();
    assert_eq!(
        (found.texts, found.priority),
        (["application/x", "c-1", "60000"].map(str::to_owned), Some(255))
    );
    for nothing in [Cell::Null, text(b"")] {
        let table = ["media", "cause", "ttl", "prio"]
            .iter()
            .fold(table.clone(), |table, column| table.set(column, nothing.clone()));
        let found = carried(&table, columns(), Content::default()).unwrap();
        assert_eq!(
            (found.texts, found.priority),
            (["application/json", "", ""].map(str::to_owned), None)
        );
    }
}

#[test]
fn properties_may_be_templates() {
    let columns = Columns {
        content_type: Source::Constant("application/{event_type}+json".to_owned()),
        correlation_id: Source::Constant("{aggregate_type}-{id}".to_owned()),
        expiration: Source::Constant("0".to_owned()),
        priority: Source::Constant("7".to_owned()),
        ..Columns::default()
    };
    let found = carried(&Table::outbox(), columns, Content::default()).unwrap();
    let texts = [
        "application/created+json",
        "order-7d5f1c5e-0000-4000-8000-000000000000",
        "0",
    ];
    assert_eq!((found.texts, found.priority), (texts.map(str::to_owned), Some(7)));
}

#[test]
fn properties_that_rabbitmq_would_close_the_channel_for_make_the_row_invalid() {
    let columns = || properties(|name| Source::ColumnIfThere(name.to_owned()));
    for ttl in [
        "-1",
        "+1",
        "1.0",
        "1e3",
        " 1",
        "315360000001",
        "00:01:00",
        "x",
        "99999999999999999999",
    ] {
        let table = with(Table::outbox(), "ttl", ttl);
        let error = carried(&table, columns(), Content::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("column \"ttl\" cannot become the message's expiration: it must be"),
            "{error}"
        );
    }
    assert!(
        carried(
            &with(Table::outbox(), "ttl", "315360000000"),
            columns(),
            Content::default()
        )
        .is_ok()
    );
    for prio in ["256", "-1", "+7", "high", "7.0"] {
        let table = with(Table::outbox(), "prio", prio);
        let error = carried(&table, columns(), Content::default())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"prio\"") && error.contains("from 0 to 255"),
            "{error}"
        );
    }
    let columns = Columns {
        expiration: Source::Constant("{event_type}".to_owned()),
        ..Columns::default()
    };
    let error = carried(&Table::outbox(), columns, Content::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the value of outbox.columns.expiration cannot"),
        "{error}"
    );
    let columns = Columns {
        correlation_id: Source::ColumnIfThere("cause".to_owned()),
        ..Columns::default()
    };
    let long = with(Table::outbox(), "cause", &"x".repeat(256));
    let error = carried(&long, columns, Content::default())
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("correlation id has 256 bytes"), "{error}");
}
