//! The end: a stop within its grace, or a halt; and the good-bye to both sides.

use std::time::Instant;

use super::{Ending, Relay, status_update};
use crate::relay::broker::FAREWELL;

impl Relay {
    pub(super) fn stop(&mut self) {
        let grace = self.settings.shutdown_grace;
        tracing::info!(
            in_flight = self.flow.in_flight(),
            grace_ms = grace.as_millis(),
            "stopping"
        );
        let now = Instant::now();
        self.flow.stop(now);
        self.retention.interrupt();
        self.stop_by = Some(now + grace);
    }

    pub(super) fn ending(&self, now: Instant) -> Option<Ending> {
        if let Some(kind) = self.halted {
            return Some(Ending::Halted(kind));
        }
        let stop_by = self.stop_by?;
        // Without a session it cannot be put on record, and none is opened any more.
        let can_record = self.care.has_unrecorded_skip() && self.flow.durable().is_some();
        let is_done = self.flow.is_drained() && !self.backfill.owes(&self.flow) && !can_record;
        (is_done || now >= stop_by).then_some(Ending::Stopped)
    }

    /// A last status update and a good-bye to both sides.
    pub(super) async fn farewell(&mut self) {
        self.care.tell_unrecorded_skip();
        let deadline = tokio::time::Instant::now() + FAREWELL;
        let left = self.flow.in_flight();
        let positions = self.flow.final_status(Instant::now());
        if let (Some(mut session), Some(positions)) = (self.database.take(), positions) {
            session.queue_status(&status_update(positions).encode());
            match session.close(deadline).await {
                Ok(()) => tracing::info!(lsn = %positions.durable, left, "replication session ended"),
                Err(error) => tracing::warn!(error = %error, left, "replication session cut off"),
            }
        }
        self.broker.close().await;
        let sessions = async {
            self.errands.close().await;
            self.marker.close().await;
        };
        if tokio::time::timeout_at(deadline, sessions).await.is_err() {
            tracing::debug!("sql session cut off");
        }
    }
}
