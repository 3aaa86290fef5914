//! Which errand is next, and what its outcome means: dead letters, skips, long holds, the guard.

use std::time::{Duration, Instant};

use walrelay_engine::Lsn;
use walrelay_engine::flow::{RetryWork, SetAside};
use walrelay_engine::key::EventKey;
use walrelay_engine::window::Failure;

use super::{Relay, retries};
use crate::fault::Fault;
use crate::postgres::dead_letters::{Columns, NewDeadLetter, Reason};
use crate::postgres::skips::Skip;
use crate::postgres::{EventPosition, QualifiedTable, SlotName};
use crate::relay::errands::{Done, Errand};
use crate::relay::faults;

/// How often a held event is looked after. A skip need not be quicker, and the database is asked for nothing else.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The settings of what happens to failed events, and of the guard.
#[derive(Debug, Clone, Copy)]
pub struct CareSettings {
    /// Bytes of WAL written during a hold before the event becomes a dead letter (R10).
    pub hold_max_wal: Option<u64>,
    /// With so many dead letters pending, events are held after all (R10).
    pub dead_letters_max: u64,
    /// How often the publication is compared with its baseline (R5).
    pub guard_interval: Duration,
}

/// What the relay remembers between errands.
#[derive(Debug)]
pub(super) struct Care {
    /// When a held event is to be looked after again.
    look_at: Instant,
    /// When the guard is due.
    guard_at: Instant,
    /// The event of the current hold, and where the WAL ended when it was first looked after.
    hold: Option<(EventKey, Lsn)>,
    /// A skip that has settled its event and is not yet on record.
    unrecorded: Option<(Skip, EventKey)>,
    /// An errand failed, and has not succeeded since.
    failing: bool,
}

impl Care {
    pub(super) fn new(now: Instant, settings: &CareSettings) -> Self {
        Self {
            look_at: now,
            guard_at: now + settings.guard_interval,
            hold: None,
            unrecorded: None,
            failing: false,
        }
    }
}

impl Care {
    /// Whether a skip has settled an event and is not yet on record.
    pub(super) const fn has_unrecorded_skip(&self) -> bool {
        self.unrecorded.is_some()
    }
}

impl Relay {
    /// Starts the next errand, if one is due and none runs.
    pub(super) fn start_errand(&mut self, now: Instant) {
        if !self.errands.is_free(now) {
            return;
        }
        let Some(session) = self.database.up() else { return };
        let process_id = session.process_id();
        let slot = &self.settings.database.source.slot;
        let errand = if let Some((skip, key)) = self.care.unrecorded.clone() {
            Errand::RecordSkip { skip, key }
        } else if let (Some(aside), Some(process_id)) = (self.flow.next_set_aside(), process_id) {
            Errand::Store {
                seq: aside.seq,
                letter: Box::new(dead_letter(slot, &aside)),
                process_id,
            }
        } else if let (Some(RetryWork::Record(over)), Some(process_id)) = (self.flow.next_retry(), process_id)
        {
            Errand::RecordRetry {
                retry: retries::record(&over),
                process_id,
            }
        } else if let Some(RetryWork::Load {
            token,
            position: (commit_lsn, tx_seq),
        }) = self.flow.next_retry()
        {
            let position = EventPosition { commit_lsn, tx_seq };
            Errand::LoadRetry { token, position }
        } else if let (Some(held), true) = (self.flow.held(), now >= self.care.look_at) {
            self.care.look_at = now + LOOK_INTERVAL;
            Errand::LookAfter {
                key: held.key,
                event_id: held.message_id.map(str::to_owned),
                count: self.settings.flow.keep_rows,
            }
        } else if now >= self.care.guard_at {
            self.care.guard_at = now + self.settings.care.guard_interval;
            Errand::Guard
        } else {
            return;
        };
        self.errands.start(&self.settings.database, errand);
    }

    /// When an errand is due, as far as that is known.
    pub(super) fn errand_deadline(&mut self) -> Option<Instant> {
        self.database.up()?;
        let free_at = self.errands.deadline()?;
        let is_wanted = self.care.unrecorded.is_some()
            || self.flow.next_set_aside().is_some()
            || self.flow.next_retry().is_some();
        let wanted = if is_wanted {
            free_at
        } else if self.flow.held().is_some() {
            self.care.look_at.min(self.care.guard_at)
        } else {
            self.care.guard_at
        };
        Some(wanted.max(free_at))
    }

