//! Many retries at once (R16): loaded, sent and recorded together, within bounds, and never two for one event.

use super::retries::{request, stored_at};
use super::rig::{COMMIT_SIZE, Position, Rig, begin, commit, config};
use crate::Lsn;
use crate::flow::retries::{MAX_ACTIVE, MAX_REQUESTS};
use crate::flow::{Intake, RetryFailure, RetryToken};
use crate::window::Failure;

fn position(number: usize) -> Position {
    (50, u64::try_from(number).unwrap())
}

/// Keys of the dead letters with these numbers.
fn positions(numbers: impl IntoIterator<Item = usize>) -> Vec<Position> {
    numbers.into_iter().map(position).collect()
}

impl Rig {
    /// A transaction at 100 that asks for the events at 50 with these numbers.
    fn ask_for(&mut self, numbers: impl IntoIterator<Item = usize>) {
        self.take(&begin(100, 1));
        for (lsn, number) in (1..).zip(numbers) {
            self.take(&request(lsn));
            self.sort_as(number);
        }
        self.take(&commit(100));
    }

    fn sort_as(&mut self, number: usize) {
        let (token, _) = self.flow.unsorted_retry().unwrap();
        let (commit_lsn, tx_seq) = position(number);
        self.flow.retry_wanted(token, (Lsn::new(commit_lsn), tx_seq));
    }

    /// Loads what may be loaded; the keys.
    fn load_all(&mut self) -> Vec<Position> {
        self.load_each("{}")
    }

    fn load_each(&mut self, payload: &str) -> Vec<Position> {
        let mut loaded = Vec::new();
        for (token, (commit_lsn, tx_seq)) in self.flow.retries_to_load() {
            loaded.push((commit_lsn.get(), tx_seq));
            let event = stored_at((commit_lsn.get(), tx_seq), "a", payload);
            self.flow.retry_loaded(token, event);
        }
        loaded
    }

    /// Records what is over; how many were delivered, and how many not.
    fn record_all(&mut self, end: u64) -> (usize, usize) {
        let over: Vec<(RetryToken, bool)> = self
            .flow
            .retries_over()
            .map(|over| (over.token, over.failure.is_none()))
            .collect();
        for (token, _) in &over {
            self.flow.retry_recorded(*token, Lsn::new(end), self.now);
        }
        let delivered = over.iter().filter(|(_, delivered)| *delivered).count();
        (delivered, over.len() - delivered)
    }
}

#[test]
fn as_many_as_are_kept_are_loaded_sent_and_recorded_together() {
    let mut rig = Rig::small();
    rig.ask_for(0..MAX_ACTIVE + 10);
    assert_eq!(rig.load_all(), positions(0..MAX_ACTIVE));
    assert_eq!(rig.load_all(), []);
    assert_eq!(rig.publish(), positions(0..MAX_ACTIVE));
    rig.ack(1);
    rig.ack(3);
    assert_eq!(rig.record_all(70), (2, 0));
    assert_eq!(rig.load_all(), positions(MAX_ACTIVE..MAX_ACTIVE + 2));
    rig.ack_all();
    assert_eq!(rig.record_all(80), (MAX_ACTIVE - 2, 0));
    assert_eq!(rig.load_all(), positions(MAX_ACTIVE + 2..MAX_ACTIVE + 10));
    rig.publish();
    rig.ack_all();
    assert_eq!(rig.record_all(500), (10, 0));
    assert_eq!(rig.durable(), 0);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500, "R15: beyond the latest of the ends");
    assert!(rig.flow.is_drained());
}

#[test]
fn events_of_the_stream_flow_between_batches() {
    let mut rig = Rig::small();
    rig.ask_for(0..MAX_ACTIVE + 1);
    rig.load_all();
    rig.transaction(200, 1);
    let sent = rig.publish();
    assert_eq!((sent.len(), sent.last()), (MAX_ACTIVE + 1, Some(&(200, 0))));
}

