//! A replay: rows of a table published again on request, over a link of their own, beside a relay that streams.
//!
//! A small sibling of [`Flow`](super::Flow) out of the same parts. It has no order to keep towards a slot, so a message
//! that fails is told and done with, and never holds up the others. Call order: [`Replay::admit`] while there is
//! [room](Replay::has_room); [`Replay::link_up`], then [`Replay::poll_publish`] whenever the link takes bytes and the
//! `handle_*` methods for what the broker says; [`Replay::next_failed`] after each.

use std::collections::VecDeque;
use std::mem;
use std::time::{Duration, Instant};

use super::delivery::{CHANNEL, DeliveryError, unfit};
use super::prepare::{Stamp, encode};
use super::{Link, Scratch};
use crate::Lsn;
use crate::amqp::{Message, Origin};
use crate::confirms::{Confirms, Outcome};
use crate::event::{InvalidRow, Mapping};
use crate::key::{EventKey, TransactionKey};
use crate::pgoutput::Tuple;
use crate::rate::Rate;
use crate::timestamp::PgTimestamp;
use crate::window::{Admission, Failure, Seq, State, Window, WindowLimits};

/// The settings of a replay, resolved.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// How much may be in flight.
    pub limits: WindowLimits,
    /// The largest body in bytes, where it is configured; otherwise the link's.
    pub max_message_bytes: Option<usize>,
    /// How long the oldest message may stay without an answer.
    pub confirm_timeout: Duration,
    /// The `app_id` of every message.
    pub app_id: String,
    /// The most messages to send in a second.
    pub max_rate: Option<u32>,
}

/// Rows on their way to the broker.
#[derive(Debug)]
pub struct Replay {
    config: ReplayConfig,
    window: Window,
    confirms: Confirms,
    rate: Option<Rate>,
    /// A message waits for nothing but the pace.
    paced: bool,
    link: Option<Link>,
    /// The number of the next message.
    next: u64,
    /// The broker closed over one of the messages up to this one: they go out one at a time.
    alone_through: Option<Seq>,
    failed: VecDeque<ReplayFailed>,
    counts: Replayed,
    scratch: Scratch,
}

/// What became of the messages so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Confirmed by the broker.
    pub confirmed: u64,
    /// Failed; each is told once.
    pub failed: u64,
}

/// A row that was not delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayFailed {
    /// Its message id.
    pub id: String,
    /// The exchange, where the row became a message.
    pub exchange: Option<String>,
    /// The routing key, where the row became a message.
    pub routing_key: Option<String>,
    /// Why.
    pub failure: Failure,
}

impl Replay {
    /// A replay without link.
    #[must_use]
    pub fn new(config: ReplayConfig) -> Self {
        Self {
            window: Window::new(config.limits, false),
            rate: config.max_rate.map(Rate::new),
            config,
            confirms: Confirms::new(),
            paced: false,
            link: None,
            next: 0,
            alone_through: None,
            failed: VecDeque::new(),
            counts: Replayed::default(),
            scratch: Scratch::default(),
        }
    }

