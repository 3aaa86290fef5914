//! The whole as one state machine: the stream of one slot in, publishes and outcomes of one link, positions out.
//!
//! The shell owns the sockets and the clock. Call order: [`Flow::session_started`], then
//! [`Flow::handle_stream`] for every frame; [`Flow::link_up`], then [`Flow::poll_publish`] whenever the link has
//! room and the `handle_*` methods for what the broker says; [`Flow::poll_status`] and [`Flow::handle_timeout`]
//! when [`Flow::deadline`] passes. Sessions and links come and go independently.

mod backfill;
mod counters;
mod delivery;
mod emitted;
mod failure;
mod intake;
mod log;
mod marking;
mod prepare;
mod preview;
mod replay;
mod retries;
mod stored;
mod streaming;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::RandomState;
use std::time::{Duration, Instant};

pub use backfill::{BackfillTable, Unbound};
pub use counters::Counters;
pub use delivery::{CHANNEL, DeliveryError};
pub use failure::{Discarded, Held, SetAside};
pub use intake::{Intake, StreamError};
pub use log::LogIdentity;
pub use marking::Marker;
pub use preview::{GivenColumn, Preview, PreviewConfig, PreviewError, preview};
pub use replay::{Replay, ReplayConfig, ReplayFailed, Replayed};
pub use retries::{RETRY_PREFIX, RetryFailure, RetryOver, RetryToken};
pub use stored::{StoredEvent, Unfit};
pub use streaming::ProducerLog;

use backfill::Backfill;
use log::Log;
use retries::Retries;

use crate::Lsn;
use crate::PgTimestamp;
use crate::confirms::Confirms;
use crate::dedup::Dedup;
use crate::event::{ContentScratch, OutboxTable};
use crate::history::History;
use crate::hold::Hold;
use crate::ledger::Ledger;
use crate::marks::{MarkSettings, Marks, Position};
use crate::policy::Policies;
use crate::rate::Rate;
use crate::report::Report;
use crate::route::Destination;
use crate::span::Spans;
use crate::window::{Seq, Window, WindowLimits};

/// Settled transactions remembered across sessions, at least.
const HISTORY: usize = 8192;

/// The settings that delivery depends on, resolved.
#[derive(Debug, Clone)]
pub struct FlowConfig {
    /// The outbox tables and their routes.
    pub tables: Vec<OutboxTable>,
    /// The prefix of the logical messages that are events; then the last of `tables` is the one that stands for them, which
    /// [`emitted`](crate::emitted) names.
    pub messages: Option<String>,
    /// Tables of the publication that are no outbox: their rows are counted and passed over (R1, R4).
    pub ignore_tables: Vec<IgnoredTable>,
    /// How much may be in flight.
    pub limits: WindowLimits,
    /// The largest body in bytes, where it is configured; otherwise the link's.
    pub max_message_bytes: Option<usize>,
    /// How long the oldest message may stay without an answer.
    pub confirm_timeout: Duration,
    /// The longest silence of ours towards PostgreSQL.
    pub status_interval: Duration,
    /// The longest silence of PostgreSQL, while we read and ask for an answer.
    pub silence_timeout: Duration,
    /// The `app_id` of every message.
    pub app_id: String,
    /// What to do with events that cannot be delivered.
    pub policies: Policies,
    /// Keep each row beside its message, so that it can become a dead letter.
    pub keep_rows: bool,
    /// `ordering = "strict"`: no event is sent while an earlier one of its aggregate is unsettled (R14).
    pub strict: bool,
    /// The most messages to send in a second, where there is a limit.
    pub max_rate: Option<u32>,
    /// When rows are marked.
    pub marks: MarkSettings,
}

/// A table whose rows are passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoredTable {
    /// The schema, as PostgreSQL stores it.
    pub schema: String,
    /// The name, as PostgreSQL stores it.
    pub name: String,
}

