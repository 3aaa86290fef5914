//! The window by examples.

use super::*;
use crate::Lsn;
use crate::amqp::{MessageParts, Origin};
use crate::event::InvalidRow;
use crate::key::TransactionKey;
use crate::ledger::Ledger;
use crate::pgoutput;
use crate::pgoutput::sample::{Cell, Sample};
use crate::timestamp::PgTimestamp;

pub(super) fn key(commit_lsn: u64, xid: u32, tx_seq: u64) -> EventKey {
    let transaction = TransactionKey {
        commit_lsn: Lsn::new(commit_lsn),
        xid,
        commit_time: PgTimestamp::new(5),
    };
    EventKey { transaction, tx_seq }
}

fn window(events: usize, bytes: usize) -> Window {
    Window::new(WindowLimits { events, bytes }, false)
}

fn admit(window: &mut Window, key: EventKey, bytes: usize) {
    let message = message(window, bytes);
    window.admit(admission(key, Some(message)));
}

/// A message of exactly `bytes`.
pub(super) fn message(window: &mut Window, bytes: usize) -> Message {
    let mut buffer = window.spare_buffer();
    let parts = MessageParts::empty(Origin::Stream {
        commit_lsn: Lsn::new(0x1000_0000),
        tx_seq: 0,
        backfill: false,
    });
    let envelope = Message::encode(&mut buffer, &parts, b"").unwrap();
    let body = vec![b'x'; bytes - envelope.len()];
    buffer = envelope.into_buffer();
    let message = Message::encode(&mut buffer, &parts, &body).unwrap();
    assert_eq!(message.len(), bytes);
    message
}

pub(super) fn admission(key: EventKey, message: Option<Message>) -> Admission {
    Admission {
        key,
        transaction: Some(transaction()),
        message,
        row: None,
        aggregate: 0,
        table: 0,
        on_unroutable: None,
    }
}

pub(super) fn transaction() -> TransactionNo {
    let mut ledger = Ledger::new();
    ledger.begin();
    ledger.admit()
}

fn settle(window: &mut Window, seq: Seq) -> Vec<String> {
    let mut left = Vec::new();
    window.settle(seq, |key| left.push(key.to_string()));
    left
}

fn drain_queue(window: &mut Window) -> Vec<Seq> {
    let mut queued = Vec::new();
    while let Some(seq) = window.next_queued() {
        window.sent(seq);
        queued.push(seq);
    }
    queued
}

/// R12: one unsettled event must not let any number of settled ones pile up behind it.
#[test]
fn room_is_counted_from_the_oldest_unsettled_event_settled_ones_included() {
    let mut window = window(3, 1_000_000);
    for tx_seq in 0..3 {
        assert!(window.has_room(200));
        admit(&mut window, key(100, 1, tx_seq), 200);
    }
    assert!(!window.has_room(0));
    assert!(settle(&mut window, 1).is_empty());
    assert!(settle(&mut window, 2).is_empty());
    assert_eq!((window.unsettled(), window.has_room(0)), (1, false));
    assert_eq!(settle(&mut window, 0), ["0/64:0", "0/64:1", "0/64:2"]);
    assert!(window.has_room(0));
}

#[test]
fn room_is_counted_in_bytes_of_what_is_unsettled() {
    let mut window = window(100, 1_000);
    admit(&mut window, key(100, 1, 0), 400);
    admit(&mut window, key(100, 1, 1), 400);
    assert_eq!((window.has_room(200), window.has_room(201)), (true, false));
    settle(&mut window, 1);
    assert_eq!(
        (window.bytes(), window.has_room(600), window.has_room(601)),
        (400, true, false)
    );
    assert!(!window.has_room(usize::MAX), "does not overflow");
}

#[test]
fn an_empty_window_takes_one_event_however_large_and_then_no_other() {
    let mut window = window(100, 1_000);
    assert!(window.has_room(5_000));
    admit(&mut window, key(100, 1, 0), 5_000);
    assert!(!window.has_room(0));
    settle(&mut window, 0);
    assert!(window.has_room(5_000));
}

