//! Standing by: another process streams from the slot, and this one waits for its turn.
//!
//! The wait is a part of opening a session. It uses the session's one connection, where looking at the slot once a second
//! leaves no trace in the server's log, as a refused START_REPLICATION would.

use std::time::Duration;

use super::news::{News, Tell};
use super::session::DatabaseSettings;
use crate::postgres::{Candidate, Error};

/// Between two looks at the slot.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Waits until nobody streams from the slot. Returns whether somebody did.
///
/// # Errors
/// The slot is missing, or the session broke.
pub(super) async fn wait_for_slot(
    candidate: &mut Candidate,
    settings: &DatabaseSettings,
    news: &Tell,
) -> Result<bool, Error> {
    let mut waited = false;
    loop {
        let deadline = settings.connector.deadline();
        let Some(holder) = candidate.slot_holder(&settings.source.slot, deadline).await? else {
            return Ok(waited);
        };
        if !waited {
            // An error means that the relay ends.
            news.send(News::SlotInUse { holder }).await.ok();
        }
        waited = true;
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
