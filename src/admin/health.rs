//! Liveness and readiness.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::fault::Fault;
use crate::relay::{Delivery, SideState, SideStatus, Status};

/// The relay goes round its loop at least once a second; this long without is no longer alive.
const STANDSTILL: Duration = Duration::from_secs(10);

/// `/readyz`.
#[derive(Debug, Serialize)]
pub(super) struct Readiness<'a> {
    pub(super) ready: bool,
    role: &'static str,
    slot: &'a str,
    /// Where messages go; `broker` is about that.
    sink: &'static str,
    database: Part<'a>,
    broker: Part<'a>,
    delivery: Part<'a>,
    /// What could be lost or go wrong later, though events pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    risks: Vec<Risk<'a>>,
    /// What does not stand in the way of delivery, but needs a person.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    degraded: Vec<Part<'a>>,
}

/// A risk, and what to do about it.
#[derive(Debug, Serialize)]
struct Risk<'a> {
    cause: &'static str,
    error: &'a str,
    remedy: &'static str,
}

/// One part of it: state, since when, and what stands in the way.
#[derive(Debug, Serialize)]
pub(super) struct Part<'a> {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows_left: Option<u64>,
    /// The held event's id and key, as `walrelay skip` takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    event_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// Whether the relay's loop goes round. It does not depend on delivery.
pub(super) fn is_alive(status: &Status) -> bool {
    status.ticked.elapsed() < STANDSTILL
}

/// Whether a committed event would be delivered now, and why not. A standby is ready when it could take over, so
/// that a roll-out goes on.
pub(super) fn readiness(status: &Status) -> Readiness<'_> {
    Readiness {
        ready: status.is_ready(),
        role: status.role.label(),
        slot: &status.slot,
        sink: status.sink.label(),
        database: side(&status.database),
        broker: side(&status.broker),
        delivery: match &status.delivery {
            Delivery::Flowing => match status.backfill_left {
                Some(left) => Part {
                    rows_left: Some(left),
                    ..part("backfilling", None, None)
                },
                None if is_up(&status.database) && is_up(&status.broker) => part("flowing", None, None),
                // For one of the two sides, or in a standby for its turn.
                None => part("waiting", None, None),
            },
            Delivery::Stopping => part("stopping", None, None),
            Delivery::Held {
                since,
                fault,
                event_id,
                position,
            } => Part {
                event_id: event_id.as_deref(),
                key: Some(position.to_string()),
                ..part("held", Some(*since), Some(fault))
            },
        },
        risks: status.risks.iter().map(risk).collect(),
        degraded: degraded(status),
    }
}

fn is_up(side: &SideStatus) -> bool {
    side.is_of_use() && side.state == SideState::Up
}

fn degraded(status: &Status) -> Vec<Part<'_>> {
    let marks = status.marks.degraded.iter().map(|fault| ("marks", fault));
    let retention = status.retention.fault.iter().map(|fault| ("retention", fault));
    marks
        .chain(retention)
        .map(|(what, fault)| part(what, None, Some(fault)))
        .collect()
}

fn risk(fault: &Fault) -> Risk<'_> {
    Risk {
        cause: fault.kind.label(),
        error: &fault.message,
        remedy: fault.kind.remedy(),
    }
}

fn side(side: &SideStatus) -> Part<'_> {
    part(side.state.label(), Some(side.since), side.fault.as_ref())
}