    /// Takes in what came of an errand.
    pub(super) fn errand_done(&mut self, result: Result<Done, Fault>, now: Instant) {
        let done = match result {
            Ok(done) => done,
            Err(fault) => return self.errand_failed(fault, now),
        };
        if std::mem::take(&mut self.care.failing) {
            self.database.set_fault(None);
        }
        match done {
            Done::Stored { seq, end, pending } => {
                self.tell_stored(pending);
                self.flow.stored(seq, end, now);
                self.count_dead_letters(pending);
            }
            Done::LookedAfter {
                key,
                skip,
                flushed,
                pending,
            } => {
                // With as many as are allowed, events are held: a person who settles some makes room for them (R10).
                if let Some(pending) = pending {
                    self.count_dead_letters(pending);
                }
                self.looked_after(key, skip, flushed, now);
            }
            Done::Recorded => self.care.unrecorded = None,
            Done::RetryLoaded { token, event } => match event {
                Some(event) => self.flow.retry_loaded(token, *event),
                None => self.flow.retry_ignored(token),
            },
            Done::RetryRecorded { retry, end, pending } => {
                retries::tell(&self.settings.database.source.slot, &retry, pending);
                self.flow.retry_recorded(retry.token, end, now);
                self.flow
                    .set_dead_letters_full(pending >= self.settings.care.dead_letters_max);
            }
            Done::Guarded => {}
        }
    }

    fn errand_failed(&mut self, fault: Fault, now: Instant) {
        if faults::stops_the_stream(fault.kind) {
            return self.fail_session(fault, now);
        }
        // What cannot be stored or looked up holds delivery up: it is said like any other fault.
        self.care.failing = true;
        self.database.set_fault(Some(fault));
    }

    fn looked_after(&mut self, key: EventKey, skip: Option<Skip>, flushed: Lsn, now: Instant) {
        if self.flow.held().map(|held| held.key) != Some(key) {
            return;
        }
        if let Some(skip) = skip {
            if self.flow.skip_held(now) {
                tracing::warn!(
                    commit_lsn = %key.transaction.commit_lsn,
                    tx_seq = key.tx_seq,
                    reason = skip.reason,
                    requested_by = skip.requested_by,
                    "held event skipped"
                );
                self.care.unrecorded = Some((skip, key));
            }
            return;
        }
        let began = match self.care.hold {
            Some((held, began)) if held == key => began,
            _ => {
                self.care.hold = Some((key, flushed));
                flushed
            }
        };
        let written = flushed.bytes_since(began);
        if self
            .settings
            .care
            .hold_max_wal
            .is_some_and(|limit| written > limit)
            && self.flow.set_held_aside(now)
        {
            tracing::warn!(
                commit_lsn = %key.transaction.commit_lsn,
                tx_seq = key.tx_seq,
                written,
                "held event becomes a dead letter: too much WAL was written meanwhile"
            );
        }
    }

    /// Those that are still to be stored count as well.
    fn count_dead_letters(&mut self, pending: u64) {
        let waiting = u64::try_from(self.flow.set_aside_count()).unwrap_or(u64::MAX);
        let full = pending.saturating_add(waiting) >= self.settings.care.dead_letters_max;
        self.flow.set_dead_letters_full(full);
    }

    fn tell_stored(&self, pending: u64) {
        if let Some(aside) = self.flow.next_set_aside() {
            tracing::warn!(
                slot = %self.settings.database.source.slot,
                event_id = aside.event.message_id,
                commit_lsn = %aside.event.key.transaction.commit_lsn,
                tx_seq = aside.event.key.tx_seq,
                cause = faults::held_kind(aside.event.failure).label(),
                pending,
                "event stored as a dead letter"
            );
        }
    }
}

fn dead_letter(slot: &SlotName, aside: &SetAside<'_>) -> NewDeadLetter {
    let event = &aside.event;
    NewDeadLetter {
        slot: slot.clone(),
        key: event.key,
        outbox: QualifiedTable {
            schema: aside.row.names.schema.clone(),
            name: aside.row.names.name.clone(),
        },
        event_id: event.message_id.map(str::to_owned),
        reason: reason(event.failure),
        detail: faults::held(event).message,
        exchange: event.exchange.map(str::to_owned),
        routing_key: event.routing_key.map(str::to_owned),
        columns: Columns(aside.row.columns()),
    }
}

pub(super) const fn reason(failure: &Failure) -> Reason {
    match failure {
        Failure::Unroutable { .. } => Reason::Unroutable,
        Failure::Nacked => Reason::Nacked,
        Failure::Unanswered => Reason::Unanswered,
        Failure::Refused { .. } => Reason::Refused,
        Failure::Invalid { .. } => Reason::Invalid,
    }
}
