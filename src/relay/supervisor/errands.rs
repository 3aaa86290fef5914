//! Which errand is next, and what its outcome means: dead letters, skips, long holds, the guard.

use std::time::{Duration, Instant};

use walrelay_engine::Lsn;
use walrelay_engine::flow::SetAside;
use walrelay_engine::key::EventKey;
use walrelay_engine::window::{Failure, Seq};

use super::{Relay, retries};
use crate::fault::Fault;
use crate::postgres::dead_letters::{Columns, NewDeadLetter, Reason};
use crate::postgres::skips::Skip;
use crate::postgres::{EventPosition, QualifiedTable};
use crate::relay::backfill::Request;
use crate::relay::errands::{Counted, Done, Errand, LoadedRetry, Pending};
use crate::relay::faults;

/// How often a held event is looked after. A skip need not be quicker, and the database is asked for nothing else.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Dead letters stored by one transaction, and retries recorded by one, at most.
const BATCH: usize = 256;

/// Bytes of rows above which no further one is stored by the same transaction.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// How long a count of the pending dead letters is carried on.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

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
    /// How many dead letters are pending, and when they were counted, in this session.
    pending: Option<(u64, Instant)>,
}

impl Care {
    pub(super) fn new(now: Instant, settings: &CareSettings) -> Self {
        Self {
            look_at: now,
            guard_at: now + settings.guard_interval,
            hold: None,
            unrecorded: None,
            failing: false,
            pending: None,
        }
    }

    /// Another process may store dead letters until the next session.
    pub(super) const fn stream_lost(&mut self) {
        self.pending = None;
    }

    /// Whether a skip has settled its event and is not yet on record.
    pub(super) const fn has_unrecorded_skip(&self) -> bool {
        self.unrecorded.is_some()
    }

    /// At the relay's end: the request of a skip that is not on record stays open, for another event of the same id.
    pub(super) fn tell_unrecorded_skip(&self) {
        if let Some((skip, key)) = &self.unrecorded {
            tracing::warn!(
                commit_lsn = %key.transaction.commit_lsn,
                tx_seq = key.tx_seq,
                reason = skip.reason,
                requested_by = skip.requested_by,
                "the skip of an event could not be put on record: its request stays open"
            );
        }
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
        // After a fail-over no errand may land on the server of before (R15).
        let connector = session.connector().clone();
        // What fails may fail because of one row: the others go past it.
        let batch = if self.care.failing { 1 } else { BATCH };
        let errand = if let Some((skip, key)) = self.care.unrecorded.clone() {
            Errand::RecordSkip { skip, key }
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
        } else if let Some(process_id) = process_id
            && let Some(errand) = self.dead_letter_errand(batch, process_id, now)
        {
            errand
        } else if let (Some(request), Some(process_id)) = (self.backfill_request(), process_id) {
            Errand::Backfill {
                request,
                process_id,
                max_event_bytes: self.settings.database.start.max_event_bytes,
            }
        } else {
            return;
        };
        let settings = self.settings.database.at(&connector);
        self.errands.start(&settings, errand);
    }

    /// What is to be done about dead letters and retries.
    fn dead_letter_errand(&self, batch: usize, process_id: i32, now: Instant) -> Option<Errand> {
        if self.flow.set_aside_count() > 0 {
            return Some(Errand::Store {
                letters: self.to_store(batch),
                process_id,
                pending: self.pending(now),
            });
        }
        if self.flow.has_retries_over() {
            return Some(Errand::RecordRetries {
                retries: self
                    .flow
                    .retries_over()
                    .take(batch)
                    .map(|over| retries::record(&over))
                    .collect(),
                process_id,
                pending: self.pending(now),
            });
        }
        let bytes = self.flow.retry_room()?;
        let wanted = self.flow.retries_to_load().into_iter().take(batch);
        let requests =
            wanted.map(|(token, (commit_lsn, tx_seq))| (token, EventPosition { commit_lsn, tx_seq }));
        Some(Errand::LoadRetries {
            requests: requests.collect(),
            bytes,
            process_id,
        })
    }

