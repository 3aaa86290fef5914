//! Byte-exact examples of every message, and properties of all.

use proptest::prelude::*;

use super::sample::{Cell, Sample, any_sample};
use super::*;
use crate::{Lsn, PgTimestamp, property};

const INSERT: &[u8] = b"I\x00\x00\x40\x01N\x00\x04\
    t\x00\x00\x00\x03abc\
    n\
    u\
    b\x00\x00\x00\x02\x00\xFF";

fn decode(data: &[u8]) -> Message<'_> {
    Message::decode(data).unwrap()
}

#[test]
fn begin_is_decoded() {
    let data = b"B\x00\x00\x00\x16\xB3\x74\xD8\x48\x00\x00\x00\x00\x00\x00\x00\x2A\x00\x00\x02\xE5";
    let expected = Begin {
        final_lsn: Lsn::new(0x16_B374_D848),
        commit_time: PgTimestamp::new(42),
        xid: 741,
    };
    assert_eq!(decode(data), Message::Begin(expected));
}

#[test]
fn commit_is_decoded() {
    let data = b"C\x00\
        \x00\x00\x00\x16\xB3\x74\xD8\x48\
        \x00\x00\x00\x16\xB3\x74\xD8\x78\
        \xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF";
    let expected = Commit {
        flags: 0,
        commit_lsn: Lsn::new(0x16_B374_D848),
        end_lsn: Lsn::new(0x16_B374_D878),
        commit_time: PgTimestamp::new(-1),
    };
    assert_eq!(decode(data), Message::Commit(expected));
}

#[test]
fn origin_is_decoded() {
    let expected = Origin {
        commit_lsn: Lsn::new(7),
        name: "berlin",
    };
    assert_eq!(
        decode(b"O\x00\x00\x00\x00\x00\x00\x00\x07berlin\0"),
        Message::Origin(expected)
    );
}

#[test]
fn a_relation_is_decoded_with_its_columns() {
    let data = b"R\x00\x00\x40\x01public\0outbox_events\0d\x00\x02\
        \x01id\0\x00\x00\x0B\x86\xFF\xFF\xFF\xFF\
        \x00amount\0\x00\x00\x06\xA4\x00\x0A\x00\x06";
    let Message::Relation(relation) = decode(data) else {
        panic!("not a relation")
    };
    assert_eq!((relation.oid, relation.replica_identity), (0x4001, b'd'));
    assert_eq!((relation.namespace, relation.name), ("public", "outbox_events"));
    assert_eq!(relation.column_count(), 2);
    assert_eq!(relation.columns().len(), 2);
    assert_eq!(
        relation.columns().collect::<Vec<_>>(),
        [
            Column {
                flags: 1,
                name: "id",
                type_oid: 2950,
                type_modifier: -1
            },
            Column {
                flags: 0,
                name: "amount",
                type_oid: 1700,
                type_modifier: 0xA_0006
            },
        ]
    );
}

#[test]
fn type_is_decoded() {
    let expected = Type {
        oid: 0x4002,
        namespace: "shop",
        name: "mood",
    };
    assert_eq!(decode(b"Y\x00\x00\x40\x02shop\0mood\0"), Message::Type(expected));
}

#[test]
fn an_empty_namespace_means_pg_catalog() {
    let Message::Relation(relation) = decode(b"R\x00\x00\x00\x01\0pg_class\0n\x00\x00") else {
        panic!("not a relation")
    };
    assert_eq!(relation.namespace, "pg_catalog");
    assert_eq!(relation.columns().next(), None);
    let expected = Type {
        oid: 1,
        namespace: "pg_catalog",
        name: "bool",
    };
    assert_eq!(decode(b"Y\x00\x00\x00\x01\0bool\0"), Message::Type(expected));
}

#[test]
fn an_insert_is_decoded_with_every_kind_of_value() {
    let Message::Insert(insert) = decode(INSERT) else {
        panic!("not an insert")
    };
    assert_eq!(insert.relation_oid, 0x4001);
    let values = [
        Value::Text(b"abc"),
        Value::Null,
        Value::Unchanged,
        Value::Binary(b"\x00\xFF"),
    ];
    assert_eq!((insert.new.len(), insert.new.is_empty()), (4, false));
    assert_eq!(insert.new.values().len(), 4);
    assert_eq!(insert.new.values().collect::<Vec<_>>(), values);
    for (index, value) in values.into_iter().enumerate() {
        assert_eq!(insert.new.value(index), Some(value));
    }
    assert_eq!(insert.new.value(4), None);
}

#[test]
fn a_row_without_columns_is_decoded() {
    let Message::Insert(insert) = decode(b"I\x00\x00\x40\x01N\x00\x00") else {
        panic!("not an insert")
    };
    assert!(insert.new.is_empty());
    assert_eq!(insert.new.value(0), None);
}

#[test]
fn an_update_is_decoded_with_and_without_the_old_row() {
    let new = b"N\x00\x01t\x00\x00\x00\x01b";
    let decoded = |old: &[u8]| {
        let data = [b"U\x00\x00\x40\x01", old, new].concat();
        Sample::from(decode(&data))
    };
    let row = |text: &str| vec![Cell::Text(text.into())];
    let expected = |old| Sample::Update {
        oid: 0x4001,
        old,
        new: row("b"),
    };
    assert_eq!(decoded(b""), expected(None));
    assert_eq!(
        decoded(b"K\x00\x01t\x00\x00\x00\x01a"),
        expected(Some((b'K', row("a"))))
    );
    assert_eq!(
        decoded(b"O\x00\x01t\x00\x00\x00\x01a"),
        expected(Some((b'O', row("a"))))
    );
}

