//! Events that fail: what is admitted, what is sent and when, until they are accepted.

use std::time::Duration;

use super::rig::{COMMIT_SIZE, CONFIRM_TIMEOUT, OutboxRow, Rig, SECOND, begin, commit};
use crate::flow::{Intake, Timeout};
use crate::window::Failure;

/// I1 and R9: the one event that no queue takes stops the position, not the delivery of what is in flight.
#[test]
fn a_returned_message_holds_back_the_durable_lsn_and_only_it_is_blamed() {
    let mut rig = Rig::small();
    for commit_lsn in [100, 200, 300] {
        rig.transaction(commit_lsn, 2);
    }
    rig.publish();
    rig.return_and_ack((200, 1), 4);
    rig.ack_all();
    assert_eq!((rig.durable(), rig.flow.in_flight()), (100 + COMMIT_SIZE, 1));
    let held = rig.flow.held().unwrap();
    assert_eq!(
        (held.key.to_string().as_str(), held.message_id),
        ("0/C8:1", Some("200:1"))
    );
    assert_eq!(*held.failure, Failure::Unroutable { reply_code: 312 });
    assert_eq!(
        (rig.flow.counters().returned, rig.flow.counters().confirmed),
        (1, 5)
    );
}

/// R9 and R11: also while the probe is out, when nothing else seems to be wrong.
#[test]
fn after_a_nack_nothing_is_admitted_until_the_broker_has_taken_it() {
    let mut rig = Rig::small();
    rig.transaction(100, 2);
    rig.publish();
    rig.nack(1);
    rig.ack(2);
    rig.take(&begin(200, 2));
    let row = OutboxRow::new("new").insert();
    assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 0)]);
    assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
    assert_eq!(rig.held(), Some((100, 0)), "I9: it is still what stops delivery");
    rig.ack(3);
    assert_eq!(rig.held(), None);
    rig.take(&row);
    assert_eq!(rig.publish(), [(200, 0)]);
}

/// R11: a window sent again and again would fill the other queues with duplicates.
#[test]
fn the_oldest_is_probed_alone_with_doubling_pauses_and_then_the_rest_goes() {
    let mut rig = Rig::small();
    rig.transaction(100, 3);
    rig.publish_one();
    rig.publish_one();
    rig.nack(1);
    rig.nack(2);
    let mut tag = 2;
    for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
        rig.pass(Duration::from_secs(seconds) - Duration::from_millis(1));
        assert_eq!(rig.publish(), [], "before the pause of {seconds} s is over");
        rig.pass(Duration::from_millis(1));
        assert_eq!(rig.publish(), [(100, 0)]);
        assert_eq!(rig.publish(), [], "alone");
        tag += 1;
        rig.nack(tag);
    }
    rig.pass(Duration::from_secs(300));
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(tag + 1);
    assert_eq!(rig.publish(), [(100, 1)], "the next one that failed, alone");
    rig.nack(tag + 2);
    assert_eq!(rig.publish(), []);
    rig.pass(2 * SECOND);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack(tag + 3);
    assert_eq!(rig.publish(), [(100, 2)], "then what was never sent");
    rig.ack(tag + 4);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R11: those in flight with it are waited for first, so that the probe is alone.
#[test]
fn a_probe_waits_for_the_answers_of_what_is_in_flight() {
    let mut rig = Rig::small();
    rig.transaction(100, 2);
    rig.publish();
    rig.nack(1);
    rig.pass(5 * SECOND);
    assert_eq!(rig.publish(), []);
    rig.ack(2);
    assert_eq!(rig.publish(), [(100, 0)]);
}

/// R11, over a lost link: what was sent and not answered goes alone as well.
#[test]
fn after_a_lost_link_messages_go_one_by_one_while_one_has_failed() {
    let mut rig = Rig::small();
    rig.transaction(100, 3);
    rig.publish();
    rig.nack(2);
    rig.flow.link_lost();
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack(2);
    assert_eq!(rig.publish(), [(100, 2)]);
}

