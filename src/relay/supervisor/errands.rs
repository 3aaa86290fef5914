//! Which errand is next, and what its outcome means: dead letters, skips, long holds, the guard.

use std::time::{Duration, Instant};

use walrelay_engine::Lsn;
use walrelay_engine::flow::SetAside;
use walrelay_engine::key::EventKey;
use walrelay_engine::window::{Failure, Seq};

use super::{Relay, retries};
use crate::fault::{Fault, FaultKind};
use crate::postgres::dead_letters::{Columns, NewDeadLetter, Reason};
use crate::postgres::skips::Skip;
use crate::postgres::{EventPosition, QualifiedTable};
use crate::relay::backfill::Request;
use crate::relay::errands::{Counted, Done, Ended, Errand, ErrandKind, LoadedRetry, Pending};
use crate::relay::faults;

/// How often a held event is looked after. A skip need not be quicker, and the database is asked for nothing else.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// Dead letters stored by one transaction, and retries recorded by one, at most.
const BATCH: usize = 256;

/// Bytes of rows above which no further one is stored by the same transaction.
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// How long a count of the pending dead letters is carried on.
const COUNT_INTERVAL: Duration = Duration::from_secs(10);

impl Relay {
    /// Starts the next errand, if one is due and none runs.
    pub(super) fn start_errand(&mut self, now: Instant) {
        let stops = self.stop_by.is_some();
        self.backfill.plan_strike(&mut self.flow, stops, now);
        if !self.errands.is_free(now) {
            return;
        }
        let Some(session) = self.database.up() else { return };
        let process_id = session.process_id();
        // What fails may fail because of one row: those before it are not kept back.
        let batch = if self.care.failing.is_some() { 1 } else { BATCH };
        let errand = if let Some((skip, key)) = self.care.unrecorded.clone() {
            Errand::RecordSkip { skip, key }
        } else if let (Some(held), true) = (self.flow.held(), now >= self.care.look_at) {
            self.care.look_at = now + LOOK_INTERVAL;
            Errand::LookAfter {
                key: held.key,
                table: self.flow.held_table().unwrap_or_default(),
                event_id: held.message_id.map(str::to_owned),
                count: self.settings.flow.keep_rows,
            }
        } else if now >= self.care.guard_at {
            self.care.guard_at = now + self.settings.care.guard_interval;
            Errand::Guard
        } else if let Some(errand) = self.dead_letter_errand(batch, process_id, now) {
            errand
        } else if let Some(request) = self.backfill_request(now) {
            Errand::Backfill {
                request,
                process_id,
                max_event_bytes: self.settings.database.start.max_event_bytes,
            }
        } else if self.failed_for_nothing() {
            self.care.failing = Some(ErrandKind::Guard);
            Errand::Guard
        } else {
            return;
        };
        self.errands.start(&self.streaming, errand);
    }