/// One slot's flow of events.
#[derive(Debug)]
pub struct Flow {
    config: FlowConfig,
    window: Window,
    hold: Hold,
    /// The message that was sent alone and is not answered.
    probe: Option<Seq>,
    history: History,
    confirms: Confirms,
    session: Option<Session>,
    log: Log,
    link: Option<Link>,
    counters: Counters,
    scratch: Scratch,
    rate: Option<Rate>,
    /// A message waits for nothing but the pace.
    paced: bool,
    /// The broker closed over one of the messages up to this one: they go out one at a time until it is found.
    isolate_through: Option<Seq>,
    /// The end of the newest dead letter's transaction: a session's durable LSN stays until it has been received (R15).
    barrier: Lsn,
    /// With so many dead letters pending that further events are held after all (R10).
    dead_letters_full: bool,
    discarded: VecDeque<Discarded>,
    retries: Retries,
    /// Once the first message has come.
    emitted: Option<Box<emitted::Emitted>>,
    backfill: Backfill,
    marks: Marks,
    /// Everything up to here was settled before the current session: by another process, or by this one (R19).
    passed: Option<Position>,
    is_prefix_held: bool,
    marker: Marker,
    pub(crate) spans: Option<Spans>,
    /// Where messages go to a stream: which of them it has.
    dedup: Option<Dedup>,
    stopping: bool,
    /// What our clock says, as of the last [`Flow::tell_time`].
    wall: PgTimestamp,
    /// The last confirm came long after its event's commit.
    confirms_late: bool,
}

/// What lives as long as one walsender connection.
#[derive(Debug)]
struct Session {
    ledger: Ledger,
    report: Report,
    stream: intake::Stream,
    /// Everything up to here has been received.
    received: Lsn,
    /// When the server last sent anything, or we began to listen again.
    heard: Instant,
    /// Whether the last frame had to wait, so that nothing is read.
    paused: bool,
    /// So many bytes its row takes, where it waits for them.
    waiting_bytes: usize,
}

/// What lives as long as one AMQP connection.
#[derive(Debug, Clone, Copy)]
struct Link {
    frame_max: u32,
    max_message_bytes: usize,
    blocked: bool,
    /// Confirm time-outs count from here at the earliest: while blocked the broker answers nothing.
    answering_since: Instant,
}

impl Link {
    const fn new(frame_max: u32, max_message_bytes: usize, now: Instant) -> Self {
        Self {
            frame_max,
            max_message_bytes,
            blocked: false,
            answering_since: now,
        }
    }

    /// When the oldest unanswered message has waited too long (rule 12); never while the broker is blocked.
    fn confirm_deadline(&self, confirms: &Confirms, timeout: Duration) -> Option<Instant> {
        let (_, published_at) = confirms.oldest().filter(|_| !self.blocked)?;
        Some(published_at.max(self.answering_since) + timeout)
    }
}

/// Positions to report to PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// Received, so `write`.
    pub received: Lsn,
    /// The durable LSN, so `flush` and `apply`.
    pub durable: Lsn,
    /// Ask the server to answer, since it has been silent.
    pub reply_requested: bool,
}

/// A deadline that passed and what must follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timeout {
    /// The oldest message had no answer within `confirm_timeout`: the link must be given up.
    Confirm,
    /// PostgreSQL said nothing, though asked: the session must be given up.
    Silence,
}

/// Texts rendered for one row, reused for the next.
#[derive(Debug, Default)]
struct Scratch {
    /// With strict order: how aggregates are told apart.
    aggregates: Option<RandomState>,
    /// Where the row that was encoded last goes.
    destination: Destination,
    content: ContentScratch,
    /// How many headers of the row were left out since the relay has such.
    overridden: u64,
    /// How many rows were encoded.
    #[cfg(test)]
    prepared: u64,
}