    /// Whether a row of `bytes` may be admitted; an empty window takes any one.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.window.has_room(bytes)
    }

    /// Takes a row in. `id` names it where it cannot become a message, `timestamp` is its message's, in seconds since
    /// 1970.
    pub fn admit(&mut self, mapping: &Mapping, row: &Tuple<'_>, id: &str, timestamp: u64) {
        let seq = self.next;
        let stamp = Stamp {
            time: PgTimestamp::from_unix_seconds(timestamp),
            origin: Origin::Replay { seq },
        };
        let mut buffer = self.window.spare_buffer();
        let message = encode(
            mapping,
            row,
            stamp,
            &self.config.app_id,
            &mut self.scratch,
            &mut buffer,
        );
        match message {
            Ok(message) => {
                self.next += 1;
                self.window.admit(Admission {
                    key: key(seq),
                    transaction: None,
                    message: Some(message),
                    row: None,
                    aggregate: 0,
                    table: 0,
                    on_unroutable: None,
                });
            }
            Err(reason) => {
                self.window.recycle(buffer);
                self.tell_invalid(id, reason);
            }
        }
    }

    /// A link is up: what is unanswered is sent over it, in order.
    pub fn link_up(&mut self, frame_max: u32, max_message_bytes: usize, now: Instant) {
        self.link_lost();
        let max_message_bytes = self.config.max_message_bytes.unwrap_or(max_message_bytes);
        self.link = Some(Link::new(frame_max, max_message_bytes, now));
    }

    /// The link is lost: everything unanswered counts as unsent.
    pub fn link_lost(&mut self) {
        self.link = None;
        self.paced = false;
        self.confirms.clear();
        self.window.requeue_sent();
    }

    /// The link is lost since the broker closed over a message. With one outstanding it was that one; otherwise what was
    /// outstanding goes out one at a time, until it is found.
    pub fn link_refused(&mut self, reply_code: u16, reply_text: &str) {
        match (self.confirms.outstanding(), self.confirms.oldest()) {
            (1, Some((seq, _))) => self.fail(
                seq,
                Failure::Refused {
                    reply_code,
                    reply_text: reply_text.to_owned(),
                },
            ),
            _ => self.alone_through = self.alone_through.max(self.window.newest_sent()),
        }
        self.link_lost();
    }

    /// The broker stops (`connection.blocked`) or resumes taking messages.
    pub const fn handle_blocked(&mut self, blocked: bool, now: Instant) {
        if let Some(link) = &mut self.link {
            link.blocked = blocked;
            link.answering_since = now;
        }
    }

    /// Appends frames of the next messages to `out` until it holds `target` bytes; returns how many messages.
    pub fn poll_publish(&mut self, out: &mut Vec<u8>, target: usize, now: Instant) -> usize {
        self.paced = false;
        let mut published = 0;
        let Some(link) = self.link.filter(|link| !link.blocked) else {
            return published;
        };
        while out.len() < target {
            let Some(seq) = self.window.next_queued() else {
                return published;
            };
            let is_alone = self.alone_through.is_some_and(|through| seq <= through);
            if is_alone && self.confirms.outstanding() > 0 {
                return published;
            }
            if self.rate.as_ref().is_some_and(|rate| !rate.allows(now)) {
                self.paced = true;
                return published;
            }
            let Some(message) = self.window.entry(seq).and_then(|entry| entry.message.as_ref()) else {
                return published;
            };
            if let Some(reason) = unfit(message, link.frame_max, link.max_message_bytes) {
                let id = message.message_id().map(str::to_owned);
                self.fail(seq, Failure::Invalid { id, reason });
                continue;
            }
            message.write_frames(CHANNEL, link.frame_max, out);
            self.confirms.published(seq, now);
            self.window.sent(seq);
            if let Some(rate) = &mut self.rate {
                rate.sent(now);
            }
            published += 1;
        }
        published
    }

    /// The broker acked a message, or all up to it.
    ///
    /// # Errors
    /// An ack of nothing that is outstanding.
    pub fn handle_ack(&mut self, tag: u64, multiple: bool) -> Result<(), DeliveryError> {
        let mut confirms = mem::take(&mut self.confirms);
        let result = confirms.ack(tag, multiple, &mut |seq, outcome| self.outcome(seq, outcome));
        self.confirms = confirms;
        Ok(result?)
    }

    /// The broker nacked a message, or all up to it.
    ///
    /// # Errors
    /// A nack of nothing that is outstanding.
    pub fn handle_nack(&mut self, tag: u64, multiple: bool) -> Result<(), DeliveryError> {
        let mut confirms = mem::take(&mut self.confirms);
        let result = confirms.nack(tag, multiple, &mut |seq, outcome| self.outcome(seq, outcome));
        self.confirms = confirms;
        Ok(result?)
    }

    /// The broker returned a message; its ack is still to come. `position` is from the message's own headers.
    ///
    /// # Errors
    /// A return of nothing that is outstanding.
    pub fn handle_return(&mut self, position: (Lsn, u64), reply_code: u16) -> Result<(), DeliveryError> {
        let (commit_lsn, tx_seq) = position;
        let seq = self.window.find(position);
        if seq.is_some_and(|seq| self.confirms.returned(seq, reply_code)) {
            return Ok(());
        }
        Err(DeliveryError::UnknownReturn { commit_lsn, tx_seq })
    }

    /// Whether the oldest message has waited too long for its answer. It has failed then, and the link must be given up.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let is_late = self.confirm_deadline().is_some_and(|deadline| now >= deadline);
        if is_late && let Some((seq, _)) = self.confirms.oldest() {
            self.fail(seq, Failure::Unanswered);
            self.link_lost();
        }
        is_late
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) and [`poll_publish`](Self::poll_publish) again if nothing
    /// else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let pace = self.rate.as_ref().filter(|_| self.paced).and_then(Rate::next);
        [pace, self.confirm_deadline()].into_iter().flatten().min()
    }

    /// A row that failed and was not told yet.
    pub fn next_failed(&mut self) -> Option<ReplayFailed> {
        self.failed.pop_front()
    }

    /// Whether nothing is on its way.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.window.unsettled() == 0
    }

    /// What became of the messages so far.
    #[must_use]
    pub const fn counts(&self) -> Replayed {
        self.counts
    }

    /// Messages without an answer.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.window.unsettled()
    }

    fn confirm_deadline(&self) -> Option<Instant> {
        self.link?
            .confirm_deadline(&self.confirms, self.config.confirm_timeout)
    }

    fn outcome(&mut self, seq: Seq, outcome: Outcome) {
        match outcome {
            Outcome::Confirmed => {
                self.counts.confirmed += 1;
                self.settle(seq);
            }
            Outcome::Returned { reply_code } => self.fail(seq, Failure::Unroutable { reply_code }),
            Outcome::Nacked => self.fail(seq, Failure::Nacked),
        }
    }

    /// A message failed, and is not tried again.
    fn fail(&mut self, seq: Seq, failure: Failure) {
        let entry = self.window.entry(seq);
        let Some(entry) = entry.filter(|entry| entry.state != State::Settled) else {
            return;
        };
        let message = entry.message.as_ref();
        let text = |part: fn(&Message) -> Option<&str>| message.and_then(part).map(str::to_owned);
        self.failed.push_back(ReplayFailed {
            id: text(Message::message_id).unwrap_or_default(),
            exchange: text(Message::exchange),
            routing_key: text(Message::routing_key),
            failure,
        });
        self.counts.failed += 1;
        self.settle(seq);
    }

    fn tell_invalid(&mut self, id: &str, reason: InvalidRow) {
        self.counts.failed += 1;
        self.failed.push_back(ReplayFailed {
            id: id.to_owned(),
            exchange: None,
            routing_key: None,
            failure: Failure::Invalid {
                id: Some(id.to_owned()),
                reason,
            },
        });
    }

    fn settle(&mut self, seq: Seq) {
        self.window.settle(seq, |_| {});
    }
}

/// A message's key in the window, as [`returned_key`](crate::amqp::returned_key) reads it back.
const fn key(seq: u64) -> EventKey {
    EventKey {
        transaction: TransactionKey {
            commit_lsn: Lsn::INVALID,
            xid: 0,
            commit_time: PgTimestamp::new(0),
        },
        tx_seq: seq,
    }
}
