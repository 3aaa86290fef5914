//! The content headers and tables that amq-protocol generates are what we read; and what nobody would
//! generate does no harm.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::basic;
use amq_protocol::types::{AMQPValue, DecimalValue, FieldTable, ShortString};
use proptest::prelude::*;

use super::{generate, payload};
use crate::Lsn;
use crate::amqp::{
    AmqpError, ContentHeader, FieldValue, Frame, FrameKind, Method, PropertyValue, Table, returned_key,
};

/// A content header with these headers beside every other property.
fn header_payload(headers: FieldTable) -> Vec<u8> {
    let short = |text: &str| ShortString::from(text);
    let properties = basic::AMQPProperties::default()
        .with_content_type(short("a"))
        .with_content_encoding(short("b"))
        .with_headers(headers)
        .with_delivery_mode(2)
        .with_priority(3)
        .with_correlation_id(short("c"))
        .with_reply_to(short("d"))
        .with_expiration(short("4"))
        .with_message_id(short("the id"))
        .with_timestamp(5)
        .with_type(short("e"))
        .with_user_id(short("f"))
        .with_app_id(short("g"))
        .with_cluster_id(short("h"));
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: 1 << 40,
        properties,
    };
    let bytes = generate(&AMQPFrame::Header(1, header));
    payload(&bytes, FrameKind::Header, 1).to_vec()
}

fn key_headers(commit_lsn: AMQPValue, tx_seq: AMQPValue) -> FieldTable {
    let mut headers = FieldTable::default();
    headers.insert("a header of someone else".into(), AMQPValue::Void);
    headers.insert("commit_lsn".into(), commit_lsn);
    headers.insert("tx_seq".into(), tx_seq);
    headers
}

#[test]
fn a_content_header_with_every_property_is_read_and_refused_when_cut_short() {
    let headers = key_headers(
        AMQPValue::LongString("16/B374D848".into()),
        AMQPValue::LongLongInt(7),
    );
    let payload = header_payload(headers);
    let content = ContentHeader::decode(&payload).unwrap();
    assert_eq!(content.body_size, 1 << 40);
    assert_eq!(content.properties.message_id(), Some(&b"the id"[..]));
    assert_eq!(content.properties.content_type(), Some(&b"a"[..]));
    let text = |text: &'static str| PropertyValue::Text(text.as_bytes());
    let number = PropertyValue::Number;
    assert_eq!(
        content.properties.iter().collect::<Vec<_>>(),
        [
            ("content_type", text("a")),
            ("content_encoding", text("b")),
            ("delivery_mode", number(2)),
            ("priority", number(3)),
            ("correlation_id", text("c")),
            ("reply_to", text("d")),
            ("expiration", text("4")),
            ("message_id", text("the id")),
            ("timestamp", number(5)),
            ("type", text("e")),
            ("user_id", text("f")),
            ("app_id", text("g")),
            ("cluster_id", text("h")),
        ]
    );
    assert_eq!(returned_key(&payload), Ok(Some((Lsn::new(0x16_B374_D848), 7))));
    for cut in 0..payload.len() {
        assert!(
            matches!(
                ContentHeader::decode(&payload[..cut]),
                Err(AmqpError::Truncated { .. })
            ),
            "{cut}"
        );
    }
    let lengthened = [&payload[..], b"!"].concat();
    assert_eq!(
        ContentHeader::decode(&lengthened),
        Err(AmqpError::Trailing { bytes: 1 })
    );
}

#[test]
fn a_returned_message_without_our_headers_has_no_key() {
    let lsn = || AMQPValue::LongString("16/B374D848".into());
    let number = AMQPValue::LongLongInt;
    for headers in [
        FieldTable::default(),
        key_headers(AMQPValue::LongString("16-B374D848".into()), number(7)),
        key_headers(AMQPValue::LongString(vec![0xFF].into()), number(7)),
        key_headers(number(7), number(7)),
        key_headers(lsn(), number(-1)),
        key_headers(lsn(), lsn()),
    ] {
        assert_eq!(
            returned_key(&header_payload(headers.clone())),
            Ok(None),
            "{headers:?}"
        );
    }
    let bare = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0];
    assert_eq!(returned_key(&bare), Ok(None));
    assert_eq!(
        ContentHeader::decode(&bare).map(|content| content.body_size),
        Ok(9)
    );
}

#[test]
fn a_content_header_of_another_class_or_with_unknown_flags_is_an_error() {
    let other = [0, 61, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0];
    assert_eq!(
        ContentHeader::decode(&other),
        Err(AmqpError::ContentClass { class_id: 61 })
    );
    for flags in [1, 2] {
        let unknown = [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, flags];
        let error = AmqpError::PropertyFlags { flags: flags.into() };
        assert_eq!(ContentHeader::decode(&unknown), Err(error));
    }
}

