//! Rows that the stream does not bring (R22).

use super::rig::*;
use crate::Lsn;
use crate::flow::{BackfillTable, Intake, Unbound};
use crate::key::{EventKey, TransactionKey};
use crate::pgoutput::{TextValue, insert_of, relation_of};
use crate::policy::Policy;
use crate::timestamp::PgTimestamp;

/// No commit record starts at such a position.
const POSITION: u64 = 99;

fn table(rig: &mut Rig, name: &str) -> Result<BackfillTable, Unbound> {
    rig.flow
        .backfill_table(&relation_of("public", name, COLUMNS.into_iter()))
}

/// The key of a row that was noted then.
fn key(number: u64, copied_at: i64) -> EventKey {
    EventKey {
        transaction: TransactionKey::backfill(Lsn::new(POSITION), PgTimestamp::new(copied_at)),
        tx_seq: number,
    }
}

/// A row with this aggregate and payload, which is not marked.
fn row(number: u64, aggregate: &str, payload: TextValue<'_>) -> Vec<u8> {
    let id = format!("row {number}");
    let values = [id.as_str(), "order", aggregate, "created"].map(TextValue::Text);
    let values: Vec<_> = values.into_iter().chain([payload, TextValue::Null]).collect();
    insert_of(values.into_iter())
}

impl Rig {
    /// With a session that has rows to be backfilled before its stream.
    fn backfilling(config: crate::flow::FlowConfig) -> Self {
        let mut rig = Self::started(config);
        rig.flow.backfill_begins();
        rig
    }

    fn backfill(&mut self, number: u64) -> Intake {
        self.backfill_row(number, "42", TextValue::Text("{}"))
    }

    fn backfill_row(&mut self, number: u64, aggregate: &str, payload: TextValue<'_>) -> Intake {
        let table = table(self, "outbox_events").unwrap();
        let insert = row(number, aggregate, payload);
        self.flow
            .handle_backfilled(&table, key(number, 5), &insert, self.now)
            .unwrap()
    }
}

fn sent(position: u64) -> Position {
    (POSITION, position)
}

#[test]
fn r22_the_stream_waits_until_the_backfill_is_over() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    assert!(!rig.flow.wants_stream());
    assert_eq!(rig.offer(&begin(200, 1)).unwrap(), Intake::NoRoom);
    for number in [3, 4] {
        assert_eq!(rig.backfill(number), Intake::Taken);
    }
    assert_eq!(rig.publish(), [sent(3), sent(4)]);
    rig.ack_all();
    assert_eq!(rig.offer(&begin(200, 1)).unwrap(), Intake::NoRoom);
    rig.flow.backfill_over(rig.now);
    assert!(rig.flow.wants_stream());
    rig.transaction(200, 1);
    assert_eq!(rig.publish(), [(200, 0)]);
}

/// R3: without the wait, the keepalive behind the stream's start would be reported.
#[test]
fn r3_nothing_is_durable_while_rows_are_left() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    let frame = keepalive(500, true);
    assert_eq!(rig.flow.handle_stream(&frame, rig.now).unwrap(), Intake::NoRoom);
    rig.pass(SECOND);
    let positions = rig.flow.poll_status(rig.now).expect("a status update");
    assert_eq!(
        (positions.durable, positions.reply_requested),
        (Lsn::INVALID, false)
    );
    rig.pass(SILENCE_TIMEOUT * 2);
    assert_eq!(rig.flow.handle_timeout(rig.now), None, "nobody listens");
    rig.flow.backfill_over(rig.now);
    rig.keepalive(500, true);
    assert_eq!(rig.durable(), 500);
}

