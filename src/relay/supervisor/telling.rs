//! What readiness, metrics and the status page are told.

use std::time::{Instant, SystemTime};

use super::Relay;
use crate::relay::status::Delivery;

impl Relay {
    pub(super) fn tell_status(&mut self, now: Instant) {
        let backfill = &self.backfill;
        let (flow, database, broker) = (&self.flow, self.database.status(), self.broker.side.status());
        let marker = self.marker.status();
        let stopping = self.stop_by.is_some();
        self.status.send_modify(|status| {
            if status.counters.confirmed != flow.counters().confirmed {
                status.progressed = Some(SystemTime::now());
            }
            status.counters = *flow.counters();
            status.in_flight = flow.in_flight();
            status.in_flight_bytes = flow.in_flight_bytes();
            status.held = flow.held_count();
            status.oldest_unsettled = flow.oldest_unsettled();
            status.durable = flow.durable();
            status.received = flow.received();
            (status.backfill_left, status.backfill) = (backfill.left(flow), backfill.totals());
            status.ticked = now;
            status.marks.take(marker, flow);
            status.database.clone_from_changed(database);
            status.broker.clone_from_changed(broker);
            if stopping {
                status.delivery = Delivery::Stopping;
            }
        });
    }
}