/// R12: not on silence, which one lost confirm among busy queues would never cause.
#[test]
fn the_confirm_time_out_runs_on_the_oldest_message() {
    let mut rig = Rig::small();
    rig.transaction(100, 3);
    rig.publish();
    rig.pass(CONFIRM_TIMEOUT - SECOND);
    rig.keepalive(1, false);
    rig.ack(2);
    rig.ack(3);
    assert_eq!(rig.flow.handle_timeout(rig.now), None);
    rig.pass(SECOND);
    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Confirm));
    assert_eq!(*rig.flow.held().unwrap().failure, Failure::Unanswered);
    assert_eq!(
        rig.flow.handle_timeout(rig.now),
        None,
        "the link counts as given up"
    );
    assert_eq!(rig.publish(), []);
    assert_eq!(rig.flow.counters().unanswered, 1);
}

/// R11.
#[test]
fn after_a_confirm_time_out_the_oldest_is_probed_alone_on_the_next_link() {
    let mut rig = Rig::small();
    rig.transaction(100, 3);
    rig.publish();
    rig.pass(CONFIRM_TIMEOUT);
    rig.keepalive(1, false);
    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Confirm));
    rig.link_up();
    assert_eq!(rig.publish(), [], "not without a pause");
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(100, 1), (100, 2)]);
}

/// R12: a blocked broker answers nothing, and that is no fault of a message.
#[test]
fn while_the_broker_blocks_nothing_is_sent_and_no_confirm_times_out() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.publish();
    rig.flow.handle_blocked(true, rig.now);
    rig.transaction(200, 1);
    assert_eq!(rig.publish(), []);
    rig.pass(10 * CONFIRM_TIMEOUT);
    rig.keepalive(1, false);
    assert_eq!(rig.flow.handle_timeout(rig.now), None);
    rig.flow.handle_blocked(false, rig.now);
    assert_eq!(rig.publish(), [(200, 0)]);
    rig.pass(CONFIRM_TIMEOUT - SECOND);
    rig.keepalive(1, false);
    assert_eq!(rig.flow.handle_timeout(rig.now), None, "it counts anew");
    rig.pass(SECOND);
    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Confirm));
}

/// R9: an invalid row is held with whatever names it, and admits nothing behind it.
#[test]
fn a_row_that_cannot_become_a_message_is_held_by_its_key() {
    let mut rig = Rig::small();
    rig.transaction(100, 1);
    rig.take(&begin(200, 2));
    let empty = OutboxRow {
        payload: Vec::new(),
        ..OutboxRow::new("")
    };
    rig.take(&empty.insert());
    assert_eq!(
        rig.offer(&OutboxRow::new("next").insert()).unwrap(),
        Intake::NoRoom
    );
    rig.take(&commit(200));
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    let held = rig.flow.held().unwrap();
    assert_eq!((held.message_id, held.exchange, held.key.tx_seq), (None, None, 0));
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    assert_eq!(rig.flow.counters().invalid, 1);
}

/// R8: what heals alone does so behind a row that needs a person.
#[test]
fn a_nacked_event_behind_an_invalid_row_is_still_probed() {
    let mut rig = Rig::small();
    rig.flow.link_up(super::rig::FRAME_MAX, 100, rig.now);
    rig.take(&begin(100, 1));
    let large = OutboxRow {
        payload: vec![b'7'; 101],
        ..OutboxRow::new("large")
    };
    rig.take(&large.insert());
    rig.take(&OutboxRow::new("behind").insert());
    rig.take(&OutboxRow::new("last").insert());
    assert_eq!(rig.publish(), [(100, 1), (100, 2)]);
    rig.nack(1);
    rig.nack(2);
    assert_eq!(rig.flow.deadline(), Some(rig.now + SECOND));
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack(3);
    assert_eq!(rig.publish(), [(100, 2)]);
    rig.ack(4);
    assert_eq!((rig.held(), rig.durable()), (Some((100, 0)), 0));
}
