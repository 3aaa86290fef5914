//! Dead letters: unsettled until they are stored, and never acknowledged before what stored them is received (R15).

use super::rig::{COMMIT_SIZE, OutboxRow, Rig, SECOND, begin, commit, config_with, position};
use crate::Lsn;
use crate::flow::{FlowConfig, Intake};
use crate::policy::Policy;
use crate::window::Failure;

fn started() -> Rig {
    Rig::started(config_with(Policy::DeadLetter))
}

/// One event was returned and set aside; its transaction committed at 100.
fn with_one_set_aside() -> Rig {
    let mut rig = started();
    rig.transaction(100, 1);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig
}

#[test]
fn an_event_that_is_set_aside_is_unsettled_until_it_is_stored_and_the_rest_flows() {
    let mut rig = started();
    rig.transaction(100, 2);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    assert_eq!((rig.held(), rig.set_aside()), (None, Some((100, 0))));
    assert_eq!(rig.flow.set_aside_count(), 1);
    rig.transaction(200, 1);
    assert_eq!(rig.publish(), [(200, 0)]);
    rig.ack_all();
    assert_eq!((rig.durable(), rig.flow.in_flight()), (0, 1));
    assert!(!rig.flow.is_drained());
    rig.store(100);
    assert_eq!((rig.set_aside(), rig.flow.in_flight()), (None, 0));
    assert_eq!(
        (rig.durable(), rig.flow.counters().dead_lettered),
        (200 + COMMIT_SIZE, 1)
    );
}

/// Where it was to go, why it did not, and the row as PostgreSQL sent it.
#[test]
fn a_dead_letter_has_all_that_a_person_needs() {
    let mut rig = with_one_set_aside();
    let dead_letter = rig.flow.next_set_aside().unwrap();
    let event = dead_letter.event;
    assert_eq!(
        (position(&event.key), event.message_id),
        ((100, 0), Some("100:0"))
    );
    assert_eq!(
        (event.exchange, event.routing_key),
        (Some("outbox"), Some("order.created"))
    );
    assert_eq!(
        (event.failure, event.attempts),
        (&Failure::Unroutable { reply_code: 312 }, 1)
    );
    let names = &dead_letter.row.names;
    assert_eq!(
        (names.schema.as_str(), names.name.as_str()),
        ("public", "outbox_events")
    );
    let columns = [
        ("id", Some("100:0")),
        ("aggregate_type", Some("order")),
        ("aggregate_id", Some("42")),
        ("event_type", Some("created")),
        ("payload", Some("{\"total\": 0.10000000000000000001}")),
        ("sent_at", None),
    ];
    let expected = columns.map(|(name, value)| (name.to_owned(), value.map(str::to_owned)));
    assert_eq!(dead_letter.row.columns(), expected);
    rig.store(100);
}