#[test]
fn no_more_bytes_are_loaded_than_are_allowed_and_one_message() {
    let mut rig = Rig::small();
    rig.flow.link_up(131_072, 1 << 30, rig.now);
    rig.ask_for(0..10);
    let large = format!("\"{}\"", "x".repeat(1024 * 1024));
    let mut loaded = 0;
    while let Some((token, (commit_lsn, tx_seq))) = rig.flow.retries_to_load().first().copied() {
        let room = rig.flow.retry_room().unwrap();
        assert!(room <= 4 * 1024 * 1024);
        let event = stored_at((commit_lsn.get(), tx_seq), "a", &large);
        rig.flow.retry_loaded(token, event);
        loaded += 1;
    }
    assert_eq!((loaded, rig.flow.retry_room()), (4, None));
    rig.flow.poll_publish(&mut Vec::new(), usize::MAX, rig.now);
    rig.ack(1);
    assert_eq!(rig.flow.retry_room(), None, "kept until it is on record");
    rig.record_all(0);
    assert!(rig.flow.retry_room().is_some());
}

#[test]
fn requests_for_one_event_follow_each_other() {
    let mut rig = Rig::small();
    rig.ask_for([1, 2, 1, 3]);
    assert_eq!(rig.load_all(), positions([1, 2]));
    assert_eq!((rig.load_all(), rig.flow.retry_room()), (vec![], None));
    assert_eq!(rig.publish(), positions([1, 2]));
    rig.ack(2);
    rig.record_all(0);
    assert_eq!(rig.load_all(), [], "the first of its requests is under way");
    rig.ack(1);
    rig.record_all(0);
    assert_eq!(rig.load_all(), positions([1, 3]));
}

#[test]
fn what_is_left_for_the_next_time_is_loaded_then_and_in_its_order() {
    let mut rig = Rig::small();
    rig.ask_for(0..3);
    let wanted = rig.flow.retries_to_load();
    rig.flow.retry_loaded(wanted[1].0, stored_at((50, 1), "a", "{}"));
    assert_eq!(rig.publish(), [], "not the oldest");
    rig.flow.retry_ignored(wanted[0].0);
    rig.flow.retry_loaded(wanted[1].0, stored_at((50, 1), "a", "{}"));
    assert_eq!(rig.publish(), positions([1]));
    assert_eq!(rig.load_all(), positions([2]));
}