#[test]
fn only_a_settled_prefix_of_the_rows_is_told_as_settled() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    for number in [3, 5, 8] {
        assert_eq!(rig.backfill(number), Intake::Taken);
    }
    rig.flow.pass_backfilled(key(9, 5));
    assert_eq!((rig.flow.backfill_through(), rig.flow.backfill_settled()), (9, 2));
    rig.publish();
    rig.ack(2);
    assert_eq!(rig.flow.backfill_settled(), 2);
    rig.ack(1);
    assert_eq!(rig.flow.backfill_settled(), 7);
    rig.ack(3);
    assert_eq!(rig.flow.backfill_settled(), 9);
}

#[test]
fn the_window_bounds_the_backfill_too() {
    let mut rig = Rig::backfilling(config(2, 100_000));
    assert_eq!(rig.backfill(1), Intake::Taken);
    assert_eq!(rig.backfill(2), Intake::Taken);
    assert_eq!(rig.backfill(3), Intake::NoRoom);
    rig.publish();
    rig.ack(1);
    assert_eq!(rig.backfill(3), Intake::Taken);
}

#[test]
fn a_row_that_waits_for_bytes_is_encoded_once_more_when_there_is_room() {
    let mut rig = Rig::backfilling(config(10, 1_000));
    let text = "x".repeat(500);
    let large = TextValue::Text(&text);
    assert_eq!(rig.backfill_row(1, "42", large), Intake::Taken);
    for _ in 0..5 {
        assert_eq!(rig.backfill_row(2, "42", large), Intake::NoRoom);
    }
    assert_eq!(rig.flow.scratch.prepared, 2);
    rig.publish();
    rig.ack_all();
    assert_eq!(rig.backfill_row(2, "42", large), Intake::Taken);
    assert_eq!(rig.flow.scratch.prepared, 3);
    assert_eq!(rig.backfill(3), Intake::Taken, "a small one behind it");
}

#[test]
fn what_is_out_is_not_backfilled_again_by_the_next_session() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    assert_eq!(rig.backfill(1), Intake::Taken);
    rig.publish();
    rig.flow.session_lost();
    assert!(!rig.start_session(1));
    rig.flow.backfill_begins();
    assert_eq!((rig.flow.backfill_through(), rig.flow.backfill_settled()), (1, 0));
    rig.ack(1);
    assert_eq!(rig.flow.backfill_settled(), 1);
    // Another log: all of it comes again.
    assert!(rig.start_session(2));
    assert_eq!(rig.flow.backfill_through(), 0);
}

/// R2 and R22: numbers start over where the server was set back, so none of the rows is taken for one that was sent.
#[test]
fn the_rows_of_a_server_that_was_set_back_are_sent_whatever_their_numbers() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    rig.start_session_flushed(1, 1000);
    rig.flow.backfill_begins();
    for number in [1, 2] {
        assert_eq!(rig.backfill(number), Intake::Taken);
    }
    rig.publish();
    rig.ack_all();
    rig.flow.session_lost();
    assert!(
        rig.start_session_flushed(1, 999),
        "nothing was received, but so much was flushed"
    );
    assert_eq!((rig.flow.backfill_through(), rig.flow.backfill_settled()), (0, 0));
}

/// R22: the same where the schema alone was made anew.
#[test]
fn a_row_noted_by_another_copy_than_its_number_says_is_told() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    assert!(rig.flow.knows_noted(key(1, 5)), "nothing was sent");
    assert_eq!(rig.backfill(2), Intake::Taken);
    rig.flow.pass_backfilled(key(3, 6));
    rig.flow.pass_backfilled(key(5, 6));
    for (noted, is_known) in [
        (key(2, 5), true),
        (key(2, 6), false),
        (key(3, 6), true),
        (key(3, 5), false),
        (key(5, 7), false),
        (key(6, 7), true),
    ] {
        assert_eq!(rig.flow.knows_noted(noted), is_known, "{noted:?}");
    }
    rig.flow.forget();
    assert!(rig.flow.knows_noted(key(2, 7)));
}

