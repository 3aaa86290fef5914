//! The window against a naive model: which event may be sent, with and without strict order, in whatever order events
//! are answered, fail, are set aside and settled.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::tests::{admission, key, message};
use super::*;
use crate::event::InvalidRow;

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    Admit {
        aggregate: AggregateHash,
        is_valid: bool,
    },
    /// Sends what the window offers.
    Send,
    /// Tries again what the window offers.
    Probe,
    Fail(Index),
    SetAside(Index),
    /// Confirmed, discarded, skipped or stored.
    Settle(Index),
    LinkLost,
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let admit = (0..4_u64, prop::bool::weighted(0.9))
        .prop_map(|(aggregate, is_valid)| Step::Admit { aggregate, is_valid });
    prop_oneof![
        20 => admit,
        20 => Just(Step::Send),
        4 => Just(Step::Probe),
        4 => any::<Index>().prop_map(Step::Fail),
        3 => any::<Index>().prop_map(Step::SetAside),
        14 => any::<Index>().prop_map(Step::Settle),
        3 => Just(Step::LinkLost),
        1 => Just(Step::Clear),
    ]
}

/// Every event ever admitted, by its place.
struct Model {
    is_strict: bool,
    events: Vec<Event>,
}

#[derive(Debug, Clone, Copy)]
struct Event {
    aggregate: AggregateHash,
    state: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Queued,
    Sent,
    Failed,
    Invalid,
    SettingAside,
    Settled,
}

impl Model {
    fn places(&self, is_meant: impl Fn(Stage) -> bool) -> Vec<usize> {
        let events = self.events.iter().enumerate();
        events
            .filter(|(_, event)| is_meant(event.state))
            .map(|(place, _)| place)
            .collect()
    }

    fn unsettled(&self) -> Vec<usize> {
        self.places(|state| state != Stage::Settled)
    }

    /// R14.
    fn may_be_sent(&self, place: usize) -> bool {
        let aggregate = self.events[place].aggregate;
        !self.is_strict
            || self.events[..place]
                .iter()
                .all(|earlier| earlier.state == Stage::Settled || earlier.aggregate != aggregate)
    }

    fn oldest(&self, is_meant: impl Fn(Stage) -> bool) -> Option<usize> {
        let mut places = self.places(is_meant).into_iter();
        places.find(|place| self.may_be_sent(*place))
    }
}

fn place(seq: Seq) -> usize {
    seq.try_into().unwrap()
}

fn agree(window: &mut Window, model: &Model) {
    let next = window.next_queued().map(place);
    assert_eq!(next, model.oldest(|state| state == Stage::Queued), "next to send");
    let sendable = window.oldest_sendable().map(|(seq, _)| place(seq));
    let may_be_tried = |state| matches!(state, Stage::Queued | Stage::Failed);
    assert_eq!(sendable, model.oldest(may_be_tried), "next to try");
    let to_answer = window.oldest_to_answer().map(place);
    let is_open = |state| matches!(state, Stage::Queued | Stage::Sent);
    assert_eq!(to_answer, model.oldest(is_open), "next to be answered");
    let sent = model.places(|state| state == Stage::Sent);
    assert_eq!(window.newest_sent().map(place), sent.last().copied());
    let failed: Vec<_> = window.all_failed().map(|(seq, ..)| place(seq)).collect();
    assert_eq!(
        failed,
        model.places(|state| matches!(state, Stage::Failed | Stage::Invalid))
    );
    assert_eq!(window.failed(), failed.len());
    let aside = model.places(|state| state == Stage::SettingAside);
    let oldest = window.oldest_set_aside().map(|(seq, ..)| place(seq));
    assert_eq!(
        (oldest, window.setting_aside()),
        (aside.first().copied(), aside.len())
    );
    assert_eq!(window.unsettled(), model.unsettled().len());
    let (aggregates, ready) = window.order.as_ref().map_or((0, 0), Order::sizes);
    assert!(
        aggregates.max(ready) <= window.unsettled(),
        "the order forgets what is settled"
    );
}

