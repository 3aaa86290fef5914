use proptest::prelude::*;

use super::*;
use crate::event::{Columns, Content, InvalidRow, Mapping, OutboxTable, Route};
use crate::pgoutput::sample::{Cell, Row, Sample, SampleColumn, any_sample};
use crate::pgoutput::{Message, Value};
use crate::property;
use crate::route::{Destination, RenderError, Template, ValueFault};
use crate::walsender::ServerMessage;

const FIELDS: &[u8] = b"w\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\
    \x00\x00\x00\x00\x00\x00\x00\x03";

fn payload(sample: &Sample) -> Vec<u8> {
    [FIELDS, &sample.encode()].concat()
}

/// Feeds `payload` in pieces of these sizes, over and over, with the next frame behind it.
fn condensed(payload: &[u8], limit: usize, pieces: &[usize]) -> Result<Vec<u8>, CondenseError> {
    let mut condenser = Condenser::new(payload.len(), limit);
    let input = [payload, b"the next frame"].concat();
    let mut pieces = pieces.iter().cycle();
    let mut at = 0;
    while condenser.left() > 0 {
        assert_eq!(condenser.payload(), None);
        let end = input.len().min(at + pieces.next().unwrap());
        at += condenser.feed(&input[at..end])?;
    }
    assert_eq!(at, payload.len());
    Ok(condenser.payload().expect("complete").to_owned())
}

fn decoded(payload: &[u8]) -> Result<Sample, DecodeError> {
    match ServerMessage::decode(payload)? {
        ServerMessage::XLogData(data) => Message::decode(data.data).map(Sample::from),
        ServerMessage::Keepalive(_) => panic!("no XLogData"),
    }
}

/// What a row is condensed to, said simply.
fn model(row: &mut [Cell], limit: usize, room: &mut usize) {
    for cell in row {
        if let Cell::Text(data) | Cell::Binary(data) = cell {
            let limit = limit.min(*room);
            if data.len() <= limit {
                *room -= data.len();
            } else {
                *cell = Cell::Oversized {
                    length: data.len().try_into().unwrap(),
                    limit: limit.try_into().unwrap(),
                };
            }
        }
    }
}

fn model_of(mut sample: Sample, limit: usize) -> Sample {
    let room = &mut (2 * limit);
    match &mut sample {
        Sample::Insert { new, .. } => model(new, limit, room),
        Sample::Delete { old, .. } => model(&mut old.1, limit, room),
        Sample::Update { old, new, .. } => {
            if let Some((_, old)) = old {
                model(old, limit, room);
            }
            model(new, limit, room);
        }
        Sample::Message { prefix, content, .. } => {
            if prefix.len() > PREFIX_MAX {
                prefix.clear();
                *content = Cell::Binary(Vec::new());
            }
            model(std::slice::from_mut(content), limit, &mut limit.clone());
        }
        Sample::Begin { .. }
        | Sample::Commit { .. }
        | Sample::Origin { .. }
        | Sample::Relation { .. }
        | Sample::Type { .. }
        | Sample::Truncate { .. } => {}
    }
    sample
}

fn insert(new: Row) -> Sample {
    Sample::Insert { oid: 7, new }
}

#[test]
fn a_large_value_leaves_its_length_and_nothing_else() {
    let large = vec![b'x'; 40_000_000];
    let row = insert(vec![Cell::Text(b"id".to_vec()), Cell::Text(large), Cell::Null]);
    let whole = payload(&row);
    let mut condenser = Condenser::new(whole.len(), 1000);
    for piece in whole.chunks(65_536) {
        assert_eq!(condenser.feed(piece), Ok(piece.len()));
        assert!(condenser.out.capacity() < 4096);
    }
    let data = condenser.payload().unwrap();
    let Sample::Insert { new, .. } = decoded(data).unwrap() else {
        panic!("no insert")
    };
    assert_eq!(
        new,
        [
            Cell::Text(b"id".to_vec()),
            Cell::Oversized {
                length: 40_000_000,
                limit: 1000
            },
            Cell::Null,
        ]
    );
}

#[test]
fn many_values_just_below_the_limit_are_bounded_by_their_sum() {
    let row = insert(vec![Cell::Text(vec![b'x'; 1000]); 1600]);
    let data = condensed(&payload(&row), 1000, &[100]).unwrap();
    assert!(data.len() < 2000 + 1600 * 9 + 100, "{}", data.len());
    let oversized = Cell::Oversized {
        length: 1000,
        limit: 0,
    };
    let Sample::Insert { new, .. } = decoded(&data).unwrap() else {
        panic!("no insert")
    };
    assert_eq!(new.iter().filter(|cell| **cell == oversized).count(), 1598);
}

