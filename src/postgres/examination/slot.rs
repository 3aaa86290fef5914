//! The replication slot: is it there, who streams from it, what does it keep, and does it outlive a promotion?

use super::super::catalog::column;
use super::super::error::Error;
use super::super::position::flushed_position;
use super::super::preflight::checks::check_slot;
use super::super::preflight::standby_behind;
use super::super::slot::{self, SlotState, WalStatus};
use super::{Examination, Subject, error_finding, reach, unfit_finding};
use crate::caution::Caution;
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group};

/// The checks, in their order.
pub(super) const CHECKS: &[&str] = &[
    "slot",
    "stream",
    "WAL kept",
    "max_slot_wal_keep_size",
    "free slots",
    "free walsenders",
    "standbys",
];

/// A slot that keeps so much WAL while nobody streams from it has been left behind.
const BEHIND: u64 = 1024 * 1024 * 1024;

/// What is around the slot.
struct Surroundings {
    slots: i64,
    max_slots: i64,
    walsenders: i64,
    max_walsenders: i64,
    max_slot_wal_keep_size: String,
    /// Who streams, as far as that may be seen: `walrelay shop from 10.0.0.7`.
    streamer: Option<String>,
    /// Standbys that take no part in commits, as far as they may be seen.
    standbys: String,
}

pub(super) fn group(examination: &Examination) -> Group {
    Group::new(format!("replication slot {}", examination.source.slot))
}

pub(super) async fn examine(subject: &Subject<'_>) -> Group {
    let mut group = group(subject.examination);
    if let Err(error) = look(subject, &mut group).await {
        group.push(error_finding("slot", &error));
    }
    group.complete(CHECKS, "there is no slot that could be looked at")
}

async fn look(subject: &Subject<'_>, group: &mut Group) -> Result<(), Error> {
    let (session, server) = (subject.session, subject.server);
    let name = &subject.examination.source.slot;
    let state = SlotState::read(session, name).await?;
    let around = Surroundings::read(subject, state.as_ref()).await?;
    free(&around, state.as_ref(), group);
    group.push(keep_size(&around));
    let state = match check_slot(state, name, &server.database) {
        Ok(state) => state,
        Err(unfit) => {
            let unfit = slot::explain_missing(session, unfit).await;
            group.push(unfit_finding("slot", &unfit));
            return Ok(());
        }
    };
    let confirmed = state
        .confirmed_flush_lsn
        .map_or_else(|| "nothing".to_owned(), |lsn| lsn.to_string());
    let kind = if state.failover {
        "a failover slot"
    } else {
        "logical"
    };
    group.push(Finding::passed(
        "slot",
        format!("{kind}, of pgoutput, in this database; confirmed up to {confirmed}"),
    ));
    group.push(stream(&state, &around));
    let retained = state.retained_bytes(flushed_position(session).await?);
    group.push(kept(&state, retained));
    group.push(standbys(subject, &state, &around));
    Ok(())
}

