//! A replay: what fails is told and done with, and everything else arrives, whatever happens to links.

use std::time::{Duration, Instant};

use super::rig::{CONFIRM_TIMEOUT, FRAME_MAX, Position, SECOND, config, read_messages};
use crate::Lsn;
use crate::event::{InvalidRow, Mapping};
use crate::flow::{Replay, ReplayConfig, Replayed};
use crate::pgoutput::{TextValue, insert_of, read_insert, read_relation, relation_of};
use crate::window::{Failure, WindowLimits};

const COLUMNS: [(&str, u32); 5] = [
    ("id", 2950),
    ("aggregate_type", 25),
    ("aggregate_id", 20),
    ("event_type", 25),
    ("payload", 114),
];

struct Rig {
    replay: Replay,
    mapping: Mapping,
    now: Instant,
}

impl Rig {
    #[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
    fn new(max_rate: Option<u32>) -> Self {
        let relation = relation_of("public", "outbox_events", COLUMNS.into_iter());
        let relation = read_relation(&relation).unwrap();
        let config = config(1, 1);
        let replay = ReplayConfig {
            limits: WindowLimits {
                events: 3,
                bytes: 1 << 20,
            },
            max_message_bytes: None,
            confirm_timeout: CONFIRM_TIMEOUT,
            app_id: config.app_id,
            max_rate,
        };
        let mut rig = Self {
            replay: Replay::new(replay),
            mapping: Mapping::bind(&relation, &config.tables[0]).unwrap(),
            now: Instant::now(),
        };
        rig.link_up();
        rig
    }

    fn link_up(&mut self) {
        self.replay.link_up(FRAME_MAX, 1000, self.now);
    }

    fn admit(&mut self, id: &str, payload: &str) {
        let row = [id, "order", "42", "created", payload].map(TextValue::Text);
        let insert = insert_of(row.into_iter());
        let insert = read_insert(&insert).unwrap();
        self.replay.admit(&self.mapping, &insert.new, id, 1_700_000_000);
    }

    /// What is sent now, as much as may be.
    fn publish(&mut self) -> Vec<Position> {
        let mut out = Vec::new();
        self.replay.poll_publish(&mut out, usize::MAX, self.now);
        let messages = read_messages(&out);
        messages.into_iter().map(|message| message.position).collect()
    }

    fn ack(&mut self, tag: u64) {
        self.replay.handle_ack(tag, false).unwrap();
    }

    fn failed(&mut self) -> Vec<(String, Failure)> {
        let failed = std::iter::from_fn(|| self.replay.next_failed());
        failed.map(|failed| (failed.id, failed.failure)).collect()
    }

    fn counts(&self) -> (u64, u64) {
        let Replayed { confirmed, failed } = self.replay.counts();
        (confirmed, failed)
    }
}

fn three() -> Rig {
    let mut rig = Rig::new(None);
    for id in ["a", "b", "c"] {
        assert!(rig.replay.has_room(100));
        rig.admit(id, "{}");
    }
    assert!(!rig.replay.has_room(100));
    assert_eq!(rig.publish(), [(0, 0), (0, 1), (0, 2)]);
    rig
}

#[test]
fn returned_and_nacked_messages_are_told_by_id_and_the_others_count_as_delivered() {
    let mut rig = three();
    rig.replay.handle_return((Lsn::INVALID, 1), 312).unwrap();
    rig.ack(2);
    rig.replay.handle_nack(1, false).unwrap();
    rig.ack(3);
    let unroutable = Failure::Unroutable { reply_code: 312 };
    assert_eq!(
        rig.failed(),
        [("b".to_owned(), unroutable), ("a".to_owned(), Failure::Nacked)]
    );
    assert_eq!(rig.counts(), (1, 2));
    assert!(rig.replay.is_drained() && rig.publish().is_empty());
    // A position of the stream is none of a replay.
    assert!(rig.replay.handle_return((Lsn::new(50), 1), 312).is_err());
}

#[test]
fn what_is_unanswered_when_a_link_goes_is_sent_over_the_next_one() {
    let mut rig = three();
    rig.ack(2);
    rig.replay.link_lost();
    assert_eq!(rig.publish(), []);
    rig.link_up();
    assert_eq!(rig.publish(), [(0, 0), (0, 2)]);
    rig.replay.handle_ack(0, true).unwrap();
    assert_eq!(rig.counts(), (3, 0));
}

#[test]
fn a_message_over_which_the_broker_closes_is_found_and_told_alone() {
    let mut rig = three();
    rig.replay.link_refused(406, "no");
    rig.link_up();
    assert_eq!(rig.publish(), [(0, 0)]);
    rig.ack(1);
    assert_eq!(rig.publish(), [(0, 1)]);
    rig.replay.link_refused(406, "no");
    rig.link_up();
    assert_eq!(rig.publish(), [(0, 2)]);
    rig.ack(1);
    let refused = Failure::Refused {
        reply_code: 406,
        reply_text: "no".to_owned(),
    };
    assert_eq!(rig.failed(), [("b".to_owned(), refused)]);
    rig.admit("d", "{}");
    rig.admit("e", "{}");
    assert_eq!(rig.publish(), [(0, 3), (0, 4)], "no longer one at a time");
}

#[test]
fn an_unanswered_message_is_told_and_the_link_given_up() {
    let mut rig = three();
    rig.now += CONFIRM_TIMEOUT;
    assert!(rig.replay.deadline().is_some_and(|deadline| deadline <= rig.now));
    rig.replay.handle_blocked(true, rig.now);
    assert!(
        !rig.replay.handle_timeout(rig.now),
        "a blocked broker owes no answer"
    );
    rig.replay.handle_blocked(false, rig.now);
    rig.now += CONFIRM_TIMEOUT;
    assert!(rig.replay.handle_timeout(rig.now));
    assert_eq!(rig.failed(), [("a".to_owned(), Failure::Unanswered)]);
    rig.link_up();
    assert_eq!(rig.publish(), [(0, 1), (0, 2)]);
}

#[test]
fn a_row_that_cannot_become_a_message_is_told_and_takes_no_room() {
    let mut rig = Rig::new(None);
    rig.admit("a", "");
    rig.admit("b", &"x".repeat(1001));
    assert_eq!(rig.publish(), []);
    let reasons = rig.failed().into_iter().map(|(id, failure)| {
        let Failure::Invalid { reason, .. } = failure else {
            panic!("{failure:?}")
        };
        (id, reason)
    });
    let reasons: Vec<_> = reasons.collect();
    let large = InvalidRow::BodyTooLarge {
        length: 1001,
        limit: 1000,
    };
    assert_eq!(
        reasons,
        [
            ("a".to_owned(), InvalidRow::Empty("payload".to_owned())),
            ("b".to_owned(), large)
        ]
    );
    assert!(rig.replay.is_drained());
}

#[test]
fn messages_go_out_at_the_pace_asked_for() {
    let mut rig = Rig::new(Some(2));
    rig.admit("a", "{}");
    rig.admit("b", "{}");
    assert_eq!(rig.publish(), [(0, 0)]);
    let next = rig.replay.deadline().unwrap();
    assert!(
        next > rig.now && next <= rig.now + SECOND / 2,
        "{:?}",
        next - rig.now
    );
    rig.now += Duration::from_millis(500);
    assert_eq!(rig.publish(), [(0, 1)]);
}