proptest! {
    #![proptest_config(crate::property::config())]

    /// R14: nothing may be sent before an unsettled event of its aggregate, and in the end everything is.
    #[test]
    fn what_may_be_sent_agrees_with_a_naive_model(is_strict in any::<bool>(), steps in vec(step(), 0..150)) {
        let limits = WindowLimits { events: 1_000, bytes: 1_000_000 };
        let mut window = Window::new(limits, is_strict);
        let mut model = Model { is_strict, events: Vec::new() };
        for step in steps {
            match step {
                Step::Admit { aggregate, is_valid } => {
                    let place = u64::try_from(model.events.len()).unwrap();
                    let message = is_valid.then(|| message(&mut window, 200));
                    let admission = Admission { aggregate, ..admission(key(100 + place, 1, 0), message) };
                    prop_assert_eq!(window.admit(admission), place);
                    let state = if is_valid { Stage::Queued } else { Stage::Invalid };
                    model.events.push(Event { aggregate, state });
                    if !is_valid {
                        let reason = InvalidRow::Null("payload".to_owned());
                        window.fail(place, Failure::Invalid { id: None, reason });
                    }
                }
                Step::Send => if let Some(seq) = window.next_queued() {
                    window.sent(seq);
                    model.events[place(seq)].state = Stage::Sent;
                },
                Step::Probe => if let Some((seq, has_failed)) = window.oldest_sendable() {
                    prop_assert_eq!(has_failed, model.events[place(seq)].state == Stage::Failed);
                    window.sent(seq);
                    if !has_failed {
                        model.events[place(seq)].state = Stage::Sent;
                    }
                },
                Step::Fail(index) => {
                    let answered = model.places(|state| matches!(state, Stage::Sent | Stage::Failed));
                    if !answered.is_empty() {
                        let place = *index.get(&answered);
                        window.fail(seq(place), Failure::Nacked);
                        model.events[place].state = Stage::Failed;
                    }
                }
                Step::SetAside(index) => {
                    let failed = model.places(|state| matches!(state, Stage::Failed | Stage::Invalid));
                    if !failed.is_empty() {
                        let place = *index.get(&failed);
                        window.set_aside(seq(place));
                        model.events[place].state = Stage::SettingAside;
                    }
                }
                Step::Settle(index) => {
                    let unsettled = model.unsettled();
                    if !unsettled.is_empty() {
                        let place = *index.get(&unsettled);
                        window.settle(seq(place), drop);
                        model.events[place].state = Stage::Settled;
                    }
                }
                Step::LinkLost => {
                    window.requeue_sent();
                    for event in model.events.iter_mut().filter(|event| event.state == Stage::Sent) {
                        event.state = Stage::Queued;
                    }
                }
                Step::Clear => {
                    window.clear();
                    for event in &mut model.events {
                        event.state = Stage::Settled;
                    }
                }
            }
            agree(&mut window, &model);
        }
        // Nothing but what needs a person is left when everything that may be sent is accepted.
        window.requeue_sent();
        while let Some((seq, _)) = window.oldest_sendable() {
            prop_assert!(model.may_be_sent(place(seq)));
            window.settle(seq, drop);
            model.events[place(seq)].state = Stage::Settled;
        }
        while let Some(place) = model.unsettled().first().copied() {
            let state = model.events[place].state;
            prop_assert!(matches!(state, Stage::Invalid | Stage::SettingAside), "left: {:?}", state);
            window.settle(seq(place), drop);
            model.events[place].state = Stage::Settled;
            while let Some((seq, _)) = window.oldest_sendable() {
                window.settle(seq, drop);
                model.events[self::place(seq)].state = Stage::Settled;
            }
        }
        prop_assert_eq!((window.unsettled(), window.bytes()), (0, 0));
        prop_assert_eq!(window.order.as_ref().map_or((0, 0), Order::sizes), (0, 0));
    }
}