#[test]
fn a_delete_is_decoded() {
    let Message::Delete(delete) = decode(b"D\x00\x00\x40\x01K\x00\x01t\x00\x00\x00\x01a") else {
        panic!("not a delete")
    };
    assert_eq!(delete.relation_oid, 0x4001);
    let OldTuple::Key(key) = delete.old else {
        panic!("not a key")
    };
    assert_eq!(key.value(0), Some(Value::Text(b"a")));
}

#[test]
fn a_truncate_is_decoded() {
    let Message::Truncate(truncate) = decode(b"T\x00\x00\x00\x02\x03\x00\x00\x40\x01\x00\x00\x40\x02") else {
        panic!("not a truncate")
    };
    assert_eq!(truncate.options, 3);
    assert_eq!(truncate.oids().collect::<Vec<_>>(), [0x4001, 0x4002]);
}

#[test]
fn a_logical_message_is_decoded() {
    let data = b"M\x01\x00\x00\x00\x16\xB3\x74\xD8\x48walrelay\0\x00\x00\x00\x03\x00\xFFx";
    let Message::Logical(message) = decode(data) else {
        panic!("not a logical message")
    };
    assert!(message.is_transactional());
    assert_eq!(message.lsn, Lsn::new(0x16_B374_D848));
    assert_eq!(
        (message.prefix, message.content.bytes()),
        ("walrelay", Some(b"\x00\xFFx".as_slice()))
    );
}

#[test]
fn the_first_wrong_byte_is_named() {
    for (data, text) in [
        (b"".as_slice(), "pgoutput message: cut off in tag"),
        (b"S", "pgoutput message: unknown tag 'S' (0x53)"),
        (b"I\x00\x00\x40\x01O", "Insert: unknown tuple kind 'O' (0x4F)"),
        (
            b"I\x00\x00\x40\x01N\x00\x01x",
            "Insert: unknown value kind 'x' (0x78)",
        ),
        (
            b"I\x00\x00\x40\x01N\x00\x01t\xFF\xFF\xFF\xFF",
            "Insert: value length is -1",
        ),
        (b"I\x00\x00\x40\x01N\xFF\xFFn", "Insert: cut off in value kind"),
        (b"I\x00\x00\x40\x01N\x00\x01nn", "Insert: trailing bytes: 1"),
        (b"U\x00\x00\x40\x01X", "Update: unknown tuple kind 'X' (0x58)"),
        (
            b"U\x00\x00\x40\x01K\x00\x00K",
            "Update: unknown tuple kind 'K' (0x4B)",
        ),
        (b"D\x00\x00\x40\x01N", "Delete: unknown tuple kind 'N' (0x4E)"),
        (b"T\xFF\xFF\xFF\xFF\x00", "Truncate: relation count is -1"),
        (b"T\x7F\xFF\xFF\xFF\x00", "Truncate: cut off in relation oid"),
        (
            b"O\x00\x00\x00\x00\x00\x00\x00\x07ber\xFFlin\0",
            "Origin: name is not UTF-8",
        ),
        (b"R\x00\x00\x40\x01public", "Relation: cut off in namespace"),
        (
            b"R\x00\x00\x40\x01public\0t\0d\x00\x01\x00\xFF\0",
            "Relation: column name is not UTF-8",
        ),
    ] {
        assert_eq!(Message::decode(data).unwrap_err().to_string(), text);
    }
}

#[test]
fn debug_does_not_show_the_data() {
    let insert = format!("{:?}", decode(INSERT));
    assert!(
        insert.contains("[Text(3 bytes), Null, Unchanged, Binary(2 bytes)]"),
        "{insert}"
    );
    let message = format!(
        "{:?}",
        decode(b"M\x00\x00\x00\x00\x00\x00\x00\x00\x00p\0\x00\x00\x00\x03abc")
    );
    assert!(message.contains("content: 3 bytes"), "{message}");
}

proptest! {
    #![proptest_config(property::config())]

    #[test]
    fn a_message_survives_encoding_and_decoding(sample in any_sample()) {
        let data = sample.encode();
        prop_assert_eq!(Message::decode(&data).map(Sample::from), Ok(sample));
    }

    #[test]
    fn every_strict_prefix_is_an_error_not_a_panic(sample in any_sample()) {
        let data = sample.encode();
        for end in 0..data.len() {
            let error = Message::decode(&data[..end]).unwrap_err();
            prop_assert!(matches!(error, DecodeError::Truncated { .. }), "{}: {}", end, error);
        }
    }

    #[test]
    fn bytes_behind_a_message_are_an_error(sample in any_sample(), more in prop::collection::vec(any::<u8>(), 1..9)) {
        let data = [sample.encode(), more.clone()].concat();
        let error = Message::decode(&data).unwrap_err();
        let is_trailing = matches!(error, DecodeError::TrailingBytes { count, .. } if count == more.len());
        prop_assert!(is_trailing, "{}", error);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        tag in prop::sample::select(b"BCORYIUDTM?\xFF".as_slice()),
        rest in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        check_what_decodes(&[&[tag], rest.as_slice()].concat())?;
    }

    #[test]
    fn a_changed_byte_never_panics(sample in any_sample(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut data = sample.encode();
        *at.get_mut(&mut data) = byte;
        check_what_decodes(&data)?;
    }
}

/// What decodes was fully understood: encoded again it is the same bytes, so no iterator ended early. (But for a
/// namespace that is spelled out where the server would leave it empty.)
fn check_what_decodes(data: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = Message::decode(data) {
        let plain = data.strip_prefix(&[CONDENSED]).unwrap_or(data);
        prop_assert_eq!(Sample::from(message).encode(), plain);
    }
    Ok(())
}
