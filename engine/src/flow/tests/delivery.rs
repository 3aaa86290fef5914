//! Sending and its answers, but for failures that hold: order, links, sizes.

use super::rig::{COMMIT_SIZE, FRAME_MAX, OutboxRow, Rig, begin, config};
use crate::Lsn;
use crate::PgTimestamp;
use crate::confirms::ConfirmError;
use crate::event::InvalidRow;
use crate::flow::DeliveryError;
use crate::window::Failure;

/// I1: whatever the order of the answers.
#[test]
fn the_durable_lsn_passes_only_what_is_confirmed_without_a_gap() {
    let mut rig = Rig::small();
    for commit_lsn in [100, 200, 300] {
        rig.transaction(commit_lsn, 1);
    }
    assert_eq!(rig.publish(), [(100, 0), (200, 0), (300, 0)]);
    rig.ack(2);
    assert_eq!(rig.durable(), 0);
    rig.ack(1);
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
    rig.ack(3);
    assert_eq!(rig.durable(), 300 + COMMIT_SIZE);
    assert_eq!((rig.flow.in_flight(), rig.flow.in_flight_bytes()), (0, 0));
}

#[test]
fn messages_are_handed_out_until_the_buffer_holds_the_target() {
    let mut rig = Rig::small();
    rig.transaction(100, 5);
    let mut out = Vec::new();
    assert_eq!(rig.flow.poll_publish(&mut out, 1, rig.now), 1);
    let one = out.len();
    assert_eq!(rig.flow.poll_publish(&mut out, one, rig.now), 0);
    assert_eq!(rig.flow.poll_publish(&mut out, one + 1, rig.now), 1);
    assert_eq!(rig.publish(), [(100, 2), (100, 3), (100, 4)]);
}

/// Fresh events never wait for others to be sent with.
#[test]
fn a_flow_is_behind_while_what_is_confirmed_was_committed_long_ago_and_more_is_in_flight() {
    // All transactions of these tests committed at second 5.
    for (seconds, is_behind) in [(5, false), (6, false), (7, true), (0, false)] {
        let mut rig = Rig::small();
        rig.flow.tell_time(PgTimestamp::new(seconds * 1_000_000));
        rig.transaction(100, 2);
        rig.publish();
        assert!(!rig.flow.is_behind(), "nothing is confirmed");
        rig.ack(1);
        assert_eq!(rig.flow.is_behind(), is_behind, "at {seconds}");
        rig.ack(2);
        assert!(!rig.flow.is_behind(), "nothing is in flight");
    }
}

/// I7: a lost link repeats what had no answer, nothing else.
#[test]
fn after_a_lost_link_the_unanswered_is_sent_again_in_order() {
    let mut rig = Rig::small();
    rig.transaction(100, 4);
    rig.publish();
    rig.ack(3);
    rig.ack(1);
    rig.flow.link_lost();
    assert_eq!(rig.publish(), [], "without a link nothing is sent");
    rig.transaction(200, 1);
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 1), (100, 3), (200, 0)]);
    assert_eq!(rig.publish(), []);
    rig.ack(1);
    rig.ack(2);
    assert_eq!(
        rig.durable(),
        100 + COMMIT_SIZE,
        "tags start at 1 on the new link"
    );
}

/// The window outlives a link that was replaced without its loss having been told.
#[test]
fn a_link_that_replaces_another_sends_the_unanswered_again() {
    let mut rig = Rig::small();
    rig.transaction(100, 2);
    rig.publish();
    rig.ack(2);
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// I3: what comes later is sent later, on a link that was lost as well.
#[test]
fn a_link_lost_before_everything_was_sent_keeps_the_order() {
    let mut rig = Rig::small();
    rig.transaction(100, 4);
    rig.publish_one();
    rig.publish_one();
    rig.ack(2);
    rig.flow.link_lost();
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 0), (100, 2), (100, 3)]);
}

#[test]
fn an_answer_about_nothing_outstanding_is_an_error_and_settles_nothing() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.publish();
    assert_eq!(
        rig.flow.handle_ack(2, false, rig.now),
        Err(DeliveryError::Confirm(ConfirmError::NeverIssued {
            tag: 2,
            issued: 1
        }))
    );
    for position in [(Lsn::new(100), 1), (Lsn::new(99), 0)] {
        assert!(matches!(
            rig.flow.handle_return(position, 312),
            Err(DeliveryError::UnknownReturn { .. })
        ));
    }
    assert_eq!((rig.durable(), rig.flow.in_flight()), (0, 1));
    rig.ack(1);
    assert!(
        rig.flow.handle_return((Lsn::new(100), 0), 312).is_err(),
        "settled"
    );
}

/// A body that the broker would refuse with the loss of the channel is never sent.
#[test]
fn a_body_over_the_brokers_limit_becomes_invalid_and_is_held_with_its_id() {
    let mut rig = Rig::small();
    rig.flow.link_up(FRAME_MAX, 1_000, rig.now);
    rig.take(&begin(100, 1));
    let large = OutboxRow {
        payload: vec![b'7'; 1_001],
        ..OutboxRow::new("large")
    };
    rig.take(&OutboxRow::new("before").insert());
    rig.take(&large.insert());
    rig.take(&OutboxRow::new("behind").insert());
    assert_eq!(
        rig.publish(),
        [(100, 0), (100, 2)],
        "R9: what is in flight is delivered"
    );
    let held = rig.flow.held().unwrap();
    assert_eq!(
        (held.message_id, held.exchange, held.routing_key),
        (Some("large"), Some("outbox"), Some("order.created"))
    );
    let reason = InvalidRow::BodyTooLarge {
        length: 1_001,
        limit: 1_000,
    };
    let expected = Failure::Invalid {
        id: Some("large".to_owned()),
        reason,
    };
    assert_eq!(*held.failure, expected);
    rig.ack_all();
    assert_eq!((rig.durable(), rig.flow.counters().invalid), (0, 1));
}

#[test]
fn a_configured_limit_counts_instead_of_the_brokers() {
    let limited = crate::flow::FlowConfig {
        max_message_bytes: Some(10),
        ..config(10, 100_000)
    };
    let mut rig = Rig::started(limited);
    rig.transaction(100, 1);
    assert_eq!(rig.publish(), []);
    assert_eq!(rig.held(), Some((100, 0)));
}
