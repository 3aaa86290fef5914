//! `walrelay teardown`.

use std::io::{self, BufRead as _, IsTerminal as _};

use super::{Exit, block_on, print, resolve, say, with_remedy};
use crate::cli::TeardownArgs;
use crate::config::Loaded;
use crate::postgres;

pub(super) fn execute(args: &TeardownArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    if !args.yes && !confirmed(&source.slot.to_string(), &source.publication.to_string())? {
        say("nothing was dropped");
        return Ok(Exit::Failed);
    }
    let report = block_on(postgres::teardown(&connector, &source))?;
    print(&report.map_err(with_remedy)?.to_string())?;
    Ok(Exit::Clean)
}

/// Asks on a terminal. Without one there is nobody to ask.
fn confirmed(slot: &str, publication: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        anyhow::bail!(
            "teardown drops the slot {slot} for good: say --yes where there is no terminal to ask on"
        );
    }
    say(&format!(
        "Drop the slot {slot} and the publication {publication}? Events not yet delivered will never be. Type yes:"
    ));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
