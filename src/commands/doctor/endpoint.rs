//! The address of `admin.listen`: free, or a relay's already.

use std::net::TcpListener;
use std::time::Duration;

use serde::Deserialize;

use crate::admin::client::{AskError, ask};
use crate::config::Config;
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group};

const CHECK: &str = "address";

/// The time for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// As much of `/readyz` as tells a relay.
#[derive(Deserialize)]
struct Readiness {
    ready: bool,
    role: String,
    slot: String,
}

pub(super) fn examine(config: &Config) -> Group {
    let listen = config.admin.listen;
    let mut group = Group::new(format!("admin.listen {listen}"));
    let unbound = |message: String| {
        let kind = FaultKind::AdminUnbound;
        Finding::fault(CHECK, Fault { kind, message })
    };
    group.push(match ask(listen, "/readyz", None, PATIENCE) {
        Ok(answer) => match serde_json::from_str::<Readiness>(&answer.body) {
            Ok(found) => {
                let ready = if found.ready { "ready" } else { "not ready" };
                Finding::passed(
                    CHECK,
                    format!(
                        "a walrelay answers there: slot {}, {}, {ready}",
                        found.slot, found.role
                    ),
                )
            }
            Err(_) => unbound("something other than walrelay answers there".to_owned()),
        },
        Err(AskError::Connect { .. }) => match TcpListener::bind(listen) {
            Ok(_) => Finding::passed(CHECK, "it is free"),
            Err(error) => unbound(error.to_string()),
        },
        Err(_) => unbound("something other than walrelay listens there".to_owned()),
    });
    group
}
