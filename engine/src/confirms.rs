//! Publisher confirms: which message an ack, nack or return of the broker is about.
//!
//! The bookkeeping of one channel, judged strictly in the order in which the broker sent things: a return
//! always comes before the ack of its own message, so an ack without one means delivered
//! (<https://www.rabbitmq.com/docs/confirms#publisher-confirms>).

use std::collections::VecDeque;
use std::time::Instant;

/// Settled entries kept between unsettled ones before they are swept out.
const SWEEP_SLACK: usize = 64;

/// The messages of one channel that the broker has not answered yet.
///
/// Call order: [`published`](Confirms::published) for each message sent, in order; then
/// [`returned`](Confirms::returned), [`ack`](Confirms::ack) and [`nack`](Confirms::nack) as they are read;
/// with the channel or the connection lost, [`clear`](Confirms::clear).
///
/// Memory is bounded by the number of outstanding messages, even where one of them is never answered.
#[derive(Debug)]
pub struct Confirms {
    /// Rising tags. The front is outstanding; behind it settled entries may stand until they are swept.
    entries: VecDeque<Entry>,
    outstanding: usize,
    next_tag: u64,
}

/// How the broker answered for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Acked, and not returned: every queue that it was routed to has it.
    Confirmed,
    /// Returned and then acked: no queue has it.
    Returned {
        /// The return's code: 312 for no route.
        reply_code: u16,
    },
    /// Nacked: at least one queue does not have it, others may.
    Nacked,
}

/// An answer of the broker about a message that it cannot be about. What is outstanding can no longer be
/// told: the connection has to be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfirmError {
    /// Tag 0, which means all outstanding ones, without `multiple`.
    #[error("the broker confirmed delivery tag 0 without multiple")]
    TagZero,
    /// A tag that no message has had yet.
    #[error("the broker confirmed delivery tag {tag}, but {issued} messages were published on this channel")]
    NeverIssued {
        /// The tag received.
        tag: u64,
        /// The highest tag issued.
        issued: u64,
    },
    /// A tag that was answered before, or a `multiple` up to it that leaves nothing to settle.
    #[error("the broker confirmed delivery tag {tag} again")]
    AlreadySettled {
        /// The tag received.
        tag: u64,
    },
}

#[derive(Debug)]
struct Entry {
    tag: u64,
    token: u64,
    published_at: Instant,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Outstanding,
    Returned { reply_code: u16 },
    Settled,
}

#[derive(Clone, Copy)]
enum Answer {
    Ack,
    Nack,
}

