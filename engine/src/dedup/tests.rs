mod stream;
mod world;

use proptest::prelude::*;

use super::*;
use crate::key::TransactionKey;
use crate::timestamp::PgTimestamp;
use crate::{Lsn, property};
use world::{EVENTS, Process, Step, World, beginnings, key, steps};

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..property::config() })]

    #[test]
    fn r26_no_event_is_lost_and_without_losses_on_the_way_each_is_stored_once(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.finish();
        for event in 0..EVENTS {
            let times = world.times(event);
            prop_assert!(times >= 1, "event {} is lost", event);
            prop_assert!(times == 1 || world.may_repeat, "event {} is stored {} times", event, times);
        }
    }

    #[test]
    fn r26_no_event_is_lost_however_generations_begin(steps in beginnings()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.finish();
        prop_assert_eq!(lost(&world), Vec::<u64>::new());
    }
}

#[test]
fn r26_an_event_of_a_log_that_was_set_back_is_not_taken_for_the_one_that_stood_there() {
    let mut world = World::new();
    for _ in 0..2 {
        world.publish(5);
        world.take(5);
        world.confirm(5);
    }
    world.lose_link();
    world.process = Process::default();
    world.link_up();
    let dedup = &mut world.process.dedup;
    assert_eq!(dedup.judge(0, &key(0)), Verdict::Stored);
    let mut other = key(1);
    other.transaction.commit_time = PgTimestamp::new(99);
    assert_eq!(dedup.judge(1, &other), Verdict::Uncounted);
    other.transaction.commit_lsn = key(50).transaction.commit_lsn;
    assert_eq!(dedup.judge(2, &other), Verdict::Counted(11));
}

#[test]
fn a_row_that_the_stream_does_not_bring_is_never_counted() {
    let mut dedup = Dedup::default();
    let row = EventKey {
        transaction: TransactionKey::backfill(Lsn::new(5), PgTimestamp::new(1)),
        tx_seq: 0,
    };
    assert_eq!(dedup.judge(0, &row), Verdict::Uncounted);
    assert_eq!(dedup.judge(1, &key(0)), Verdict::Counted(1));
}

#[test]
fn a_mark_is_read_as_written_and_by_its_own_producer_only() {
    let mark = Mark {
        id: 7,
        floor: Floor {
            id: 3,
            position: Some((Lsn::new(9), 2)),
        },
        position: (Lsn::new(11), 4),
        commit_time: PgTimestamp::new(-5),
    };
    let mut bytes = Vec::new();
    mark.write("walrelay/a", &mut bytes);
    assert_eq!(Mark::read(&bytes, "walrelay/a"), Some(mark));
    assert_eq!(Mark::read(&bytes, "walrelay/b"), None);
    assert_eq!(Mark::read(&bytes[..bytes.len() - 11], "walrelay/a"), None);
}

/// Some events are stored and reported. The next process begins a generation since the end cannot be read in time, and
/// nothing that it publishes is stored yet.
fn begun(world: &mut World) {
    world.publish(5);
    world.take(5);
    world.confirm(5);
    world.step(&Step::Report);
    world.step(&Step::Crash);
    world.step(&Step::Slow);
    world.publish(8);
}

/// It dies, and another one goes on with the generation before.
fn begun_and_left(world: &mut World) {
    begun(world);
    world.step(&Step::Crash);
    world.publish(8);
    world.take(8);
    world.confirm(8);
    world.step(&Step::Report);
    world.step(&Step::Crash);
}

fn lost(world: &World) -> Vec<u64> {
    (0..EVENTS).filter(|event| world.times(*event) == 0).collect()
}

#[test]
fn r26_a_generation_that_was_begun_and_left_loses_nothing_of_who_goes_on_with_it() {
    let mut world = World::new();
    begun_and_left(&mut world);
    world.take_all_late(3);
    world.publish(5);
    world.take_all_late(3);
    world.finish();
    assert_eq!(lost(&world), Vec::<u64>::new());
}

#[test]
fn r26_a_generation_that_was_begun_and_left_loses_nothing_of_who_begins_it_again() {
    let mut world = World::new();
    begun_and_left(&mut world);
    world.step(&Step::Slow);
    world.publish(5);
    world.take_all_late(3);
    world.finish();
    assert_eq!(lost(&world), Vec::<u64>::new());
}

/// The one that began it stands still until another one has gone on with the generation before, and then sees its own first
/// event on record, as if nothing had happened.
#[test]
fn r26_who_has_begun_a_generation_counts_on_in_a_session_that_began_after_that_was_known() {
    let mut world = World::new();
    begun(&mut world);
    world.step(&Step::Paused {
        publish: 8,
        take: 8,
        relinks: true,
    });
    world.step(&Step::Crash);
    world.take_all_late(3);
    world.publish(5);
    world.take_all_late(3);
    world.finish();
    assert_eq!(lost(&world), Vec::<u64>::new());
}

/// It has settled events under the generation before that the slot does not know of. The one that began the next one sent them
/// again, and what of that is still under way has ids that would go to what comes behind.
#[test]
fn r26_who_settled_events_before_others_began_a_generation_forgets_what_is_not_reported() {
    let mut world = World::new();
    world.publish(5);
    world.take(5);
    world.confirm(5);
    world.step(&Step::Report);
    world.publish(8);
    world.take(8);
    world.confirm(8);
    world.step(&Step::Slow);
    world.step(&Step::Interlude(3, 2));
    world.publish(5);
    world.take_all_late(9);
    world.finish();
    assert_eq!(lost(&world), Vec::<u64>::new());
}

/// "Everything up to the newest message is stored" would lose it, and so would an id that is passed.
#[test]
fn r26_an_event_that_was_lost_before_later_ones_were_stored_goes_without_a_name() {
    let mut world = World::new();
    world.publish(5);
    world.step(&Step::LoseOne);
    world.take(5);
    world.lose_link();
    world.link_up();
    let dedup = &mut world.process.dedup;
    assert_eq!(dedup.judge(0, &key(0)), Verdict::Uncounted);
    assert_eq!(dedup.judge(1, &key(1)), Verdict::Stored);
    assert_eq!(dedup.judge(5, &key(5)), Verdict::Counted(6));
    world.finish();
    assert_eq!(lost(&world), Vec::<u64>::new());
}
