//! The link's side of the flow: what to publish next, and what the broker's answers mean.

use std::mem;
use std::time::Instant;

use super::{Flow, Link};
use crate::Lsn;
use crate::confirms::{ConfirmError, Outcome};
use crate::event::InvalidRow;
use crate::key::EventKey;
use crate::window::{Failure, Seq, State};

/// The channel that publishes; the connection has no other.
pub const CHANNEL: u16 = 1;

/// Something that the broker cannot mean: the link must be given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// An ack or nack of nothing that is outstanding.
    #[error(transparent)]
    Confirm(#[from] ConfirmError),
    /// A return of nothing that is outstanding.
    #[error("the broker returned a message that is not outstanding: {commit_lsn}:{tx_seq}")]
    UnknownReturn {
        /// The commit LSN in the message's headers.
        commit_lsn: Lsn,
        /// The event's place in its transaction.
        tx_seq: u64,
    },
}

/// The oldest event that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held<'a> {
    /// Which event.
    pub key: EventKey,
    /// Its id, where it has a usable one.
    pub message_id: Option<&'a str>,
    /// Where it was published to, if it was.
    pub exchange: Option<&'a str>,
    /// The routing key it was published with, if it was.
    pub routing_key: Option<&'a str>,
    /// Why it is held.
    pub failure: &'a Failure,
}

impl Flow {
    /// A link is up: what is unsettled is sent over it, in order.
    pub fn link_up(&mut self, frame_max: u32, max_message_bytes: usize, now: Instant) {
        self.confirms.clear();
        self.window.requeue_sent();
        self.link = Some(Link {
            frame_max,
            max_message_bytes: self.config.max_message_bytes.unwrap_or(max_message_bytes),
            blocked: false,
            answering_since: now,
        });
    }

    /// The link is lost: everything unanswered counts as unsent.
    pub fn link_lost(&mut self) {
        self.link = None;
        self.probe = None;
        self.confirms.clear();
        self.window.requeue_sent();
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
        while out.len() < target {
            let Some(seq) = self.next_to_send(now) else { break };
            let Some(message) = self.window.entry(seq).and_then(|entry| entry.message.as_ref()) else {
                break;
            };
            let unfit = if message.body_len() > max_message_bytes {
                Some(InvalidRow::BodyTooLarge {
                    length: message.body_len(),
                    limit: max_message_bytes,
                })
            } else if !message.fits(frame_max) {
                Some(InvalidRow::HeadersTooLarge { frame_max })
            } else {
                None
            };
            if let Some(reason) = unfit {
                let id = message.message_id().map(str::to_owned);
                self.counters.invalid += 1;
                self.window.fail(seq, Failure::Invalid { id, reason });
                continue;
            }
            message.write_frames(CHANNEL, frame_max, out);
            self.confirms.published(seq, now);
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
        match seq.is_some_and(|seq| self.confirms.returned(seq, reply_code)) {
            true => Ok(()),
            false => Err(DeliveryError::UnknownReturn { commit_lsn, tx_seq }),
        }
    }

    /// The oldest message has waited too long for its answer; it will be probed alone on the next link (rule 11).
    pub(super) fn fail_unanswered(&mut self, now: Instant) {
        self.counters.unanswered += 1;
        if let Some((seq, _)) = self.confirms.oldest() {
            let probe = self.take_probe(seq);
            self.window.fail(seq, Failure::Unanswered);
            self.hold.failed(probe, now);
        }
    }

    /// When the oldest unanswered message has waited too long (rule 12); not while the broker is blocked.
    pub(super) fn confirm_deadline(&self) -> Option<Instant> {
        let link = self.link.filter(|link| !link.blocked)?;
        let (_, published_at) = self.confirms.oldest()?;
        Some(published_at.max(link.answering_since) + self.config.confirm_timeout)
    }

    /// When the held event may be tried again, if nothing stands in its way.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        let sendable = self.link.is_some_and(|link| !link.blocked) && self.confirms.outstanding() == 0;
        let waits = self
            .window
            .oldest()
            .is_some_and(|(_, entry)| is_retryable(&entry.state));
        if sendable && waits {
            self.hold.probe_at()
        } else {
            None
        }
    }

    /// Which message to send now. While a delivery has failed it is the oldest alone, one at a time: a window sent
    /// again and again would fill those queues that do accept with duplicates (rule 11).
    fn next_to_send(&mut self, now: Instant) -> Option<Seq> {
        self.link.filter(|link| !link.blocked)?;
        if !self.is_probing() {
            return self.window.next_queued();
        }
        if self.confirms.outstanding() > 0 {
            return None;
        }
        let (seq, entry) = self.window.oldest()?;
        match &entry.state {
            State::Queued => Some(seq),
            State::Failed(_) if is_retryable(&entry.state) => self
                .hold
                .probe_at()
                .is_none_or(|probe_at| now >= probe_at)
                .then_some(seq),
            State::Failed(_) | State::Sent | State::Settled => None,
        }
    }

    /// Whether this message was sent alone, to see whether the broker takes it.
    fn take_probe(&mut self, seq: Seq) -> bool {
        self.probe.take_if(|probe| *probe == seq).is_some()
    }

    /// Whether a delivery has failed and none has been confirmed since, so that messages go out one at a time. Still
    /// true while the failed event is on its way again and so not [`held`](Self::held).
    #[must_use]
    pub fn is_probing(&self) -> bool {
        self.hold.probe_at().is_some()
    }

    fn outcome(&mut self, seq: Seq, outcome: Outcome, now: Instant) {
        let probe = self.take_probe(seq);
        let failure = match outcome {
            Outcome::Confirmed => {
                self.counters.confirmed += 1;
                self.settle(seq);
                if self.window.failed() == 0 {
                    self.hold.release();
                } else if probe {
                    self.hold.probe_confirmed(now);
                }
                return;
            }
            Outcome::Returned { reply_code } => {
                self.counters.returned += 1;
                Failure::Unroutable { reply_code }
            }
            Outcome::Nacked => {
                self.counters.nacked += 1;
                Failure::Nacked
            }
        };
        self.window.fail(seq, failure);
        self.hold.failed(probe, now);
    }

    fn settle(&mut self, seq: Seq) {
        let history = &mut self.history;
        let transaction = self.window.settle(seq, |key| history.settled(key));
        if let (Some(session), Some(transaction)) = (&mut self.session, transaction) {
            session.ledger.settle(transaction);
            session.report.settled();
        }
    }
}

/// Whether trying again may help: a row that cannot become a message never does.
const fn is_retryable(state: &State) -> bool {
    matches!(
        state,
        State::Failed(Failure::Unroutable { .. } | Failure::Nacked | Failure::Unanswered)
    )
}