impl Confirms {
    /// A fresh channel: the first message gets tag 1.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            outstanding: 0,
            next_tag: 1,
        }
    }

    /// Notes that a message was handed to the channel at `now`, and returns its delivery tag. `token` is the
    /// caller's name for it, given back with the outcome.
    pub fn published(&mut self, token: u64, now: Instant) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.outstanding += 1;
        self.entries.push_back(Entry {
            tag,
            token,
            published_at: now,
            state: State::Outstanding,
        });
        tag
    }

    /// Notes that the broker returned the message of this token; its ack is still to come. Where the token
    /// was published more than once, the oldest that has not come back is meant. `false` where there is none.
    #[must_use = "a return that belongs to no message means that the stream is not understood"]
    pub fn returned(&mut self, token: u64, reply_code: u16) -> bool {
        let came_back = self
            .entries
            .iter_mut()
            .find(|entry| entry.token == token && entry.state == State::Outstanding);
        let Some(entry) = came_back else { return false };
        entry.state = State::Returned { reply_code };
        true
    }

    /// Takes a `basic.ack` and hands each message that it settles, in the order of publishing, to `settle`.
    ///
    /// `multiple` means all outstanding messages up to `tag`, whichever were settled singly before, and with
    /// tag 0 all there are (<https://www.rabbitmq.com/amqp-0-9-1-reference#basic.ack>).
    ///
    /// # Errors
    /// An answer about no outstanding message: see [`ConfirmError`]. Nothing is settled then. That includes a
    /// `multiple` up to a tag at or below which nothing is outstanding: RabbitMQ sends one only for a tag
    /// that it settles with it, so this is a sign that the two sides count differently, and the next tag
    /// would be taken for another message's. Only tag 0 may find nothing, as it names no message.
    pub fn ack(
        &mut self,
        tag: u64,
        multiple: bool,
        settle: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), ConfirmError> {
        self.answer(Answer::Ack, tag, multiple, settle)
    }

    /// Takes a `basic.nack`, as [`ack`](Confirms::ack) does an ack.
    ///
    /// # Errors
    /// As those of [`ack`](Confirms::ack).
    pub fn nack(
        &mut self,
        tag: u64,
        multiple: bool,
        settle: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), ConfirmError> {
        self.answer(Answer::Nack, tag, multiple, settle)
    }

    /// Messages without an answer; a returned one counts until its ack.
    #[must_use]
    pub const fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The oldest message without an answer: its token, and when it was published.
    #[must_use]
    pub fn oldest(&self) -> Option<(u64, Instant)> {
        self.entries
            .front()
            .map(|entry| (entry.token, entry.published_at))
    }

    /// The channel is lost: forgets all messages, which count as unsent, and starts at tag 1 again.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.outstanding = 0;
        self.next_tag = 1;
    }

    fn answer(
        &mut self,
        answer: Answer,
        tag: u64,
        multiple: bool,
        settle: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), ConfirmError> {
        if tag >= self.next_tag {
            return Err(ConfirmError::NeverIssued {
                tag,
                issued: self.next_tag - 1,
            });
        }
        match (tag, multiple) {
            (0, false) => return Err(ConfirmError::TagZero),
            (0, true) => self.settle_through(u64::MAX, answer, settle),
            // The front is outstanding, so there is something to settle from it on, and nothing below it.
            (_, true) if self.entries.front().is_some_and(|front| front.tag <= tag) => {
                self.settle_through(tag, answer, settle);
            }
            (_, true) => return Err(ConfirmError::AlreadySettled { tag }),
            (_, false) => self.settle_one(tag, answer, settle)?,
        }
        self.sweep();
        Ok(())
    }

    fn settle_through(&mut self, tag: u64, answer: Answer, settle: &mut impl FnMut(u64, Outcome)) {
        while self.entries.front().is_some_and(|front| front.tag <= tag)
            && let Some(entry) = self.entries.pop_front()
        {
            if let Some(outcome) = entry.state.outcome(answer) {
                self.outstanding -= 1;
                settle(entry.token, outcome);
            }
        }
    }

    fn settle_one(
        &mut self,
        tag: u64,
        answer: Answer,
        settle: &mut impl FnMut(u64, Outcome),
    ) -> Result<(), ConfirmError> {
        let already = ConfirmError::AlreadySettled { tag };
        let index = self.index_of(tag).ok_or(already)?;
        let entry = self.entries.get_mut(index).ok_or(already)?;
        let outcome = entry.state.outcome(answer).ok_or(already)?;
        entry.state = State::Settled;
        self.outstanding -= 1;
        settle(entry.token, outcome);
        Ok(())
    }

    /// Where a tag stands: at its distance from the front, unless a sweep has closed gaps.
    fn index_of(&self, tag: u64) -> Option<usize> {
        let distance = usize::try_from(tag.checked_sub(self.entries.front()?.tag)?).ok()?;
        if self.entries.get(distance).is_some_and(|entry| entry.tag == tag) {
            return Some(distance);
        }
        self.entries.binary_search_by_key(&tag, |entry| entry.tag).ok()
    }

    /// Drops settled entries: always from the front, and from between once they are most of all, lest one
    /// unanswered message keep an entry for everything published after it.
    fn sweep(&mut self) {
        while self
            .entries
            .front()
            .is_some_and(|front| front.state == State::Settled)
        {
            self.entries.pop_front();
        }
        if self.entries.len() > 2 * self.outstanding + SWEEP_SLACK {
            self.entries.retain(|entry| entry.state != State::Settled);
        }
    }
}

impl Default for Confirms {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// What an answer makes of a message; nothing of a settled one.
    const fn outcome(self, answer: Answer) -> Option<Outcome> {
        match (self, answer) {
            (Self::Settled, _) => None,
            // A nack outweighs a return: it says that some queue was to have the message and does not.
            (Self::Outstanding | Self::Returned { .. }, Answer::Nack) => Some(Outcome::Nacked),
            (Self::Outstanding, Answer::Ack) => Some(Outcome::Confirmed),
            (Self::Returned { reply_code }, Answer::Ack) => Some(Outcome::Returned { reply_code }),
        }
    }
}

#[cfg(test)]
mod tests {
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
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

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
}
