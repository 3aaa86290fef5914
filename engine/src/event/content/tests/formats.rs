//! Bodies by format.

use serde_json::json;

use super::*;

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