/// Or rows before it, which were out and are forgotten, would count as settled.
#[test]
fn no_row_is_passed_over_between_two_sessions() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    assert_eq!(rig.backfill(1), Intake::Taken);
    rig.flow.session_lost();
    rig.flow.forget();
    rig.flow.pass_backfilled(key(2, 5));
    assert_eq!((rig.flow.backfill_through(), rig.flow.backfill_settled()), (0, 0));
}

/// Positions order the window: a row that is older than the stream may not stand behind it.
#[test]
fn a_row_waits_for_what_an_earlier_session_brought_from_the_stream() {
    let mut rig = Rig::small();
    rig.transaction(200, 1);
    rig.publish();
    rig.flow.session_lost();
    rig.start_session(1);
    rig.flow.backfill_begins();
    assert_eq!(rig.backfill(1), Intake::NoRoom);
    rig.ack_all();
    assert_eq!(rig.backfill(1), Intake::Taken);
}

#[test]
fn r8_a_backfilled_event_is_held_and_tried_again_as_any_other() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    for number in [1, 2] {
        assert_eq!(rig.backfill(number), Intake::Taken);
    }
    rig.publish();
    rig.return_and_ack(sent(1), 1);
    assert_eq!(rig.held(), Some(sent(1)));
    assert_eq!(rig.backfill(3), Intake::NoRoom, "nothing is admitted behind it");
    rig.ack(2);
    assert_eq!(rig.flow.backfill_settled(), 0);
    rig.pass(SECOND * 600);
    assert_eq!(rig.publish(), [sent(1)]);
    rig.ack(3);
    assert_eq!((rig.held(), rig.flow.backfill_settled()), (None, 2));
}

#[test]
fn a_backfilled_event_becomes_a_dead_letter_by_policy() {
    let mut rig = Rig::backfilling(config_with(Policy::DeadLetter));
    assert_eq!(rig.backfill_row(1, "42", TextValue::Text("")), Intake::Taken);
    assert_eq!(rig.set_aside(), Some(sent(1)));
    assert_eq!(rig.flow.backfill_settled(), 0);
    rig.store(300);
    assert_eq!(rig.flow.backfill_settled(), 1);
    rig.flow.backfill_over(rig.now);
    // R15 holds for it as well.
    rig.keepalive(299, false);
    assert_eq!(rig.durable(), 0);
    rig.keepalive(300, false);
    assert_eq!(rig.durable(), 300);
}

#[test]
fn r14_strict_order_holds_within_the_backfill() {
    let strict = crate::flow::FlowConfig {
        strict: true,
        ..config(10, 100_000)
    };
    let mut rig = Rig::backfilling(strict);
    for (number, aggregate) in [(1, "a"), (2, "a"), (3, "b")] {
        assert_eq!(
            rig.backfill_row(number, aggregate, TextValue::Text("{}")),
            Intake::Taken
        );
    }
    assert_eq!(rig.publish(), [sent(1), sent(3)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [sent(2)]);
}

#[test]
fn a_row_of_another_table_is_refused() {
    let mut rig = Rig::small();
    assert!(matches!(
        table(&mut rig, "orders"),
        Err(Unbound::UnknownTable { .. })
    ));
}

#[test]
fn an_oversized_column_that_is_needed_makes_the_row_invalid() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    let large = TextValue::Oversized {
        length: 50,
        limit: 40,
    };
    assert_eq!(rig.backfill_row(1, "42", large), Intake::Taken);
    assert_eq!(rig.held(), Some(sent(1)));
}

#[test]
fn a_stopping_flow_takes_no_further_row() {
    let mut rig = Rig::backfilling(config(10, 100_000));
    assert_eq!(rig.backfill(1), Intake::Taken);
    rig.flow.stop(rig.now);
    assert_eq!(rig.backfill(2), Intake::NoRoom);
    rig.publish();
    assert!(!rig.flow.is_drained());
    rig.ack_all();
    assert!(rig.flow.is_drained());
}
