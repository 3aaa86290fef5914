//! One snapshot of the relay, for readiness and metrics; written by the relay alone.

use std::time::{Instant, SystemTime};

use walrelay_engine::flow::{Counters, Flow};
use walrelay_engine::marks::MarkCounters;
use walrelay_engine::{Lsn, PgTimestamp};

use super::backfill::Totals;
use super::sink::SinkKind;
use crate::fault::{Class, Fault, FaultKind};
use crate::postgres::EventPosition;

/// How the relay stands.
#[derive(Debug, Clone)]
pub struct Status {
    /// The slot it streams from.
    pub slot: String,
    /// Whose turn it is.
    pub role: Role,
    /// Where messages go.
    pub sink: SinkKind,
    /// PostgreSQL's side.
    pub database: SideStatus,
    /// The sink's side, which is RabbitMQ's unless messages go to standard output.
    pub broker: SideStatus,
    /// Whether events pass.
    pub delivery: Delivery,
    /// What could be lost or go wrong later, though events pass now.
    pub risks: Vec<Fault>,
    /// Totals since the start.
    pub counters: Counters,
    /// Events admitted and not settled.
    pub in_flight: usize,
    /// Bytes of messages in flight.
    pub in_flight_bytes: usize,
    /// Events that are held.
    pub held: usize,
    /// When the oldest unsettled event was committed.
    pub oldest_unsettled: Option<PgTimestamp>,
    /// The durable LSN, while a session is up.
    pub durable: Option<Lsn>,
    /// How far the log has been received, while a session is up.
    pub received: Option<Lsn>,
    /// Old rows.
    pub retention: RetentionStatus,
    /// The slot, as the guard saw it last.
    pub slot_sample: Option<SlotSample>,
    /// Dead letters that wait or are retried, as they were counted last.
    pub dead_letters: Option<u64>,
    /// Rows that go out before the stream, while there are any.
    pub backfill_left: Option<u64>,
    /// What became of such rows that were not sent.
    pub backfill: Totals,
    /// Positions reported to PostgreSQL.
    pub status_updates: u64,
    /// Sessions opened.
    pub sessions: u64,
    /// Links opened.
    pub links: u64,
    /// How often what went wrong on PostgreSQL's side, tries to connect included.
    pub database_failures: Failures,
    /// The same on the sink's side.
    pub broker_failures: Failures,
    /// What becomes of published rows.
    pub marks: MarkStatus,
    /// Spans that there was no room for.
    pub spans_dropped: u64,
    /// When the relay last went round its loop.
    pub ticked: Instant,
    /// When an event was last settled.
    pub progressed: Option<SystemTime>,
}

/// Faults of one side by kind: there are few kinds, and few of them ever happen.
#[derive(Debug, Clone, Default)]
pub struct Failures(Vec<(FaultKind, u64)>);

impl Failures {
    /// Counts one more.
    pub(super) fn count(&mut self, kind: FaultKind) {
        match self.0.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => self.0.push((kind, 1)),
        }
    }

    /// Kinds that happened, and how often.
    pub fn iter(&self) -> impl Iterator<Item = (FaultKind, u64)> {
        self.0.iter().copied()
    }
}

/// How the slot stood when the guard looked last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotSample {
    /// Bytes of WAL that it retains.
    pub retained_bytes: u64,
    /// Bytes that may be written before it is lost, where `max_slot_wal_keep_size` sets a limit.
    pub safe_bytes: Option<i64>,
    /// PostgreSQL's word for whether its WAL is still kept.
    pub wal_status: Option<&'static str>,
    /// Where the log ended.
    pub end: Lsn,
}

/// How the deleting of old rows stands. Delivery does not depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RetentionStatus {
    /// Rows deleted since the start.
    pub deleted: u64,
    /// Rounds that failed since the start.
    pub failures: u64,
    /// Why the last round of a table failed.
    pub fault: Option<Fault>,
}

/// How the marking of published rows stands.
#[derive(Debug, Clone, Default)]
pub struct MarkStatus {
    /// Totals since the start.
    pub counters: MarkCounters,
    /// Ids that wait for their mark.
    pub unmarked: usize,
    /// What keeps rows from being marked; delivery goes on.
    pub degraded: Vec<Fault>,
    /// When marking last failed.
    pub failed_at: Option<SystemTime>,
}