#[test]
fn of_a_large_logical_message_the_prefix_is_left_and_how_much_it_said() {
    let long = |length| "x".repeat(length);
    for (prefix, length) in [
        (long(5000), 0),
        (long(PREFIX_MAX + 1), 5000),
        (long(PREFIX_MAX), 5000),
        ("outbox".to_owned(), 11),
        (String::new(), 10),
    ] {
        let message = Sample::Message {
            flags: 1,
            lsn: 9,
            prefix,
            content: Cell::Binary(vec![7; length]),
        };
        let data = condensed(&payload(&message), 10, &[7]).unwrap();
        assert!(data.len() < 60 + PREFIX_MAX);
        assert_eq!(decoded(&data), Ok(model_of(message, 10)));
    }
}

#[test]
fn what_cannot_be_passed_over_is_refused_at_its_head() {
    let truncate = Sample::Truncate {
        options: 0,
        oids: vec![1; 300_000],
    };
    let whole = payload(&truncate);
    let mut condenser = Condenser::new(whole.len(), 1000);
    let error = CondenseError::TooLarge {
        size: whole.len(),
        limit: OTHER_MAX,
    };
    assert_eq!(condenser.feed(&whole[..26]), Err(error));
    assert_eq!(condensed(&whole, whole.len(), &[1 << 20]).as_ref(), Ok(&whole));
}

#[test]
fn a_server_cannot_send_a_marker_in_a_row() {
    let row = insert(vec![Cell::Oversized { length: 9, limit: 8 }]);
    let whole = payload(&row);
    let error = DecodeError::UnknownTag {
        message: "Insert",
        field: "value kind",
        tag: 0xFF,
    };
    assert_eq!(condensed(&whole, 1, &[3]), Err(error.into()));
    assert_eq!(decoded(&whole), Err(error));
}

#[test]
fn a_length_beyond_the_payload_is_an_error_before_it_is_waited_for() {
    let mut whole = payload(&insert(vec![Cell::Text(vec![0; 100])]));
    whole.truncate(whole.len() - 1);
    let error = DecodeError::Truncated {
        message: "Insert",
        field: "value",
    };
    for limit in [1, 1000] {
        let mut condenser = Condenser::new(whole.len(), limit);
        assert_eq!(condenser.feed(&whole[..38]), Err(error.into()));
    }
}

#[test]
fn debug_of_a_marker_tells_the_length() {
    let value = Value::Oversized { length: 9, limit: 8 };
    assert_eq!(format!("{value:?}"), "Oversized(9 bytes)");
}

fn any_pieces() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..40_usize, 1..6)
}

proptest! {
    #![proptest_config(property::config())]

    #[test]
    fn a_condensed_message_is_the_whole_one_but_for_large_values(
        sample in any_sample(), limit in 0..30_usize, pieces in any_pieces(),
    ) {
        let whole = payload(&sample);
        let data = condensed(&whole, limit, &pieces).unwrap();
        prop_assert_eq!(decoded(&data), Ok(model_of(sample, limit)));
        prop_assert!(data.starts_with(FIELDS));
        prop_assert_eq!(condensed(&whole, limit, &[whole.len()]), Ok(data));
    }

    #[test]
    fn a_damaged_message_is_an_error_after_condensing_too(
        sample in any_sample(), at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>(),
        limit in 0..30_usize, pieces in any_pieces(),
    ) {
        let mut data = sample.encode();
        *at.get_mut(&mut data) = byte;
        for end in [cut.index(data.len()), data.len()] {
            let whole = [FIELDS, &data[..end]].concat();
            let result = condensed(&whole, limit, &pieces);
            let condensed = result.is_ok_and(|payload| decoded(&payload).is_ok());
            prop_assert_eq!(condensed, decoded(&whole).is_ok());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        head in prop_oneof![Just(FIELDS), Just(b"k".as_slice()), Just(b"".as_slice())],
        tag in prop::sample::select(b"IUDMRT\xFF?".as_slice()),
        bytes in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(b't'), Just(b'N'), any::<u8>()], 0..80),
        more in 0..1000_usize, limit in 0..100_usize, pieces in any_pieces(),
    ) {
        let bytes = [head, &[tag], &bytes].concat();
        let mut condenser = Condenser::new(bytes.len() + more, limit);
        let mut rest = bytes.as_slice();
        for piece in pieces.iter().cycle() {
            let Some(piece) = rest.get(..rest.len().min(*piece)).filter(|piece| !piece.is_empty()) else { break };
            let Ok(taken) = condenser.feed(piece) else { break };
            prop_assert_eq!(taken, piece.len());
            rest = &rest[taken..];
        }
        prop_assert!(condenser.out.len() <= bytes.len() + 9);
    }
}

