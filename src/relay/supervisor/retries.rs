//! Retries of dead letters (R16): what a request in the stream means, and what is said of its end.

use walrelay_engine::flow::{Flow, Held, RetryFailure, RetryOver};

use super::errands::reason;
use crate::postgres::dead_letters::{Reason, RetryFate, message};
use crate::postgres::{EventPosition, SlotName};
use crate::relay::errands::RetryRecord;
use crate::relay::faults;

/// Says what the newest request means, if the last frame was one. Messages of other slots, and what is no request, are
/// ignored: any role can write one.
pub(super) fn sort(flow: &mut Flow, slot: &SlotName) {
    let Some((token, content)) = flow.unsorted_retry() else {
        return;
    };
    match message::parse(slot, message::PREFIX, content) {
        Some(EventPosition { commit_lsn, tx_seq }) => flow.retry_wanted(token, (commit_lsn, tx_seq)),
        None => flow.retry_ignored(token),
    }
}

/// What is to be stored of a retry that is over.
pub(super) fn record(over: &RetryOver<'_>) -> RetryRecord {
    let failure = over.failure.map(|failure| match failure {
        RetryFailure::Event(failure) => {
            let held = Held {
                key: over.key,
                message_id: over.event_id,
                exchange: over.exchange,
                routing_key: over.routing_key,
                failure,
                attempts: 0,
            };
            (reason(failure), faults::held(&held).message)
        }
        RetryFailure::Unfit(unfit) => {
            let id = over.event_id.unwrap_or("without a usable id");
            (Reason::Invalid, format!("event {id} at {}: {unfit}", over.key))
        }
    });
    RetryRecord {
        token: over.token,
        event_id: over.event_id.map(str::to_owned),
        fate: RetryFate {
            position: EventPosition::from(&over.key),
            failure,
        },
    }
}

/// One line for each retry that is over and on record.
pub(super) fn tell(slot: &SlotName, retry: &RetryRecord, pending: u64) {
    let RetryRecord { event_id, fate, .. } = retry;
    let RetryFate { position, failure } = fate;
    match failure {
        None => tracing::info!(
            slot = %slot,
            event_id,
            commit_lsn = %position.commit_lsn,
            tx_seq = position.tx_seq,
            pending,
            "dead letter delivered"
        ),
        Some((reason, _)) => tracing::warn!(
            slot = %slot,
            event_id,
            commit_lsn = %position.commit_lsn,
            tx_seq = position.tx_seq,
            cause = %reason,
            pending,
            "retry failed: the event is a dead letter again"
        ),
    }
}

/// A request without effect: it may be forged, or come again after its dead letter was dealt with.
pub(super) fn tell_ignored(slot: &SlotName, position: EventPosition) {
    tracing::info!(
        slot = %slot,
        commit_lsn = %position.commit_lsn,
        tx_seq = position.tx_seq,
        "retry ignored: no dead letter of this key is being retried"
    );
}
