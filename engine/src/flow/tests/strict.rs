//! Strict order: no event is sent while an earlier one of its aggregate is unsettled (R14).

use super::rig::{
    COMMIT_SIZE, CONFIRM_TIMEOUT, FRAME_MAX, OutboxRow, Rig, SECOND, begin, commit, config_with,
};
use crate::flow::{FlowConfig, Timeout};
use crate::policy::Policy;

fn strict(policy: Policy) -> Rig {
    Rig::started(FlowConfig {
        strict: true,
        ..config_with(policy)
    })
}

#[test]
fn of_each_aggregate_one_event_is_under_way_and_the_others_flow_on() {
    let mut rig = strict(Policy::Hold);
    rig.transaction_about(100, &["a", "a", "b"]);
    rig.transaction_about(200, &["c", "b"]);
    assert_eq!(rig.publish(), [(100, 0), (100, 2), (200, 0)]);
    rig.ack(2);
    assert_eq!(rig.publish(), [(200, 1)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.transaction_about(300, &["a", "c"]);
    rig.ack(3);
    assert_eq!(rig.publish(), [(300, 1)]);
    rig.ack_all();
    assert_eq!(rig.publish(), [(300, 0)]);
    rig.ack_all();
    assert_eq!(rig.durable(), 300 + COMMIT_SIZE);
}

/// One in backoff is unsettled.
#[test]
fn behind_a_nacked_event_its_aggregate_waits() {
    let mut rig = strict(Policy::Hold);
    rig.transaction_about(100, &["a", "b", "a", "b"]);
    assert_eq!(rig.publish(), [(100, 0), (100, 1)]);
    rig.nack(2);
    rig.ack(1);
    assert_eq!(rig.publish(), []);
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 1)], "R11: alone");
    rig.ack(3);
    assert_eq!(rig.publish(), [(100, 2), (100, 3)]);
}

#[test]
fn after_a_lost_link_the_unanswered_goes_first() {
    let mut rig = strict(Policy::Hold);
    rig.transaction_about(100, &["a", "a", "b", "b"]);
    rig.publish();
    rig.ack(2);
    assert_eq!(rig.publish(), [(100, 3)]);
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 0), (100, 3)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 1)]);
}

#[test]
fn after_a_confirm_time_out_nothing_overtakes_within_its_aggregate() {
    let mut rig = strict(Policy::Hold);
    rig.transaction_about(100, &["a", "a", "b"]);
    rig.publish();
    rig.pass(CONFIRM_TIMEOUT);
    rig.keepalive(1, false);
    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Confirm));
    rig.link_up();
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 1), (100, 2)]);
}

/// Until it is stored, an event may yet be delivered: by the next process.
#[test]
fn behind_an_event_that_is_being_stored_its_aggregate_waits() {
    let mut rig = strict(Policy::DeadLetter);
    rig.transaction_about(100, &["a", "a", "b", "b", "b"]);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.nack(2);
    assert_eq!(rig.publish(), [], "not even while messages go one at a time");
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 2)]);
    rig.ack(3);
    assert_eq!(rig.publish(), [(100, 3)]);
    rig.store(50);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack_all();
    assert_eq!(rig.publish(), [(100, 4)]);
}

#[test]
fn behind_an_invalid_row_that_is_being_stored_its_aggregate_waits() {
    let mut rig = strict(Policy::DeadLetter);
    rig.take(&begin(100, 1));
    for (aggregate, is_valid) in [("a", true), ("a", false), ("a", true), ("b", true)] {
        let row = if is_valid {
            OutboxRow::new("x")
        } else {
            OutboxRow::invalid("x")
        };
        let row = OutboxRow {
            aggregate: aggregate.to_owned(),
            ..row
        };
        rig.take(&row.insert());
    }
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 0), (100, 3)]);
    rig.ack(1);
    assert_eq!(rig.publish(), []);
    rig.store(50);
    assert_eq!(rig.publish(), [(100, 2)]);
}

/// Settled out of order: the ones before it still come first.
#[test]
fn an_event_discarded_behind_an_unsettled_one_lets_nothing_overtake_that() {
    let mut rig = strict(Policy::Discard);
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::new("first").insert());
    rig.publish();
    rig.take(&OutboxRow::invalid("second").insert());
    rig.take(&OutboxRow::new("third").insert());
    assert_eq!(rig.discarded().len(), 1);
    assert_eq!(rig.publish(), []);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 2)]);
}

#[test]
fn behind_an_event_that_is_discarded_skipped_or_held_by_size_the_order_stays() {
    for policy in [Policy::Discard, Policy::Hold] {
        let mut rig = strict(policy);
        rig.flow.link_up(FRAME_MAX, 100, rig.now);
        rig.take(&begin(100, 1));
        let large = OutboxRow {
            payload: vec![b'7'; 101],
            ..OutboxRow::new("large")
        };
        rig.take(&large.insert());
        rig.take(&OutboxRow::new("behind").insert());
        rig.take(&OutboxRow::new("last").insert());
        if policy == Policy::Hold {
            assert_eq!(rig.publish(), []);
            assert!(rig.flow.skip_held(rig.now));
        }
        assert_eq!(rig.publish(), [(100, 1)]);
        rig.ack(1);
        assert_eq!(rig.publish(), [(100, 2)]);
    }
}

#[test]
fn a_search_for_a_culprit_keeps_the_order() {
    let mut rig = strict(Policy::DeadLetter);
    rig.transaction_about(100, &["a", "a", "b", "a", "b"]);
    assert_eq!(rig.publish(), [(100, 0), (100, 2)]);
    rig.refuse();
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.refuse();
    assert_eq!(rig.set_aside(), Some((100, 0)));
    assert_eq!(rig.publish(), [(100, 2)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 4)]);
    rig.store(50);
    assert_eq!(rig.publish(), [(100, 1)]);
}

/// Another log's events: nothing of the old one stands in their way.
#[test]
fn all_order_is_forgotten_with_the_log() {
    let mut rig = strict(Policy::Hold);
    rig.transaction_about(100, &["a", "a"]);
    rig.publish();
    rig.flow.session_lost();
    rig.start_session(2);
    rig.link_up();
    rig.transaction_about(50, &["a", "a"]);
    assert_eq!(rig.publish(), [(50, 0)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(50, 1)]);
}