/// A content header whose header table has these bytes.
fn with_table(table: &[u8]) -> Vec<u8> {
    let mut payload = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0x20, 0];
    payload.extend_from_slice(&u32::try_from(table.len()).unwrap().to_be_bytes());
    payload.extend_from_slice(table);
    payload
}

#[test]
fn a_malformed_table_is_an_error_once_and_then_ends() {
    for (table, error) in [
        (&b"\x01at\x01\x01bz"[..], AmqpError::FieldType { kind: b'z' }),
        (b"\x01at\x01\x05b", AmqpError::Truncated { field: "field-name" }),
        (
            b"\x01at\x01\x01bS\xFF\xFF\xFF\xFFx",
            AmqpError::Truncated { field: "field-value" },
        ),
        (b"\x01at\x01\x01b", AmqpError::Truncated { field: "field-value" }),
    ] {
        let payload = with_table(table);
        assert_eq!(returned_key(&payload), Err(error.clone()));
        let headers = ContentHeader::decode(&payload)
            .unwrap()
            .properties
            .headers()
            .unwrap();
        let entries: Vec<_> = headers.iter().collect();
        assert_eq!(entries, [Ok((&b"a"[..], FieldValue::Bool(true))), Err(error)]);
        assert_eq!(
            (headers.find("a"), headers.find("b")),
            (Some(FieldValue::Bool(true)), None)
        );
    }
}

#[test]
fn rabbitmqs_reading_of_the_disputed_field_types_holds() {
    let payload = with_table(
        b"\x01as\xFF\xFE\x01bL\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01cu\xFF\xFE\x01di\xFF\xFF\xFF\xFE",
    );
    let headers = ContentHeader::decode(&payload)
        .unwrap()
        .properties
        .headers()
        .unwrap();
    let numbers: Vec<_> = headers.iter().map(|entry| entry.unwrap().1.integer()).collect();
    assert_eq!(numbers, [Some(-2), Some(-1), Some(0xFFFE), Some(0xFFFF_FFFE)]);
}

#[test]
fn tables_nested_too_deep_are_refused() {
    let nested = |depth: usize| {
        (0..depth).fold(b"\x01at\x01".to_vec(), |inner, _| {
            let mut outer = b"\x01aF".to_vec();
            outer.extend_from_slice(&u32::try_from(inner.len()).unwrap().to_be_bytes());
            outer.extend_from_slice(&inner);
            outer
        })
    };
    let walk_all = |depth| {
        let payload = with_table(&nested(depth));
        let headers = ContentHeader::decode(&payload)
            .unwrap()
            .properties
            .headers()
            .unwrap();
        walk(headers)
    };
    assert_eq!(walk_all(16), Ok(17));
    assert_eq!(walk_all(17), Err(AmqpError::TooDeep { limit: 16 }));
    assert_eq!(walk_all(5_000), Err(AmqpError::TooDeep { limit: 16 }));
}

/// Reads a table to its last value, and counts the values.
fn walk(table: Table<'_>) -> Result<usize, AmqpError> {
    table.iter().map(|entry| walk_value(entry?.1)).sum()
}

fn walk_value(value: FieldValue<'_>) -> Result<usize, AmqpError> {
    if let FieldValue::Table(table) = value {
        return Ok(walk(table)? + 1);
    }
    if let FieldValue::Array(array) = value {
        return Ok(array
            .iter()
            .map(|value| walk_value(value?))
            .sum::<Result<usize, _>>()?
            + 1);
    }
    Ok(1)
}

/// A value of amq-protocol, of every type.
fn value() -> impl Strategy<Value = AMQPValue> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(AMQPValue::Boolean),
        any::<i8>().prop_map(AMQPValue::ShortShortInt),
        any::<u8>().prop_map(AMQPValue::ShortShortUInt),
        any::<i16>().prop_map(AMQPValue::ShortInt),
        any::<u16>().prop_map(AMQPValue::ShortUInt),
        any::<i32>().prop_map(AMQPValue::LongInt),
        any::<u32>().prop_map(AMQPValue::LongUInt),
        any::<i64>().prop_map(AMQPValue::LongLongInt),
        any::<f32>().prop_map(AMQPValue::Float),
        any::<f64>().prop_map(AMQPValue::Double),
        (any::<u8>(), any::<u32>())
            .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| AMQPValue::LongString(bytes.into())),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
        any::<u64>().prop_map(AMQPValue::Timestamp),
        Just(AMQPValue::Void),
    ];
    leaf.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6)
                .prop_map(|values| AMQPValue::FieldArray(values.into())),
            field_table(inner).prop_map(AMQPValue::FieldTable),
        ]
    })
}

fn field_table(value: impl Strategy<Value = AMQPValue>) -> impl Strategy<Value = FieldTable> {
    prop::collection::btree_map("\\PC{0,10}".prop_map(ShortString::from), value, 0..6)
        .prop_map(FieldTable::from)
}

