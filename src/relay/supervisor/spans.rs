//! Spans of publishes, handed to whoever exports them. Never waits: what there is no room for is dropped and counted.

use std::time::Instant;

use super::Relay;

impl Relay {
    /// Passes on the spans that have ended.
    pub(super) fn pass_spans(&mut self, now: Instant) {
        let Some(exporter) = &self.settings.spans else {
            return;
        };
        let mut refused = 0;
        while let Some(span) = self.flow.take_span(now) {
            if exporter.try_send(span).is_err() {
                refused += 1;
            }
        }
        self.spans_refused += refused;
        let dropped = self.flow.spans_dropped() + self.spans_refused;
        self.status.send_if_modified(|status| {
            let is_news = status.spans_dropped != dropped;
            status.spans_dropped = dropped;
            is_news
        });
    }
}
