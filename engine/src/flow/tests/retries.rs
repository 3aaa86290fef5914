//! Retries of dead letters (R16): beside the window, before the durable LSN, and in nobody's way.

use super::rig::{
    COMMIT_SIZE, CONFIRM_TIMEOUT, FRAME_MAX, OutboxRow, Position, Received, Rig, begin, commit, config,
    config_with,
};
use crate::flow::{Intake, RETRY_PREFIX, RetryFailure, RetryToken, StoredEvent, Timeout, Unfit};
use crate::key::{EventKey, TransactionKey};
use crate::pgoutput::sample::{Cell, Sample};
use crate::policy::Policy;
use crate::timestamp::PgTimestamp;
use crate::window::Failure;
use crate::{Lsn, event::InvalidRow};

const JSON_OID: u32 = 114;

pub(super) fn message(prefix: &str, flags: u8, lsn: u64, content: &[u8]) -> Sample {
    Sample::Message {
        flags,
        lsn,
        prefix: prefix.to_owned(),
        content: Cell::Binary(content.to_vec()),
    }
}

pub(super) fn request(lsn: u64) -> Sample {
    message(RETRY_PREFIX, 1, lsn, b"retry it")
}

/// The event at 50:3, whose row is that of [`OutboxRow::new`].
fn stored(id: &str) -> StoredEvent {
    stored_at(RETRIED, id, "{\"total\": 0.10000000000000000001}")
}

/// The event at this position of transaction 9.
pub(super) fn stored_at((commit_lsn, tx_seq): Position, id: &str, payload: &str) -> StoredEvent {
    let columns = [
        ("id", Some(id)),
        ("aggregate_type", Some("order")),
        ("aggregate_id", Some("42")),
        ("event_type", Some("created")),
        ("payload", Some(payload)),
        ("sent_at", None),
    ];
    StoredEvent {
        key: EventKey {
            transaction: TransactionKey {
                commit_lsn: Lsn::new(commit_lsn),
                xid: 9,
                commit_time: PgTimestamp::new(5_000_000),
            },
            tx_seq,
        },
        event_id: Some(id.to_owned()),
        schema: "public".to_owned(),
        table: "outbox_events".to_owned(),
        payload_type: Some(JSON_OID),
        columns: Some(
            columns
                .map(|(name, value)| (name.to_owned(), value.map(str::to_owned)))
                .to_vec(),
        ),
    }
}

const RETRIED: Position = (50, 3);

impl Rig {
    /// A transaction at 100 that asks for the event at 50:3.
    fn asked(&mut self) {
        self.ask(100);
    }

    fn ask(&mut self, commit_lsn: u64) {
        self.take(&begin(commit_lsn, 1));
        self.take(&request(commit_lsn - 5));
        self.sort();
        self.take(&commit(commit_lsn));
    }

    /// The newest request is for the event at 50:3.
    fn sort(&mut self) {
        let (token, content) = self.flow.unsorted_retry().unwrap();
        assert_eq!(content, b"retry it");
        self.flow.retry_wanted(token, (Lsn::new(50), 3));
    }

    fn to_load(&self) -> Option<RetryToken> {
        let (token, position) = self.flow.retries_to_load().into_iter().next()?;
        assert_eq!(position, (Lsn::new(50), 3));
        Some(token)
    }

    fn load(&mut self) {
        let token = self.to_load().expect("nothing to load");
        self.flow.retry_loaded(token, stored("a"));
    }

    /// The outcome to record, if there is one.
    fn to_record(&self) -> Option<(RetryToken, Option<RetryFailure>)> {
        let over = self.flow.retries_over().next()?;
        Some((over.token, over.failure.cloned()))
    }

    fn has_retry_work(&self) -> bool {
        self.flow.has_retries_over() || self.flow.retry_room().is_some()
    }

    fn failure(&self) -> RetryFailure {
        self.to_record().expect("not over").1.expect("delivered")
    }

    fn record(&mut self, end: u64) {
        let (token, _) = self.to_record().expect("not over");
        self.flow.retry_recorded(token, Lsn::new(end), self.now);
    }
}