/// A mapping of `columns`, all of them text, and what the row makes of it when values over 100 bytes are large.
fn with_mapping<T>(
    columns: &[(&str, usize)],
    routing_key: &str,
    check: impl FnOnce(&Mapping, &crate::pgoutput::Tuple<'_>) -> T,
) -> T {
    let relation = Sample::Relation {
        oid: 7,
        namespace: "public".to_owned(),
        name: "outbox_events".to_owned(),
        replica_identity: b'd',
        columns: columns
            .iter()
            .map(|(name, _)| SampleColumn {
                flags: 0,
                name: (*name).to_owned(),
                type_oid: 25,
                type_modifier: -1,
            })
            .collect(),
    }
    .encode();
    let Ok(Message::Relation(relation)) = Message::decode(&relation) else {
        panic!("no relation")
    };
    let route = Route {
        exchange: Template::parse("outbox").unwrap(),
        routing_key: Template::parse(routing_key).unwrap(),
        rules: Vec::new(),
    };
    let outbox = OutboxTable {
        schema: relation.namespace.to_owned(),
        name: relation.name.to_owned(),
        columns: Columns::default(),
        route,
        content: Content::default(),
        after_publish: None,
    };
    let mapping = Mapping::bind(&relation, &outbox).unwrap();
    let row = insert(
        columns
            .iter()
            .map(|(_, length)| Cell::Text(vec![b'x'; *length]))
            .collect(),
    );
    let data = condensed(&payload(&row), 100, &[64]).unwrap();
    let Ok(ServerMessage::XLogData(data)) = ServerMessage::decode(&data) else {
        panic!("no XLogData")
    };
    let Ok(Message::Insert(insert)) = Message::decode(data.data) else {
        panic!("no insert")
    };
    check(&mapping, &insert.new)
}

#[test]
fn a_row_with_a_large_payload_is_invalid_and_keeps_its_id() {
    let columns = [
        ("id", 2),
        ("aggregate_type", 1),
        ("aggregate_id", 1),
        ("event_type", 1),
        ("payload", 101),
    ];
    with_mapping(&columns, "{event_type}", |mapping, row| {
        assert_eq!(mapping.id(row), Some("xx"));
        let error = mapping.read(row).unwrap_err();
        assert_eq!(
            error.to_string(),
            "column \"payload\" has 101 bytes; there is room for 100 (delivery.max_event_bytes)"
        );
    });
}

#[test]
fn a_row_with_a_large_id_is_invalid_and_has_none() {
    let columns = [
        ("id", 101),
        ("aggregate_type", 1),
        ("aggregate_id", 1),
        ("event_type", 1),
        ("payload", 1),
    ];
    with_mapping(&columns, "{event_type}", |mapping, row| {
        assert_eq!(mapping.id(row), None);
        let error = InvalidRow::ColumnTooLarge {
            column: "id".to_owned(),
            length: 101,
            limit: 100,
        };
        assert_eq!(mapping.read(row), Err(error));
    });
}

#[test]
fn a_large_value_that_the_event_does_not_need_does_no_harm() {
    let columns = [
        ("notes", 500),
        ("id", 2),
        ("aggregate_type", 1),
        ("aggregate_id", 1),
        ("event_type", 1),
        ("payload", 100),
    ];
    with_mapping(&columns, "{event_type}", |mapping, row| {
        assert_eq!(mapping.read(row).unwrap().payload.len(), 100);
        assert!(!mapping.is_sent(row));
        mapping.route(row, &mut Destination::default()).unwrap();
    });
    with_mapping(&columns, "{notes}", |mapping, row| {
        let error = InvalidRow::Template {
            setting: "rabbitmq.routing_key".into(),
            error: RenderError {
                reference: "notes".to_owned(),
                fault: ValueFault::TooLarge {
                    length: 500,
                    limit: 100,
                },
            },
        };
        assert_eq!(mapping.route(row, &mut Destination::default()), Err(error));
    });
}

#[test]
fn a_large_sent_at_says_that_the_row_was_sent() {
    let columns = [
        ("id", 2),
        ("aggregate_type", 1),
        ("aggregate_id", 1),
        ("event_type", 1),
        ("payload", 1),
        ("sent_at", 101),
    ];
    with_mapping(&columns, "{event_type}", |mapping, row| {
        assert!(mapping.is_sent(row))
    });
}
