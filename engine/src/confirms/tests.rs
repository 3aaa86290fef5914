//! Confirms against single answers, and against a naive model in random order.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[expect(
    clippy::disallowed_methods,
    reason = "an Instant to count from cannot be had otherwise"
)]
fn some_instant() -> Instant {
    Instant::now()
}

/// Publishes tokens 101, 102, … under tags 1, 2, ….
fn after_publishing(count: u64) -> Confirms {
    let mut confirms = Confirms::new();
    let start = some_instant();
    for tag in 1..=count {
        assert_eq!(
            confirms.published(100 + tag, start + Duration::from_secs(tag)),
            tag
        );
    }
    confirms
}

type Settled = Vec<(u64, Outcome)>;

fn ack(confirms: &mut Confirms, tag: u64, multiple: bool) -> Result<Settled, ConfirmError> {
    let mut settled = Vec::new();
    confirms.ack(tag, multiple, &mut |token, outcome| {
        settled.push((token, outcome))
    })?;
    Ok(settled)
}

fn nack(confirms: &mut Confirms, tag: u64, multiple: bool) -> Result<Settled, ConfirmError> {
    let mut settled = Vec::new();
    confirms.nack(tag, multiple, &mut |token, outcome| {
        settled.push((token, outcome))
    })?;
    Ok(settled)
}

fn confirmed(tokens: impl IntoIterator<Item = u64>) -> Result<Settled, ConfirmError> {
    Ok(tokens
        .into_iter()
        .map(|token| (token, Outcome::Confirmed))
        .collect())
}

#[test]
fn single_acks_settle_in_any_order() {
    let mut confirms = after_publishing(4);
    assert_eq!(ack(&mut confirms, 3, false), confirmed([103]));
    assert_eq!(ack(&mut confirms, 1, false), confirmed([101]));
    assert_eq!(confirms.outstanding(), 2);
    assert_eq!(ack(&mut confirms, 4, false), confirmed([104]));
    assert_eq!(ack(&mut confirms, 2, false), confirmed([102]));
    assert_eq!(
        (confirms.outstanding(), confirms.oldest().map(|(_, at)| at)),
        (0, None)
    );
}

#[test]
fn a_multiple_ack_settles_what_is_left_up_to_its_tag() {
    let mut confirms = after_publishing(5);
    assert_eq!(ack(&mut confirms, 2, false), confirmed([102]));
    assert_eq!(ack(&mut confirms, 4, false), confirmed([104]));
    assert_eq!(ack(&mut confirms, 4, true), confirmed([101, 103]));
    assert_eq!(ack(&mut confirms, 5, true), confirmed([105]));
}

#[test]
fn tag_0_with_multiple_settles_all_and_without_is_an_error() {
    let mut confirms = after_publishing(3);
    assert_eq!(ack(&mut confirms, 0, false), Err(ConfirmError::TagZero));
    assert_eq!(nack(&mut confirms, 0, false), Err(ConfirmError::TagZero));
    assert_eq!(confirms.outstanding(), 3);
    assert_eq!(ack(&mut confirms, 0, true), confirmed([101, 102, 103]));
    assert_eq!(ack(&mut confirms, 0, true), confirmed([]));
}

#[test]
fn an_ack_of_a_returned_message_is_no_confirmation() {
    let mut confirms = after_publishing(4);
    assert!(confirms.returned(102, 312));
    assert!(confirms.returned(103, 313));
    assert!(!confirms.returned(102, 312), "it came back already");
    assert!(!confirms.returned(999, 312), "never published");
    assert_eq!(confirms.outstanding(), 4, "a return is not yet the answer");
    assert_eq!(nack(&mut confirms, 3, false), Ok(vec![(103, Outcome::Nacked)]));
    let settled = [
        (101, Outcome::Confirmed),
        (102, Outcome::Returned { reply_code: 312 }),
        (104, Outcome::Confirmed),
    ];
    assert_eq!(ack(&mut confirms, 4, true), Ok(settled.to_vec()));
    assert!(!confirms.returned(102, 312), "settled");
}

#[test]
fn a_return_is_about_the_oldest_publish_of_its_token_that_is_unsettled() {
    let mut confirms = Confirms::new();
    let now = some_instant();
    for _ in 0..3 {
        confirms.published(7, now);
    }
    assert_eq!(ack(&mut confirms, 1, false), confirmed([7]));
    assert!(confirms.returned(7, 312));
    assert_eq!(ack(&mut confirms, 3, false), confirmed([7]));
    assert_eq!(
        ack(&mut confirms, 2, false),
        Ok(vec![(7, Outcome::Returned { reply_code: 312 })])
    );
}

#[test]
fn an_answer_about_no_outstanding_message_is_an_error_and_settles_nothing() {
    let mut confirms = after_publishing(3);
    assert_eq!(
        ack(&mut confirms, 4, false),
        Err(ConfirmError::NeverIssued { tag: 4, issued: 3 })
    );
    assert_eq!(
        ack(&mut confirms, u64::MAX, true),
        Err(ConfirmError::NeverIssued {
            tag: u64::MAX,
            issued: 3
        })
    );
    assert_eq!(confirms.outstanding(), 3);
    assert_eq!(ack(&mut confirms, 1, false), confirmed([101]));
    assert_eq!(ack(&mut confirms, 3, false), confirmed([103]));
    for tag in [1, 3] {
        assert_eq!(
            ack(&mut confirms, tag, false),
            Err(ConfirmError::AlreadySettled { tag })
        );
        assert_eq!(
            nack(&mut confirms, tag, false),
            Err(ConfirmError::AlreadySettled { tag })
        );
    }
    assert_eq!(
        ack(&mut confirms, 1, true),
        Err(ConfirmError::AlreadySettled { tag: 1 })
    );
    assert_eq!(confirms.outstanding(), 1);
    assert_eq!(
        ack(&mut Confirms::new(), 1, true),
        Err(ConfirmError::NeverIssued { tag: 1, issued: 0 })
    );
}

