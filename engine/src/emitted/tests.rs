use proptest::prelude::*;
use serde_json::{Map, Value as Json};

use super::*;
use crate::event::{Columns, Content, Route};
use crate::pgoutput::{Value, read_relation};
use crate::route::Template;

fn table(routing_key: &str) -> OutboxTable {
    OutboxTable {
        schema: SCHEMA.to_owned(),
        name: table_name("outbox"),
        columns: Columns::default(),
        content: Content::default(),
        route: Route {
            exchange: Template::parse("{tenant}").unwrap(),
            routing_key: Template::parse(routing_key).unwrap(),
            rules: Vec::new(),
        },
        after_publish: None,
    }
}

fn reader() -> Reader {
    Reader::new(&table("{event_type}.{tenant}"))
}

/// The columns of a message's row that are not NULL.
fn read(reader: &mut Reader, content: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let names: Vec<_> = reader.columns.iter().map(|column| column.name.clone()).collect();
    let row = reader.read(content)?;
    let values = names.into_iter().zip(row.values());
    let found = values.filter_map(|(name, value)| match value {
        Value::Text(text) => Some((name, String::from_utf8(text.to_vec()).unwrap())),
        Value::Null => None,
        Value::Unchanged | Value::Binary(_) | Value::Oversized { .. } => panic!("not from a message"),
    });
    Ok(found.collect())
}

#[test]
fn the_table_has_the_columns_of_an_outbox_and_what_the_templates_name() {
    let (reader, table) = (reader(), table("{event_type}.{tenant}"));
    let relation = reader.relation(&table);
    let relation = read_relation(&relation).unwrap();
    assert_eq!(
        (relation.namespace, relation.name),
        ("walrelay", "messages:outbox")
    );
    let columns: Vec<_> = relation
        .columns()
        .map(|column| (column.name, column.type_oid))
        .collect();
    let expected = [
        ("id", 25),
        ("aggregate_type", 25),
        ("aggregate_id", 25),
        ("event_type", 25),
        ("payload", 114),
        ("headers", 114),
        ("created_at", 25),
        ("traceparent", 25),
        ("tracestate", 25),
        ("tenant", 25),
    ];
    assert_eq!(columns, expected);
}

