//! The flow towards a stream (R26): the first event of a later generation, and what begins anew behind it.

use super::rig::{COMMIT_SIZE, Rig, config};
use crate::dedup::{Anew, COUNTED, Found, Resume, Tail, producer};
use crate::flow::Flow;
use crate::stream_protocol::chunk::MESSAGE_HEAD;
use crate::stream_protocol::encode::PUBLISH_OVERHEAD;

const FRAME_MAX: u32 = 1 << 20;

/// A session with four events to send, and no link.
fn rig() -> Rig {
    let mut flow = Flow::new(config(10, 100_000));
    flow.publish_to_stream();
    let mut rig = Rig {
        flow,
        now: super::rig::origin(),
    };
    rig.start_session(1);
    rig.transaction(100, 4);
    rig
}

fn link_up(rig: &mut Rig, generation: u32, found: Option<Found>) {
    let resume = Resume {
        producer: producer("name", generation),
        generation,
        found,
    };
    rig.flow.stream_up(FRAME_MAX, resume, rig.now);
}

/// How many are sent now, and the frames.
fn publish(rig: &mut Rig) -> (usize, Vec<u8>) {
    let mut out = Vec::new();
    (rig.flow.poll_publish(&mut out, usize::MAX, rig.now), out)
}

/// What is found of a stream that ends with the first of these messages.
fn found(frames: &[u8]) -> Found {
    let message = &frames[PUBLISH_OVERHEAD..];
    let mut tail = Tail::new(producer("name", 1), 1);
    tail.message(&message[..message.len().min(MESSAGE_HEAD)]);
    tail.found(true).expect("its mark")
}

#[test]
fn r26_under_the_first_generation_all_goes_out_at_once() {
    let mut rig = rig();
    link_up(&mut rig, 0, None);
    assert_eq!(publish(&mut rig).0, 4);
    rig.flow.handle_stored(COUNTED, 1, rig.now).unwrap();
    assert_eq!((rig.flow.in_flight(), rig.flow.anew()), (3, None));
}

#[test]
fn r26_the_first_event_of_a_later_generation_goes_out_alone_and_its_confirm_settles_nothing() {
    let mut rig = rig();
    link_up(&mut rig, 1, None);
    let (count, frames) = publish(&mut rig);
    assert_eq!(count, 1);
    assert_eq!(
        (publish(&mut rig).0, rig.flow.anew()),
        (0, None),
        "it has no answer yet"
    );
    rig.flow.handle_stored(COUNTED, 1, rig.now).unwrap();
    assert_eq!(rig.flow.anew(), Some(Anew::Session));
    assert_eq!((publish(&mut rig).0, rig.flow.in_flight()), (0, 4));

    // A link of the session before tells nothing of who has the slot.
    link_up(&mut rig, 1, Some(found(&frames)));
    assert_eq!(rig.flow.anew(), Some(Anew::Session));
    assert_eq!(publish(&mut rig).0, 0);

    rig.lose_and_find_session();
    link_up(&mut rig, 1, Some(found(&frames)));
    rig.transaction(100, 4);
    assert_eq!(publish(&mut rig).0, 3);
    // Four by the window, and one by the stream.
    assert_eq!((rig.flow.counters().recognised, rig.flow.anew()), (5, None));
    for id in 2..=4 {
        rig.flow.handle_stored(COUNTED, id, rig.now).unwrap();
    }
    assert_eq!(rig.durable(), 100 + COMMIT_SIZE);
}

/// That session began before, and so may the try to begin another one.
#[test]
fn r26_a_confirm_without_a_session_needs_one_that_is_begun_later() {
    let mut rig = rig();
    link_up(&mut rig, 1, None);
    let (_, frames) = publish(&mut rig);
    rig.flow.session_lost();
    rig.flow.handle_stored(COUNTED, 1, rig.now).unwrap();
    rig.start_session(1);
    link_up(&mut rig, 1, Some(found(&frames)));
    assert_eq!(rig.flow.anew(), Some(Anew::Session));
    assert_eq!(publish(&mut rig).0, 0);
}

/// Another process has delivered what was to follow, under the generation before.
#[test]
fn r26_a_generation_whose_first_event_is_settled_is_left_for_the_next_one() {
    let mut rig = rig();
    link_up(&mut rig, 1, None);
    let (_, frames) = publish(&mut rig);
    rig.flow.handle_stored(COUNTED, 1, rig.now).unwrap();
    rig.flow.session_lost();
    rig.flow.stand_back();
    rig.start_session(1);
    link_up(&mut rig, 1, Some(found(&frames)));
    rig.transaction(200, 2);
    assert_eq!(publish(&mut rig).0, 0);
    assert_eq!(rig.flow.anew(), Some(Anew::Link));
    let log = rig.flow.producer_log().expect("a session");
    assert_eq!((log.producer, log.is_spent), (Some(producer("name", 1)), true));
    link_up(&mut rig, 2, None);
    assert_eq!((publish(&mut rig).0, rig.flow.anew()), (1, None));
}

#[test]
fn r26_who_has_settled_under_another_generation_begins_anew_with_nothing() {
    let mut rig = rig();
    link_up(&mut rig, 1, None);
    let (_, frames) = publish(&mut rig);
    let mut second = Rig {
        flow: Flow::new(config(10, 100_000)),
        now: rig.now,
    };
    second.flow.publish_to_stream();
    second.start_session(1);
    link_up(&mut second, 0, None);
    second.transaction(100, 4);
    assert_eq!(publish(&mut second).0, 4);
    link_up(&mut second, 1, Some(found(&frames)));
    assert_eq!(
        (publish(&mut second).0, second.flow.anew()),
        (0, Some(Anew::Everything))
    );
    second.flow.session_lost();
    second.flow.stand_back();
    assert_eq!((second.flow.in_flight(), second.flow.anew()), (0, None));
}
