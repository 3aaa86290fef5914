//! What follows when a connection is made, lost or given up.

use std::time::Instant;

use walrelay_engine::flow::{LogIdentity, StreamError};

use super::{FAREWELL, Relay};
use crate::fault::{Class, Fault, FaultKind};
use crate::postgres::Replication;
use crate::rabbitmq::{BrokerError, Link};
use crate::relay::faults;
use crate::relay::status::Role;
use crate::relay::watch::Watch;

/// Why a link is given up together with what was read from another log.
const OTHER_LOG: &str = "the database is another one than before";

impl Relay {
    pub(super) fn session_opened(&mut self, result: Result<Replication, Fault>, now: Instant) {
        let session = match result {
            Ok(session) => session,
            Err(fault) => return self.fail_session(fault, now),
        };
        // Set-up is for the start; a slot that goes missing later must not come back empty.
        self.settings.database.auto_setup = false;
        let identity = session.identity();
        if !self.database.is_in_doubt() {
            tracing::info!(
                slot = %self.settings.database.source.slot,
                server_version = %session.server_version(),
                system_id = identity.system_id,
                timeline = identity.timeline,
                "replication session started"
            );
        }
        let identity = LogIdentity {
            system_id: identity.system_id,
            timeline: identity.timeline,
        };
        if self.flow.session_started(identity, now) {
            self.drop_outdated_link(OTHER_LOG, now);
        }
        if let Some(settled) = session.settled() {
            if let Some(position) = settled.position {
                tracing::info!(settled = %position, "events up to there are settled on record");
                self.flow
                    .settled_before((position.commit_lsn, position.tx_seq), settled.barrier);
            }
            // What this process has marked itself is no news to it.
            if !settled.is_complete && self.is_first_session() {
                self.flow.suspect_lost_marks();
            }
        }
        self.database.opened(session, now);
        self.watch = Some(Watch::new(now));
        self.role_unknown = false;
        self.status.send_modify(|status| {
            status.role = Role::Active;
            status.sessions += 1;
        });
    }

    fn is_first_session(&self) -> bool {
        self.status.borrow().sessions == 0
    }

    pub(super) fn link_opened(&mut self, result: Result<Link, Fault>, now: Instant) {
        let link = match result {
            Ok(link) => link,
            Err(fault) => return self.lose_link(fault, now),
        };
        if !self.broker.is_in_doubt() {
            tracing::info!(
                server_version = link.server_version(),
                frame_max = link.frame_max(),
                "broker link up"
            );
        }
        self.flow.link_up(link.frame_max(), link.max_message_bytes(), now);
        self.broker.opened(link, now);
        self.status.send_modify(|status| status.links += 1);
    }

    pub(super) fn fail_stream(&mut self, error: &StreamError, now: Instant) {
        if matches!(error, StreamError::Diverged { .. }) {
            self.flow.forget();
            self.drop_outdated_link(OTHER_LOG, now);
        }
        self.fail_session(Fault::new(faults::stream_kind(error), error), now);
    }

    pub(super) fn fail_session(&mut self, fault: Fault, now: Instant) {
        self.note_halt(fault.kind);
        self.flow.session_lost();
        self.errands.stream_lost();
        self.marker.stream_lost();
        self.watch = None;
        drop(self.database.failed(fault, now));
    }

    pub(super) fn fail_link(&mut self, error: &BrokerError, now: Instant) {
        let fault = Fault::new(error.kind(), error);
        // With a column in its name, a missing exchange is the fault of the event that named it.
        let of_event = matches!(
            fault.kind,
            FaultKind::ExchangeMissing | FaultKind::ExchangeForbidden
        ) && self.settings.broker.exchanges.is_empty();
        if let BrokerError::Closed {
            reply_code,
            reply_text,
            ..
        } = error
            && (of_event || fault.kind == FaultKind::MessageRefused)
        {
            self.flow.link_refused(*reply_code, reply_text, now);
            return self.lose_link(
                Fault {
                    kind: FaultKind::BrokerClosed,
                    ..fault
                },
                now,
            );
        }
        self.lose_link(fault, now);
    }

    /// Gives up the link since what is in flight on it counts no more.
    pub(super) fn drop_outdated_link(&mut self, why: &str, now: Instant) {
        let fault = Fault {
            kind: FaultKind::BrokerClosed,
            message: why.to_owned(),
        };
        self.drop_link(fault, now);
    }

    /// Gives up a link for a reason of ours.
    pub(super) fn drop_link(&mut self, fault: Fault, now: Instant) {
        if self.broker.up().is_some() {
            self.lose_link(fault, now);
        }
    }

    pub(super) fn lose_link(&mut self, fault: Fault, now: Instant) {
        self.note_halt(fault.kind);
        self.flow.link_lost();
        if let Some(link) = self.broker.failed(fault, now) {
            // Nothing waits for this task: it answers the broker's close, or the deadline drops the socket.
            tokio::spawn(link.dismiss((now + FAREWELL).into()));
        }
    }

    fn note_halt(&mut self, kind: FaultKind) {
        if self.settings.exit_on_halt && kind.class() == Class::Halted {
            self.halted = Some(kind);
        }
    }
}
