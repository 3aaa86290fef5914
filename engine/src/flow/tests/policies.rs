//! What happens to an event that cannot be delivered, by its policy or by a person's word.

use super::rig::{
    COMMIT_SIZE, CONFIRM_TIMEOUT, FRAME_MAX, OutboxRow, Rig, SECOND, begin, commit, config_with,
};
use crate::flow::{FlowConfig, Intake, Timeout};
use crate::policy::{Policies, Policy};
use crate::route::{Condition, Reference, Rule};
use crate::window::Failure;

/// R8.
#[test]
fn a_discarded_event_is_settled_and_told_once_with_its_key_and_delivery_goes_on() {
    let mut rig = Rig::started(config_with(Policy::Discard));
    rig.transaction(100, 3);
    rig.publish();
    rig.return_and_ack((100, 1), 2);
    assert_eq!(rig.held(), None);
    rig.transaction(200, 1);
    assert_eq!(rig.publish(), [(200, 0)], "at once");
    rig.ack_all();
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
    assert_eq!(rig.discarded(), [((100, 1), Some("100:1".to_owned()))]);
    assert_eq!(rig.discarded(), []);
    let counters = rig.flow.counters();
    assert_eq!(
        (counters.discarded, counters.returned, counters.confirmed),
        (1, 1, 3)
    );
}

/// R9: a row without a usable id is known by its key.
#[test]
fn an_invalid_row_is_discarded_by_its_key_and_the_rest_of_its_transaction_is_delivered() {
    let mut rig = Rig::started(config_with(Policy::Discard));
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::invalid("").insert());
    rig.take(&OutboxRow::invalid("b").insert());
    rig.take(&OutboxRow::new("c").insert());
    rig.take(&commit(100));
    assert_eq!(
        rig.discarded(),
        [((100, 0), None), ((100, 1), Some("b".to_owned()))]
    );
    assert_eq!(rig.publish(), [(100, 2)]);
    rig.ack(1);
    assert_eq!((rig.durable(), rig.flow.in_flight()), (100 + COMMIT_SIZE, 0));
}

/// R2: what was discarded is settled, in the next session as well.
#[test]
fn a_discarded_event_is_not_told_again_by_a_new_session() {
    let mut rig = Rig::started(config_with(Policy::Discard));
    for _ in 0..2 {
        rig.take(&begin(100, 1));
        rig.take(&OutboxRow::invalid("a").insert());
        rig.flow.session_lost();
        rig.start_session(1);
    }
    assert_eq!(rig.discarded().len(), 1);
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::invalid("a").insert());
    rig.take(&commit(100));
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R8 and R11: a full queue is the broker's state, not the event's fault.
#[test]
fn nacks_and_missing_answers_hold_whatever_the_policies() {
    for policy in [Policy::Discard, Policy::DeadLetter] {
        let mut rig = Rig::started(config_with(policy));
        rig.transaction(100, 2);
        rig.publish();
        rig.nack(1);
        rig.pass(CONFIRM_TIMEOUT);
        rig.keepalive(1, false);
        assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Confirm));
        assert_eq!((rig.flow.held_count(), rig.set_aside()), (2, None));
        assert_eq!(rig.discarded(), []);
        assert!(!rig.flow.set_held_aside(rig.now), "R10: not after all, either");
    }
}

/// R9: each failure has its own policy.
#[test]
fn the_policies_for_unroutable_and_invalid_events_are_independent() {
    let mut rig = Rig::started(FlowConfig {
        policies: Policies {
            unroutable: Policy::Discard,
            invalid: Policy::DeadLetter,
        },
        ..config_with(Policy::Hold)
    });
    rig.flow.link_up(FRAME_MAX, 1_000, rig.now);
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::invalid("invalid").insert());
    let large = OutboxRow {
        payload: vec![b'7'; 1_001],
        ..OutboxRow::new("large")
    };
    rig.take(&large.insert());
    rig.take(&OutboxRow::new("unroutable").insert());
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 2)]);
    rig.return_and_ack((100, 2), 1);
    assert_eq!(rig.discarded(), [((100, 2), Some("unroutable".to_owned()))]);
    for position in [(100, 0), (100, 1)] {
        assert_eq!(rig.set_aside(), Some(position));
        rig.store(50);
    }
    rig.keepalive(150, false);
    assert_eq!((rig.set_aside(), rig.durable()), (None, 150));
}