impl MarkStatus {
    /// Takes over how things stand, copying texts only where something has changed.
    pub(super) fn take(&mut self, marker: &Self, flow: &Flow) {
        self.counters = *flow.mark_counters();
        self.unmarked = flow.unmarked();
        self.failed_at = marker.failed_at;
        if self.degraded != marker.degraded {
            self.degraded.clone_from(&marker.degraded);
        }
    }
}

/// Whose turn it is to stream from the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// This process's, as far as is known.
    Active,
    /// Another one's, and this one waits.
    Standby,
}

impl Role {
    /// The word for it in JSON and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby => "standby",
        }
    }
}

/// How one side stands, since when, and why.
#[derive(Debug, Clone)]
pub struct SideStatus {
    /// Whether there is a connection.
    pub state: SideState,
    /// Since when.
    pub since: SystemTime,
    /// What keeps it from being up, or from being of use.
    pub fault: Option<Fault>,
}

/// Whether there is a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SideState {
    /// The first connection is being made.
    Connecting,
    /// Connected.
    Up,
    /// Waiting for its turn: the database for the slot that another process streams from, a stream for a session.
    Waiting,
    /// Not connected; tried again by itself.
    Down,
}

impl SideState {
    /// The word for it in JSON.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Waiting => "waiting",
            Self::Down => "down",
        }
    }
}

/// Whether events pass.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// They do, as far as both sides are up.
    Flowing,
    /// One event is held, and nothing is admitted behind it.
    Held {
        /// Since when.
        since: SystemTime,
        /// Which event and why.
        fault: Fault,
        /// The event's id, if it has a usable one.
        event_id: Option<String>,
        /// Its place in the stream.
        position: EventPosition,
    },
    /// The relay was asked to stop and delivers what is in flight.
    Stopping,
}

impl Status {
    /// Before anything has happened.
    #[must_use]
    pub fn new(slot: String) -> Self {
        let side = SideStatus {
            state: SideState::Connecting,
            since: SystemTime::now(),
            fault: None,
        };
        Self {
            slot,
            role: Role::Active,
            sink: SinkKind::RabbitMq,
            database: side.clone(),
            broker: side,
            delivery: Delivery::Flowing,
            risks: Vec::new(),
            counters: Counters::default(),
            in_flight: 0,
            in_flight_bytes: 0,
            held: 0,
            oldest_unsettled: None,
            durable: None,
            received: None,
            retention: RetentionStatus::default(),
            slot_sample: None,
            dead_letters: None,
            backfill_left: None,
            backfill: Totals::default(),
            status_updates: 0,
            sessions: 0,
            links: 0,
            database_failures: Failures::default(),
            broker_failures: Failures::default(),
            marks: MarkStatus::default(),
            spans_dropped: 0,
            ticked: Instant::now(),
            progressed: None,
        }
    }

    /// Whether a committed event would be delivered now; of a standby, whether it would be if the slot were free.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.database.is_of_use() && self.broker.is_of_use() && matches!(self.delivery, Delivery::Flowing)
    }

    /// The faults that stand between a committed event and its delivery.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        let held = match &self.delivery {
            Delivery::Held { fault, .. } => Some(fault),
            Delivery::Flowing | Delivery::Stopping => None,
        };
        [self.database.fault.as_ref(), self.broker.fault.as_ref(), held]
            .into_iter()
            .flatten()
    }

    /// The kinds of fault that need a person. A held event is not among them: it waits under its policy.
    pub fn halts(&self) -> impl Iterator<Item = FaultKind> {
        self.faults()
            .map(|fault| fault.kind)
            .filter(|kind| kind.class() == Class::Halted)
    }
}

impl SideStatus {
    /// Takes over another status, copying texts only where something has changed.
    pub(super) fn clone_from_changed(&mut self, other: &Self) {
        if self.state != other.state || self.since != other.since || self.fault != other.fault {
            self.clone_from(other);
        }
    }

    /// Whether it is connected, or waits for its turn, and nothing speaks against it.
    #[must_use]
    pub fn is_of_use(&self) -> bool {
        matches!(self.state, SideState::Up | SideState::Waiting) && self.fault.is_none()
    }
}
