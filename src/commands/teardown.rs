//! `walrelay teardown`.

use super::confirm::confirmed;
use super::{Exit, block_on, print, resolve, say, with_remedy_as};
use crate::cli::TeardownArgs;
use crate::config::Loaded;
use crate::postgres;

pub(super) fn execute(args: &TeardownArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database_as(&loaded.config, args.url.as_deref())?;
    let (slot, publication) = (&source.slot, &source.publication);
    let question = format!(
        "Drop the slot {slot} and the publication {publication}? Events not yet delivered will never be."
    );
    let what = format!("teardown drops the slot {slot} for good");
    if !args.yes && !confirmed(&what, &question)? {
        say("nothing was dropped");
        return Ok(Exit::Failed);
    }
    let mut printed = Ok(());
    let dropped = block_on(postgres::teardown(&connector, &source, |step| {
        let line = print(&format!("{step}\n"));
        printed = std::mem::replace(&mut printed, Ok(())).and(line);
    }))?;
    dropped.map_err(|error| with_remedy_as(args.url.as_deref(), error))?;
    printed?;
    Ok(Exit::Clean)
}
