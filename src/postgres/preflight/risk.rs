//! What fits, but could be lost or go wrong later.

use super::super::catalog::ServerFacts;
use super::super::identifier::SlotName;
use super::super::slot::SlotState;
use super::Preflight;
use crate::fault::FaultKind;

/// Something to tell an operator, though it stops nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Risk {
    /// Nothing makes the stream wait for the standbys that the slot is synchronised to.
    #[error(
        "the slot `{slot}` is synchronised to standbys, but synchronized_standby_slots is empty: a standby could be \
         promoted without events that were published already"
    )]
    StandbyBehind {
        /// Its name.
        slot: SlotName,
    },
}

impl Risk {
    /// Which row of the table of faults this is.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Self::StandbyBehind { .. } => FaultKind::StandbyBehind,
        }
    }
}

impl Preflight {
    /// What could be lost or go wrong later; `slot` is the slot's name.
    pub fn risks(&self, slot: &SlotName) -> impl Iterator<Item = Risk> {
        standby_behind(&self.server, &self.slot, slot).into_iter()
    }
}

/// Whether a standby could be promoted that lacks what was published.
pub(in crate::postgres) fn standby_behind(
    server: &ServerFacts,
    state: &SlotState,
    slot: &SlotName,
) -> Option<Risk> {
    // Without a physical slot no standby can synchronise ours: it needs one of its own.
    let behind = state.failover && server.has_physical_slot && server.synchronized_standby_slots.is_empty();
    behind.then(|| Risk::StandbyBehind { slot: slot.clone() })
}
