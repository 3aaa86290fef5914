//! Marks and the settled prefix within the flow (R18 to R21).

use super::rig::{
    COLUMNS, COMMIT_SIZE, OutboxRow, Position, Rig, SECOND, begin, commit, config, config_with,
};
use crate::Lsn;
use crate::event::AfterPublish;
use crate::flow::{FlowConfig, Intake, Marker};
use crate::key::{EventKey, TransactionKey};
use crate::marks::{MarkBatch, Marked};
use crate::pgoutput::{TextValue, insert_of, relation_of};
use crate::policy::Policy;
use crate::timestamp::PgTimestamp;

fn marking(config: FlowConfig) -> FlowConfig {
    let mut config = config;
    for table in &mut config.tables {
        table.after_publish = Some(AfterPublish::Mark);
    }
    config
}

fn ids(batch: &MarkBatch) -> Vec<String> {
    let ids = batch.tables.iter().flat_map(|ids| ids.iter());
    ids.map(str::to_owned).collect()
}

impl Rig {
    /// What is marked once it is due.
    fn marked(&mut self) -> Vec<String> {
        self.pass(SECOND);
        let Some(batch) = self.flow.poll_marks(self.now) else {
            return Vec::new();
        };
        let ids = ids(&batch);
        self.flow.handle_marked(batch, Marked::default(), self.now);
        ids
    }

    /// The settled prefix that is stored once it is due.
    pub(super) fn stored(&mut self) -> Option<Position> {
        self.pass(SECOND);
        let batch = self.flow.poll_marks(self.now)?;
        let prefix = batch.prefix;
        self.flow.handle_marked(batch, Marked::default(), self.now);
        prefix.map(|prefix| (prefix.position.0.get(), prefix.position.1))
    }
}

/// R18.
#[test]
fn a_report_waits_until_the_row_is_marked() {
    let mut rig = Rig::started(marking(config(10, 100_000)));
    rig.transaction(100, 1);
    rig.publish();
    rig.ack_all();
    rig.flow.poll_status(rig.now);
    rig.pass(SECOND / 2);
    assert_eq!(rig.flow.poll_status(rig.now), None, "nothing may be reported yet");
    let batch = rig.flow.poll_marks(rig.now).unwrap();
    assert_eq!(ids(&batch), ["100:0"]);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    rig.flow.handle_marked(batch, Marked::default(), rig.now);
    let status = rig.flow.poll_status(rig.now).unwrap();
    assert_eq!(status.durable.get(), 100 + COMMIT_SIZE);
}

/// R18: only what is confirmed or discarded.
#[test]
fn discarded_events_are_marked_and_skipped_and_set_aside_ones_are_not() {
    for (policy, expected) in [
        (Policy::Discard, vec!["bad", "good"]),
        (Policy::DeadLetter, vec!["good"]),
        (Policy::Hold, vec!["good"]),
    ] {
        let mut rig = Rig::started(marking(config_with(policy)));
        rig.take(&begin(100, 1));
        rig.take(&OutboxRow::invalid("bad").insert());
        match policy {
            Policy::Discard => {}
            Policy::DeadLetter => rig.store(50),
            Policy::Hold => assert!(rig.flow.skip_held(rig.now)),
        }
        rig.take(&OutboxRow::new("good").insert());
        rig.take(&commit(100));
        rig.publish();
        rig.ack_all();
        assert_eq!(rig.marked(), expected, "{policy:?}");
    }
}

/// R19: also in the middle of a transaction.
#[test]
fn the_stream_is_passed_over_up_to_the_stored_prefix() {
    let mut rig = Rig::small();
    rig.flow.settled_before((Lsn::new(200), 1), Lsn::INVALID, rig.now);
    rig.transaction(100, 2);
    rig.transaction(200, 4);
    assert_eq!(rig.publish(), [(200, 2), (200, 3)]);
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
    rig.ack_all();
    assert_eq!(rig.durable(), 200 + COMMIT_SIZE);
    assert_eq!(rig.flow.counters().recognised, 4);
}

