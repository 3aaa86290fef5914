//! JSON objects that we encode as headers are what amq-protocol reads.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::basic::AMQPProperties;
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::parse;
use crate::amqp::{
    ContentHeader, EncodedHeaders, HeaderEntries, HeadersFault, Message, MessageParts, NameUse, Origin,
};

/// Any small JSON object.
pub(super) fn json_object() -> impl Strategy<Value = Json> {
    let text = "[a-z\"\\\\\n\u{0}\u{e9}\u{1f600}]{0,8}";
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<u64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        text.prop_map(Json::from),
    ];
    let value = leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Json::from),
            prop::collection::hash_map(text, inner, 0..4)
                .prop_map(|members| Json::Object(members.into_iter().collect())),
        ]
    });
    // None of our own names.
    prop::collection::hash_map("x-[a-z\u{e9}]{0,6}", value, 0..6)
        .prop_map(|members| Json::Object(members.into_iter().collect()))
}

/// What an object stands for.
pub(super) fn table_of(object: &Json) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in object.as_object().unwrap() {
        table.insert(ShortString::from(name.as_str()), value_of(value));
    }
    table
}

fn value_of(json: &Json) -> AMQPValue {
    match json {
        Json::Null => AMQPValue::Void,
        Json::Bool(value) => AMQPValue::Boolean(*value),
        Json::Number(number) => match (number.as_i64(), number.is_f64()) {
            (Some(number), _) => AMQPValue::LongLongInt(number),
            (None, true) => AMQPValue::Double(number.as_f64().unwrap()),
            (None, false) => text(&number.to_string()),
        },
        Json::String(value) => text(value),
        Json::Array(items) => AMQPValue::FieldArray(items.iter().map(value_of).collect::<Vec<_>>().into()),
        Json::Object(_) => AMQPValue::FieldTable(table_of(json)),
    }
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The entries as they are read from a message, in their order, without those that every message has.
fn read(entries: &HeaderEntries) -> FieldTable {
    let mut parts = MessageParts::empty(Origin::Replay { seq: 0 });
    parts.headers.more = entries.encoded();
    let message = Message::encode(&mut Vec::new(), &parts, b"").unwrap();
    let mut bytes = Vec::new();
    message.write_frames(1, u32::MAX, &mut bytes);
    let frames = parse(&bytes);
    let AMQPFrame::Header(_, AMQPContentHeader { properties, .. }) = &frames[1] else {
        panic!("no content header")
    };
    let properties: &AMQPProperties = properties;
    // A FieldTable would hide a name that comes twice.
    let (_, _, header) = message.split();
    let ours = ContentHeader::decode(header)
        .unwrap()
        .properties
        .headers()
        .unwrap();
    let theirs = properties.headers().as_ref().unwrap();
    assert_eq!(ours.iter().count(), theirs.inner().len());
    let own = ["aggregate_type", "aggregate_id", "replayed", "replay_seq"];
    let mut rest = FieldTable::default();
    for (name, value) in theirs {
        if !own.contains(&name.as_str()) {
            rest.insert(name.clone(), value.clone());
        }
    }
    rest
}

fn encoded(object: &str) -> Result<HeaderEntries, HeadersFault> {
    let mut entries = HeaderEntries::default();
    entries.object(object, NameUse::of).map(|_| entries)
}

fn fault(object: &str) -> HeadersFault {
    encoded(object).unwrap_err()
}

#[test]
fn every_type_of_json_has_one_of_amqp() {
    let object = json!({
        "string": "ü\"\n", "true": true, "integer": -7, "float": 0.5, "null": null,
        "table": {"a": {"b": [1]}, "e": {}}, "array": ["x", 1, [], {"y": false}], "": "no name",
    });
    let entries = encoded(&format!("{object:#}")).unwrap();
    assert_eq!(read(&entries), table_of(&object));
    assert_eq!(read(&encoded(" {} ").unwrap()), FieldTable::default());
}

#[test]
fn of_equal_names_the_last_one_counts_at_every_depth() {
    let twice = r#"{"a": 1, "b": {"x": 1, "y": {"z": 1, "z": 2}, "x": [3, {"q": 1, "\u0071": 2}]}, "a": {"c": 2}, "d": 4, "a": 5}"#;
    let once = json!({"b": {"x": [3, {"q": 2}], "y": {"z": 2}}, "a": 5, "d": 4});
    let entries = encoded(twice).unwrap();
    assert_eq!(read(&entries), table_of(&once));
    let again = encoded(r#"{"b": {"y": {"z": 2}, "x": [3, {"q": 2}]}, "d": 4, "a": 5}"#).unwrap();
    assert_eq!(
        entries.encoded().bytes(),
        again.encoded().bytes(),
        "each once, in the order of the last ones"
    );
}

#[test]
fn what_an_object_says_replaces_what_is_there_already() {
    let mut entries = HeaderEntries::default();
    entries.text("tenant", "acme").unwrap();
    entries.text("region", "eu").unwrap();
    entries.object(r#"{"tenant": 7}"#, NameUse::of).unwrap();
    assert_eq!(read(&entries), table_of(&json!({"region": "eu", "tenant": 7})));
}

#[test]
fn the_messages_own_names_win_and_are_counted() {
    let mut entries = HeaderEntries::default();
    let object = r#"{"aggregate_id": {"a": [1, "}"]}, "x": 1, "replay_\u0073eq": 9, "tx_seq": 1, "commit_lsn": "0/1",
        "traceparent": "passed on", "backfill": true, "nested": {"tx_seq": 5}}"#;
    assert_eq!(entries.object(object, NameUse::of), Ok(5));
    assert_eq!(
        read(&entries),
        table_of(&json!({"x": 1, "nested": {"tx_seq": 5}}))
    );
}

#[test]
fn what_can_be_no_headers_is_told() {
    for (text, expected) in [
        ("[]", HeadersFault::NotAnObject),
        ("null", HeadersFault::NotAnObject),
        ("x", HeadersFault::NotAnObject),
        ("{\"a\": 1", HeadersFault::NotJson { at: 7 }),
        ("{\"a\": 1}}", HeadersFault::NotJson { at: 8 }),
        ("{\"a\": tru}", HeadersFault::NotJson { at: 6 }),
        ("{\"tx_seq\": tru}", HeadersFault::NotJson { at: 11 }),
        (r#"{"a": "\ud800"}"#, HeadersFault::NotJson { at: 7 }),
    ] {
        assert_eq!(fault(text), expected, "{text}");
    }
}

#[test]
fn a_name_of_more_than_255_bytes_cannot_be_carried() {
    let named = |length: usize| format!("{{\"a\": {{\"{}\": 1}}}}", "é".repeat(length / 2));
    assert!(encoded(&named(254)).is_ok());
    assert_eq!(fault(&named(256)), HeadersFault::NameTooLong { length: 256 });
}

#[test]
fn nesting_is_bounded_by_what_can_be_read_again() {
    let nested = |depth: usize| format!("{{\"a\": {}1{}}}", "[".repeat(depth), "]".repeat(depth));
    let entries = encoded(&nested(16)).unwrap();
    assert_eq!(read(&entries).inner().len(), 1);
    assert_eq!(fault(&nested(17)), HeadersFault::TooDeep { limit: 16 });
    assert_eq!(fault(&nested(1_000_000)), HeadersFault::TooDeep { limit: 16 });
}

#[test]
fn headers_that_go_into_no_frame_are_refused_without_reading_on() {
    let long = format!("{{\"a\": \"{}\", no JSON", "x".repeat(131_072));
    assert_eq!(fault(&long), HeadersFault::TooLarge { limit: 131_072 });
    let many = format!("{{\"a\": [{}", "null,".repeat(200_000));
    assert_eq!(fault(&many), HeadersFault::TooLarge { limit: 131_072 });
}

/// RabbitMQ closes the channel at another type (406), ignores what is no string, and knows no longer keys.
#[test]
fn further_routing_keys_must_be_such() {
    for name in ["CC", "BCC"] {
        let of = |value: &str| encoded(&format!("{{\"{name}\": {value}}}"));
        assert!(
            of("[]").is_ok()
                && of("[\"a\", \"\"]").is_ok()
                && of(&format!("[\"{}\"]", "x".repeat(255))).is_ok()
        );
        for value in [
            "\"a\"",
            "null",
            "1",
            "{}",
            "[1]",
            "[\"a\", [\"b\"]]",
            &format!("[\"{}\"]", "x".repeat(256)),
        ] {
            assert_eq!(of(value).unwrap_err(), HeadersFault::Routes { name }, "{value}");
        }
    }
    assert!(encoded(r#"{"cc": 1, "a": {"CC": 1}}"#).is_ok(), "no such names");
}

#[test]
fn debug_shows_sizes_only() {
    let entries = encoded(r#"{"secret": "x"}"#).unwrap();
    let debug = format!("{:?} {:?}", entries.encoded(), EncodedHeaders::default());
    assert_eq!(debug, "EncodedHeaders(13 bytes) EncodedHeaders(0 bytes)");
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn an_object_is_read_as_meant(object in json_object(), pretty in any::<bool>()) {
        let written = if pretty { format!("{object:#}") } else { object.to_string() };
        prop_assert_eq!(read(&encoded(&written).unwrap()), table_of(&object));
    }

    #[test]
    fn no_text_makes_it_panic(text in "[{}\\[\\]\",:\\\\u0-9a-fCnulltrue.\u{e9}\u{1f600}]{0,40}") {
        for text in [text.clone(), format!("{{\"a\": {text}}}")] {
            if let Ok(entries) = encoded(&text) {
                read(&entries);
            }
        }
    }
}
