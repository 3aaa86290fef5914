//! What follows when a connection is made, lost or given up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use walrelay_engine::dedup::Anew;
use walrelay_engine::flow::{LogIdentity, StreamError};

use super::Relay;
use crate::fault::{Class, Fault, FaultKind};
use crate::relay::broker::NotOpened;
use crate::relay::faults;
use crate::relay::session::Opened;
use crate::relay::status::Role;
use crate::relay::watch::{Seen, Watch};

/// Why a link is given up together with what was read from another log.
const OTHER_LOG: &str = "the database is another one than before";

impl Relay {
    pub(super) fn session_opened(&mut self, result: Result<Opened, Fault>, now: Instant) {
        let Opened { session, noted } = match result {
            Ok(opened) => opened,
            Err(fault) => return self.fail_session(fault, now),
        };
        // Set-up is for the start; a slot that goes missing later must not come back empty.
        self.settings.database.auto_setup = false;
        let identity = session.identity();
        if !self.database.is_in_doubt() {
            tracing::info!(
                slot = %self.settings.database.source.slot,
                server = session.connector().endpoints(),
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
        let is_another = noted.first.is_some_and(|first| !self.flow.knows_noted(first));
        if is_another {
            self.flow.forget();
        }
        if self.flow.session_started(identity, session.flushed(), now) || is_another {
            self.struck.forget_position();
            self.drop_outdated_link(OTHER_LOG, now);
        }
        self.broker.begin_again(&mut self.flow, now);
        // After a fail-over no SQL session may land on the server of before (R15).
        self.streaming = Arc::new(self.settings.database.at(session.connector()));
        let slot = self.settings.database.source.slot.clone();
        self.watch = Some(Watch::new(session.connector().clone(), slot, now));
        self.backfill
            .session_started(&mut self.flow, noted.first.is_some());
        if noted.is_unmarked {
            self.marker.rows_are_noted(now);
        }
        if let Some(settled) = session.settled() {
            if let Some(position) = settled.position {
                tracing::info!(settled = %position, "events up to there are settled on record");
                self.flow
                    .settled_before((position.commit_lsn, position.tx_seq), settled.barrier, now);
            }
            // What this process has marked itself is no news to it.
            if !settled.is_complete && self.is_first_session() {
                self.flow.suspect_lost_marks();
            }
        }
        self.database.opened(session, now);
        self.role_unknown = false;
        self.status.send_modify(|status| {
            status.role = Role::Active;
            status.sessions += 1;
        });
    }

    /// What could be lost or go wrong later, told once until it changes.
    pub(super) fn note_risks(&mut self, risks: Vec<Fault>) {
        if self.status.borrow().risks == risks {
            return;
        }
        for Fault { kind, message } in &risks {
            tracing::warn!(
                cause = kind.label(),
                error = message,
                remedy = kind.remedy(),
                "at risk"
            );
        }
        self.status.send_modify(|status| status.risks = risks);
    }

    /// A look for a shutdown is over; for `silence` none has been answered. While reading is paused they tell what the
    /// stream cannot: that the server goes (R13), or that nobody is there.
    pub(super) fn looked(&mut self, seen: Seen, silence: Duration, now: Instant) {
        let limit = self.settings.flow.silence_timeout;
        let (kind, message) = match seen {
            Seen::Shutdown => (
                FaultKind::DatabaseRestarting,
                "the server shuts down, and not everything is confirmed".to_owned(),
            ),
            Seen::Silence if silence >= limit => (
                FaultKind::DatabaseSilent,
                format!("PostgreSQL answered no new connection for {limit:?} while reading was paused"),
            ),
            Seen::Silence | Seen::Nothing => return,
        };
        self.fail_session(Fault { kind, message }, now);
    }

    fn is_first_session(&self) -> bool {
        self.status.borrow().sessions == 0
    }

    pub(super) fn link_opened(&mut self, result: Result<(), NotOpened>, now: Instant) {
        if let Err(NotOpened { fault, needs_person }) = result {
            if needs_person {
                self.note_halt(fault.kind);
            }
            return self.link_is_down(fault, now);
        }
        self.broker.tell_up();
        self.struck.link_opened(&self.flow);
        self.status.send_modify(|status| status.links += 1);
    }

    pub(super) fn fail_stream(&mut self, error: &StreamError, now: Instant) {
        if matches!(error, StreamError::Diverged { .. }) {
            self.flow.forget();
            // A try that is under way goes too: it was not told that the producer's name is spent.
            if !self.broker.side.is_idle() {
                let fault = Fault {
                    kind: FaultKind::BrokerClosed,
                    message: OTHER_LOG.to_owned(),
                };
                self.lose_link(fault, now);
            }
        }
        self.fail_session(Fault::new(faults::stream_kind(error), error), now);
    }

    pub(super) fn fail_session(&mut self, fault: Fault, now: Instant) {
        self.note_database_halt(fault.kind);
        self.status
            .send_modify(|status| status.database_failures.count(fault.kind));
        if self.database.up().is_some() {
            self.struck.session_failed(&self.flow);
        }
        self.session_is_over();
        drop(self.database.failed(fault, now));
    }

    fn session_is_over(&mut self) {
        self.flow.session_lost();
        self.errands.stream_lost();
        self.care.stream_lost();
        self.retention.interrupt();
        self.marker.stream_lost();
        self.watch = None;
    }

    /// Begins anew what the next generation of a stream's producer needs, if anything (R26). Nothing has failed.
    pub(super) fn begin_anew(&mut self, now: Instant) {
        match self.flow.anew() {
            Some(Anew::Session) if self.database.up().is_some() => {
                tracing::info!("the stream has a new name of ours on record: beginning the session anew");
                self.session_is_over();
                drop(self.database.begin_again(now));
            }
            Some(Anew::Link) if self.broker.side.up().is_some() => {
                tracing::info!("others have left this name in the stream: connecting anew for the next one");
                self.broker.begin_again(&mut self.flow, now);
            }
            Some(Anew::Everything) if self.database.up().is_some() => {
                tracing::info!(
                    "others have a new name in the stream: beginning the session anew, with all that is not reported"
                );
                self.session_is_over();
                self.flow.stand_back();
                drop(self.database.begin_again(now));
            }
            Some(Anew::Session | Anew::Link | Anew::Everything) | None => {}
        }
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
        if self.broker.side.up().is_some() {
            self.lose_link(fault, now);
        }
    }

    pub(super) fn lose_link(&mut self, fault: Fault, now: Instant) {
        if self.broker.struck(fault.kind) {
            self.note_halt(fault.kind);
        }
        self.link_is_down(fault, now);
    }

    fn link_is_down(&mut self, fault: Fault, now: Instant) {
        self.status
            .send_modify(|status| status.broker_failures.count(fault.kind));
        self.broker.lost(&mut self.flow, fault, now);
    }

    /// To be called before the side is told: what needs a person is looked at again before the process ends (R8).
    pub(super) fn note_database_halt(&mut self, kind: FaultKind) {
        let known = self.database.status().fault.as_ref();
        if known.is_some_and(|known| known.kind == kind) {
            self.note_halt(kind);
        }
    }

    /// A process gets no other standard output: one that is closed ends it in any case.
    fn note_halt(&mut self, kind: FaultKind) {
        let ends = self.settings.exit_on_halt || kind == FaultKind::StdoutClosed;
        if ends && kind.class() == Class::Halted {
            self.halted = Some(kind);
        }
    }
}
