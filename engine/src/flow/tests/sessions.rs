//! Sessions lost and found again: what is known, what is forgotten, what is not taken for known.

use super::rig::{COMMIT_SIZE, OutboxRow, Rig, SECOND, begin, commit, config};
use crate::flow::{Intake, StreamError};

/// R2 and I7.
#[test]
fn what_is_in_flight_or_settled_is_not_published_again_by_a_new_session() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.transaction(200, 3);
    rig.publish();
    rig.ack(1);
    rig.ack(3);
    rig.lose_and_find_session();
    rig.ack(2);
    rig.transaction(100, 1);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE, "settled in the session before");
    rig.transaction(200, 3);
    rig.transaction(300, 1);
    assert_eq!(
        rig.publish(),
        [(300, 0)],
        "only what no session had brought before"
    );
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    rig.ack(4);
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
    assert_eq!(rig.flow.counters().recognised, 4);
}

/// A session that ends in mid-transaction: the next one brings all of it again.
#[test]
fn a_transaction_cut_off_by_a_lost_session_goes_on_where_it_was() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::new("100:0").insert());
    rig.publish();
    rig.lose_and_find_session();
    rig.transaction(100, 2);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack_all();
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// A held event stays held, and is counted by the new session's ledger.
#[test]
fn a_held_event_is_held_in_the_next_session_too() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.publish();
    rig.nack(1);
    rig.lose_and_find_session();
    assert_eq!(rig.held(), Some((100, 0)));
    rig.transaction(100, 1);
    rig.pass(SECOND);
    assert_eq!((rig.publish(), rig.durable()), (vec![(100, 0)], 0));
    rig.ack(2);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// A session that replaces another without its loss having been told: its ledger counts from nothing.
#[test]
fn a_session_that_replaces_another_counts_nothing_of_it() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.publish();
    assert!(!rig.start_session(1));
    rig.take(&begin(50, 9));
    rig.take(
        &OutboxRow {
            is_sent: true,
            ..OutboxRow::new("x")
        }
        .insert(),
    );
    rig.ack(1);
    rig.take(&commit(50));
    assert_eq!(rig.durable(), 50 + COMMIT_SIZE);
}

/// R2: positions of another timeline mean nothing.
#[test]
fn all_is_forgotten_when_system_id_or_timeline_change() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.transaction(200, 1);
    rig.publish();
    rig.ack(1);
    rig.flow.session_lost();
    assert!(rig.start_session(2), "the link is to be replaced");
    assert_eq!(rig.flow.in_flight(), 0);
    rig.transaction(100, 1);
    assert_eq!(rig.publish(), [], "no tag of the old link may be mistaken");
    assert!(rig.flow.handle_ack(2, false, rig.now).is_err());
    rig.link_up();
    rig.transaction(200, 1);
    assert_eq!(rig.publish(), [(100, 0), (200, 0)]);
    rig.ack_all();
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
}

/// R2: a server that has flushed less than was received from it was set back on the same timeline.
#[test]
fn all_is_forgotten_when_the_log_ends_before_what_was_received() {
    let mut rig = Rig::small();
    rig.start_session_flushed(1, 50);
    rig.transaction(100, 1);
    rig.transaction(200, 1);
    rig.publish();
    rig.ack(1);
    assert!(
        !rig.start_session_flushed(1, 200 + COMMIT_SIZE),
        "it has all of it"
    );
    rig.transaction(100, 1);
    rig.flow.session_lost();
    assert!(
        rig.start_session_flushed(1, 200 + COMMIT_SIZE - 1),
        "it was received two sessions ago"
    );
    assert_eq!(rig.flow.in_flight(), 0);
    rig.link_up();
    rig.transaction(100, 1);
    assert_eq!(rig.publish(), [(100, 0)], "settled in the log of before");
    rig.ack_all();
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    assert!(
        !rig.start_session_flushed(1, 200 + COMMIT_SIZE - 1),
        "the log of now"
    );
}

/// R2: after a restore on the same timeline another transaction may stand where a settled one stood.
#[test]
fn another_transaction_at_the_same_position_is_published() {
    let mut rig = Rig::small();
    rig.transaction_of(100, 1, 1);
    rig.publish();
    rig.ack(1);
    rig.lose_and_find_session();
    rig.transaction_of(100, 2, 1);
    assert_eq!((rig.publish(), rig.durable()), (vec![(100, 0)], 0));
}

/// R2: nor for one that is in flight, of which it cannot be told apart by a return.
#[test]
fn another_transaction_at_a_position_in_flight_is_an_error_and_nothing_moves() {
    let mut rig = Rig::small();
    rig.transaction_of(100, 1, 1);
    rig.transaction_of(200, 2, 1);
    rig.publish();
    for (commit_lsn, xid) in [(100, 3), (150, 2)] {
        rig.lose_and_find_session();
        rig.take(&begin(commit_lsn, xid));
        let error = rig.offer(&OutboxRow::new("a").insert()).unwrap_err();
        assert!(matches!(error, StreamError::Diverged { .. }), "{error}");
        assert_eq!(rig.durable(), 0);
    }
}

/// I1 and I7: a server that crashed brings again what was confirmed long ago; it is published again, not lost, and
/// nobody is called for.
#[test]
fn what_was_settled_so_long_ago_that_it_is_forgotten_waits_for_the_window_and_is_published_again() {
    let mut rig = Rig::started(config(10, 100_000));
    let transactions = 8_192;
    for number in 1..=transactions + 2 {
        rig.transaction(number * 100, 1);
        rig.publish();
        if number < transactions + 2 {
            rig.ack(number);
        }
    }
    rig.lose_and_find_session();
    rig.take(&begin(100, 1));
    let row = OutboxRow::new("100:0").insert();
    assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
    rig.ack_all();
    rig.take(&row);
    rig.take(&commit(100));
    assert_eq!((rig.publish(), rig.durable()), (vec![(100, 0)], 0));
    rig.ack_all();
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    rig.transaction((transactions + 2) * 100, 1);
    assert_eq!(rig.publish(), [], "the newest are still known");
}

/// R2: the same after a restore on the same timeline, with positions below what is in flight.
#[test]
fn a_restored_log_below_what_is_in_flight_is_published() {
    let mut rig = Rig::small();
    rig.transaction_of(900, 1, 1);
    rig.publish();
    rig.lose_and_find_session();
    rig.take(&begin(100, 7));
    let row = OutboxRow::new("restored").insert();
    assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
    rig.ack(1);
    rig.take(&row);
    assert_eq!(rig.publish(), [(100, 0)]);
}
