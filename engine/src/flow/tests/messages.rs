//! Logical messages that are events: they go the way of rows.

use super::retries::message;
use super::rig::{COMMIT_SIZE, OutboxRow, Rig, begin, commit, config_with, outbox_relation, relation, xlog};
use crate::condense::Condenser;
use crate::emitted::{SCHEMA, table_name};
use crate::event::{AfterPublish, OutboxTable};
use crate::flow::{FlowConfig, Intake, RETRY_PREFIX, StoredEvent, StreamError};
use crate::pgoutput::sample::{Cell, Sample};
use crate::policy::Policy;
use crate::window::Failure;

const PREFIX: &str = "outbox";

fn config(policy: Policy) -> FlowConfig {
    let mut config = config_with(policy);
    let table = OutboxTable {
        schema: SCHEMA.to_owned(),
        name: table_name(PREFIX),
        after_publish: Some(AfterPublish::Keep),
        ..config.tables[0].clone()
    };
    config.tables.push(table);
    config.messages = Some(PREFIX.to_owned());
    config
}

fn started(policy: Policy) -> Rig {
    Rig::started(config(policy))
}

fn event(content: &str) -> Sample {
    message(PREFIX, 1, 9, content.as_bytes())
}

/// A message with this id that can be delivered.
fn good(id: &str) -> Sample {
    event(&format!(
        r#"{{"id": "{id}", "aggregate_type":"order","aggregate_id":7,"event_type":"paid","payload": {{ "n":1.0 }} }}"#
    ))
}

#[test]
fn a_message_is_delivered_as_a_row_is_and_in_its_place() {
    let mut rig = started(Policy::Hold);
    rig.take(&begin(100, 1));
    rig.take(&good("m"));
    rig.take(&OutboxRow::new("r").insert());
    rig.take(&good("n"));
    rig.take(&commit(100));
    let sent = rig.publish_messages();
    let ids: Vec<_> = sent
        .iter()
        .map(|message| (message.message_id.as_str(), message.position))
        .collect();
    assert_eq!(ids, [("m", (100, 0)), ("r", (100, 1)), ("n", (100, 2))]);
    assert_eq!(
        (sent[0].exchange.as_str(), sent[0].routing_key.as_str()),
        ("outbox", "order.paid")
    );
    assert_eq!(sent[0].body, br#"{ "n":1.0 }"#);
    assert_eq!(rig.durable(), 0);
    rig.ack_all();
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R1: a place in the transaction is not another one with another configuration.
#[test]
fn every_message_of_a_transaction_has_a_place_whatever_is_configured() {
    let mut without = config(Policy::Hold);
    without.messages = None;
    without.tables.pop();
    for (config, expected) in [(config(Policy::Hold), vec![1, 4]), (without, vec![4])] {
        let mut rig = Rig::started(config);
        rig.take(&begin(100, 1));
        rig.take(&message("other", 1, 9, b"x"));
        rig.take(&good("m"));
        rig.take(&message(RETRY_PREFIX, 1, 9, b"none of ours"));
        rig.take(&message("", 1, 9, b""));
        rig.take(&OutboxRow::new("r").insert());
        rig.take(&commit(100));
        let places: Vec<_> = rig.publish().into_iter().map(|(_, place)| place).collect();
        assert_eq!(places, expected);
    }
}

#[test]
fn a_message_of_no_transaction_is_refused_and_counted() {
    let mut rig = started(Policy::Hold);
    rig.take(&message(PREFIX, 0, 9, b"{}"));
    rig.take(&message("other", 0, 9, b"{}"));
    rig.take(&begin(100, 1));
    rig.take(&message(PREFIX, 0, 9, b"{}"));
    rig.take(&good("m"));
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 0)]);
    assert_eq!(rig.flow.counters().refused_messages, 2);
    let outside = rig.offer(&good("m")).unwrap_err();
    assert!(matches!(
        outside,
        StreamError::OutsideTransaction { message: "Message" }
    ));
}

#[test]
fn what_is_no_event_is_invalid_and_gets_its_policy() {
    let missing = r#"{"id":"m","aggregate_type":"order","event_type":"paid","payload":1}"#;
    for (content, id, reason) in [
        (missing, Some("m"), "\"aggregate_id\" is null or missing"),
        (
            "[1]",
            None,
            "the logical message is no JSON object of an event: expected an object at byte 1",
        ),
    ] {
        let mut rig = started(Policy::Hold);
        rig.take(&begin(100, 1));
        rig.take(&event(content));
        assert_eq!(rig.offer(&good("next")).unwrap(), Intake::NoRoom);
        let held = rig.flow.held().unwrap();
        assert_eq!((held.message_id, held.key.tx_seq), (id, 0));
        let said = match held.failure {
            Failure::Invalid { reason, .. } => reason.to_string(),
            Failure::Unreadable { reason } => reason.to_string(),
            Failure::Unroutable { .. } | Failure::Nacked | Failure::Unanswered | Failure::Refused { .. } => {
                panic!("it was sent")
            }
        };
        assert_eq!(said, reason);
        assert!(rig.flow.skip_held(rig.now));
        rig.take(&good("next"));
        rig.take(&commit(100));
        assert_eq!(rig.publish(), [(100, 1)]);
        assert_eq!((rig.flow.counters().invalid, rig.flow.counters().skipped), (1, 1));

        let mut rig = started(Policy::Discard);
        rig.take(&begin(100, 1));
        rig.take(&event(content));
        rig.take(&commit(100));
        assert_eq!(rig.discarded(), [((100, 0), id.map(str::to_owned))]);
        assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    }
}

