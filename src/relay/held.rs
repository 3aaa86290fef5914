//! Saying which event is held, once for each, and when it no longer is.

use std::time::SystemTime;

use walrelay_engine::flow::{Discarded, Flow};
use walrelay_engine::key::EventKey;

use super::faults;
use super::status::Delivery;
use crate::fault::FaultKind;
use crate::postgres::EventPosition;

/// The held event that has been told of, and why it is held.
#[derive(Debug, Default)]
pub(super) struct HeldTold(Option<(EventKey, FaultKind)>);

impl HeldTold {
    /// Logs what is news, and returns it for the status.
    pub(super) fn tell(&mut self, flow: &Flow, slot: &str) -> Option<Delivery> {
        let held = flow.held();
        let told = held
            .as_ref()
            .map(|held| (held.key, faults::held_kind(held.failure)));
        // A held event that is being tried again is held until the broker has answered for it.
        if told == self.0 || (told.is_none() && flow.is_probing()) {
            return None;
        }
        self.0 = told;
        let Some(held) = held else {
            tracing::info!("no event is held any more");
            return Some(Delivery::Flowing);
        };
        let fault = faults::held(&held);
        macro_rules! log {
            ($level:ident) => {
                tracing::$level!(
                    slot,
                    event_id = held.message_id,
                    commit_lsn = %held.key.transaction.commit_lsn,
                    tx_seq = held.key.tx_seq,
                    exchange = held.exchange,
                    routing_key = held.routing_key,
                    cause = fault.kind.label(),
                    error = fault.message,
                    remedy = fault.kind.remedy(),
                    "event is held"
                )
            };
        }
        match held.failure.heals_alone() {
            true => log!(warn),
            false => log!(error),
        }
        Some(Delivery::Held {
            since: SystemTime::now(),
            fault,
            event_id: held.message_id.map(str::to_owned),
            position: EventPosition::from(&held.key),
        })
    }
}

/// Logs what has been dropped by policy.
pub(super) fn tell_discarded(flow: &mut Flow) {
    for Discarded {
        key,
        message_id,
        failure,
    } in flow.take_discarded()
    {
        tracing::warn!(
            event_id = message_id,
            commit_lsn = %key.transaction.commit_lsn,
            tx_seq = key.tx_seq,
            cause = faults::held_kind(&failure).label(),
            "event discarded by policy"
        );
    }
}
