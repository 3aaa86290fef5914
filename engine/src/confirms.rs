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
mod tests;