impl Flow {
    /// A flow without session or link.
    #[must_use]
    pub fn new(config: FlowConfig) -> Self {
        let strict = config.strict;
        let marks = Marks::new(config.marks, config.limits.events, config.tables.len());
        Self {
            window: Window::new(config.limits, config.strict),
            rate: config.max_rate.map(Rate::new),
            paced: false,
            isolate_through: None,
            barrier: Lsn::INVALID,
            dead_letters_full: false,
            discarded: VecDeque::new(),
            retries: Retries::default(),
            emitted: None,
            backfill: Backfill::default(),
            hold: Hold::default(),
            probe: None,
            // PostgreSQL knows of all but what was settled since the last two status updates.
            history: History::new(config.limits.events.saturating_mul(2).max(HISTORY)),
            config,
            confirms: Confirms::new(),
            marks,
            passed: None,
            is_prefix_held: false,
            marker: Marker::Free,
            spans: None,
            dedup: None,
            session: None,
            log: Log::default(),
            link: None,
            counters: Counters::default(),
            scratch: Scratch {
                aggregates: strict.then(RandomState::new),
                ..Scratch::default()
            },
            stopping: false,
            wall: PgTimestamp::default(),
            confirms_late: false,
        }
    }

    /// What the wall clock says now: only for measuring how long events took since their commit.
    pub const fn tell_time(&mut self, wall: PgTimestamp) {
        self.wall = wall;
    }

    /// A new session streams from the slot; before it began the log was flushed up to `flushed`. Returns whether the log
    /// is another one than before: then what was in flight has been dropped, and a link that is up must be replaced.
    pub fn session_started(&mut self, identity: LogIdentity, flushed: Lsn, now: Instant) -> bool {
        self.session_lost();
        self.log.is_flushed(self.barrier);
        let replaced = self.log.session_started(identity, flushed);
        if replaced {
            self.forget();
            self.log.session_started(identity, flushed);
        }
        self.stream_session_started();
        self.marks.session_started(now);
        self.session = Some(Session {
            ledger: Ledger::starting_beyond(self.barrier),
            // A question whether the server is there must leave it time to answer.
            report: Report::new(
                self.config.status_interval.min(self.config.silence_timeout / 4),
                self.config.limits.events,
                now,
            ),
            stream: intake::Stream::default(),
            received: Lsn::INVALID,
            heard: now,
            paused: false,
            waiting_bytes: 0,
        });
        replaced
    }

    /// The session is lost. What is in flight stays so, and is recognised when the next session brings it again.
    pub fn session_lost(&mut self) {
        if let Some(session) = self.session.take() {
            self.stream_session_lost();
            self.log.is_flushed(session.received);
            if let Some(open) = session.stream.transaction_key() {
                self.log.is_flushed_beyond(open.commit_lsn);
            }
        }
        self.passed = None;
        self.window.detach_all();
        self.retries.session_lost();
        self.backfill.session_lost();
        self.marks.session_lost();
    }

    /// Drops all that was read from a log that is not the current one. A link that is up must be replaced: nothing
    /// is sent before, since its delivery tags would be mistaken.
    pub fn forget(&mut self) {
        self.link_lost();
        self.window.clear();
        self.retries.clear();
        self.backfill.forget();
        self.history.clear();
        self.marks.forget();
        self.hold.release();
        self.isolate_through = None;
        self.barrier = Lsn::INVALID;
        self.log.forget();
        if let Some(dedup) = &mut self.dedup {
            dedup.forget();
        }
    }

    /// Takes no new transaction from now on.
    pub fn stop(&mut self, now: Instant) {
        self.stopping = true;
        self.marks.stop(now);
    }