#[test]
fn a_retry_sends_the_message_of_the_first_try_and_the_lsn_passes_once_its_end_is_on_record() {
    let mut rig = Rig::small();
    rig.asked();
    assert_eq!((rig.durable(), rig.publish()), (0, vec![]));
    rig.load();
    let expected = Received {
        position: RETRIED,
        exchange: "outbox".to_owned(),
        routing_key: "order.created".to_owned(),
        is_mandatory: true,
        message_id: "a".to_owned(),
        body: OutboxRow::new("a").payload,
    };
    assert_eq!(rig.publish_messages(), [expected]);
    assert!(!rig.flow.is_drained());
    rig.ack(1);
    assert_eq!((rig.durable(), rig.publish()), (0, vec![]));
    assert!(!rig.flow.is_drained(), "not on record");
    assert_eq!(rig.to_record().unwrap().1, None);
    rig.record(500);
    assert_eq!((rig.durable(), rig.flow.counters().retried), (0, 1));
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500, "R15");
    assert!(rig.flow.is_drained() && !rig.has_retry_work());
}

/// It holds nothing up, and nothing that happens to the window touches it.
#[test]
fn events_flow_past_a_retry_that_waits() {
    let mut rig = Rig::small();
    rig.asked();
    for commit_lsn in (200..1200).step_by(10) {
        rig.transaction(commit_lsn, 1);
        assert_eq!(rig.publish(), [(commit_lsn, 0)]);
        rig.ack_all();
    }
    assert_eq!(rig.durable(), 0);
    rig.load();
    rig.publish();
    rig.ack_all();
    rig.record(0);
    assert_eq!(rig.durable(), 1190 + COMMIT_SIZE);
}

/// R12: what is settled behind it must neither pile up nor be forgotten.
#[test]
fn behind_a_retry_that_waits_for_long_no_more_is_read_than_is_remembered() {
    let mut rig = Rig::started(config(10, 100_000));
    rig.asked();
    let mut read = 0_u64;
    loop {
        let commit_lsn = 200 + read * 10;
        rig.take(&begin(commit_lsn, 1));
        if rig.offer(&OutboxRow::new("x").insert()).unwrap() == Intake::NoRoom {
            break;
        }
        rig.take(&commit(commit_lsn));
        rig.publish();
        rig.ack_all();
        read += 1;
        assert!(read < 10_000, "nothing stops it");
    }
    rig.load();
    rig.publish();
    rig.ack_all();
    rig.record(0);
    rig.take(&OutboxRow::new("x").insert());
}

/// A failed retry returns to the dead letters whatever the policy, and holds nothing.
#[test]
fn a_retry_that_fails_in_whatever_way_is_recorded_and_nothing_is_held() {
    for policy in [Policy::Hold, Policy::DeadLetter, Policy::Discard] {
        for failure in [
            Failure::Unroutable { reply_code: 312 },
            Failure::Nacked,
            Failure::Unanswered,
            Failure::Refused {
                reply_code: 406,
                reply_text: "PRECONDITION_FAILED - invalid headers".to_owned(),
            },
        ] {
            let mut rig = Rig::started(config_with(policy));
            rig.asked();
            rig.load();
            assert_eq!(rig.publish(), [RETRIED]);
            match &failure {
                Failure::Unroutable { .. } => rig.return_and_ack(RETRIED, 1),
                Failure::Nacked => rig.nack(1),
                Failure::Unanswered => {
                    rig.pass(CONFIRM_TIMEOUT);
                    assert_eq!(rig.flow.handle_timeout(rig.now), Some(Timeout::Confirm));
                    rig.link_up();
                }
                Failure::Refused { .. } | Failure::Invalid { .. } | Failure::Unreadable { .. } => {
                    rig.refuse()
                }
            }
            assert_eq!(rig.failure(), RetryFailure::Event(failure.clone()));
            assert_eq!((rig.flow.held_count(), rig.flow.set_aside_count()), (0, 0));
            assert!(!rig.flow.is_probing());
            rig.transaction(200, 1);
            assert_eq!(rig.publish(), [(200, 0)], "{failure:?}");
            rig.ack_all();
            assert_eq!(rig.durable(), 0);
            rig.record(200);
            assert_eq!(
                (rig.durable(), rig.flow.counters().retried),
                (200 + COMMIT_SIZE, 0)
            );
        }
    }
}

