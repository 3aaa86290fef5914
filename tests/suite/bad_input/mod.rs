//! Bad input and faults of the surroundings: one line with cause and remedy, no exit, and no restart to heal.

mod broker;
mod commands;
mod configuration;
mod database;
mod relations;

use anyhow::{Result, anyhow};
use walrelay_testbed::{Relay, eventually_some};

use crate::world::LONG;

/// A password that no output may hold.
const SECRET: &str = "s3cr3t-passw0rd";

/// Through a further try the relay never says that it is ready.
async fn stays_unready(relay: &mut Relay, cause: &str) -> Result<()> {
    let tries = || relay.log().iter().filter(|line| line.contains(cause)).count();
    let until = tries() + 1;
    eventually_some("a further try", LONG, || async {
        match relay.ready().await {
            Ok(readiness) if readiness.is_ready() => Some(Err(anyhow!("it said ready: {}", readiness.text))),
            Ok(_) => (tries() >= until).then_some(Ok(())),
            Err(error) => Some(Err(error.into())),
        }
    })
    .await?
}
