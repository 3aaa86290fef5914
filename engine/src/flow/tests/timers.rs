//! Status updates and silence.

use std::time::Duration;

use super::rig::{COMMIT_SIZE, OutboxRow, Rig, SECOND, SILENCE_TIMEOUT, begin, config};
use crate::flow::{FlowConfig, Intake, Timeout};

const MOVING: Duration = Duration::from_millis(100);

/// I8: the server hears of us each status interval, of progress within a tenth of a second.
#[test]
fn status_is_due_by_interval_and_soon_after_the_durable_lsn_moved() {
    let mut rig = Rig::small();
    assert_eq!(rig.flow.poll_status(rig.now), None);
    assert_eq!(rig.flow.deadline(), Some(rig.now + SECOND));
    rig.pass(SECOND);
    let status = rig.flow.poll_status(rig.now).unwrap();
    assert_eq!((status.durable.get(), status.reply_requested), (0, false));
    rig.transaction(100, 1);
    rig.publish();
    rig.ack(1);
    rig.mark();
    assert_eq!(rig.flow.poll_status(rig.now), None);
    assert_eq!(rig.flow.deadline(), Some(rig.now + MOVING));
    rig.pass(MOVING);
    let status = rig.flow.poll_status(rig.now).unwrap();
    assert_eq!(
        (status.durable.get(), status.received.get()),
        (100 + COMMIT_SIZE, 100 + COMMIT_SIZE)
    );
    rig.pass(MOVING);
    assert_eq!(rig.flow.poll_status(rig.now), None);
}

#[test]
fn a_window_of_settled_events_is_reported_at_once() {
    let mut rig = Rig::started(config(3, 100_000));
    rig.transaction(100, 3);
    rig.publish();
    rig.ack_all();
    assert_eq!(
        rig.flow.poll_status(rig.now).unwrap().durable.get(),
        100 + COMMIT_SIZE
    );
}

/// I8: a server that shuts down asks ten thousand times a second.
#[test]
fn questions_of_the_server_are_answered_at_once_at_a_bounded_rate() {
    let mut rig = Rig::small();
    let mut answers = 0;
    for _ in 0..10_000 {
        rig.keepalive(50, true);
        answers += u32::from(rig.flow.poll_status(rig.now).is_some());
        assert!(answers > 0, "the first one at once");
        rig.pass(SECOND / 10_000);
    }
    assert_eq!(answers, 10);
}

/// I8: the position of an idle stream is reported, so that no WAL is retained for an idle outbox.
#[test]
fn the_position_of_an_idle_stream_is_reported() {
    let mut rig = Rig::small();
    rig.keepalive(5_000, false);
    rig.pass(MOVING);
    let status = rig.flow.poll_status(rig.now).unwrap();
    assert_eq!((status.received.get(), status.durable.get()), (5_000, 5_000));
}

#[test]
fn a_silent_server_is_asked_in_time_and_then_given_up() {
    let mut rig = Rig::small();
    let start = rig.now;
    rig.pass(SILENCE_TIMEOUT / 2);
    assert!(rig.flow.poll_status(rig.now).unwrap().reply_requested);
    rig.now = start + SILENCE_TIMEOUT - Duration::from_millis(1);
    assert_eq!(rig.flow.handle_timeout(rig.now), None);
    rig.now = start + SILENCE_TIMEOUT;
    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Silence));
    rig.keepalive(1, false);
    assert_eq!(rig.flow.handle_timeout(rig.now), None);
}

#[test]
fn a_long_status_interval_does_not_make_the_question_too_late() {
    let slow = FlowConfig {
        status_interval: 10 * SILENCE_TIMEOUT,
        ..config(10, 100_000)
    };
    let mut rig = Rig::started(slow);
    let end = rig.now + SILENCE_TIMEOUT;
    let mut asked = false;
    while !asked {
        rig.now = rig.flow.deadline().unwrap();
        assert!(rig.now < end, "asked too late");
        asked = rig
            .flow
            .poll_status(rig.now)
            .is_some_and(|status| status.reply_requested);
    }
    assert!(
        rig.now <= end - SILENCE_TIMEOUT / 5,
        "no time left for the answer"
    );
}

/// R13's other half: we do not read, so the server's silence says nothing.
#[test]
fn silence_does_not_count_while_reading_is_paused() {
    let mut rig = Rig::started(config(1, 100_000));
    rig.transaction(100, 1);
    rig.publish();
    rig.take(&begin(200, 2));
    let row = OutboxRow::new("waits").insert();
    assert_eq!(rig.offer(&row).unwrap(), Intake::NoRoom);
    rig.pass(2 * SILENCE_TIMEOUT);
    assert!(!rig.flow.poll_status(rig.now).unwrap().reply_requested);
    assert_eq!(rig.flow.handle_timeout(rig.now), None);
    rig.ack(1);
    rig.take(&row);
    assert_eq!(rig.flow.handle_timeout(rig.now), None, "it counts anew");
}

#[test]
fn a_server_that_is_sending_one_large_frame_is_not_silent() {
    let mut rig = Rig::small();
    rig.pass(SILENCE_TIMEOUT / 2);
    rig.flow.handle_bytes(rig.now);
    rig.pass(SILENCE_TIMEOUT / 2);
    assert_eq!(rig.flow.handle_timeout(rig.now), None);
    rig.pass(SILENCE_TIMEOUT / 2);
    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Silence));
}