#[test]
fn returns_and_nacks_are_told_apart_among_many() {
    let mut rig = Rig::small();
    rig.ask_for(0..5);
    rig.load_all();
    rig.publish();
    rig.return_and_ack((50, 2), 3);
    rig.nack(5);
    rig.ack(1);
    let over: Vec<_> = rig
        .flow
        .retries_over()
        .map(|over| (over.key.tx_seq, over.failure.cloned()))
        .collect();
    let failed = |failure| Some(RetryFailure::Event(failure));
    let expected = [
        (0, None),
        (2, failed(Failure::Unroutable { reply_code: 312 })),
        (4, failed(Failure::Nacked)),
    ];
    assert_eq!(over, expected);
    assert!(rig.flow.handle_return((Lsn::new(50), 2), 312).is_err());
    assert_eq!(rig.record_all(0), (1, 2));
    assert_eq!((rig.durable(), rig.flow.counters().retried), (0, 1));
    rig.ack_all();
    rig.record_all(0);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// Each is sent alone until the culprit is found, before the events that were out with them.
#[test]
fn a_retry_over_which_the_broker_closes_is_found_among_many() {
    let mut rig = Rig::small();
    rig.ask_for(0..4);
    rig.load_all();
    rig.transaction(200, 1);
    assert_eq!(rig.publish().len(), 5);
    rig.ack(1);
    rig.refuse();
    for (number, culprit) in [(1, false), (2, true), (3, false)] {
        assert_eq!(rig.publish(), positions([number]));
        assert_eq!(rig.publish(), [], "alone");
        match culprit {
            true => rig.refuse(),
            false => rig.ack_all(),
        }
    }
    assert_eq!(rig.publish(), [(200, 0)]);
    assert_eq!(rig.record_all(0), (3, 1));
}

/// Nothing but retries was out at the close: what the stream brings then waits too.
#[test]
fn an_event_waits_while_a_suspect_is_out() {
    let mut rig = Rig::small();
    rig.ask_for(0..2);
    rig.load_all();
    assert_eq!(rig.publish(), positions(0..2));
    rig.refuse();
    rig.transaction(200, 1);
    for number in 0..2 {
        assert_eq!(rig.publish(), positions([number]));
        rig.ack_all();
    }
    assert_eq!(rig.publish(), [(200, 0)]);
}

#[test]
fn those_that_are_out_when_the_session_is_lost_are_recognised_and_not_sent_again() {
    let mut rig = Rig::small();
    rig.ask_for(0..MAX_ACTIVE + 5);
    rig.load_all();
    rig.publish();
    rig.return_and_ack((50, 7), 8);
    rig.flow.session_lost();
    rig.ack(1);
    rig.start_session(1);
    rig.take(&begin(100, 1));
    for lsn in 1..=u64::try_from(MAX_ACTIVE).unwrap() {
        rig.take(&request(lsn));
        assert_eq!(rig.flow.unsorted_retry(), None, "recognised");
    }
    for (lsn, number) in (u64::try_from(MAX_ACTIVE).unwrap() + 1..).zip(MAX_ACTIVE..MAX_ACTIVE + 5) {
        rig.take(&request(lsn));
        rig.sort_as(number);
    }
    rig.take(&commit(100));
    rig.ack_all();
    assert_eq!(rig.record_all(0), (MAX_ACTIVE - 1, 1));
    assert_eq!(rig.durable(), 0);
    rig.load_all();
    assert_eq!(rig.publish(), positions(MAX_ACTIVE..MAX_ACTIVE + 5));
    rig.ack_all();
    rig.record_all(0);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

#[test]
fn the_stream_waits_behind_more_requests_than_are_kept() {
    let mut rig = Rig::small();
    rig.take(&begin(100, 1));
    let count = u64::try_from(MAX_REQUESTS).unwrap();
    for (lsn, number) in (0..count).zip(0..) {
        rig.take(&request(lsn));
        rig.sort_as(number);
    }
    assert_eq!(rig.offer(&request(count)).unwrap(), Intake::NoRoom);
    assert!(!rig.flow.wants_stream());
    let oldest = rig.flow.retries_to_load()[0].0;
    rig.flow.retry_ignored(oldest);
    rig.take(&request(count));
    rig.sort_as(MAX_REQUESTS);
    // A stop leaves them to the next relay, and the slot before them.
    rig.flow.stop(rig.now);
    rig.take(&request(count + 1));
    rig.take(&commit(100));
    assert_eq!((rig.load_all(), rig.flow.retry_room()), (vec![], None));
    assert!(rig.flow.is_drained());
    assert_eq!(rig.flow.final_status(rig.now).unwrap().durable, Lsn::INVALID);
}

/// What is asked on every turn of the loop is counted, not searched for: the counts are right after whatever happens.
#[test]
fn a_random_schedule_of_many_retries_loses_none_and_ends() {
    use proptest::prelude::*;

    proptest!(ProptestConfig::with_cases(64), |(steps in proptest::collection::vec(0_u8..9, 1..200))| {
        let mut rig = Rig::started(config(10, 100_000));
        rig.ask_for((0..300).map(|number| number % 290));
        for step in steps.into_iter().chain([2, 3, 4].into_iter().cycle().take(3 * 600)) {
            match step {
                0 => {
                    rig.lose_and_find_session();
                    rig.take(&begin(100, 1));
                    for (lsn, number) in (1..=300).zip(0..300) {
                        rig.take(&request(lsn));
                        if rig.flow.unsorted_retry().is_some() {
                            rig.sort_as(number % 290);
                        }
                    }
                    rig.take(&commit(100));
                }
                1 => {
                    rig.flow.link_lost();
                    rig.link_up();
                }
                2 => drop(rig.load_all()),
                3 => {
                    rig.publish();
                    rig.ack_all();
                }
                4 => drop(rig.record_all(0)),
                5 => drop(rig.flow.poll_publish(&mut Vec::new(), 1, rig.now)),
                6 => {
                    rig.publish();
                    if rig.flow.has_retry_in_flight() {
                        rig.refuse();
                    }
                }
                _ => drop(rig.publish()),
            }
            rig.flow.check_retries();
        }
        prop_assert!(rig.flow.is_drained() && !rig.flow.has_retries_over());
        prop_assert_eq!(rig.flow.retry_room(), None);
        prop_assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    });
}