fn same_table(ours: Table<'_>, theirs: &FieldTable) -> bool {
    let entries: Vec<_> = ours.iter().map(Result::unwrap).collect();
    entries.len() == theirs.inner().len()
        && entries
            .iter()
            .zip(theirs)
            .all(|((name, ours), (their_name, theirs))| {
                *name == their_name.as_str().as_bytes() && same(*ours, theirs)
            })
}

fn same(ours: FieldValue<'_>, theirs: &AMQPValue) -> bool {
    match (ours, theirs) {
        (FieldValue::Bool(ours), AMQPValue::Boolean(theirs)) => ours == *theirs,
        (FieldValue::I8(ours), AMQPValue::ShortShortInt(theirs)) => ours == *theirs,
        (FieldValue::U8(ours), AMQPValue::ShortShortUInt(theirs)) => ours == *theirs,
        (FieldValue::I16(ours), AMQPValue::ShortInt(theirs)) => ours == *theirs,
        (FieldValue::U16(ours), AMQPValue::ShortUInt(theirs)) => ours == *theirs,
        (FieldValue::I32(ours), AMQPValue::LongInt(theirs)) => ours == *theirs,
        (FieldValue::U32(ours), AMQPValue::LongUInt(theirs)) => ours == *theirs,
        (FieldValue::I64(ours), AMQPValue::LongLongInt(theirs)) => ours == *theirs,
        (FieldValue::F32(ours), AMQPValue::Float(theirs)) => ours.to_bits() == theirs.to_bits(),
        (FieldValue::F64(ours), AMQPValue::Double(theirs)) => ours.to_bits() == theirs.to_bits(),
        (FieldValue::Decimal { scale, value }, AMQPValue::DecimalValue(theirs)) => {
            (scale, value) == (theirs.scale, theirs.value)
        }
        (FieldValue::Text(ours), AMQPValue::LongString(theirs)) => ours == theirs.as_bytes(),
        (FieldValue::Bytes(ours), AMQPValue::ByteArray(theirs)) => ours == theirs.as_slice(),
        (FieldValue::Timestamp(ours), AMQPValue::Timestamp(theirs)) => ours == *theirs,
        (FieldValue::Array(ours), AMQPValue::FieldArray(theirs)) => {
            let values: Vec<_> = ours.iter().map(Result::unwrap).collect();
            values.len() == theirs.as_slice().len()
                && values
                    .iter()
                    .zip(theirs.as_slice())
                    .all(|(ours, theirs)| same(*ours, theirs))
        }
        (FieldValue::Table(ours), AMQPValue::FieldTable(theirs)) => same_table(ours, theirs),
        (FieldValue::Void, AMQPValue::Void) => true,
        _ => false,
    }
}

/// Reads whatever can be read of arbitrary bytes, to show that nothing panics.
fn read_all(bytes: &[u8]) {
    if let Ok(Some((frame, used))) = Frame::decode(bytes, 131_072) {
        assert!(used <= bytes.len() && frame.payload.len() + 8 == used);
    }
    if let Ok(Method::ConnectionStart {
        server_properties, ..
    }) = Method::decode(bytes)
    {
        walk(server_properties).ok();
    }
    if let Some(headers) = ContentHeader::decode(bytes)
        .ok()
        .and_then(|content| content.properties.headers())
    {
        walk(headers).ok();
    }
    returned_key(bytes).ok();
}

/// Method and class ids that exist, so that arguments are reached, with arbitrary bytes behind.
fn near_method() -> impl Strategy<Value = Vec<u8>> {
    let id = prop_oneof![
        Just(10_u16),
        Just(20),
        Just(30),
        Just(40),
        Just(50),
        Just(60),
        Just(80),
        Just(120)
    ];
    let class = prop_oneof![Just(10_u16), Just(20), Just(60), Just(85)];
    (class, id, prop::collection::vec(any::<u8>(), 0..80))
        .prop_map(|(class, id, rest)| [&class.to_be_bytes()[..], &id.to_be_bytes()[..], &rest[..]].concat())
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn tables_of_every_type_are_read_as_meant(theirs in field_table(value())) {
        let payload = header_payload(theirs.clone());
        let headers = ContentHeader::decode(&payload).unwrap().properties.headers().unwrap();
        prop_assert!(same_table(headers, &theirs));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), start in 0..12_u8) {
        read_all(&bytes);
        // Nearer to the truth: a frame type, an empty size, a content header, a table.
        read_all(&[&[start], &bytes[..]].concat());
        read_all(&[&[start, 0, 1, 0, 0, 0, start], &bytes[..]].concat());
        read_all(&[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9], &bytes[..]].concat());
        read_all(&with_table(&bytes));
    }

    #[test]
    fn arbitrary_arguments_of_known_methods_never_panic(bytes in near_method()) {
        read_all(&bytes);
    }

    #[test]
    fn a_valid_header_with_one_byte_changed_never_panics(
        theirs in field_table(value()), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut payload = header_payload(theirs);
        let at = at.index(payload.len());
        payload[at] = byte;
        read_all(&payload);
    }
}