fn part<'a>(state: &'static str, since: Option<SystemTime>, fault: Option<&'a Fault>) -> Part<'a> {
    Part {
        state,
        since: since.map(|since| humantime::format_rfc3339_seconds(since).to_string()),
        cause: fault.map(|fault| fault.kind.label()),
        class: fault.map(|fault| fault.kind.class().label()),
        error: fault.map(|fault| fault.message.as_str()),
        remedy: fault.map(|fault| fault.kind.remedy()),
        rows_left: None,
        event_id: None,
        key: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;
    use crate::relay::Role;

    fn up() -> Status {
        let mut status = Status::new("walrelay".to_owned());
        status.database.state = SideState::Up;
        status.broker.state = SideState::Up;
        status
    }

    #[test]
    fn ready_means_that_events_would_flow() {
        assert!(up().is_ready());
        assert!(!Status::new("walrelay".to_owned()).is_ready());
        let mut blocked = up();
        blocked.broker.fault = Some(Fault {
            kind: FaultKind::BrokerBlocked,
            message: "low on memory".to_owned(),
        });
        assert!(!blocked.is_ready());
        let mut held = up();
        held.delivery = Delivery::Held {
            since: SystemTime::now(),
            fault: Fault {
                kind: FaultKind::EventUnroutable,
                message: "event 1".to_owned(),
            },
            event_id: None,
            position: "0/1:7".parse().unwrap(),
        };
        assert!(!held.is_ready());
        let json = serde_json::to_value(readiness(&held)).unwrap();
        assert_eq!(json["delivery"]["key"], "0/1:7");
        assert_eq!(json["delivery"].get("event_id"), None);
        let mut stopping = up();
        stopping.delivery = Delivery::Stopping;
        assert!(!stopping.is_ready());
    }

    #[test]
    fn a_backfill_is_told_with_the_rows_that_are_left() {
        let mut status = up();
        status.backfill_left = Some(7);
        assert!(readiness(&status).ready, "events flow");
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json["delivery"]["state"], "backfilling");
        assert_eq!(json["delivery"]["rows_left"], 7);
    }

    #[test]
    fn what_stands_in_the_way_is_named_with_its_remedy() {
        let mut status = up();
        status.database.state = SideState::Down;
        status.database.fault = Some(Fault {
            kind: FaultKind::SlotMissing,
            message: "no slot \"walrelay\"".to_owned(),
        });
        assert!(!readiness(&status).ready);
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json["database"]["state"], "down");
        assert_eq!(json["database"]["cause"], "slot_missing");
        assert_eq!(json["database"]["class"], "halted");
        assert_eq!(json["database"]["remedy"], FaultKind::SlotMissing.remedy());
        assert_eq!(json["broker"]["state"], "up");
        assert_eq!(json["delivery"]["state"], "waiting");
        let json = serde_json::to_value(readiness(&up())).unwrap();
        assert_eq!(json["delivery"]["state"], "flowing");
    }

    #[test]
    fn a_risk_is_told_and_delivery_stays_ready() {
        let mut status = up();
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json.get("risks"), None);
        status.risks.push(Fault {
            kind: FaultKind::StandbyBehind,
            message: "nothing holds slot \"walrelay\" back".to_owned(),
        });
        assert!(readiness(&status).ready);
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json["risks"][0]["cause"], "standby_behind");
        assert_eq!(json["risks"][0]["remedy"], FaultKind::StandbyBehind.remedy());
    }

    #[test]
    fn failing_retention_is_told_and_takes_nothing_from_readiness() {
        let mut status = up();
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json.get("degraded"), None);
        status.retention.fault = Some(Fault {
            kind: FaultKind::DatabaseForbidden,
            message: "grant delete".to_owned(),
        });
        assert!(readiness(&status).ready);
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json["degraded"][0]["state"], "retention");
        assert_eq!(json["degraded"][0]["error"], "grant delete");
    }

    #[test]
    fn a_standby_is_ready_when_it_could_take_over() {
        let mut status = up();
        status.role = Role::Standby;
        status.database.state = SideState::Waiting;
        assert!(readiness(&status).ready);
        let json = serde_json::to_value(readiness(&status)).unwrap();
        assert_eq!(json["role"], "standby");
        assert_eq!(json["database"]["state"], "waiting");
        assert_eq!(json["delivery"]["state"], "waiting");
        status.broker.state = SideState::Down;
        assert!(!readiness(&status).ready);
    }
}
