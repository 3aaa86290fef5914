//! What the relay remembers of failed events and of its errands.

use std::time::{Duration, Instant};

use walrelay_engine::Lsn;
use walrelay_engine::key::EventKey;

use crate::postgres::skips::Skip;
use crate::relay::errands::ErrandKind;

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
    pub(super) look_at: Instant,
    /// When the guard is due.
    pub(super) guard_at: Instant,
    /// The event of the current hold, and where the WAL ended when it was first looked after.
    pub(super) hold: Option<(EventKey, Lsn)>,
    /// A skip that has settled its event and is not yet on record.
    pub(super) unrecorded: Option<(Skip, EventKey)>,
    /// The errand that failed last in this session and has not succeeded since.
    pub(super) failing: Option<ErrandKind>,
    /// How many dead letters are pending, and when they were counted, in this session.
    pub(super) pending: Option<(u64, Instant)>,
}

impl Care {
    pub(super) fn new(now: Instant, settings: &CareSettings) -> Self {
        Self {
            look_at: now,
            guard_at: now + settings.guard_interval,
            hold: None,
            unrecorded: None,
            failing: None,
            pending: None,
        }
    }

    /// Another process may store dead letters until the next session, and another server's errands may not fail.
    pub(super) const fn stream_lost(&mut self) {
        self.pending = None;
        self.failing = None;
    }

    /// An errand has failed in the current session. The guard looks again soon, not only when its turn comes.
    pub(super) fn failed(&mut self, kind: ErrandKind, now: Instant) {
        if kind == ErrandKind::Guard {
            self.guard_at = now;
        }
        self.failing = Some(kind);
    }

    /// An errand has succeeded. Returns whether a fault is over with it.
    pub(super) fn succeeded(&mut self, kind: ErrandKind) -> bool {
        self.failing.take_if(|failing| *failing == kind).is_some()
    }

    /// Whether a skip has settled its event and is not yet on record.
    pub(super) const fn has_unrecorded_skip(&self) -> bool {
        self.unrecorded.is_some()
    }

    /// At the relay's end: the request of a skip that is not on record stays open, for another event of the same id.
    pub(super) fn tell_unrecorded_skip(&self) {
        if let Some((skip, key)) = &self.unrecorded {
            tracing::warn!(
                event_id = skip.event_id,
                commit_lsn = %key.transaction.commit_lsn,
                tx_seq = key.tx_seq,
                reason = skip.reason,
                requested_by = skip.requested_by,
                "the skip of an event could not be put on record: its request stays open"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn care(now: Instant) -> Care {
        let settings = CareSettings {
            hold_max_wal: None,
            dead_letters_max: 10,
            guard_interval: Duration::from_secs(60),
        };
        Care::new(now, &settings)
    }

    /// Or readiness would stay red until its next turn.
    #[test]
    fn a_failed_guard_is_due_again_and_ends_the_fault() {
        let now = Instant::now();
        let mut care = care(now);
        care.failed(ErrandKind::Guard, now);
        assert!(care.guard_at <= now);
        assert!(care.succeeded(ErrandKind::Guard));
        assert!(!care.succeeded(ErrandKind::Guard), "once");
    }

    /// Or readiness would flap while dead letters cannot be stored.
    #[test]
    fn a_fault_is_over_when_what_failed_succeeds() {
        let now = Instant::now();
        let mut care = care(now);
        care.failed(ErrandKind::Store, now);
        assert!(care.guard_at > now);
        assert!(!care.succeeded(ErrandKind::Guard));
        assert!(care.succeeded(ErrandKind::Store));
    }

    #[test]
    fn a_fault_does_not_outlive_its_session() {
        let now = Instant::now();
        let mut care = care(now);
        care.failed(ErrandKind::Store, now);
        care.stream_lost();
        assert!(!care.succeeded(ErrandKind::Store));
    }
}
