//! Whose turn it is to stream: standing by, and what follows a standstill of this process.

use std::time::Instant;

use super::Relay;
use crate::fault::{Fault, FaultKind};
use crate::relay::status::Role;

impl Relay {
    /// After a standstill both sockets are dropped before anything more is written: another process may stream from the
    /// slot by now. A standby has nothing to write.
    pub(super) fn notice_standstill(&mut self, now: Instant) -> bool {
        let Some(gap) = self.wake.stood_still() else {
            return false;
        };
        if self.database.is_waiting() {
            return false;
        }
        let fault = Fault {
            kind: FaultKind::StoodStill,
            message: format!("this process stood still for {gap:?}"),
        };
        self.role_unknown = true;
        // Tries that are under way go too: what they bring may be as old.
        if !self.broker.side.is_idle() {
            self.lose_link(fault.clone(), now);
        }
        if !self.database.is_idle() {
            self.fail_session(fault, now);
        }
        true
    }

    /// Another process streams from the slot.
    pub(super) fn stand_by(&mut self, holder: &str, now: Instant) {
        if !self.database.waits() {
            return;
        }
        let slot = &self.settings.database.source.slot;
        tracing::info!(slot = %slot, holder_pid = holder, "standing by: another process streams from the slot");
        self.role_unknown = false;
        self.status.send_modify(|status| status.role = Role::Standby);
        // The slot stands before all that is in flight here, so it is the other process's to deliver.
        if self.flow.in_flight() > 0 || self.flow.has_retry_in_flight() {
            self.flow.stand_back();
            self.drop_outdated_link("what was in flight is another process's to deliver", now);
        }
    }
}