/// R15.
#[test]
fn the_durable_lsn_passes_a_dead_letter_once_its_commit_was_received() {
    let mut rig = with_one_set_aside();
    rig.store(500);
    assert_eq!((rig.durable(), rig.flow.in_flight()), (0, 0));
    rig.transaction(200, 1);
    rig.publish();
    rig.ack(2);
    rig.keepalive(499, false);
    assert_eq!(rig.durable(), 0);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

/// R15: nor in a session that never counted the event.
#[test]
fn after_a_lost_session_the_durable_lsn_still_waits_for_the_dead_letters_commit() {
    let mut rig = with_one_set_aside();
    rig.store(500);
    rig.lose_and_find_session();
    rig.transaction(100, 1);
    assert_eq!((rig.publish(), rig.durable()), (vec![], 0));
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

/// R15: the SQL session that stores it lives on while the walsender's is lost, or stored it before both were.
#[test]
fn a_dead_letter_stored_without_a_session_holds_the_next_one_back() {
    let mut rig = with_one_set_aside();
    rig.flow.session_lost();
    rig.store(500);
    rig.start_session(1);
    rig.transaction(100, 1);
    assert_eq!((rig.set_aside(), rig.durable()), (None, 0));
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

/// R15: the new session's ledger has not counted the event, and never will.
#[test]
fn a_dead_letter_stored_before_a_new_session_brings_its_event_again_holds_it_back() {
    let mut rig = with_one_set_aside();
    rig.lose_and_find_session();
    rig.keepalive(90, false);
    assert_eq!(rig.durable(), 90);
    rig.store(500);
    rig.transaction(100, 1);
    rig.transaction(200, 0);
    assert_eq!(rig.durable(), 90);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

#[test]
fn a_dead_letter_stored_after_a_new_session_brought_its_event_again_holds_it_back() {
    let mut rig = with_one_set_aside();
    rig.lose_and_find_session();
    rig.transaction(100, 1);
    assert_eq!(rig.set_aside(), Some((100, 0)));
    rig.store(500);
    assert_eq!(rig.durable(), 0);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

/// R2: positions of another log mean nothing, nor does what was being stored.
#[test]
fn a_dead_letter_of_another_log_settles_nothing() {
    let mut rig = with_one_set_aside();
    let seq = rig.flow.next_set_aside().unwrap().seq;
    rig.flow.session_lost();
    assert!(rig.start_session(2));
    rig.link_up();
    rig.transaction(100, 1);
    rig.flow.stored(seq, Lsn::new(500), rig.now);
    assert_eq!((rig.durable(), rig.flow.counters().dead_lettered), (0, 0));
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R2: what stored it is gone from a server whose log ends before. It comes again, and nothing waits for that end.
#[test]
fn a_dead_letter_of_a_server_that_was_set_back_is_forgotten_with_its_end() {
    let mut rig = with_one_set_aside();
    rig.store(500);
    rig.flow.session_lost();
    assert!(rig.start_session_flushed(1, 499));
    rig.link_up();
    rig.transaction(100, 1);
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack_all();
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

#[test]
fn what_is_set_aside_is_not_sent_again_after_a_lost_link() {
    let mut rig = started();
    rig.transaction(100, 3);
    rig.publish();
    rig.return_and_ack((100, 1), 2);
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 0), (100, 2)]);
    assert_eq!(rig.set_aside(), Some((100, 1)));
}

/// An answer may come for one while an older one has failed meanwhile.
#[test]
fn dead_letters_may_be_stored_in_any_order() {
    let mut rig = started();
    rig.transaction(100, 2);
    rig.publish();
    rig.return_and_ack((100, 1), 2);
    let younger = rig.flow.next_set_aside().unwrap().seq;
    rig.return_and_ack((100, 0), 1);
    rig.flow.stored(younger, Lsn::new(50), rig.now);
    assert_eq!((rig.set_aside(), rig.flow.in_flight()), (Some((100, 0)), 1));
    rig.flow.stored(younger, Lsn::new(900), rig.now);
    assert_eq!(rig.flow.counters().dead_lettered, 1, "told twice, stored once");
    rig.store(60);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R12: it bounds the span like any unsettled event.
#[test]
fn dead_letters_that_cannot_be_stored_fill_the_window_and_no_more() {
    let mut rig = started();
    rig.take(&begin(100, 1));
    for row in 0..10 {
        rig.take(&OutboxRow::invalid(row.to_string()).insert());
    }
    let next = OutboxRow::invalid("next").insert();
    assert_eq!(rig.offer(&next).unwrap(), Intake::NoRoom);
    assert!(rig.flow.in_flight_bytes() > 0, "rows count");
    rig.store(50);
    rig.take(&next);
    rig.take(&commit(100));
    while rig.set_aside().is_some() {
        rig.store(50);
    }
    assert_eq!(
        (rig.durable(), rig.flow.in_flight_bytes()),
        (100 + COMMIT_SIZE, 0)
    );
}

/// R10.
#[test]
fn with_dead_letters_full_events_are_held_after_all_until_there_is_room() {
    let mut rig = started();
    rig.flow.set_dead_letters_full(true);
    rig.transaction(100, 3);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.return_and_ack((100, 1), 2);
    rig.ack(3);
    rig.take(&begin(200, 2));
    let row = OutboxRow::invalid("late").insert();
    assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
    assert_eq!((rig.flow.held_count(), rig.set_aside()), (2, None));
    assert!(!rig.flow.set_held_aside(rig.now));
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.flow.set_dead_letters_full(false);
    assert_eq!(
        (rig.held(), rig.set_aside()),
        (Some((100, 0)), Some((100, 1))),
        "the probe's answer decides about the other"
    );
    rig.return_and_ack((100, 0), 4);
    assert_eq!((rig.held(), rig.set_aside()), (None, Some((100, 0))));
    rig.take(&row);
}

/// R10: an invalid row is never tried again, so nothing else would set it aside.
#[test]
fn an_invalid_row_that_was_held_for_want_of_room_is_set_aside_once_there_is_some() {
    let mut rig = started();
    rig.flow.set_dead_letters_full(true);
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::invalid("a").insert());
    assert_eq!(rig.held(), Some((100, 0)));
    rig.flow.set_dead_letters_full(false);
    assert_eq!((rig.held(), rig.set_aside()), (None, Some((100, 0))));
    rig.take(&OutboxRow::new("b").insert());
    assert_eq!(rig.publish(), [(100, 1)]);
}

/// R10: room for dead letters is no reason to give up what another policy or the broker's state holds.
#[test]
fn room_for_dead_letters_sets_nothing_aside_that_its_policy_holds() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.transaction(100, 2);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.nack(2);
    rig.flow.set_dead_letters_full(false);
    assert_eq!((rig.flow.held_count(), rig.set_aside()), (2, None));
    assert_eq!(rig.publish(), [], "and the pause goes on");
}

/// R10: after `hold_max_wal`.
#[test]
fn what_was_held_for_too_long_is_set_aside_and_admission_goes_on() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    assert!(!rig.flow.set_held_aside(rig.now), "nothing is held");
    rig.transaction(100, 2);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.pass(SECOND);
    rig.ack(2);
    assert_eq!(rig.publish(), [(100, 0)]);
    assert!(!rig.flow.set_held_aside(rig.now), "the probe's answer decides");
    rig.return_and_ack((100, 0), 3);
    assert!(rig.flow.set_held_aside(rig.now));
    assert_eq!((rig.held(), rig.set_aside()), (None, Some((100, 0))));
    rig.transaction(200, 2);
    assert_eq!(rig.publish(), [(200, 0), (200, 1)], "pipelined again");
    rig.store(100);
    rig.ack_all();
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
}

#[test]
fn without_its_row_an_event_is_held_and_never_set_aside() {
    let mut rig = Rig::started(FlowConfig {
        keep_rows: false,
        ..config_with(Policy::DeadLetter)
    });
    rig.transaction(100, 1);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    assert!(!rig.flow.set_held_aside(rig.now));
    rig.flow.set_dead_letters_full(false);
    assert_eq!((rig.held(), rig.set_aside()), (Some((100, 0)), None));
}
