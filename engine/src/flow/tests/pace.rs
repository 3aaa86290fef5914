//! `max_rate`: never faster, never a deadline that has passed and stays.

use std::time::Duration;

use super::rig::{OutboxRow, Rig, SECOND, config, config_with};
use crate::flow::FlowConfig;
use crate::marks::Marked;
use crate::policy::Policy;

fn paced(per_second: u32, config: FlowConfig) -> Rig {
    Rig::started(FlowConfig {
        max_rate: Some(per_second),
        ..config
    })
}

/// As the shell does it: publish, answer, wait for the deadline. No step may be without progress.
#[test]
fn a_backlog_is_sent_at_the_pace_and_each_deadline_makes_progress() {
    let mut rig = paced(100, config(10_000, 10_000_000));
    rig.transaction(100, 1_000);
    let start = rig.now;
    let (mut sent, mut turns) = (0, 0);
    loop {
        let now = rig.publish().len();
        rig.ack_all();
        let status = rig.flow.poll_status(rig.now).is_some();
        let marks = rig.flow.poll_marks(rig.now);
        let is_stored = marks.is_some();
        if let Some(batch) = marks {
            rig.flow.handle_marked(batch, Marked::default(), rig.now);
        }
        assert!(
            now > 0 || status || is_stored,
            "woken for nothing after {:?}",
            rig.now - start
        );
        sent += now;
        let passed = u32::try_from((rig.now - start).as_millis()).unwrap();
        assert!(
            u32::try_from(sent).unwrap() * 10 <= passed + 60,
            "{sent} in {passed} ms"
        );
        turns += 1;
        if sent == 1_000 {
            break;
        }
        rig.keepalive(1, false);
        let deadline = rig.flow.deadline().unwrap();
        assert!(deadline > rig.now, "a deadline that has passed and stays");
        rig.now = deadline;
    }
    assert!(
        rig.now - start <= 10 * SECOND,
        "slower than allowed: {:?}",
        rig.now - start
    );
    assert!(turns <= 1_200, "{turns} turns");
}

/// Nothing waits for the pace here, but for answers, a pause, a dead letter.
#[test]
fn what_cannot_be_sent_yet_for_another_reason_has_no_deadline_of_the_pace() {
    let mut rig = paced(10, config_with(Policy::DeadLetter));
    rig.transaction(100, 2);
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.return_and_ack((100, 0), 1);
    rig.nack(2);
    rig.pass(Duration::from_millis(900));
    assert_eq!(rig.publish(), []);
    rig.flow.poll_status(rig.now);
    assert_eq!(
        rig.flow.deadline(),
        Some(rig.now + Duration::from_millis(100)),
        "the probe's"
    );
    rig.pass(Duration::from_millis(100));
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack(3);
    rig.pass(SECOND);
    rig.flow.poll_status(rig.now);
    assert_eq!(rig.publish(), []);
    assert!(
        rig.flow.deadline().unwrap() > rig.now,
        "a dead letter is to be stored"
    );
}

/// After a probe that succeeded the next one is due at once, but not before its turn.
#[test]
fn a_probe_keeps_to_the_pace() {
    let mut rig = paced(1, config(10, 100_000));
    rig.transaction(100, 3);
    let start = rig.now;
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.nack(1);
    rig.nack(2);
    let mut at = Vec::new();
    while at.len() < 3 {
        rig.keepalive(1, false);
        rig.flow.poll_status(rig.now);
        rig.mark();
        let deadline = rig.flow.deadline().unwrap();
        assert!(deadline > rig.now, "a deadline that has passed and stays");
        rig.now = deadline;
        for position in rig.publish() {
            at.push((position, (rig.now - start).as_millis()));
            rig.ack_all();
        }
    }
    assert_eq!(at, [((100, 0), 2_000), ((100, 1), 2_950), ((100, 2), 3_950)]);
}

#[test]
fn while_blocked_and_without_a_link_the_pace_has_no_deadline() {
    let mut rig = paced(1, config(10, 100_000));
    rig.transaction(100, 3);
    assert_eq!(rig.publish().len(), 1);
    let status = rig.now + SECOND;
    assert!(rig.flow.deadline().unwrap() < status);
    rig.flow.handle_blocked(true, rig.now);
    assert_eq!(rig.flow.deadline(), Some(status));
    rig.flow.handle_blocked(false, rig.now);
    rig.flow.link_lost();
    assert_eq!(rig.flow.deadline(), Some(status));
}

/// An invalid row takes no part of the pace.
#[test]
fn what_is_not_sent_does_not_count() {
    let mut rig = paced(1, config_with(Policy::Discard));
    rig.take(&super::rig::begin(100, 1));
    for _ in 0..5 {
        rig.take(&OutboxRow::invalid("a").insert());
    }
    rig.take(&OutboxRow::new("b").insert());
    assert_eq!(rig.publish(), [(100, 5)]);
}