impl Surroundings {
    async fn read(subject: &Subject<'_>, state: Option<&SlotState>) -> Result<Self, Error> {
        const PURPOSE: &str = "look at slots and walsenders";
        // Without pg_monitor the names of others' sessions are hidden, and the columns null.
        let sql = "select (select count(*) from pg_catalog.pg_replication_slots), \
                   current_setting('max_replication_slots')::bigint, \
                   (select count(*) from pg_catalog.pg_stat_replication where application_name is distinct from $2), \
                   current_setting('max_wal_senders')::bigint, current_setting('max_slot_wal_keep_size'), \
                   (select pg_catalog.concat(nullif(application_name, ''), ' from ' || pg_catalog.host(client_addr)) \
                   from pg_catalog.pg_stat_activity where pid = $1), \
                   coalesce((select string_agg(coalesce(nullif(r.application_name, ''), 'unnamed'), ', ' order by 1) \
                   from pg_catalog.pg_stat_replication r where r.state = 'streaming' and r.sync_state = 'async' \
                   and not exists (select from pg_catalog.pg_replication_slots s where s.active_pid = r.pid \
                   and s.slot_type = 'logical')), case when current_setting('synchronous_standby_names') = '' then \
                   (select string_agg(slot_name::text, ', ' order by 1) from pg_catalog.pg_replication_slots \
                   where slot_type = 'physical' and not temporary) end, '')";
        let session = subject.session;
        let process = state.and_then(|state| state.active_pid);
        let row = session
            .run(
                PURPOSE,
                session
                    .client()
                    .query_one(sql, &[&process, &reach::name(session)]),
            )
            .await?;
        Ok(Self {
            slots: column(&row, 0, PURPOSE)?,
            max_slots: column(&row, 1, PURPOSE)?,
            walsenders: column(&row, 2, PURPOSE)?,
            max_walsenders: column(&row, 3, PURPOSE)?,
            max_slot_wal_keep_size: column(&row, 4, PURPOSE)?,
            streamer: column(&row, 5, PURPOSE)?,
            standbys: column(&row, 6, PURPOSE)?,
        })
    }
}

fn stream(state: &SlotState, around: &Surroundings) -> Finding {
    let Some(process) = state.active_pid else {
        return Finding::passed("stream", "nobody streams from it");
    };
    let streamer = around.streamer.as_deref().filter(|streamer| !streamer.is_empty());
    let who = streamer.map_or_else(String::new, |streamer| format!(": {streamer}"));
    Finding::passed("stream", format!("server process {process} streams from it{who}"))
}

fn kept(state: &SlotState, retained: u64) -> Finding {
    const CHECK: &str = "WAL kept";
    let status = state.wal_status.map_or("unknown", WalStatus::label);
    let mut found = format!("{} (wal_status {status})", bytesize::ByteSize(retained));
    if let Some(safe) = state.safe_wal_size {
        let safe = bytesize::ByteSize(u64::try_from(safe).unwrap_or(0));
        found.push_str(&format!("; {safe} more may be written before it is in danger"));
    }
    if state.wal_status == Some(WalStatus::Unreserved) {
        return Finding::caution(CHECK, Caution::SlotInDanger, found);
    }
    if retained > BEHIND && state.active_pid.is_none() {
        return Finding::caution(CHECK, Caution::SlotBehind, found);
    }
    Finding::passed(CHECK, found)
}

fn keep_size(around: &Surroundings) -> Finding {
    const CHECK: &str = "max_slot_wal_keep_size";
    match around.max_slot_wal_keep_size.as_str() {
        "-1" => Finding::caution(CHECK, Caution::SlotUnbounded, "not set").with_fix(
            "alter system set max_slot_wal_keep_size = '50GB'; select pg_reload_conf();".to_owned(),
        ),
        size => Finding::passed(CHECK, size),
    }
}

/// Room is needed for a slot that is not there yet, and for a stream that does not run.
fn free(around: &Surroundings, state: Option<&SlotState>, group: &mut Group) {
    let exhausted = |check, kind, message, setting, more| {
        Finding::fault(check, Fault { kind, message }).with_fix(format!(
            "alter system set {setting} = {more};  -- then restart PostgreSQL"
        ))
    };
    let found = format!("{} of {} are in use", around.slots, around.max_slots);
    group.push(if around.slots >= around.max_slots && state.is_none() {
        let (kind, more) = (FaultKind::SlotsExhausted, around.max_slots + 10);
        exhausted("free slots", kind, found, "max_replication_slots", more)
    } else {
        Finding::passed("free slots", found)
    });
    let streams = state.is_some_and(|state| state.active_pid.is_some());
    let found = format!("{} of {} are in use", around.walsenders, around.max_walsenders);
    group.push(if around.walsenders >= around.max_walsenders && !streams {
        let (kind, more) = (
            FaultKind::DatabaseConnectionsExhausted,
            around.max_walsenders + 10,
        );
        exhausted("free walsenders", kind, found, "max_wal_senders", more)
    } else {
        Finding::passed("free walsenders", found)
    });
}