/// R9.
#[test]
fn a_skipped_event_is_settled_and_admission_goes_on() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::invalid("a").insert());
    let next = OutboxRow::new("b").insert();
    assert_eq!(rig.offer(&next).unwrap(), Intake::NoRoom);
    assert!(rig.flow.skip_held(rig.now));
    assert!(!rig.flow.skip_held(rig.now), "nothing is held any more");
    rig.take(&next);
    rig.take(&commit(100));
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack(1);
    assert_eq!(
        (rig.durable(), rig.flow.counters().skipped),
        (100 + COMMIT_SIZE, 1)
    );
}

/// R9: one that is on its way again may be delivered after all, so its answer decides.
#[test]
fn a_skip_while_a_probe_is_out_waits_for_its_answer() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.transaction(100, 2);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.ack(2);
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 0)]);
    assert!(!rig.flow.skip_held(rig.now));
    rig.return_and_ack((100, 0), 3);
    assert_eq!(
        rig.flow.deadline(),
        Some(rig.now),
        "a status update is due, nothing else"
    );
    assert!(rig.flow.poll_status(rig.now).is_some());
    rig.pass(SECOND);
    assert_eq!(
        rig.publish(),
        [],
        "the pause has doubled: it still counts as a probe"
    );
    assert!(rig.flow.skip_held(rig.now));
    assert_eq!((rig.durable(), rig.flow.in_flight()), (100 + COMMIT_SIZE, 0));
    assert_eq!(rig.flow.counters().skipped, 1);
}

/// R9 and R11: the others that failed are still probed, after the pause that runs.
#[test]
fn a_skip_lets_the_next_failed_event_be_probed() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.transaction(100, 3);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.nack(2);
    rig.ack(3);
    assert!(rig.flow.skip_held(rig.now));
    assert_eq!(rig.held(), Some((100, 1)));
    assert_eq!(rig.publish(), []);
    rig.pass(SECOND);
    assert_eq!(rig.publish(), [(100, 1)]);
    rig.ack(4);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

#[test]
fn what_is_held_says_how_often_it_was_tried() {
    let mut rig = Rig::started(config_with(Policy::Hold));
    rig.transaction(100, 1);
    rig.publish();
    rig.return_and_ack((100, 0), 1);
    rig.pass(SECOND);
    rig.publish();
    rig.nack(2);
    let held = rig.flow.held().unwrap();
    assert_eq!((held.attempts, held.failure), (2, &Failure::Nacked));
}

/// R8 to R10, for each rule.
#[test]
fn the_policy_of_a_rule_counts_before_the_general_one_for_returned_messages_alone() {
    let mut config = config_with(Policy::Hold);
    let route = &mut config.tables[0].route;
    let rule = |aggregate: &str, on_unroutable| Rule {
        when: vec![Condition::new(
            Reference::parse("aggregate_id").unwrap(),
            [aggregate],
        )],
        exchange: route.exchange.clone(),
        routing_key: route.routing_key.clone(),
        on_unroutable,
    };
    route.rules = vec![
        rule("dropped", Some(Policy::Discard)),
        rule("aside", Some(Policy::DeadLetter)),
        rule("silent", None),
    ];
    let mut rig = Rig::started(config);
    rig.transaction_about(100, &["dropped", "aside", "silent", "other"]);
    rig.publish();
    for place in 0..4 {
        rig.return_and_ack((100, place), place + 1);
    }
    assert_eq!(rig.discarded(), [((100, 0), Some("100:0".to_owned()))]);
    assert_eq!(rig.flow.set_aside_count(), 1);
    assert_eq!(rig.flow.held_count(), 2, "the rule without a policy, and no rule");
}

#[test]
fn an_invalid_row_has_the_general_policy_whatever_its_rule_says() {
    let mut config = config_with(Policy::Hold);
    let route = &mut config.tables[0].route;
    route.rules = vec![Rule {
        when: Vec::new(),
        exchange: route.exchange.clone(),
        routing_key: route.routing_key.clone(),
        on_unroutable: Some(Policy::Discard),
    }];
    let mut rig = Rig::started(config);
    rig.take(&begin(100, 1));
    rig.take(&OutboxRow::invalid("a").insert());
    rig.take(&commit(100));
    assert_eq!((rig.discarded(), rig.flow.held_count()), (Vec::new(), 1));
}
