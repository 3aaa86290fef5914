//! What the loop hears of a session that is still being opened.

use tokio::sync::mpsc;

use crate::fault::Fault;

/// So many may wait to be heard: more than one look and one wait bring.
pub(super) const CAPACITY: usize = 4;

/// Where a session that is being opened tells its news.
pub(super) type Tell = mpsc::Sender<News>;

/// A piece of news.
#[derive(Debug)]
pub(super) enum News {
    /// Another process streams from the slot.
    SlotInUse {
        /// The server's process that streams to it.
        holder: String,
    },
    /// Everything fits. This could be lost or go wrong later all the same.
    AtRisk(Vec<Fault>),
}