    /// The dead letters of the next transaction: bounded by count, and by bytes but for the last of them.
    fn to_store(&self, batch: usize) -> Vec<(Seq, NewDeadLetter)> {
        let mut bytes = 0;
        self.flow
            .set_aside()
            .take(batch)
            .take_while(|aside| {
                let is_first = bytes == 0;
                bytes += aside.row.len();
                is_first || bytes <= BATCH_BYTES
            })
            .map(|aside| (aside.seq, dead_letter(&aside)))
            .collect()
    }

    fn pending(&self, now: Instant) -> Pending {
        let waiting = u64::try_from(self.flow.set_aside_count()).unwrap_or(u64::MAX);
        let counted = self.care.pending;
        Pending {
            known: counted
                .filter(|(_, at)| now < *at + COUNT_INTERVAL)
                .map(|(count, _)| count),
            exact_from: self.settings.care.dead_letters_max.saturating_sub(waiting),
        }
    }

    /// When an errand is due, as far as that is known.
    pub(super) fn errand_deadline(&mut self) -> Option<Instant> {
        let has_process_id = self.database.up()?.process_id().is_some();
        let free_at = self.errands.deadline()?;
        let has_dead_letters = self.flow.set_aside_count() > 0
            || self.flow.has_retries_over()
            || self.flow.retry_room().is_some();
        let has_backfill = self.backfill_request().is_some();
        let is_wanted =
            self.care.unrecorded.is_some() || (has_process_id && (has_dead_letters || has_backfill));
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
            Done::Stored { seqs, end, pending } => {
                self.tell_stored(&seqs, pending.count);
                for seq in seqs {
                    self.flow.stored(seq, end, now);
                }
                self.count_dead_letters(pending, now);
            }
            Done::LookedAfter {
                key,
                skip,
                flushed,
                pending,
            } => {
                // With as many as are allowed, events are held: a person who settles some makes room for them (R10).
                if let Some(pending) = pending {
                    self.count_dead_letters(pending, now);
                }
                self.looked_after(key, skip, flushed, now);
            }
            Done::Recorded => self.care.unrecorded = None,
            Done::RetriesLoaded(loaded) => {
                for (token, retry) in loaded {
                    match retry {
                        LoadedRetry::Event(event) => self.flow.retry_loaded(token, *event),
                        LoadedRetry::NotRetrying(position) => {
                            retries::tell_ignored(&self.settings.database.source.slot, position);
                            self.flow.retry_ignored(token);
                        }
                    }
                }
            }
            Done::RetriesRecorded {
                retries,
                end,
                pending,
            } => {
                for retry in retries {
                    retries::tell(&self.settings.database.source.slot, &retry, pending.count);
                    self.flow.retry_recorded(retry.token, end, now);
                }
                self.count_dead_letters(pending, now);
            }
            Done::Backfill(answer) => {
                if let Err(fault) = self.backfill.answered(&mut self.flow, *answer, now) {
                    self.fail_session(fault, now);
                }
            }
            Done::Guarded(sample) => self.status.send_modify(|status| status.slot_sample = sample),
        }
    }

    fn backfill_request(&self) -> Option<Request> {
        self.backfill.request(&self.flow, self.stop_by.is_some())
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
        if self.flow.held().is_none_or(|held| held.key != key) {
            return;
        }
        if let Some(skip) = skip {
            if self.flow.skip_held(now) {
                tracing::warn!(
                    event_id = skip.event_id,
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
    fn count_dead_letters(&mut self, pending: Counted, now: Instant) {
        let Counted { count, is_exact } = pending;
        let counted_at = match self.care.pending {
            Some((_, at)) if !is_exact => at,
            _ => now,
        };
        self.care.pending = Some((count, counted_at));
        let waiting = u64::try_from(self.flow.set_aside_count()).unwrap_or(u64::MAX);
        let full = count.saturating_add(waiting) >= self.settings.care.dead_letters_max;
        self.flow.set_dead_letters_full(full);
    }

    fn tell_stored(&self, seqs: &[Seq], pending: u64) {
        let stored = self
            .flow
            .set_aside()
            .filter(|aside| seqs.binary_search(&aside.seq).is_ok());
        for aside in stored {
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

fn dead_letter(aside: &SetAside<'_>) -> NewDeadLetter {
    let event = &aside.event;
    NewDeadLetter {
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
