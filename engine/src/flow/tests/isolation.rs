//! A message over which the broker closes: it is found, and its neighbours are delivered.

use super::rig::{COMMIT_SIZE, Position, Rig, SECOND, config_with};
use crate::policy::Policy;
use crate::window::Failure;

const CULPRIT: Position = (100, 2);

/// Sends as long as anything may be sent, as a broker that closes over the culprit. Returns what it took, each with
/// how many were sent with it.
fn deliver(rig: &mut Rig) -> Vec<(Position, usize)> {
    let mut taken = Vec::new();
    for _ in 0..100 {
        let sent = rig.publish();
        if sent.is_empty() {
            return taken;
        }
        if sent.contains(&CULPRIT) {
            rig.refuse();
        } else {
            taken.extend(sent.iter().map(|position| (*position, sent.len())));
            rig.ack_all();
        }
    }
    panic!("the culprit is not found")
}

#[test]
fn the_culprit_among_many_is_found_one_at_a_time_and_only_it_is_discarded() {
    let mut rig = Rig::started(config_with(Policy::Discard));
    rig.transaction(100, 5);
    assert_eq!(rig.publish().len(), 5);
    rig.refuse();
    assert_eq!(rig.held(), None, "nobody knows yet which one it was");
    assert_eq!(
        deliver(&mut rig),
        [((100, 0), 1), ((100, 1), 1), ((100, 3), 1), ((100, 4), 1)]
    );
    let discarded: Vec<_> = rig.flow.take_discarded().collect();
    assert_eq!(discarded.len(), 1);
    assert!(
        matches!(&discarded[0].failure, Failure::Refused { reply_code: 406, reply_text }
        if reply_text.starts_with("PRECONDITION_FAILED"))
    );
    assert_eq!(
        (rig.durable(), rig.flow.counters().refused),
        (100 + COMMIT_SIZE, 1)
    );
    rig.transaction(200, 3);
    assert_eq!(rig.publish().len(), 3, "pipelined again");
}

/// Storing a dead letter may take long: no reason to go on one at a time.
#[test]
fn messages_are_pipelined_again_while_the_culprit_is_being_stored() {
    let mut rig = Rig::started(config_with(Policy::DeadLetter));
    rig.transaction(100, 5);
    rig.publish();
    rig.refuse();
    assert_eq!(deliver(&mut rig).len(), 4);
    assert_eq!(rig.set_aside(), Some(CULPRIT));
    rig.transaction(200, 3);
    assert_eq!(rig.publish().len(), 3);
}

#[test]
fn what_was_not_sent_when_the_broker_closed_is_not_suspected() {
    let mut rig = Rig::started(config_with(Policy::Discard));
    rig.transaction(100, 4);
    for _ in 0..3 {
        rig.publish_one();
    }
    rig.refuse();
    rig.transaction(200, 2);
    assert_eq!(
        deliver(&mut rig),
        [
            ((100, 0), 1),
            ((100, 1), 1),
            ((100, 3), 3),
            ((200, 0), 3),
            ((200, 1), 3)
        ]
    );
}

#[test]
fn a_message_that_was_alone_is_the_culprit_at_once() {
    let mut rig = Rig::started(config_with(Policy::DeadLetter));
    rig.transaction(100, 3);
    rig.publish();
    rig.ack(1);
    rig.ack(2);
    rig.refuse();
    assert_eq!(rig.set_aside(), Some(CULPRIT));
}

/// A close over nothing of ours leaves the search as it is.
#[test]
fn the_search_goes_on_over_links_that_are_lost() {
    let mut rig = Rig::started(config_with(Policy::Discard));
    rig.transaction(100, 4);
    rig.publish();
    rig.refuse();
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.link_up();
    assert_eq!(rig.publish(), [(100, 0)]);
    rig.ack(1);
    rig.refuse();
    assert_eq!(rig.publish(), [(100, 1)], "alone");
}

#[test]
fn a_refused_event_that_is_held_is_probed_with_pauses_until_the_broker_takes_it() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.transaction(100, 4);
    rig.publish();
    rig.refuse();
    assert_eq!(deliver(&mut rig), [((100, 0), 1), ((100, 1), 1)]);
    assert_eq!(rig.held(), Some(CULPRIT));
    for pause in [1, 2, 4] {
        assert_eq!(rig.publish(), [], "before the pause of {pause} s is over");
        rig.pass(pause * SECOND);
        assert_eq!(rig.publish(), [CULPRIT]);
        rig.refuse();
    }
    rig.pass(8 * SECOND);
    assert_eq!(rig.publish(), [CULPRIT]);
    rig.ack(1);
    assert_eq!((rig.held(), rig.publish()), (None, vec![(100, 3)]));
    rig.ack(2);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    rig.transaction(200, 3);
    assert_eq!(rig.publish().len(), 3, "pipelined again");
}

/// R8: what an operator must put right is not the event's fault, though the event named the exchange.
#[test]
fn an_event_whose_exchange_is_missing_or_forbidden_is_held_whatever_the_policy() {
    for (policy, reply_code) in [(Policy::Discard, 403), (Policy::DeadLetter, 404)] {
        let mut rig = Rig::started(config_with(policy));
        rig.transaction(100, 3);
        assert_eq!(rig.publish().len(), 3);
        for _ in 0..2 {
            rig.refuse_with(reply_code, "ACCESS_REFUSED or NOT_FOUND");
            rig.pass(SECOND * 300);
            assert_eq!(rig.publish(), [(100, 0)]);
        }
        assert_eq!(rig.held(), Some((100, 0)));
        rig.flow.set_dead_letters_full(false);
        assert_eq!((rig.discarded(), rig.set_aside()), (vec![], None));
        rig.ack_all();
        assert_eq!(rig.held(), None);
        for position in [(100, 1), (100, 2)] {
            assert_eq!(rig.publish(), [position]);
            rig.ack_all();
        }
        assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    }
}

/// R9.
#[test]
fn a_refused_event_that_is_held_may_be_skipped() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.transaction(100, 4);
    rig.publish();
    rig.refuse();
    deliver(&mut rig);
    assert!(rig.flow.skip_held(rig.now));
    assert_eq!(deliver(&mut rig), [((100, 3), 1)]);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}