fn standbys(subject: &Subject<'_>, state: &SlotState, around: &Surroundings) -> Finding {
    const CHECK: &str = "standbys";
    let name = &subject.examination.source.slot;
    if let Some(risk) = standby_behind(subject.server, state, name) {
        return Finding::error(CHECK, risk.kind(), &risk);
    }
    let names = &around.standbys;
    if names.is_empty() {
        return Finding::passed(CHECK, "no asynchronous standby is seen");
    }
    if !state.failover {
        let found = format!("asynchronous: {names}; the slot stays behind when one of them is promoted");
        return Finding::caution(CHECK, Caution::SlotStaysBehind, found);
    }
    let held = &subject.server.synchronized_standby_slots;
    if held.is_empty() {
        let found = format!("asynchronous: {names}; one may be promoted without events that were published");
        return Finding::caution(CHECK, Caution::StandbyAsynchronous, found);
    }
    Finding::passed(
        CHECK,
        format!("the stream waits for those of synchronized_standby_slots ({held})"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Outcome;

    fn slot() -> SlotState {
        SlotState {
            plugin: Some("pgoutput".to_owned()),
            logical: true,
            database: Some("shop".to_owned()),
            active_pid: None,
            wal_status: Some(WalStatus::Reserved),
            safe_wal_size: None,
            failover: false,
            restart_lsn: None,
            confirmed_flush_lsn: None,
        }
    }

    fn around() -> Surroundings {
        Surroundings {
            slots: 1,
            max_slots: 10,
            walsenders: 1,
            max_walsenders: 10,
            max_slot_wal_keep_size: "1GB".to_owned(),
            streamer: None,
            standbys: String::new(),
        }
    }

    #[test]
    fn wal_that_is_kept_for_nobody_or_not_for_long_is_a_warning() {
        assert_eq!(kept(&slot(), BEHIND).outcome, Outcome::Passed);
        assert_eq!(kept(&slot(), BEHIND + 1).cause, Some("slot_behind"));
        let mut streamed = slot();
        streamed.active_pid = Some(7);
        assert_eq!(kept(&streamed, BEHIND + 1).outcome, Outcome::Passed);
        streamed.wal_status = Some(WalStatus::Unreserved);
        streamed.safe_wal_size = Some(-5);
        let danger = kept(&streamed, 0);
        assert_eq!(danger.cause, Some("slot_in_danger"));
        assert!(danger.found.contains("0 B more"), "{}", danger.found);
    }

    #[test]
    fn room_is_needed_for_what_is_not_there_yet() {
        let failed = |around: &Surroundings, state: Option<&SlotState>| {
            let mut group = Group::new("slot");
            free(around, state, &mut group);
            let failed = group
                .findings
                .into_iter()
                .filter(|found| found.outcome == Outcome::Failed);
            failed
                .map(|found| found.fix.unwrap_or_default())
                .collect::<Vec<_>>()
        };
        let full = Surroundings {
            slots: 10,
            walsenders: 10,
            ..around()
        };
        assert_eq!(failed(&around(), None), [""; 0]);
        assert_eq!(
            failed(&full, None),
            [
                "alter system set max_replication_slots = 20;  -- then restart PostgreSQL",
                "alter system set max_wal_senders = 20;  -- then restart PostgreSQL"
            ]
        );
        assert_eq!(failed(&full, Some(&slot())).len(), 1);
        let mut streamed = slot();
        streamed.active_pid = Some(7);
        assert_eq!(failed(&full, Some(&streamed)), [""; 0]);
    }

    #[test]
    fn a_slot_without_a_limit_is_a_warning() {
        assert_eq!(keep_size(&around()).outcome, Outcome::Passed);
        let unbounded = Surroundings {
            max_slot_wal_keep_size: "-1".to_owned(),
            ..around()
        };
        assert_eq!(keep_size(&unbounded).cause, Some("slot_unbounded"));
    }
}
