//! Standing by: another process streams from the slot, and this one waits for its turn.
//!
//! The wait is a part of opening a session. It uses the session's one connection, where looking at the slot once a second
//! leaves no trace in the server's log, as a refused START_REPLICATION would.

use std::time::Duration;

use tokio::sync::mpsc;

use super::session::DatabaseSettings;
use crate::postgres::{Candidate, Error};

/// Between two looks at the slot.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Where to tell that the slot is in use, and by which process of the server.
pub(super) type Waits = mpsc::Sender<String>;

/// Waits until nobody streams from the slot. Returns whether somebody did.
///
/// # Errors
/// The slot is missing, or the session broke.
pub(super) async fn wait_for_slot(
    candidate: &mut Candidate,
    settings: &DatabaseSettings,
    waits: &Waits,
) -> Result<bool, Error> {
    let mut waited = false;
    loop {
        let deadline = settings.connector.deadline();
        let Some(holder) = candidate.slot_holder(&settings.source.slot, deadline).await? else {
            return Ok(waited);
        };
        if !waited {
            // Full: it has not yet been heard that we wait, so once more adds nothing.
            waits.try_send(holder).ok();
        }
        waited = true;
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}