/// R2.
#[test]
fn an_event_is_located_by_its_whole_key() {
    let mut window = window(10, 10_000);
    assert_eq!(window.locate(&key(100, 1, 0)), Located::New);
    for (commit_lsn, tx_seq) in [(100, 0), (100, 2), (300, 0)] {
        admit(&mut window, key(commit_lsn, 1, tx_seq), 200);
    }
    settle(&mut window, 1);
    for (key, located) in [
        (key(100, 1, 0), Located::Unsettled(0)),
        (key(100, 1, 2), Located::Settled),
        (key(300, 1, 0), Located::Unsettled(2)),
        (key(300, 1, 1), Located::New),
        (key(301, 1, 0), Located::New),
        (key(99, 1, 7), Located::Earlier),
        (key(100, 1, 1), Located::Diverged),
        (key(200, 1, 0), Located::Diverged),
        (key(100, 2, 0), Located::Diverged),
    ] {
        assert_eq!(window.locate(&key), located, "{key:?}");
    }
    settle(&mut window, 0);
    assert_eq!(window.locate(&key(100, 1, 2)), Located::Earlier);
    assert_eq!(window.find((Lsn::new(300), 0)), Some(2));
    assert_eq!(window.find((Lsn::new(100), 2)), None);
}

#[test]
fn a_lost_link_queues_again_what_was_sent_and_nothing_else() {
    let mut window = window(10, 10_000);
    for tx_seq in 0..5 {
        admit(&mut window, key(100, 1, tx_seq), 200);
    }
    assert_eq!(drain_queue(&mut window), [0, 1, 2, 3, 4]);
    settle(&mut window, 1);
    window.fail(3, Failure::Nacked);
    window.requeue_sent();
    assert_eq!(drain_queue(&mut window), [0, 2, 4]);
    assert_eq!(window.failed(), 1);
}

/// I9: while a probe is out, its event is still what stops delivery.
#[test]
fn a_failed_event_stays_failed_until_it_is_settled() {
    let mut window = window(10, 10_000);
    admit(&mut window, key(100, 1, 0), 200);
    admit(&mut window, key(100, 1, 1), 200);
    drain_queue(&mut window);
    window.fail(0, Failure::Nacked);
    window.fail(0, Failure::Unroutable { reply_code: 312 });
    assert_eq!((window.failed(), window.oldest_sendable()), (1, Some((0, true))));
    window.sent(0);
    let (_, entry, failure) = window.oldest_failed().unwrap();
    assert_eq!(
        (entry.key, failure),
        (key(100, 1, 0), &Failure::Unroutable { reply_code: 312 })
    );
    settle(&mut window, 0);
    assert_eq!((window.failed(), window.oldest_failed().is_some()), (0, false));
}

#[test]
fn a_row_without_a_message_is_failed_from_the_start_and_never_sendable() {
    let mut window = window(10, 10_000);
    let failure = Failure::Invalid {
        id: None,
        reason: InvalidRow::Null("id".to_owned()),
    };
    let seq = window.admit(admission(key(100, 1, 0), None));
    window.fail(seq, failure);
    assert_eq!((window.failed(), window.unsettled(), window.bytes()), (1, 1, 0));
    assert_eq!((window.next_queued(), window.oldest_sendable()), (None, None));
    admit(&mut window, key(100, 1, 1), 200);
    assert_eq!(window.oldest_sendable(), Some((1, false)));
}

#[test]
fn an_event_belongs_to_the_ledger_of_the_current_session_only() {
    let mut window = window(10, 10_000);
    admit(&mut window, key(100, 1, 0), 200);
    window.detach_all();
    assert_eq!(window.settle(0, drop), None);
    admit(&mut window, key(200, 1, 0), 200);
    window.detach_all();
    window.attach(1, transaction());
    assert_eq!(window.settle(1, drop), Some(transaction()));
}

