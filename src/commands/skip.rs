//! `walrelay skip`.

use super::{Exit, block_on, in_session, print, resolve, with_remedy};
use crate::cli::SkipArgs;
use crate::config::Loaded;
use crate::postgres::skips;

pub(super) fn execute(args: &SkipArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let slot = &source.slot;
    let new = block_on(in_session(&connector, slot, async |session| {
        skips::request(session, slot, &args.event, &args.reason).await
    }))?
    .map_err(with_remedy)?;
    let event = &args.event;
    print(&if new {
        format!("recorded: event {event} of slot {slot} is skipped when it is held\n")
    } else {
        format!("recorded anew: a skip of event {event} of slot {slot} was open already\n")
    })?;
    Ok(Exit::Clean)
}