#[test]
fn payload_and_headers_stay_as_they_are_written_and_texts_are_unescaped() {
    let content = r#" {"payload" : {"n": 0.10000000000000000001, "t":"\u00e9\/é"} ,"headers":[ 1,null ],
        "id":"a\"\u00e9\ud83d\ude00","aggregate_id": 42,"event_type":"", "aggregate_type":{"a": [1]},
        "tenant":true, "created_at":null, "nobody's":"x", "\u0069d": "last"}"#;
    let found = read(&mut reader(), content.as_bytes()).unwrap();
    let expected = [
        ("id", "last"),
        ("aggregate_type", r#"{"a": [1]}"#),
        ("aggregate_id", "42"),
        ("event_type", ""),
        ("payload", r#"{"n": 0.10000000000000000001, "t":"\u00e9\/é"}"#),
        ("headers", "[ 1,null ]"),
        ("tenant", "true"),
    ];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(found, expected);
}

#[test]
fn a_payload_may_be_any_json() {
    for payload in ["null", r#""a \"string\"""#, "-0.0", "[]", r#""\u0000""#] {
        let content = format!("{{\"payload\":{payload},\"headers\":null}}");
        let found = read(&mut reader(), content.as_bytes()).unwrap();
        assert_eq!(found, [("payload".to_owned(), payload.to_owned())]);
    }
}

#[test]
fn what_is_no_event_is_named_with_its_place() {
    for (content, text) in [
        (
            b"".as_slice(),
            "the logical message is no JSON object of an event: expected an object at byte 1",
        ),
        (
            b"{\"id\":1,}",
            "the logical message is no JSON object of an event: expected a key in quotes at byte 9",
        ),
        (
            b"{} x",
            "the logical message is no JSON object of an event: expected the end at byte 4",
        ),
        (
            b"{\"id\":\"\xE9\"}",
            "the logical message is not UTF-8 from byte 8 on",
        ),
        (
            br#"{"id":"\u0000"}"#,
            "\"id\" of the logical message has an escape that stands for no character: NUL, or half a pair of surrogates",
        ),
        (
            br#"{"tenant":"\ud800"}"#,
            "\"tenant\" of the logical message has an escape that stands for no character: NUL, or half a pair of \
             surrogates",
        ),
    ] {
        assert_eq!(read(&mut reader(), content).unwrap_err().to_string(), text);
    }
}

#[test]
fn what_cannot_be_read_is_kept_as_a_text_that_the_database_takes() {
    let mut reader = reader();
    let row = reader.unreadable(b"{\0\xE9 \xC3\xA9");
    let kept = "{\u{FFFD}\u{FFFD} é";
    assert_eq!(row.values().collect::<Vec<_>>(), [Value::Text(kept.as_bytes())]);
    let relation = Reader::unreadable_relation(&table(""));
    let relation = read_relation(&relation).unwrap();
    let columns: Vec<_> = relation.columns().map(|column| column.name).collect();
    assert_eq!(columns, ["content"]);
}

#[test]
fn of_an_oversized_message_the_payload_tells_the_size() {
    let mut reader = reader();
    let row = reader.oversized(100_000_000, 1024);
    let oversized = Value::Oversized {
        length: 100_000_000,
        limit: 1024,
    };
    assert_eq!(row.len(), 10);
    assert_eq!(row.value(4), Some(oversized));
    assert_eq!(row.values().filter(|value| *value == Value::Null).count(), 9);
}

#[test]
fn memory_for_a_large_message_is_given_back() {
    let mut reader = reader();
    let large = format!("{{\"payload\":\"{}\"}}", "x".repeat(4 * KEPT_BYTES));
    reader.read(large.as_bytes()).unwrap();
    assert!(reader.row.capacity() >= 4 * KEPT_BYTES);
    reader.read(b"{}").unwrap();
    assert!(reader.row.capacity() <= KEPT_BYTES);
}

/// Any JSON, with a liking for what needs escapes.
fn json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        // Read back exactly by any parser.
        any::<i16>().prop_map(|number| Json::from(f64::from(number) / 4.0)),
        "[a-z\"\\\\\n\u{1}\u{e9}\u{1f600}]{0,6}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            proptest::collection::vec(("[a-d\"\n]{0,3}", inner), 0..4)
                .prop_map(|pairs| Json::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn fields() -> impl Strategy<Value = Map<String, Json>> {
    const NAMES: &[&str] = &[
        "id",
        "payload",
        "headers",
        "aggregate_id",
        "event_type",
        "tenant",
        "other",
    ];
    let field = (proptest::sample::select(NAMES), json());
    proptest::collection::vec(field, 0..8).prop_map(|fields| {
        fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    })
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn it_finds_what_a_parser_finds(object in fields(), pretty in any::<bool>()) {
        let object = Json::Object(object);
        let text = if pretty { format!("{object:#}") } else { object.to_string() };
        let mut reader = reader();
        let found: Map<String, Json> = read(&mut reader, text.as_bytes()).unwrap().into_iter()
            .map(|(name, value)| (name, Json::from(value)))
            .collect();
        for column in &reader.columns {
            let value = object.get(&column.name);
            let found = found.get(&column.name).map(|value| value.as_str().unwrap());
            match value {
                Some(value) if column.is_payload() || (column.is_json() && !value.is_null()) => {
                    // As written: the parser reads the same from it, and it stands in the message.
                    prop_assert!(text.contains(found.unwrap()));
                    prop_assert_eq!(&serde_json::from_str::<Json>(found.unwrap()).unwrap(), value);
                }
                None | Some(Json::Null) => prop_assert_eq!(found, None),
                Some(Json::String(text)) => prop_assert_eq!(found, Some(text.as_str())),
                Some(value) => prop_assert_eq!(&serde_json::from_str::<Json>(found.unwrap()).unwrap(), value),
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(
        text in "[{}\\[\\]\",:\\\\u0-9a-f idpaylo\u{e9}\u{1f600}]{0,40}", bytes in any::<Vec<u8>>(),
    ) {
        let mut reader = reader();
        for content in [text.as_bytes(), &bytes] {
            let is_event = read(&mut reader, content).is_ok();
            let is_object = serde_json::from_slice::<Map<String, Json>>(content).is_ok();
            // A parser also looks at surrogates that nobody asks for.
            prop_assert!(is_event || !is_object || content.windows(4).any(|window| window == b"0000"));
            reader.unreadable(content);
        }
    }
}