#[test]
fn places_are_not_reused_after_everything_was_dropped() {
    let mut window = window(10, 10_000);
    admit(&mut window, key(100, 1, 0), 200);
    window.fail(0, Failure::Nacked);
    window.clear();
    assert_eq!((window.unsettled(), window.bytes(), window.failed()), (0, 0, 0));
    admit(&mut window, key(100, 1, 0), 200);
    assert_eq!(window.next_queued(), Some(1));
    assert!(settle(&mut window, 0).is_empty(), "a late answer settles nothing");
    assert_eq!(window.unsettled(), 1);
}

/// I5.
#[test]
fn buffers_are_used_again_but_large_ones_are_not_kept() {
    let mut window = window(10, 1_000_000);
    admit(&mut window, key(100, 1, 0), 2_000);
    settle(&mut window, 0);
    let buffer = window.spare_buffer();
    assert!(buffer.is_empty() || buffer.capacity() >= 2_000);
    assert!((2_000..=SPARE_CAPACITY).contains(&buffer.capacity()));
    admit(&mut window, key(200, 1, 0), 10 * SPARE_CAPACITY);
    settle(&mut window, 1);
    assert_eq!(window.spare_buffer().capacity(), FRESH_CAPACITY);
    for _ in 0..20 {
        window.recycle(Vec::with_capacity(10));
    }
    assert_eq!(window.spare.len(), 10, "as many as a full window has");
}

/// I5.
#[test]
fn what_is_kept_for_reuse_is_bounded_in_bytes_too() {
    let mut window = window(1_000_000, 1_000_000);
    for _ in 0..2 * SPARE_BYTES / SPARE_CAPACITY {
        window.recycle(Vec::with_capacity(SPARE_CAPACITY));
    }
    assert_eq!(window.spare.len(), SPARE_BYTES / SPARE_CAPACITY);
    drop(window.spare_buffer());
    window.recycle(Vec::with_capacity(SPARE_CAPACITY));
    assert_eq!(window.spare.len(), SPARE_BYTES / SPARE_CAPACITY);
}

/// A dead letter is unsettled, but does not fail any more; whatever else happens, it is not sent.
#[test]
fn an_event_that_is_set_aside_is_neither_failed_nor_sendable_until_it_is_settled() {
    let mut window = window(10, 10_000);
    for tx_seq in 0..3 {
        admit(&mut window, key(100, 1, tx_seq), 200);
    }
    drain_queue(&mut window);
    window.set_aside(1);
    assert_eq!(window.setting_aside(), 0, "it has not failed");
    window.fail(1, Failure::Unroutable { reply_code: 312 });
    window.set_aside(1);
    window.requeue_sent();
    assert_eq!(drain_queue(&mut window), [0, 2]);
    let (seq, entry, failure) = window.oldest_set_aside().unwrap();
    assert_eq!(
        (seq, entry.attempts, failure),
        (1, 1, &Failure::Unroutable { reply_code: 312 })
    );
    assert_eq!((window.failed(), window.unsettled(), window.bytes()), (0, 3, 600));
    settle(&mut window, 1);
    assert_eq!(
        (window.setting_aside(), window.unsettled(), window.bytes()),
        (0, 2, 400)
    );
}

#[test]
fn a_row_counts_towards_the_bytes_and_its_buffer_is_used_again() {
    let sample = Sample::Insert {
        oid: 1,
        new: vec![Cell::Text(vec![b'x'; 2_000])],
    };
    let insert = sample.encode();
    let Ok(pgoutput::Message::Insert(insert)) = pgoutput::Message::decode(&insert) else {
        panic!("not what was encoded")
    };
    let mut window = window(10, 10_000);
    let row = Row::keep(&Default::default(), &insert.new, Vec::new());
    let length = row.len();
    assert!(length > 2_000);
    let seq = window.admit(Admission {
        row: Some(row),
        ..admission(key(100, 1, 0), None)
    });
    assert_eq!(window.bytes(), length);
    assert_eq!(
        (window.has_room(10_000 - length), window.has_room(10_001 - length)),
        (true, false)
    );
    settle(&mut window, seq);
    assert_eq!(window.bytes(), 0);
    assert!(window.spare_buffer().capacity() >= length);
}