    /// Whether what failed is no longer wanted, if nothing else is: then the guard tells whether the fault is over.
    fn failed_for_nothing(&self) -> bool {
        match self.care.failing {
            Some(ErrandKind::LookAfter) => self.flow.held().is_none(),
            failing => failing.is_some(),
        }
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
    pub(super) fn errand_deadline(&mut self, now: Instant) -> Option<Instant> {
        self.database.up()?;
        let free_at = self.errands.deadline()?;
        let has_dead_letters = self.flow.set_aside_count() > 0
            || self.flow.has_retries_over()
            || self.flow.retry_room().is_some();
        let has_backfill = self.backfill_request(now).is_some();
        let is_wanted =
            self.care.unrecorded.is_some() || self.failed_for_nothing() || has_dead_letters || has_backfill;
        let wanted = if is_wanted {
            free_at
        } else if self.flow.held().is_some() {
            self.care.look_at.min(self.care.guard_at)
        } else {
            self.care.guard_at
        };
        let strike = self.backfill.deadline();
        Some(strike.map_or(wanted, |strike| wanted.min(strike)).max(free_at))
    }

    /// Takes in what came of an errand.
    pub(super) fn errand_ended(&mut self, ended: Ended, now: Instant) {
        let Ended {
            kind,
            result,
            is_outdated,
        } = ended;
        match result {
            Ok(done) => {
                // An outdated one cannot be meant: what failed is forgotten with its session.
                if self.care.succeeded(kind) && !self.database.is_in_doubt() {
                    self.database.set_fault(None);
                }
                self.errand_done(done, now);
            }
            Err(fault) if is_outdated => {
                tracing::debug!(error = fault.message, "errand of a session that is lost failed");
            }
            Err(fault) => self.errand_failed(kind, fault, now),
        }
    }

    fn errand_done(&mut self, done: Done, now: Instant) {
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
                safe_bytes,
                pending,
            } => {
                // With as many as are allowed, events are held: a person who settles some makes room for them (R10).
                if let Some(pending) = pending {
                    self.count_dead_letters(pending, now);
                }
                self.looked_after(key, skip, now);
                self.end_long_hold(key, flushed, safe_bytes, now);
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
                if answer.request.are_unmarked {
                    self.marker.rows_are_noted(now);
                }
                if let Err(fault) = self.backfill.answered(&mut self.flow, *answer, now) {
                    self.fail_session(fault, now);
                }
            }
            Done::Guarded {
                sample,
                dead_letters,
                are_due,
            } => {
                self.status.send_modify(|status| {
                    status.slot_sample = sample;
                    status.dead_letters = dead_letters.or(status.dead_letters);
                });
                if are_due && !self.flow.is_backfilling() {
                    let message = "rows were noted that go out before the stream".to_owned();
                    let kind = FaultKind::RowsNoted;
                    self.fail_session(Fault { kind, message }, now);
                }
            }
        }
    }

    fn backfill_request(&self, now: Instant) -> Option<Request> {
        self.backfill.request(&self.flow, self.stop_by.is_some(), now)
    }

    fn errand_failed(&mut self, kind: ErrandKind, fault: Fault, now: Instant) {
        if faults::stops_the_stream(fault.kind) {
            return self.fail_session(fault, now);
        }
        self.care.failed(kind, now);
        // What cannot be stored or looked up holds delivery up: it is said like any other fault.
        if !self.database.is_in_doubt() {
            self.note_database_halt(fault.kind);
            self.database.set_fault(Some(fault));
        }
    }

    fn looked_after(&mut self, key: EventKey, skip: Option<Skip>, now: Instant) {
        if self.flow.held().is_none_or(|held| held.key != key) {
            return;
        }
        if let Some(skip) = skip
            && self.flow.skip_held(now)
        {
            tracing::warn!(
                event_id = skip.event_id,
                commit_lsn = %key.transaction.commit_lsn,
                tx_seq = key.tx_seq,
                reason = skip.reason,
                requested_by = skip.requested_by,
                "held event skipped"
            );
            self.care.unrecorded = Some((skip, key));
            // Before any answer of the broker's queues a mark, with a prefix that covers the skip (R19).
            self.flow.hold_prefix(true);
        }
    }

    /// The event that is held becomes a dead letter where that has cost too much WAL, or the slot would soon be lost (R10).
    fn end_long_hold(&mut self, key: EventKey, flushed: Lsn, safe_bytes: Option<i64>, now: Instant) {
        if self.flow.held().is_none_or(|held| held.key != key) {
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
        let limit = self.settings.care.hold_max_wal;
        if limit.is_some_and(|limit| is_too_long(limit, written, safe_bytes)) && self.flow.set_held_aside(now)
        {
            tracing::warn!(
                commit_lsn = %key.transaction.commit_lsn,
                tx_seq = key.tx_seq,
                written,
                safe_bytes,
                "held event becomes a dead letter: too much WAL was written, or too little more may be"
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
        self.status
            .send_modify(|status| status.dead_letters = Some(count));
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

/// Whether a hold has cost more than `limit` bytes of WAL, or less than a tenth of that is left before the slot is lost.
fn is_too_long(limit: u64, written: u64, safe_bytes: Option<i64>) -> bool {
    let is_low = |left: i64| u64::try_from(left).unwrap_or_default() < limit / 10;
    written > limit || safe_bytes.is_some_and(is_low)
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
        Failure::Invalid { .. } | Failure::Unreadable { .. } => Reason::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_a_hold_ends_by_what_was_written_or_by_what_may_be() {
        for (written, safe_bytes, is_over) in [
            (1_000, None, false),
            (1_001, None, true),
            (0, Some(100), false),
            (0, Some(99), true),
            (0, Some(-1), true),
        ] {
            assert_eq!(
                is_too_long(1_000, written, safe_bytes),
                is_over,
                "{written} {safe_bytes:?}"
            );
        }
    }
}