#[test]
fn a_lost_link_forgets_all_and_starts_at_tag_1_again() {
    let mut confirms = after_publishing(3);
    confirms.clear();
    assert_eq!(
        (confirms.outstanding(), confirms.oldest().map(|(_, at)| at)),
        (0, None)
    );
    assert_eq!(
        ack(&mut confirms, 1, false),
        Err(ConfirmError::NeverIssued { tag: 1, issued: 0 })
    );
    assert_eq!(confirms.published(200, some_instant()), 1);
    assert_eq!(ack(&mut confirms, 1, false), confirmed([200]));
}

#[test]
fn one_unanswered_message_keeps_no_entries_for_those_behind_it() {
    let mut confirms = Confirms::new();
    let start = some_instant();
    confirms.published(0, start);
    for token in 1..10_000 {
        let tag = confirms.published(token, start + Duration::from_secs(token));
        assert_eq!(ack(&mut confirms, tag, false), confirmed([token]));
        assert!(confirms.entries.len() <= 2 + SWEEP_SLACK);
    }
    assert_eq!(confirms.oldest().map(|(_, at)| at), Some(start));
    assert_eq!(
        ack(&mut confirms, 5_000, false),
        Err(ConfirmError::AlreadySettled { tag: 5_000 })
    );
    assert_eq!(ack(&mut confirms, 10_000, true), confirmed([0]));
}

/// The same rules over a map, without any cleverness.
#[derive(Default)]
struct Model {
    outstanding: BTreeMap<u64, (u64, Option<u16>)>,
    issued: u64,
}

impl Model {
    fn answer(&mut self, nack: bool, tag: u64, multiple: bool) -> Result<Settled, ConfirmError> {
        if tag > self.issued {
            return Err(ConfirmError::NeverIssued {
                tag,
                issued: self.issued,
            });
        }
        let tags: Vec<u64> = match (tag, multiple) {
            (0, false) => return Err(ConfirmError::TagZero),
            (0, true) => self.outstanding.keys().copied().collect(),
            (_, true) => self.outstanding.range(..=tag).map(|(tag, _)| *tag).collect(),
            (_, false) => self
                .outstanding
                .contains_key(&tag)
                .then_some(tag)
                .into_iter()
                .collect(),
        };
        if tags.is_empty() && tag != 0 {
            return Err(ConfirmError::AlreadySettled { tag });
        }
        let outcome = |returned| match (nack, returned) {
            (true, _) => Outcome::Nacked,
            (false, Some(reply_code)) => Outcome::Returned { reply_code },
            (false, None) => Outcome::Confirmed,
        };
        let settled = tags.iter().filter_map(|tag| self.outstanding.remove(tag));
        Ok(settled
            .map(|(token, returned)| (token, outcome(returned)))
            .collect())
    }

    fn returned(&mut self, token: u64, reply_code: u16) -> bool {
        let came_back = self
            .outstanding
            .values_mut()
            .find(|(t, returned)| *t == token && returned.is_none());
        came_back
            .map(|(_, returned)| *returned = Some(reply_code))
            .is_some()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Publish { token: u64 },
    Return { token: u64, reply_code: u16 },
    Answer { nack: bool, multiple: bool, back: u64 },
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let answer = |multiple| {
        (any::<bool>(), 0..200_u64).prop_map(move |(nack, back)| Step::Answer { nack, multiple, back })
    };
    prop_oneof![
        300 => (0..20_u64).prop_map(|token| Step::Publish { token }),
        40 => (0..20_u64, 312..314_u16).prop_map(|(token, reply_code)| Step::Return { token, reply_code }),
        400 => answer(false),
        4 => answer(true),
        1 => Just(Step::Clear),
    ]
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn every_schedule_settles_as_the_naive_model_does(steps in prop::collection::vec(step(), 0..600)) {
        let (mut confirms, mut model) = (Confirms::new(), Model::default());
        let start = some_instant();
        for step in steps {
            match step {
                Step::Publish { token } => {
                    model.issued += 1;
                    model.outstanding.insert(model.issued, (token, None));
                    let tag = confirms.published(token, start + Duration::from_secs(model.issued));
                    prop_assert_eq!(tag, model.issued);
                }
                Step::Return { token, reply_code } => {
                    let came_back = model.returned(token, reply_code);
                    prop_assert_eq!(confirms.returned(token, reply_code), came_back);
                }
                Step::Answer { nack: is_nack, multiple, back } => {
                    // Counted from one behind the newest, so that tags never issued occur as well as 0.
                    let tag = (model.issued + 1).saturating_sub(back);
                    let answer = if is_nack { nack } else { ack };
                    let expected = model.answer(is_nack, tag, multiple);
                    prop_assert_eq!(answer(&mut confirms, tag, multiple), expected);
                }
                Step::Clear => {
                    confirms.clear();
                    model = Model::default();
                }
            }
            prop_assert_eq!(confirms.outstanding(), model.outstanding.len());
            let oldest = model.outstanding.keys().next().map(|tag| start + Duration::from_secs(*tag));
            prop_assert_eq!(confirms.oldest().map(|(_, at)| at), oldest);
            prop_assert!(confirms.entries.len() <= 2 * model.outstanding.len() + SWEEP_SLACK);
        }
        prop_assert_eq!(ack(&mut confirms, 0, true), model.answer(false, 0, true));
        prop_assert_eq!(confirms.outstanding(), 0);
    }
}
