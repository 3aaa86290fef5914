//! Logical messages with the configured prefix that are of no transaction: passed over, counted, and said.

use std::time::Instant;

use crate::repeats::{Repeats, Telling};

/// What has been said of them.
#[derive(Debug, Default)]
pub(super) struct RefusedTold {
    seen: u64,
    told: Repeats<()>,
}

impl RefusedTold {
    /// So many have come by now.
    pub(super) fn tell(&mut self, total: u64, prefix: Option<&str>, now: Instant) {
        if total == self.seen {
            return;
        }
        self.seen = total;
        let remedy = "call pg_logical_emit_message(true, ...), or walrelay.emit()";
        match self.told.note((), now) {
            Telling::News => tracing::warn!(prefix, total, remedy, "non-transactional message refused"),
            Telling::Repeated { seconds, .. } => {
                tracing::warn!(
                    prefix,
                    total,
                    seconds,
                    remedy,
                    "still refusing non-transactional messages"
                );
            }
            Telling::Quiet => {}
        }
    }
}
