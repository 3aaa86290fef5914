//! What the stream brings: places in a transaction, room, errors, keepalives, stopping.

use super::rig::{COMMIT_SIZE, OTHER_OID, OutboxRow, Rig, begin, commit, config, keepalive, relation, xlog};
use crate::event::MappingError;
use crate::flow::{Flow, FlowConfig, IgnoredTable, Intake, StreamError};
use crate::pgoutput::sample::Sample;

/// I4: no parser comes near the body.
#[test]
fn an_inserted_row_becomes_a_mandatory_message_with_the_payload_byte_for_byte() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::new("a").insert());
    let messages = rig.publish_messages();
    assert_eq!(messages.len(), 1, "published before its commit has come");
    let message = &messages[0];
    assert_eq!(message.body, br#"{"total": 0.10000000000000000001}"#);
    assert_eq!(
        (message.exchange.as_str(), message.routing_key.as_str()),
        ("outbox", "order.created")
    );
    assert_eq!((message.message_id.as_str(), message.is_mandatory), ("a", true));
}

/// R1: a change of configuration does not shift the places of the others.
#[test]
fn the_place_in_a_transaction_counts_rows_that_are_not_relayed() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    for (id, is_sent) in [("a", false), ("b", true), ("c", false)] {
        let row = OutboxRow {
            is_sent,
            ..OutboxRow::new(id)
        };
        rig.take(&row.insert());
    }
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 0), (100, 2)]);
    assert_eq!(rig.flow.counters().already_sent, 1);
}

/// I5: a frame that finds no room can be handed in again as if nothing had been.
#[test]
fn a_frame_without_room_leaves_everything_as_it_was_and_is_taken_later() {
    let mut rig = Rig::started(config(2, 100_000));
    rig.transaction(100, 2);
    rig.take(&begin(200, 2));
    let row = OutboxRow::new("late").insert();
    let before = (*rig.flow.counters(), rig.flow.in_flight_bytes(), rig.durable());
    for _ in 0..3 {
        assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
        assert!(!rig.flow.wants_stream());
    }
    assert_eq!(
        (*rig.flow.counters(), rig.flow.in_flight_bytes(), rig.durable()),
        before
    );
    rig.publish();
    rig.ack(1);
    rig.take(&row);
    assert!(rig.flow.wants_stream());
    assert_eq!(rig.publish(), [(200, 0)]);
}

/// I5: bytes count as well, though an empty window takes any one event.
#[test]
fn an_event_larger_than_the_window_is_taken_by_an_empty_one() {
    let mut rig = Rig::started(config(10, 1_000));
    let large = OutboxRow {
        payload: vec![b'7'; 50_000],
        ..OutboxRow::new("large")
    };
    rig.transaction(100, 1);
    rig.take(&begin(200, 2));
    assert_eq!(rig.offer(&large.insert()).unwrap(), Intake::NoRoom);
    rig.publish();
    rig.ack(1);
    rig.take(&large.insert());
    assert_eq!(
        rig.offer(&OutboxRow::new("small").insert()).unwrap(),
        Intake::NoRoom
    );
    assert_eq!(rig.publish_messages()[0].body, large.payload);
}

/// It may be of megabytes, and it is offered again whenever anything is settled.
#[test]
fn a_row_that_waits_for_bytes_is_encoded_once_more_when_there_is_room() {
    let mut rig = Rig::started(config(100, 5_000));
    let large = OutboxRow {
        payload: vec![b'7'; 4_500],
        ..OutboxRow::new("large")
    };
    rig.transaction(100, 10);
    rig.publish();
    rig.take(&begin(200, 2));
    let before = rig.flow.scratch.prepared;
    for tag in 1..10 {
        assert_eq!(rig.offer(&large.insert()).unwrap(), Intake::NoRoom);
        rig.ack(tag);
    }
    assert_eq!(rig.flow.scratch.prepared - before, 1);
    rig.ack(10);
    rig.take(&large.insert());
    assert_eq!(rig.flow.scratch.prepared - before, 2);
    rig.take(&OutboxRow::new("small").insert());
}