#[test]
fn a_dead_letter_of_a_message_names_its_table_and_keeps_what_it_said() {
    let mut rig = started(Policy::DeadLetter);
    rig.take(&begin(100, 1));
    rig.take(&event("{\"id\":\"a\" \"b\"}"));
    rig.take(&event(r#"{"id":"m","payload":[ ],"aggregate_type":"x\ny"}"#));
    rig.take(&commit(100));
    let stored: Vec<_> = rig.flow.set_aside().map(|letter| letter.row.clone()).collect();
    let names = &stored[0].names;
    assert_eq!(
        (names.schema.as_str(), names.name.as_str()),
        (SCHEMA, "messages:outbox")
    );
    let columns = |row: &crate::row::Row| -> Vec<_> {
        let filled = row.columns().into_iter();
        filled.filter_map(|(name, value)| Some((name, value?))).collect()
    };
    let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(columns(&stored[0]), [text("content", "{\"id\":\"a\" \"b\"}")]);
    assert_eq!(
        columns(&stored[1]),
        [
            text("id", "m"),
            text("aggregate_type", "x\ny"),
            text("payload", "[ ]")
        ]
    );
}

#[test]
fn a_dead_letter_of_a_message_is_sent_again_as_it_was() {
    let mut rig = started(Policy::DeadLetter);
    rig.take(&begin(100, 1));
    rig.take(&good("m"));
    rig.take(&commit(100));
    let first = rig.publish_messages();
    rig.return_and_ack((100, 0), 1);
    let letter = rig.flow.next_set_aside().unwrap();
    let stored = StoredEvent {
        key: letter.event.key,
        event_id: letter.event.message_id.map(str::to_owned),
        schema: letter.row.names.schema.clone(),
        table: letter.row.names.name.clone(),
        payload_type: Some(crate::emitted::PAYLOAD_OID),
        columns: Some(letter.row.columns()),
    };
    rig.store(150);
    rig.take(&begin(200, 2));
    rig.take(&message(RETRY_PREFIX, 1, 190, b"retry it"));
    rig.take(&commit(200));
    let (token, _) = rig.flow.unsorted_retry().unwrap();
    rig.flow.retry_wanted(token, stored.key.position());
    rig.flow.retry_loaded(token, stored);
    assert_eq!(rig.publish_messages(), first);
}

/// What the condenser makes of a message of 100 MB, or of any that is larger than one would keep.
#[test]
fn an_oversized_message_is_invalid_and_costs_no_memory() {
    let mut rig = started(Policy::Hold);
    rig.take(&begin(100, 1));
    let large = xlog(&message(PREFIX, 1, 9, &vec![b'x'; 3_000_000]));
    let mut condenser = Condenser::new(large.len(), 100_000);
    for piece in large.chunks(65_536) {
        condenser.feed(piece).unwrap();
    }
    let condensed = condenser.payload().unwrap();
    assert!(condensed.len() < 100);
    assert_eq!(rig.flow.handle_stream(condensed, rig.now).unwrap(), Intake::Taken);
    let Failure::Invalid { id, reason } = rig.flow.held().unwrap().failure.clone() else {
        panic!("not invalid")
    };
    assert_eq!(
        (id, reason.to_string().as_str()),
        (
            None,
            "column \"payload\" has 3000000 bytes; there is room for 100000 (delivery.max_event_bytes)"
        )
    );
}

#[test]
fn with_strict_order_a_message_waits_for_a_row_of_its_aggregate() {
    let mut rig = Rig::started(FlowConfig {
        strict: true,
        ..config(Policy::Hold)
    });
    rig.take(&begin(100, 1));
    let row = OutboxRow {
        aggregate: "7".to_owned(),
        ..OutboxRow::new("r")
    };
    rig.take(&row.insert());
    rig.take(&good("m"));
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack_all();
    assert_eq!(rig.publish(), [(100, 1)]);
}

/// R2: nothing is sent twice because a session was lost.
#[test]
fn a_message_that_comes_again_is_recognised() {
    let mut rig = started(Policy::Hold);
    rig.take(&begin(100, 1));
    rig.take(&good("m"));
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.lose_and_find_session();
    rig.take(&begin(100, 1));
    rig.take(&good("m"));
    rig.take(&good("n"));
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 1)]);
    assert_eq!(rig.flow.counters().recognised, 1);
}

/// R4: its rows are nobody's.
#[test]
fn a_table_of_that_very_name_is_not_taken_for_the_messages() {
    let mut rig = started(Policy::Hold);
    let Sample::Relation { columns, .. } = relation(7, "x") else {
        panic!("no relation")
    };
    rig.take(&Sample::Relation {
        oid: 7,
        namespace: SCHEMA.to_owned(),
        name: table_name(PREFIX),
        replica_identity: b'd',
        columns,
    });
    rig.take(&outbox_relation());
    rig.take(&begin(100, 1));
    let insert = Sample::Insert {
        oid: 7,
        new: vec![Cell::Null; 6],
    };
    let error = rig.offer(&insert).unwrap_err();
    assert!(matches!(error, StreamError::UnknownTable { .. }), "{error}");
}
