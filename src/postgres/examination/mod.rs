//! Everything between the connection string and the first event, looked at without changing anything, for
//! `walrelay doctor`: each server, then the slot, walrelay's own tables, the publication and each outbox table.
//!
//! Preflight stops at the first thing that is unfit; here the same checks are all made.

mod greeting;
mod managed;
mod messages;
mod own_tables;
mod publication;
mod reach;
mod rights;
mod server;
mod shards;
mod slot;
mod table;

use std::time::Duration;

use super::catalog::{PublicationFacts, ServerFacts};
use super::connect::Connector;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::QualifiedTable;
use super::preflight::{Source, Unfit};
use super::servers;
use super::url::SessionAttrs;
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group, Outcome};

/// What is to be looked at, and what the settings ask of it.
#[derive(Debug, Clone)]
pub struct Examination {
    /// Where and as whom.
    pub connector: Connector,
    /// Slot, publication and tables.
    pub source: Source,
    /// Tables of the publication whose rows are passed over.
    pub ignore_tables: Vec<QualifiedTable>,
    /// The time-out that the relay sets for its stream.
    pub wal_sender_timeout: Duration,
    /// Whether a failed event may become a dead letter.
    pub has_dead_letters: bool,
    /// Tables whose old rows are deleted.
    pub retention: Vec<QualifiedTable>,
}

/// A session with a server that takes writes.
struct Primary {
    session: ControlSession,
    server: ServerFacts,
}

/// What a check needs.
struct Subject<'a> {
    examination: &'a Examination,
    session: &'a ControlSession,
    server: &'a ServerFacts,
    publication: Option<&'a PublicationFacts>,
}

/// Why nothing behind the servers could be looked at.
const NO_PRIMARY: &str = "no session with a server that takes writes";

impl Examination {
    /// Looks at everything. Takes a few short sessions at each server; nothing is changed.
    pub async fn examine(&self) -> Vec<Group> {
        let mut groups = Vec::new();
        let mut primary = None;
        for connector in self.connector.each() {
            let (group, found) = self.examine_server(&connector).await;
            match (found, &primary) {
                (Some(found), None) => primary = Some((groups.len(), found)),
                (Some(found), Some(_)) => found.session.close().await,
                (None, _) => {}
            }
            groups.push(group);
        }
        let Some((place, primary)) = primary else {
            expect_primary(&mut groups);
            groups.extend(self.not_looked());
            return groups;
        };
        // Where the relay goes on to the next server, that one is enough.
        for (number, group) in groups.iter_mut().enumerate() {
            if number != place && self.leads_on(group) {
                group.soften();
            }
        }
        groups.extend(self.examine_primary(&primary).await);
        primary.session.close().await;
        groups
    }

    /// Whether a standby is passed over for another server.
    fn passes_standbys_over(&self) -> bool {
        let target = self.connector.target();
        target.servers.len() > 1 && target.session_attrs != SessionAttrs::Any
    }

    /// Whether the relay tries the next server after what failed here.
    fn leads_on(&self, group: &Group) -> bool {
        let failed = |finding: &&Finding| finding.outcome == Outcome::Failed;
        group.findings.iter().filter(failed).all(|finding| {
            let is_cause = |kind: &&FaultKind| Some(kind.label()) == finding.cause;
            FaultKind::ALL.iter().find(is_cause).is_some_and(|kind| {
                let is_standby = *kind == FaultKind::DatabaseStandby;
                servers::leads_on(*kind) && (!is_standby || self.passes_standbys_over())
            })
        })
    }

    async fn examine_server(&self, connector: &Connector) -> (Group, Option<Primary>) {
        let mut group = Group::new(format!("PostgreSQL {}", connector.endpoints()));
        let session = reach::examine(self, connector, &mut group).await;
        let mut primary = None;
        if let Some(session) = session {
            primary = match server::examine(self, &session, &mut group).await {
                Some(server) if !server.in_recovery => Some(Primary { session, server }),
                Some(_) | None => {
                    session.close().await;
                    None
                }
            };
        }
        (group.complete(server::CHECKS, "no session"), primary)
    }

    async fn examine_primary(&self, primary: &Primary) -> Vec<Group> {
        let Primary { session, server } = primary;
        let mut subject = Subject {
            examination: self,
            session,
            server,
            publication: None,
        };
        let mut groups = vec![slot::examine(&subject).await, own_tables::examine(&subject).await];
        let (group, publication) = publication::examine(&subject).await;
        groups.push(group);
        subject.publication = publication.as_ref();
        for outbox in &self.source.outboxes {
            groups.push(table::examine(&subject, outbox).await);
            groups.extend(shards::examine(&subject, outbox).await);
        }
        if let Some(prefix) = &self.source.messages {
            groups.push(messages::examine(&subject, prefix).await);
        }
        groups
    }

    /// Each group that there would have been.
    fn not_looked(&self) -> Vec<Group> {
        let mut groups = vec![
            slot::group(self).complete(slot::CHECKS, NO_PRIMARY),
            own_tables::group().complete(own_tables::CHECKS, NO_PRIMARY),
            publication::group(self).complete(publication::CHECKS, NO_PRIMARY),
        ];
        let tables = self.source.tables();
        groups.extend(tables.map(|table| table::group(table).complete(table::CHECKS, NO_PRIMARY)));
        let messages = self.source.messages.iter();
        groups.extend(messages.map(|prefix| messages::group(prefix).complete(messages::CHECKS, NO_PRIMARY)));
        groups
    }
}

/// Without any server that takes writes, a standby is not passed over for another one.
fn expect_primary(groups: &mut [Group]) {
    if groups.iter().any(Group::has_failed) {
        return;
    }
    for finding in groups.iter_mut().flat_map(|group| &mut group.findings) {
        if finding.check == "primary" {
            *finding = unfit_finding("primary", &Unfit::Standby);
        }
    }
}

impl Group {
    /// Adds what a check has found: that all is well, or the error with what mends it.
    fn judge(&mut self, check: &'static str, result: Result<(), Unfit>, found: impl Into<String>) {
        self.push(match result {
            Ok(()) => Finding::passed(check, found),
            Err(unfit) => unfit_finding(check, &unfit),
        });
    }
}

fn unfit_finding(check: &'static str, unfit: &Unfit) -> Finding {
    Finding::error(check, unfit.kind(), unfit).with_fix(unfit.fix())
}

fn error_finding(check: &'static str, error: &Error) -> Finding {
    let fix = if let Error::GrantMissing { grant, .. } = error {
        Some(format!("{grant};"))
    } else if error.kind() == FaultKind::OwnSchema {
        Some("walrelay setup".to_owned())
    } else {
        error.unfit().and_then(Unfit::fix)
    };
    Finding::error(check, error.kind(), error).with_fix(fix)
}

/// A right that a feature lacks.
fn right_missing(check: &'static str, message: String, grant: String) -> Finding {
    let kind = FaultKind::DatabaseForbidden;
    Finding::fault(check, Fault { kind, message }).with_fix(grant)
}