/// R4.
#[test]
fn a_row_of_a_table_that_is_not_configured_is_an_error_and_nothing_moves() {
    let mut rig = Rig::small();
    rig.transaction(100, 0);
    rig.take(&relation(OTHER_OID, "outbox_events_old"));
    rig.take(&begin(200, 2));
    let row = Sample::Insert {
        oid: OTHER_OID,
        new: Vec::new(),
    };
    let error = rig.offer(&row).unwrap_err();
    assert!(
        matches!(&error, StreamError::UnknownTable { table, .. } if table == "outbox_events_old"),
        "{error}"
    );
    assert_eq!((rig.durable(), rig.flow.in_flight()), (100 + COMMIT_SIZE, 0));
    rig.keepalive(900, false);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R1, R4: its rows count for the place in the transaction, and nothing waits for them.
#[test]
fn rows_of_an_ignored_table_are_counted_and_passed_over() {
    let mut rig = Rig::started(FlowConfig {
        ignore_tables: vec![IgnoredTable {
            schema: "public".to_owned(),
            name: "outbox_events_old".to_owned(),
        }],
        ..config(10, 100_000)
    });
    rig.take(&relation(OTHER_OID, "outbox_events_old"));
    let ignored = Sample::Insert {
        oid: OTHER_OID,
        new: Vec::new(),
    };
    rig.take(&begin(200, 2));
    rig.take(&ignored);
    rig.take(&OutboxRow::new("a").insert());
    rig.take(&ignored);
    rig.take(&commit(200));
    assert_eq!(rig.publish(), [(200, 1)]);
    rig.ack(1);
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
    assert_eq!((rig.flow.counters().read, rig.flow.counters().ignored), (1, 2));
}

/// R4: the table renamed away, and another one in its place.
#[test]
fn a_table_that_was_renamed_is_no_longer_the_outbox() {
    let mut rig = Rig::small();
    rig.take(&relation(super::rig::OUTBOX_OID, "renamed"));
    rig.take(&begin(200, 2));
    let error = rig.offer(&OutboxRow::new("a").insert()).unwrap_err();
    assert!(matches!(error, StreamError::UnknownTable { .. }), "{error}");
}

/// R8: a required column that is gone needs a person.
#[test]
fn a_table_without_a_required_column_is_an_error_that_names_both() {
    let mut rig = Rig::small();
    let Sample::Relation {
        oid,
        namespace,
        name,
        replica_identity,
        mut columns,
    } = super::rig::outbox_relation()
    else {
        unreachable!()
    };
    columns.retain(|column| column.name != "event_type");
    let changed = Sample::Relation {
        oid,
        namespace,
        name,
        replica_identity,
        columns,
    };
    let error = rig.offer(&changed).unwrap_err();
    let expected = MappingError::ColumnMissing {
        table: "public.outbox_events".to_owned(),
        column: "event_type".to_owned(),
        field: "event_type",
    };
    assert!(
        matches!(&error, StreamError::Mapping(mapping) if *mapping == expected),
        "{error}"
    );
}

#[test]
fn frames_out_of_place_are_errors_not_panics() {
    let mut rig = Rig::small();
    assert!(matches!(
        rig.offer(&OutboxRow::new("a").insert()),
        Err(StreamError::OutsideTransaction { message: "Insert" })
    ));
    assert!(matches!(
        rig.offer(&commit(100)),
        Err(StreamError::OutsideTransaction { message: "Commit" })
    ));
    rig.take(&begin(100, 1));
    let unknown = Sample::Insert {
        oid: 1,
        new: Vec::new(),
    };
    assert!(matches!(
        rig.offer(&unknown),
        Err(StreamError::UnknownRelation { oid: 1 })
    ));
    assert!(matches!(
        rig.flow.handle_stream(b"w", rig.now),
        Err(StreamError::Decode(_))
    ));
    let mut idle = Flow::new(config(10, 1_000));
    assert!(matches!(
        idle.handle_stream(&xlog(&begin(100, 1)), rig.now),
        Err(StreamError::NoSession)
    ));
}

/// R3: it may be reported only once every event received before it is settled.
#[test]
fn a_keepalive_counts_from_its_place_in_the_stream() {
    let mut rig = Rig::small();
    rig.keepalive(50, false);
    assert_eq!(rig.durable(), 50);
    rig.transaction(100, 1);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 50);
    rig.transaction(600, 1);
    rig.publish();
    rig.ack(1);
    assert_eq!(rig.durable(), 500, "not that of the transaction behind it");
    rig.ack(2);
    assert_eq!(rig.durable(), 600 + COMMIT_SIZE);
}