/// R19: another process streamed meanwhile, and settled what is held, set aside or waits here.
#[test]
fn what_another_process_has_settled_is_neither_held_nor_sent_nor_stored() {
    for policy in [Policy::Hold, Policy::DeadLetter] {
        let mut rig = Rig::started(config_with(policy));
        rig.transaction(100, 3);
        rig.publish_one();
        rig.publish_one();
        rig.return_and_ack((100, 0), 1);
        rig.flow.session_lost();
        rig.start_session(1);
        rig.flow.settled_before((Lsn::new(100), 2), Lsn::INVALID, rig.now);
        assert_eq!((rig.held(), rig.set_aside()), (None, None), "{policy:?}");
        assert_eq!(rig.flow.in_flight(), 1, "the one that is out");
        rig.pass(SECOND * 600);
        assert_eq!(rig.publish(), []);
        rig.ack(2);
        rig.transaction(100, 3);
        rig.transaction(200, 1);
        assert_eq!(
            (rig.publish(), rig.durable()),
            (vec![(200, 0)], 100 + COMMIT_SIZE)
        );
    }
}

/// R19, R22: what the stream does not bring is not on record, though it stands before it.
#[test]
fn a_held_row_that_the_stream_does_not_bring_stays_held_whatever_is_on_record() {
    let mut rig = Rig::small();
    rig.flow.backfill_begins();
    let key = EventKey {
        transaction: TransactionKey::backfill(Lsn::new(99), PgTimestamp::new(5)),
        tx_seq: 1,
    };
    let relation = relation_of("public", "outbox_events", COLUMNS.into_iter());
    let table = rig.flow.backfill_table(&relation).unwrap();
    let values = ["row", "order", "42", "created", ""].map(TextValue::Text);
    let values: Vec<_> = values.into_iter().chain([TextValue::Null]).collect();
    let insert = insert_of(values.into_iter());
    let taken = rig.flow.handle_backfilled(&table, key, &insert, rig.now);
    assert_eq!(taken.unwrap(), Intake::Taken);
    rig.flow.session_lost();
    rig.start_session(1);
    rig.flow.settled_before((Lsn::new(100), 2), Lsn::INVALID, rig.now);
    assert_eq!(rig.held(), Some((99, 1)));
}

/// R19, R15: the barrier of a dead letter outlives the process that stored it.
#[test]
fn a_prefix_that_counts_on_a_dead_letter_waits_for_its_commit() {
    let mut rig = Rig::small();
    rig.flow
        .settled_before((Lsn::new(100), 1), Lsn::new(500), rig.now);
    rig.transaction(100, 2);
    rig.keepalive(499, false);
    assert_eq!(rig.durable(), 0);
    rig.keepalive(500, false);
    assert_eq!(rig.durable(), 500);
}

/// R19, R2: after a restore on the same timeline what an earlier session has settled lies ahead of the new log.
#[test]
fn a_prefix_counts_only_what_the_current_session_has_brought() {
    let mut rig = Rig::small();
    rig.transaction(500, 2);
    rig.publish();
    rig.ack(1);
    rig.flow.session_lost();
    assert!(!rig.start_session(1));
    assert_eq!(rig.stored(), None, "settled and not brought again");
    rig.ack(2);
    assert_eq!(rig.stored(), None, "settled by an answer of before");
    rig.transaction(300, 1);
    assert_eq!(rig.publish(), [(300, 0)]);
    rig.ack_all();
    assert_eq!(rig.stored(), Some((300, 0)));
}

/// R19: a held event is a hole.
#[test]
fn a_prefix_ends_before_an_unsettled_event() {
    let mut rig = Rig::small();
    rig.transaction(100, 3);
    rig.publish();
    rig.ack(1);
    rig.ack(3);
    assert_eq!(rig.stored(), Some((100, 0)));
    rig.flow.hold_prefix(true);
    rig.ack(2);
    assert_eq!(rig.stored(), None, "a skip is not on record");
    rig.flow.hold_prefix(false);
    assert_eq!(rig.stored(), Some((100, 2)));
}

/// While whoever marks does something else there is nothing to wake up for.
#[test]
fn a_busy_marker_has_no_deadline_and_none_needs_no_draining() {
    let mut rig = Rig::started(marking(config(10, 100_000)));
    rig.transaction(100, 1);
    rig.publish();
    rig.ack_all();
    rig.flow.set_marker(Marker::Busy);
    rig.pass(10 * SECOND);
    rig.keepalive(1, false);
    rig.flow.poll_status(rig.now);
    assert!(rig.flow.poll_marks(rig.now).is_none());
    assert!(rig.flow.deadline().unwrap() > rig.now);
    rig.flow.stop(rig.now);
    assert!(!rig.flow.is_drained());
    rig.flow.set_marker(Marker::Absent);
    assert!(rig.flow.is_drained());
}
