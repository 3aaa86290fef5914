//! Events that cannot be delivered as they are: held, discarded, set aside or skipped, by their policy.

use std::time::Instant;

use super::Flow;
use crate::Lsn;
use crate::key::EventKey;
use crate::marks::TableNo;
use crate::policy::Policy;
use crate::row::Row;
use crate::window::{Entry, Failure, Seq, State};

/// An event that failed.
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
    /// Why.
    pub failure: &'a Failure,
    /// How often it has failed.
    pub attempts: u32,
}

/// An event that is to be stored as a dead letter.
#[derive(Debug, Clone, Copy)]
pub struct SetAside<'a> {
    /// Its place, for [`Flow::stored`].
    pub seq: Seq,
    /// What failed, and why.
    pub event: Held<'a>,
    /// The row as PostgreSQL sent it.
    pub row: &'a Row,
}

/// An event that was dropped by policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discarded {
    /// Which event.
    pub key: EventKey,
    /// Its id, where it has a usable one.
    pub message_id: Option<String>,
    /// Why it could not be delivered.
    pub failure: Failure,
}

impl Flow {
    /// The oldest event that is held, if any.
    #[must_use]
    pub fn held(&self) -> Option<Held<'_>> {
        self.window
            .oldest_failed()
            .map(|(_, entry, failure)| describe(entry, failure))
    }

    /// The place in the configuration of the table of the event that [`held`](Self::held) tells.
    #[must_use]
    pub fn held_table(&self) -> Option<TableNo> {
        self.window.oldest_failed().map(|(_, entry, _)| entry.table)
    }

    /// How many events are held.
    #[must_use]
    pub const fn held_count(&self) -> usize {
        self.window.failed()
    }

    /// Settles the oldest held event, which a person has decided to skip. `false` where none is held, or while it is being
    /// tried again: then the answer decides, and the request is to be looked at again after it.
    pub fn skip_held(&mut self, now: Instant) -> bool {
        let Some((seq, _, _)) = self.window.oldest_failed() else {
            return false;
        };
        if self.probe == Some(seq) {
            return false;
        }
        self.counters.skipped += 1;
        self.settle(seq, Lsn::INVALID);
        self.resolved(false, now);
        true
    }

    /// Sets the oldest held event aside although its policy is to hold: it has held for too long (R10). `false` where
    /// none is held that could become a dead letter.
    pub fn set_held_aside(&mut self, now: Instant) -> bool {
        let Some((seq, entry, failure)) = self.window.oldest_failed() else {
            return false;
        };
        if failure.heals_alone() || entry.row.is_none() || self.dead_letters_full || self.probe == Some(seq) {
            return false;
        }
        self.window.set_aside(seq);
        self.resolved(false, now);
        true
    }

    /// With so many dead letters pending, further events are held after all (R10). Once there is room again, those whose
    /// policy is to be set aside are.
    pub fn set_dead_letters_full(&mut self, full: bool) {
        self.dead_letters_full = full;
        if full {
            return;
        }
        let waiting: Vec<Seq> = self
            .window
            .all_failed()
            .filter(|(seq, entry, failure)| {
                // The answer to a probe applies the policy itself.
                entry.row.is_some()
                    && self.probe != Some(*seq)
                    && self.config.policies.of(failure, entry.on_unroutable) == Policy::DeadLetter
            })
            .map(|(seq, ..)| seq)
            .collect();
        for seq in waiting {
            self.window.set_aside(seq);
        }
        if self.window.failed() == 0 {
            self.hold.release();
        }
    }

    /// How many events are to be stored as dead letters.
    #[must_use]
    pub const fn set_aside_count(&self) -> usize {
        self.window.setting_aside()
    }

    /// The events that are to be stored as dead letters, oldest first.
    pub fn set_aside(&self) -> impl Iterator<Item = SetAside<'_>> {
        self.window.all_set_aside().filter_map(|(seq, entry, failure)| {
            Some(SetAside {
                seq,
                event: describe(entry, failure),
                row: entry.row.as_ref()?,
            })
        })
    }

    /// The oldest event that is to be stored as a dead letter, if any.
    #[must_use]
    pub fn next_set_aside(&self) -> Option<SetAside<'_>> {
        self.set_aside().next()
    }

    /// A dead letter is stored, by a transaction that ends at or before `end`: its event is settled, and the durable LSN
    /// passes it once the stream has been received beyond that end (R15).
    pub fn stored(&mut self, seq: Seq, end: Lsn, now: Instant) {
        // An older one may have been set aside since this one was handed out.
        let is_set_aside = self
            .window
            .entry(seq)
            .is_some_and(|entry| matches!(entry.state, State::SettingAside(_)));
        if is_set_aside {
            self.counters.dead_lettered += 1;
            self.barrier = self.barrier.max(end);
            self.settle(seq, end);
            self.resolved(false, now);
        }
    }

    /// The events dropped by policy since the last call. To be taken in every turn: they are kept until then.
    pub fn take_discarded(&mut self) -> impl Iterator<Item = Discarded> + '_ {
        self.discarded.drain(..)
    }

    /// An event failed: its policy is applied.
    pub(super) fn fail(&mut self, seq: Seq, failure: Failure, now: Instant) {
        self.count(&failure);
        let probe = self.take_probe(seq);
        let of_rule = self.window.entry(seq).and_then(|entry| entry.on_unroutable);
        let policy = self.config.policies.of(&failure, of_rule);
        self.window.fail(seq, failure);
        match policy {
            Policy::Discard => {
                self.note_discarded(seq);
                self.mark(seq, now);
                self.settle(seq, Lsn::INVALID);
                self.resolved(probe, now);
            }
            Policy::DeadLetter if !self.dead_letters_full && self.has_row(seq) => {
                self.window.set_aside(seq);
                self.resolved(probe, now);
            }
            Policy::Hold | Policy::DeadLetter => {
                let retried = self.window.entry(seq).is_some_and(Entry::is_retryable);
                if retried {
                    self.hold.failed(probe, now);
                }
            }
        }
    }

    /// An event that had failed is settled, or on its way to be.
    pub(super) fn resolved(&mut self, probe: bool, now: Instant) {
        if self.window.failed() == 0 {
            self.hold.release();
        } else if probe {
            self.hold.probe_confirmed(now);
        }
    }

    /// Settles an event; the durable LSN may pass it once the stream has been received beyond `barrier`.
    pub(super) fn settle(&mut self, seq: Seq, barrier: Lsn) {
        let history = &mut self.history;
        let transaction = self.window.settle(seq, |key| history.settled(key));
        let Some(session) = &mut self.session else { return };
        match transaction {
            Some(transaction) => {
                session.ledger.settle_beyond(transaction, barrier);
                session.report.settled();
            }
            // This session has yet to bring the event, and will find it settled.
            None => session.ledger.wait_beyond(barrier),
        }
    }

    pub(super) fn count(&mut self, failure: &Failure) {
        let counter = match failure {
            Failure::Unroutable { .. } => &mut self.counters.returned,
            Failure::Nacked => &mut self.counters.nacked,
            Failure::Unanswered => &mut self.counters.unanswered,
            Failure::Refused { .. } => &mut self.counters.refused,
            Failure::Invalid { .. } | Failure::Unreadable { .. } => &mut self.counters.invalid,
        };
        *counter += 1;
    }

    fn note_discarded(&mut self, seq: Seq) {
        self.counters.discarded += 1;
        let Some((entry, failure)) = self.window.failed_entry(seq) else {
            return;
        };
        let held = describe(entry, failure);
        let discarded = Discarded {
            key: held.key,
            message_id: held.message_id.map(str::to_owned),
            failure: failure.clone(),
        };
        self.discarded.push_back(discarded);
    }

    fn has_row(&self, seq: Seq) -> bool {
        self.window.entry(seq).is_some_and(|entry| entry.row.is_some())
    }
}

/// The event's id, where the row has a usable one.
pub(super) fn event_id(entry: &Entry) -> Option<&str> {
    match &entry.state {
        State::Failed(Failure::Invalid { id: Some(id), .. })
        | State::SettingAside(Failure::Invalid { id: Some(id), .. }) => Some(id),
        State::Failed(_) | State::SettingAside(_) | State::Queued | State::Sent | State::Settled => {
            entry.message.as_ref().and_then(|message| message.message_id())
        }
    }
}

fn describe<'a>(entry: &'a Entry, failure: &'a Failure) -> Held<'a> {
    let message = entry.message.as_ref();
    Held {
        key: entry.key,
        message_id: event_id(entry),
        exchange: message.and_then(|message| message.exchange()),
        routing_key: message.and_then(|message| message.routing_key()),
        failure,
        attempts: entry.attempts,
    }
}