/// R3.
#[test]
fn a_keepalive_within_a_transaction_is_not_durable() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    rig.keepalive(99, false);
    assert_eq!((rig.durable(), rig.flow.received().unwrap().get()), (0, 99));
    rig.take(&commit(100));
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// I7: a clean stop leaves no transaction half delivered.
#[test]
fn stopping_takes_no_new_transaction_but_finishes_the_open_one() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::new("a").insert());
    rig.flow.stop(rig.now);
    assert!(!rig.flow.is_drained());
    rig.take(&OutboxRow::new("b").insert());
    rig.take(&commit(100));
    assert_eq!(rig.offer(&begin(200, 2)).unwrap(), Intake::NoRoom);
    assert!(!rig.flow.wants_stream());
    assert_eq!(rig.publish(), [(100, 0), (100, 1)]);
    assert!(!rig.flow.is_drained());
    rig.ack_all();
    rig.mark();
    assert!(rig.flow.is_drained());
    assert_eq!(
        rig.flow.final_status(rig.now).unwrap().durable.get(),
        100 + COMMIT_SIZE
    );
}

/// R9: what is on its way may still be delivered; what stands behind a held event waits for the next relay.
#[test]
fn stopping_waits_for_what_was_sent_but_not_for_a_held_event() {
    let mut rig = Rig::small();
    rig.transaction(100, 3);
    rig.flow.stop(rig.now);
    rig.publish_one();
    rig.publish_one();
    rig.nack(1);
    assert!(!rig.flow.is_drained(), "one is unanswered");
    rig.ack(2);
    assert!(rig.flow.is_drained());
    assert_eq!(rig.publish(), []);
    assert_eq!(rig.durable(), 0);
}

#[test]
fn stopping_waits_for_what_may_be_sent_before_an_event_that_never_can() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::new("a").insert());
    rig.take(&OutboxRow::invalid("b").insert());
    rig.flow.stop(rig.now);
    assert!(!rig.flow.is_drained());
    assert_eq!(rig.publish(), [(100, 0)]);
    assert!(!rig.flow.is_drained());
    rig.ack_all();
    assert!(!rig.flow.is_drained(), "the settled prefix is not stored");
    assert_eq!(rig.stored(), Some((100, 0)));
    assert!(rig.flow.is_drained(), "though the transaction is open");
}

#[test]
fn stopping_without_a_session_waits_for_nothing() {
    let mut rig = Rig::small();
    rig.transaction(100, 2);
    rig.publish_one();
    rig.flow.stop(rig.now);
    rig.flow.session_lost();
    assert!(rig.flow.is_drained());
}

/// R2: nothing is reported before this session has received something.
#[test]
fn a_new_session_reports_0_until_it_has_received_something() {
    let mut rig = Rig::small();
    rig.keepalive(500, false);
    rig.flow.session_lost();
    assert_eq!((rig.flow.durable(), rig.flow.final_status(rig.now)), (None, None));
    rig.start_session(1);
    assert_eq!(rig.durable(), 0);
    let frame = keepalive(400, false);
    rig.flow.handle_stream(&frame, rig.now).unwrap();
    assert_eq!(rig.durable(), 400);
}
