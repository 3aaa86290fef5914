//! The link's side of the flow: what to publish next, and what the broker's answers mean.

use std::mem;
use std::time::Instant;

use super::retries::{self, Turn};
use super::streaming;
use super::{Flow, Link};
use crate::Lsn;
use crate::amqp::Message;
use crate::confirms::{ConfirmError, Outcome};
use crate::dedup::{Dedup, UnknownId, Verdict};
use crate::event::InvalidRow;
use crate::rate::Rate;
use crate::window::{Failure, Seq};

/// Confirms that come so long after the commit, in µs, are of a backlog.
const BEHIND: i64 = 1_000_000;

/// The channel that publishes; the connection has no other.
pub const CHANNEL: u16 = 1;

/// Something that the broker cannot mean: the link must be given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// An ack or nack of nothing that is outstanding.
    #[error(transparent)]
    Confirm(#[from] ConfirmError),
    /// A confirm of nothing that is outstanding in a stream.
    #[error(transparent)]
    Stream(#[from] UnknownId),
    /// A return of nothing that is outstanding.
    #[error("the broker returned a message that is not outstanding: {commit_lsn}:{tx_seq}")]
    UnknownReturn {
        /// The commit LSN in the message's headers.
        commit_lsn: Lsn,
        /// The event's place in its transaction.
        tx_seq: u64,
    },
}

impl Flow {
    /// A link is up: what is unsettled is sent over it, in order.
    pub fn link_up(&mut self, frame_max: u32, max_message_bytes: usize, now: Instant) {
        self.link_lost();
        let max_message_bytes = self.config.max_message_bytes.unwrap_or(max_message_bytes);
        self.link = Some(Link::new(frame_max, max_message_bytes, now));
    }

    /// The link is lost: everything unanswered counts as unsent.
    pub fn link_lost(&mut self) {
        self.link = None;
        self.paced = false;
        self.probe = None;
        self.confirms.clear();
        self.window.requeue_sent();
        self.retries.link_lost();
        if let Some(spans) = &mut self.spans {
            spans.link_lost();
        }
        if let Some(dedup) = &mut self.dedup {
            dedup.link_lost();
        }
    }

    /// The broker stops (`connection.blocked`) or resumes taking messages.
    pub const fn handle_blocked(&mut self, blocked: bool, now: Instant) {
        if let Some(link) = &mut self.link {
            link.blocked = blocked;
            link.answering_since = now;
        }
    }

    /// Appends frames of the next messages to `out` until it holds `target` bytes. Returns how many messages.
    pub fn poll_publish(&mut self, out: &mut Vec<u8>, target: usize, now: Instant) -> usize {
        let Some(Link {
            frame_max,
            max_message_bytes,
            ..
        }) = self.link
        else {
            return 0;
        };
        let mut published = 0;
        self.paced = false;
        while out.len() < target {
            let Some(seq) = self.next_to_send(now) else { break };
            if self.rate.as_ref().is_some_and(|rate| !rate.allows(now)) {
                self.paced = true;
                break;
            }
            if let Some(token) = retries::at_place(seq) {
                if self.publish_retry(token, frame_max, max_message_bytes, out, now) {
                    if let Some(rate) = &mut self.rate {
                        rate.sent(now);
                    }
                    published += 1;
                }
                continue;
            }
            let Some(entry) = self.window.entry(seq) else {
                break;
            };
            let Some(message) = &entry.message else { break };
            let reason = unfit(message, frame_max, max_message_bytes)
                .or_else(|| streaming::unfit(self.dedup.as_ref(), message, frame_max));
            if let Some(reason) = reason {
                let id = message.message_id().map(str::to_owned);
                self.fail(seq, Failure::Invalid { id, reason }, now);
                continue;
            }
            let verdict = match &mut self.dedup {
                Some(dedup) => Some(dedup.publish(seq, entry, self.window.oldest_place(), out)),
                None => {
                    message.write_frames(CHANNEL, frame_max, out);
                    None
                }
            };
            match verdict {
                Some(Verdict::Stored) => {
                    self.found_in_stream(seq, now);
                    continue;
                }
                Some(Verdict::Later) => break,
                Some(Verdict::Counted(_) | Verdict::Uncounted) | None => {}
            }
            if let Some(spans) = &mut self.spans {
                spans.sent(seq, message, now);
            }
            let tag = self.confirms.published(seq, now);
            if let Some((dedup, verdict)) = self.dedup.as_mut().zip(verdict) {
                dedup.sent(verdict, tag);
            }
            if let Some(rate) = &mut self.rate {
                rate.sent(now);
            }
            if self.is_probing() {
                self.probe = Some(seq);
            }
            self.window.sent(seq);
            published += 1;
        }
        self.counters.published += u64::try_from(published).unwrap_or(u64::MAX);
        published
    }

    /// The broker acked a message, or all up to it.
    ///
    /// # Errors
    /// An ack of nothing that is outstanding.
    pub fn handle_ack(&mut self, tag: u64, multiple: bool, now: Instant) -> Result<(), DeliveryError> {
        let mut confirms = mem::take(&mut self.confirms);
        let result = confirms.ack(tag, multiple, &mut |seq, outcome| self.outcome(seq, outcome, now));
        self.confirms = confirms;
        Ok(result?)
    }

    /// The broker nacked a message, or all up to it.
    ///
    /// # Errors
    /// A nack of nothing that is outstanding.
    pub fn handle_nack(&mut self, tag: u64, multiple: bool, now: Instant) -> Result<(), DeliveryError> {
        let mut confirms = mem::take(&mut self.confirms);
        let result = confirms.nack(tag, multiple, &mut |seq, outcome| self.outcome(seq, outcome, now));
        self.confirms = confirms;
        Ok(result?)
    }

    /// The broker returned a message; its ack is still to come. `position` is from the message's own headers, since
    /// ids repeat.
    ///
    /// # Errors
    /// A return of nothing that is outstanding.
    pub fn handle_return(&mut self, position: (Lsn, u64), reply_code: u16) -> Result<(), DeliveryError> {
        let (commit_lsn, tx_seq) = position;
        let seq = self.window.find(position);
        let retry = self.retries.sent(position).map(retries::place);
        let is_known = seq.is_some_and(|seq| self.confirms.returned(seq, reply_code))
            || retry.is_some_and(|place| self.confirms.returned(place, reply_code));
        match is_known {
            true => Ok(()),
            false => Err(DeliveryError::UnknownReturn { commit_lsn, tx_seq }),
        }
    }

    /// The oldest message has waited too long for its answer: the link is given up, and on the next one that message
    /// is probed alone (rule 11).
    pub(super) fn fail_unanswered(&mut self, now: Instant) {
        // One that may be in a stream under its id must never be skipped or set aside: it is looked for instead.
        if self.dedup.is_none()
            && let Some((seq, _)) = self.confirms.oldest()
        {
            self.fail_sent(seq, Failure::Unanswered, now);
        }
        self.link_lost();
    }

    /// The link is lost since the broker closed over a message. With one outstanding it was that one, and its policy is
    /// applied to it alone; otherwise what was outstanding goes out one at a time, until the culprit is found.
    pub fn link_refused(&mut self, reply_code: u16, reply_text: &str, now: Instant) {
        match (self.confirms.outstanding(), self.confirms.oldest()) {
            (1, Some((seq, _))) => {
                self.fail_sent(
                    seq,
                    Failure::Refused {
                        reply_code,
                        reply_text: reply_text.to_owned(),
                    },
                    now,
                );
            }
            _ => {
                self.isolate_through = self.isolate_through.max(self.window.newest_sent());
                self.retries.suspect();
            }
        }
        self.link_lost();
    }

    /// When the pace allows the next message, if one waits for it.
    pub(super) fn rate_deadline(&self) -> Option<Instant> {
        let waits = self.paced && self.link.is_some_and(|link| !link.blocked);
        self.rate.as_ref().filter(|_| waits)?.next()
    }

    /// When the oldest unanswered message has waited too long (rule 12); not while the broker is blocked.
    pub(super) fn confirm_deadline(&self) -> Option<Instant> {
        self.link?
            .confirm_deadline(&self.confirms, self.config.confirm_timeout)
    }

    /// When the held event may be tried again, if nothing stands in its way.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        let sendable = self.link.is_some_and(|link| !link.blocked) && self.confirms.outstanding() == 0;
        let waits = || self.window.oldest_sendable().is_some_and(|(_, failed)| failed);
        if sendable && self.is_probing() && waits() {
            self.hold.probe_at().max(self.rate.as_ref().and_then(Rate::next))
        } else {
            None
        }
    }

    /// Which message to send now. While a delivery has failed it is the oldest alone, one at a time: a window sent
    /// again and again would fill those queues that do accept with duplicates (rule 11).
    fn next_to_send(&mut self, now: Instant) -> Option<Seq> {
        self.link.filter(|link| !link.blocked)?;
        if self.dedup.as_ref().is_some_and(Dedup::waits) {
            return None;
        }
        match self.retry_turn() {
            Turn::Ours(token) => return Some(retries::place(token)),
            Turn::Nobodys => return None,
            Turn::Others => {}
        }
        if !self.is_probing() && !self.is_isolating() {
            return self.window.next_queued();
        }
        if self.confirms.outstanding() > 0 {
            return None;
        }
        let (seq, failed) = self.window.oldest_sendable()?;
        let waits = failed && self.hold.probe_at().is_some_and(|probe_at| now < probe_at);
        (!waits).then_some(seq)
    }

    /// Whether this message was sent alone, to see whether the broker takes it.
    pub(super) fn take_probe(&mut self, seq: Seq) -> bool {
        self.probe.take_if(|probe| *probe == seq).is_some()
    }

    /// Messages that the broker has not answered.
    #[must_use]
    pub const fn unanswered(&self) -> usize {
        self.confirms.outstanding()
    }

    /// Whether a backlog is being worked off, so that a moment more or less does not matter to any event.
    #[must_use]
    pub const fn is_behind(&self) -> bool {
        self.confirms_late && self.window.unsettled() > 0
    }

    /// Whether a delivery has failed and none has been confirmed since, so that messages go out one at a time. Still
    /// true while the failed event is on its way again and so not [`held`](Self::held).
    #[must_use]
    pub fn is_probing(&self) -> bool {
        self.hold.probe_at().is_some()
    }

    /// Whether one of the messages that may still be sent makes the broker close.
    pub(super) fn is_isolating(&mut self) -> bool {
        self.isolate_through = self.isolate_through.filter(|through| {
            self.window
                .oldest_to_answer()
                .is_some_and(|oldest| oldest <= *through)
        });
        self.isolate_through.is_some()
    }

    /// A message that was sent failed, by its place.
    fn fail_sent(&mut self, seq: Seq, failure: Failure, now: Instant) {
        match retries::at_place(seq) {
            Some(token) => self.fail_retry(token, failure),
            None => self.fail(seq, failure, now),
        }
    }

    fn outcome(&mut self, seq: Seq, outcome: Outcome, now: Instant) {
        if let Some(token) = retries::at_place(seq) {
            return self.retry_outcome(token, outcome);
        }
        if let Some(spans) = &mut self.spans {
            spans.answered(seq, outcome.into(), now);
        }
        let failure = match outcome {
            Outcome::Confirmed => {
                let probe = self.take_probe(seq);
                self.counters.confirmed += 1;
                if let Some(entry) = self.window.entry(seq) {
                    let committed = entry.key.transaction.commit_time;
                    self.counters.commit_to_confirm.observe(committed, self.wall);
                    self.confirms_late = self.wall.micros().saturating_sub(committed.micros()) > BEHIND;
                }
                self.mark(seq, now);
                self.settle(seq, Lsn::INVALID);
                return self.resolved(probe, now);
            }
            Outcome::Returned { reply_code } => Failure::Unroutable { reply_code },
            Outcome::Nacked => Failure::Nacked,
        };
        self.fail(seq, failure, now);
    }
}

/// Why a message may not be sent over a link of these limits.
pub(super) fn unfit(message: &Message, frame_max: u32, max_body: usize) -> Option<InvalidRow> {
    if message.body_len() > max_body {
        Some(InvalidRow::BodyTooLarge {
            length: message.body_len(),
            limit: max_body,
        })
    } else if !message.fits(frame_max) {
        Some(InvalidRow::HeadersTooLarge { frame_max })
    } else {
        None
    }
}