#[test]
fn a_stored_row_that_cannot_become_a_message_fails_its_retry() {
    let column = |name: &str, value: Option<&str>| {
        let mut event = stored("a");
        let columns = event.columns.as_mut().unwrap();
        columns.retain(|(column, _)| column != name);
        columns.extend(value.map(|value| (name.to_owned(), Some(value.to_owned()))));
        event
    };
    let unreadable = StoredEvent {
        columns: None,
        ..stored("a")
    };
    let elsewhere = StoredEvent {
        table: "other".to_owned(),
        ..stored("a")
    };
    let gone = StoredEvent {
        payload_type: None,
        ..stored("a")
    };
    let integer = StoredEvent {
        payload_type: Some(23),
        ..stored("a")
    };
    let cases = [
        (column("payload", None), "kept without column \"payload\""),
        (column("id", Some("")), "\"id\" is empty"),
        (column("a\0b", Some("x")), "no row of PostgreSQL"),
        (unreadable, "no object of strings and nulls"),
        (elsewhere, "not in the configuration"),
        (gone, "is gone"),
        (integer, "oid 23"),
    ];
    for (event, expected) in cases {
        let mut rig = Rig::small();
        rig.asked();
        let token = rig.to_load().unwrap();
        rig.flow.retry_loaded(token, event);
        let RetryFailure::Unfit(unfit) = rig.failure() else {
            panic!("not unfit")
        };
        assert!(unfit.to_string().contains(expected), "{unfit}");
        assert_eq!((rig.publish(), rig.flow.counters().invalid), (vec![], 1));
        rig.record(0);
        assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    }
    assert_eq!(
        Unfit::Row(InvalidRow::Empty("id".to_owned())).to_string(),
        "column \"id\" is empty"
    );
}

#[test]
fn a_body_that_the_link_does_not_take_fails_its_retry() {
    let mut rig = Rig::small();
    rig.flow.link_up(FRAME_MAX, 10, rig.now);
    rig.asked();
    rig.load();
    assert_eq!(rig.publish(), []);
    assert!(matches!(
        rig.failure(),
        RetryFailure::Event(Failure::Invalid {
            reason: InvalidRow::BodyTooLarge { limit: 10, .. },
            ..
        })
    ));
}

