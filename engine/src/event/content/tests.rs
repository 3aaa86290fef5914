//! Headers, properties and bodies by a table's settings.

use serde_json::{Value as Json, json};

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
        let parts = MessageParts {
            exchange: "",
            routing_key: "",
            mandatory: true,
            persistent: true,
            message_id: "",
            message_type: "",
            content_type: content.content_type,
            correlation_id: content.correlation_id,
            expiration: content.expiration,
            priority: content.priority,
            timestamp: 0,
            app_id: "",
            headers: HeaderParts {
                aggregate_type: "",
                aggregate_id: "",
                origin: Origin::Replay { seq: 0 },
                trace: TraceContext::default(),
                more: content.headers,
            },
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

#[test]
fn a_cloudevent_in_binary_mode_has_its_attributes_as_headers() {
    let format = Format::CloudEventsBinary {
        event: cloud_events(),
        prefix: "ce-".to_owned(),
    };
    let headers =
        r#"{"ce-id": "forged", "ce-datacontenttype": "forged", "ce-tenant": "acme", "traceparent": "00-ab"}"#;
    let table = with(Table::outbox(), "headers", headers);
    let found = carried(&table, Columns::default(), formatted(format)).unwrap();
    let expected = [
        ("ce-specversion", "1.0"),
        ("ce-id", "7d5f1c5e-0000-4000-8000-000000000000"),
        ("ce-source", "//shop/order"),
        ("ce-type", "shop.created"),
        ("ce-subject", "42"),
        ("ce-time", "2026-01-31T12:00:00.500000Z"),
        ("ce-aggregatetype", "order"),
        ("ce-partitionkey", "42"),
        ("ce-traceparent", "00-ab"),
        ("ce-tenant", "acme"),
    ];
    assert_eq!((found.headers, found.overridden), (pairs(&expected), 2));
    assert_eq!(
        (found.texts[0].as_str(), found.body),
        ("application/json", b"{}".to_vec())
    );
}

/// I4: also within a document.
#[test]
fn a_cloudevent_in_structured_mode_holds_the_payload_byte_for_byte() {
    let document = "{\"n\": 0.10000000000000000001,  \"ü\": [1E400]}";
    for type_oid in [type_oid::JSON, type_oid::JSONB] {
        let table = Table::outbox().payload(type_oid, document.as_bytes());
        let table = with(table, "created_at", "2026-01-02 03:04:05.6+01");
        let found = structured(&table).unwrap();
        assert_eq!(found.texts[0], "application/cloudevents+json");
        assert_eq!(found.headers, pairs(&[]));
        let expected = format!(
            "{{\"specversion\":\"1.0\",\"id\":\"7d5f1c5e-0000-4000-8000-000000000000\",\"source\":\"//shop/order\",\
             \"type\":\"shop.created\",\"subject\":\"42\",\"time\":\"2026-01-02T03:04:05.6+01:00\",\
             \"aggregatetype\":\"order\",\"partitionkey\":\"42\",\"datacontenttype\":\"application/json\",\
             \"data\":{document}}}"
        );
        assert_eq!(String::from_utf8(found.body).unwrap(), expected);
    }
}

/// Section 3.1.1 of the JSON format.
#[test]
fn data_is_a_value_a_string_or_base64_by_its_type_and_media_type() {
    let of_type = |media: &'static str, type_oid, value: &[u8]| {
        let table = with(Table::outbox().payload(type_oid, value), "content_type", media);
        let columns = Columns {
            content_type: Source::Column("content_type".to_owned()),
            ..Columns::default()
        };
        carried(
            &table,
            columns,
            formatted(Format::CloudEventsStructured(cloud_events())),
        )
    };
    let member = |found: Result<Carried, InvalidRow>, name: &str| found.unwrap().json()[name].clone();
    let tricky = "a \"line\"\n\\ \u{1} ü";
    assert_eq!(
        member(of_type("", type_oid::TEXT, tricky.as_bytes()), "data"),
        json!(tricky)
    );
    assert_eq!(
        member(of_type("", type_oid::TEXT, b"x"), "datacontenttype"),
        json!("text/plain")
    );
    assert_eq!(
        member(of_type("application/xml", type_oid::JSON, b"{}"), "data"),
        json!("{}")
    );
    assert_eq!(
        member(of_type("a/b+json", type_oid::TEXT, b" [1] "), "data"),
        json!([1])
    );
    for (hex, base64) in [
        (&b"\\x00"[..], "AA=="),
        (b"\\x00ff", "AP8="),
        (b"\\x00ff7a", "AP96"),
        (b"\\xfbf0ffff", "+/D//w=="),
    ] {
        let found = of_type("", type_oid::BYTEA, hex).unwrap().json();
        assert_eq!(
            (&found["data_base64"], &found["data"]),
            (&json!(base64), &Json::Null)
        );
        assert_eq!(found["datacontenttype"], "application/octet-stream");
    }
    let error = of_type("application/json", type_oid::TEXT, b"{no}").unwrap_err();
    let (column, content_type) = ("payload".to_owned(), "application/json".to_owned());
    assert_eq!(
        error,
        InvalidRow::PayloadNotJson {
            column,
            at: 1,
            content_type
        }
    );
    let error = of_type("", type_oid::TEXT, b"\xff").unwrap_err();
    assert_eq!(error, InvalidRow::NotUtf8("payload".to_owned()));
    let error = of_type("", type_oid::BYTEA, b"\\x00f").unwrap_err();
    assert_eq!(error, InvalidRow::NotHex("payload".to_owned()));
}

