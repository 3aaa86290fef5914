//! `walrelay teardown`.

use super::confirm::confirmed;
use super::{Exit, block_on, print, resolve, say, with_remedy};
use crate::cli::TeardownArgs;
use crate::config::Loaded;
use crate::postgres;

pub(super) fn execute(args: &TeardownArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let (slot, publication) = (&source.slot, &source.publication);
    let question = format!(
        "Drop the slot {slot} and the publication {publication}? Events not yet delivered will never be."
    );
    let what = format!("teardown drops the slot {slot} for good");
    if !args.yes && !confirmed(&what, &question)? {
        say("nothing was dropped");
        return Ok(Exit::Failed);
    }
    let report = block_on(postgres::teardown(&connector, &source))?;
    print(&report.map_err(with_remedy)?.to_string())?;
    Ok(Exit::Clean)
}