    /// Whether a stopping flow has nothing left to do: no open transaction and nothing in flight, retries
    /// included, and nothing to mark; or nothing but what a held event stands before, which the next relay tries again.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let Some(session) = &self.session else {
            // What would still be confirmed could not be reported, so it would only come twice.
            return true;
        };
        if self.awaits_an_answer() {
            return false;
        }
        let is_delivered = if self.window.failed() > 0 {
            self.window.oldest_sendable().is_none_or(|(_, failed)| failed)
        } else {
            self.window.unsettled() == 0 && !session.ledger.is_open()
        };
        is_delivered && self.are_marks_drained()
    }

    /// Whether a stopping flow that has never had a link has nothing left to do: nothing was sent, so it is all for the
    /// next relay but what is being set aside or marked.
    #[must_use]
    pub fn is_drained_unsent(&self) -> bool {
        self.session.is_none() || (!self.awaits_an_answer() && self.are_marks_drained())
    }

    /// Whether something was sent and not answered, or is on its way to the dead letters. A retry that is not sent waits
    /// for the next relay; what came of one that was is recorded in this session.
    fn awaits_an_answer(&self) -> bool {
        self.retries.is_in_flight() || self.confirms.outstanding() > 0 || self.window.setting_aside() > 0
    }

    /// The commit LSN of the transaction that the session is in the middle of.
    #[must_use]
    pub fn open_commit(&self) -> Option<Lsn> {
        let transaction = self.session.as_ref()?.stream.transaction_key()?;
        Some(transaction.commit_lsn)
    }

    /// Whether the stream may be read: no frame waits for room.
    #[must_use]
    pub fn wants_stream(&self) -> bool {
        self.session.as_ref().is_some_and(|session| !session.paused)
    }

    /// The positions to report, if a status update is due.
    pub fn poll_status(&mut self, now: Instant) -> Option<Positions> {
        let silence = self.config.silence_timeout / 2;
        let session = self.session.as_mut()?;
        let durable = self.marks.report(session.ledger.durable(), now);
        let silent = !session.paused && now >= session.heard + silence;
        session.report.take_due(durable, now).then_some(Positions {
            received: session.received,
            durable,
            reply_requested: silent,
        })
    }

    /// The positions to report with a last status update.
    pub fn final_status(&mut self, now: Instant) -> Option<Positions> {
        let session = self.session.as_mut()?;
        let durable = session.ledger.durable();
        session.report.reported(durable, now);
        Some(Positions {
            received: session.received,
            durable,
            reply_requested: false,
        })
    }

    /// When to call [`poll_status`](Self::poll_status), [`handle_timeout`](Self::handle_timeout) and
    /// [`poll_publish`](Self::poll_publish) again if nothing else happens.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let status = self.session.as_ref().map(|session| {
            let (durable, released) = self.marks.reportable(session.ledger.durable());
            let status = session.report.deadline(durable);
            released.map_or(status, |released| status.min(released))
        });
        [
            status,
            self.marks_deadline(),
            self.silence_deadline(),
            self.confirm_deadline(),
            self.probe_deadline(),
            self.rate_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// PostgreSQL has sent something, if not yet a whole frame: the largest take longer than the silence that counts
    /// as one.
    pub const fn handle_bytes(&mut self, now: Instant) {
        if let Some(session) = &mut self.session {
            session.heard = now;
        }
    }

    /// Looks for a deadline that has passed.
    pub fn handle_timeout(&mut self, now: Instant) -> Option<Timeout> {
        if self.confirm_deadline().is_some_and(|deadline| now >= deadline) {
            self.fail_unanswered(now);
            return Some(Timeout::Confirm);
        }
        self.silence_deadline()
            .filter(|deadline| now >= *deadline)
            .map(|_| Timeout::Silence)
    }

    /// Totals since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Events admitted and not settled.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.window.unsettled()
    }

    /// Bytes of messages in flight.
    #[must_use]
    pub const fn in_flight_bytes(&self) -> usize {
        self.window.bytes()
    }

    /// The durable LSN of the current session.
    #[must_use]
    pub fn durable(&self) -> Option<Lsn> {
        self.session.as_ref().map(|session| session.ledger.durable())
    }

    /// How far the current session has received the log.
    #[must_use]
    pub fn received(&self) -> Option<Lsn> {
        self.session.as_ref().map(|session| session.received)
    }

    /// When the oldest unsettled event was committed.
    #[must_use]
    pub fn oldest_unsettled(&self) -> Option<PgTimestamp> {
        self.window
            .oldest()
            .map(|entry| entry.key.transaction.commit_time)
    }

    fn silence_deadline(&self) -> Option<Instant> {
        let session = self.session.as_ref().filter(|session| !session.paused)?;
        Some(session.heard + self.config.silence_timeout)
    }
}