/// The rules of the specification's JSON schema (`cloudevents.json`): what must be there, of which types, with which length.
#[test]
fn every_cloudevent_fulfils_the_schema() {
    let tables = [
        Table::outbox(),
        Table::outbox().payload(type_oid::BYTEA, b"\\x00ff"),
        Table::outbox()
            .payload(type_oid::TEXT, b"text")
            .set("aggregate_id", text(b"")),
        with(Table::outbox(), "traceparent", "00-ab"),
        with(Table::outbox(), "created_at", "infinity"),
    ];
    for table in &tables {
        let event = structured(table).unwrap().json();
        let members = event.as_object().unwrap();
        assert_eq!(event["specversion"], "1.0");
        for required in ["id", "source", "type"] {
            assert!(
                event[required].as_str().is_some_and(|text| !text.is_empty()),
                "{required}"
            );
        }
        for (name, value) in members {
            let is_plain =
                name.len() <= 20 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            assert!(is_plain || name == "data_base64", "{name}");
            assert!(
                name == "data" || value.as_str().is_some_and(|text| !text.is_empty()),
                "{name}"
            );
        }
        assert!(members.contains_key("data") != members.contains_key("data_base64"));
        assert!(
            event["time"]
                .as_str()
                .unwrap()
                .starts_with("2026-01-31T12:00:00.5")
        );
    }
}

#[test]
fn attributes_that_cannot_be_such_make_the_row_invalid() {
    let invalid = |table: Table| structured(&table).unwrap_err();
    let fault = |attribute, fault| InvalidRow::Attribute { attribute, fault };
    let outbox = Table::outbox;
    assert_eq!(
        invalid(outbox().set("id", text(b"a\tb"))),
        fault("id", AttributeFault::Characters)
    );
    assert_eq!(
        invalid(outbox().set("aggregate_id", text("\u{fffe}".as_bytes()))),
        fault("subject", AttributeFault::Characters)
    );
    let error = invalid(outbox().set("aggregate_type", text(b"an order")));
    assert_eq!(error, fault("source", AttributeFault::NotUriReference));
    assert_eq!(
        error.to_string(),
        "the CloudEvents attribute source is no URI-reference: a character in it must be percent-encoded"
    );
    let empty = CloudEvents {
        event_type: template(""),
        ..cloud_events()
    };
    let error = carried(
        &outbox(),
        Columns::default(),
        formatted(Format::CloudEventsStructured(empty)),
    );
    assert_eq!(error.unwrap_err(), fault("type", AttributeFault::Empty));
}

#[test]
fn an_envelope_holds_the_columns_of_the_event() {
    let table = with(Table::outbox(), "headers", r#" {"a": 1.50} "#);
    let table = with(table, "created_at", "2026-01-02 03:04:05+00");
    let found = carried(&table, Columns::default(), formatted(Format::Envelope)).unwrap();
    assert_eq!(found.texts[0], "application/json");
    assert_eq!(found.headers, pairs(&[("a", "F64(1.5)")]));
    assert_eq!(
        String::from_utf8(found.body).unwrap(),
        "{\"id\":\"7d5f1c5e-0000-4000-8000-000000000000\",\"aggregate_type\":\"order\",\"aggregate_id\":\"42\",\
         \"event_type\":\"created\",\"created_at\":\"2026-01-02T03:04:05Z\",\"headers\":{\"a\": 1.50},\
         \"content_type\":\"application/json\",\"payload\":{}}"
    );
    let table = with(
        Table::outbox().payload(type_oid::BYTEA, b"\\x00"),
        "created_at",
        "2026-01-02",
    );
    let found = carried(&table, Columns::default(), formatted(Format::Envelope))
        .unwrap()
        .json();
    assert_eq!(
        (&found["payload_base64"], &found["created_at"]),
        (&json!("AA=="), &json!("2026-01-02"))
    );
    assert!(!found.as_object().unwrap().contains_key("headers"));
}