#[test]
fn what_is_no_request_is_ignored() {
    let mut rig = Rig::small();
    rig.take(&message(RETRY_PREFIX, 1, 1, b"outside of a transaction"));
    rig.take(&begin(100, 1));
    rig.take(&message(RETRY_PREFIX, 0, 2, b"not transactional"));
    rig.take(&message("walrelay.marker", 1, 3, b"another prefix"));
    rig.take(&message(RETRY_PREFIX, 1, 4, &[b'x'; 257]));
    assert_eq!(rig.flow.unsorted_retry(), None);
    // What the shell does not understand.
    rig.take(&message(RETRY_PREFIX, 1, 5, b"retry everything"));
    let (token, content) = rig.flow.unsorted_retry().unwrap();
    assert_eq!(content, b"retry everything");
    rig.flow.retry_ignored(token);
    rig.take(&commit(100));
    assert!(!rig.has_retry_work() && rig.flow.unsorted_retry().is_none());
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

#[test]
fn a_request_whose_dead_letter_is_not_being_retried_is_settled() {
    let mut rig = Rig::small();
    rig.asked();
    let token = rig.to_load().unwrap();
    rig.flow.retry_ignored(token);
    assert_eq!((rig.durable(), rig.publish()), (100 + COMMIT_SIZE, vec![]));
}

#[test]
fn a_lost_link_makes_a_retry_unsent_and_the_next_one_sends_it() {
    let mut rig = Rig::small();
    rig.asked();
    rig.load();
    rig.publish();
    rig.flow.link_lost();
    assert!(!rig.flow.has_retry_in_flight());
    rig.link_up();
    assert_eq!(rig.publish(), [RETRIED]);
    rig.ack(1);
    assert_eq!(rig.to_record().unwrap().1, None);
}

#[test]
fn a_lost_session_drops_requests_that_are_not_sent_and_the_next_one_brings_them() {
    let mut rig = Rig::small();
    rig.ask(100);
    rig.ask(200);
    let token = rig.to_load().unwrap();
    rig.lose_and_find_session();
    assert_eq!(rig.to_load(), None);
    rig.asked();
    // The answer to what the old session asked for is no answer to this.
    rig.flow.retry_loaded(token, stored("old"));
    rig.flow.retry_ignored(token);
    rig.flow.retry_recorded(token, Lsn::new(100), rig.now);
    assert_eq!((rig.publish(), rig.durable()), (vec![], 0));
    rig.load();
    assert_eq!(rig.publish(), [RETRIED]);
    rig.ack(1);
    rig.record(0);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

#[test]
fn a_retry_that_is_out_when_the_session_is_lost_is_not_sent_again() {
    let mut rig = Rig::small();
    rig.asked();
    rig.load();
    rig.publish();
    rig.flow.session_lost();
    rig.ack(1);
    rig.start_session(1);
    rig.take(&begin(100, 1));
    rig.take(&request(95));
    assert_eq!(rig.flow.unsorted_retry(), None, "recognised");
    rig.take(&commit(100));
    assert_eq!((rig.publish(), rig.durable()), (vec![], 0));
    rig.record(0);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// R15, where what came of it is on record before the next session brings the request.
#[test]
fn an_outcome_recorded_before_its_request_comes_again_still_waits_for_its_commit() {
    let mut rig = Rig::small();
    rig.asked();
    rig.load();
    rig.publish();
    rig.lose_and_find_session();
    rig.return_and_ack(RETRIED, 1);
    rig.record(500);
    rig.asked();
    rig.flow.retry_ignored(rig.to_load().unwrap());
    rig.keepalive(499, false);
    assert_eq!(rig.durable(), 0);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

#[test]
fn another_log_forgets_retries() {
    let mut rig = Rig::small();
    rig.asked();
    rig.load();
    rig.publish();
    assert!(rig.start_session(2));
    assert!(!rig.flow.has_retry_in_flight() && !rig.has_retry_work());
}

/// R11: while an event is held, nothing is sent but its probe.
#[test]
fn a_retry_waits_while_an_event_is_held() {
    let mut rig = Rig::small();
    rig.transaction(60, 1);
    rig.publish();
    rig.nack(1);
    rig.asked();
    rig.load();
    assert_eq!(rig.publish(), []);
    assert!(rig.flow.skip_held(rig.now));
    assert_eq!(rig.publish(), [RETRIED]);
}

#[test]
fn a_retry_over_which_the_broker_closes_is_found_at_once_and_alone() {
    let mut rig = Rig::small();
    rig.asked();
    rig.transaction(200, 2);
    rig.load();
    assert_eq!(rig.publish(), [RETRIED, (200, 0), (200, 1)]);
    rig.refuse();
    assert_eq!(rig.publish(), [RETRIED], "alone");
    rig.refuse();
    assert!(matches!(
        rig.failure(),
        RetryFailure::Event(Failure::Refused { .. })
    ));
    assert_eq!(rig.flow.counters().refused, 1);
    for tag in 1..=2 {
        assert_eq!(rig.publish(), [(200, tag - 1)]);
        rig.ack(tag);
    }
}

/// Its return could not be told from that of the event in the window.
#[test]
fn a_retry_waits_while_the_stream_has_brought_the_same_event_again() {
    let mut rig = Rig::small();
    rig.take(&begin(50, 9));
    for id in ["w", "x", "y", "z"] {
        rig.take(&OutboxRow::new(id).insert());
    }
    rig.take(&commit(50));
    rig.publish();
    for tag in 1..=3 {
        rig.ack(tag);
    }
    rig.asked();
    rig.load();
    assert_eq!(rig.publish(), []);
    rig.ack(4);
    assert_eq!(rig.publish(), [RETRIED]);
    rig.return_and_ack(RETRIED, 5);
    assert!(matches!(
        rig.failure(),
        RetryFailure::Event(Failure::Unroutable { .. })
    ));
    assert_eq!(rig.held(), None);
}

#[test]
fn a_stopping_flow_waits_for_a_retry_that_is_out_and_sends_no_other() {
    let mut rig = Rig::small();
    rig.ask(100);
    rig.ask(200);
    rig.load();
    rig.publish();
    rig.flow.stop(rig.now);
    assert!(!rig.flow.is_drained());
    rig.ack(1);
    rig.record(0);
    assert_eq!(rig.to_load(), None);
    assert!(rig.flow.is_drained());
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}
