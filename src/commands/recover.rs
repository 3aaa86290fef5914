//! `walrelay recover`.

use super::confirm::confirmed;
use super::setup::order;
use super::{Exit, block_on, in_session, print, resolve, say, with_remedy};
use crate::cli::RecoverArgs;
use crate::config::Loaded;
use crate::postgres::backfill::{Copied, Due};
use crate::postgres::{self, RecoverOptions};

pub(super) fn execute(args: &RecoverArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let slot = &source.slot;
    let lost = block_on(in_session(&connector, slot, async |session| {
        postgres::lost(session, &source).await
    }))?;
    let found = match lost.map_err(with_remedy)? {
        Some(lost) => Some(lost.to_string()),
        None => args
            .new_slot
            .then(|| format!("the replication slot `{slot}` still streams")),
    };
    if let Some(found) = found
        && !args.yes
    {
        let found = match &source.messages {
            Some(_) => format!("{found}; events of logical messages that it has not brought are lost"),
            None => found,
        };
        let question = match source.outboxes.is_empty() {
            true => format!("{found}. Make it anew?"),
            false => format!("{found}. Make it anew, and send again what it may have missed?"),
        };
        let what = format!("{found}, and recover makes it anew");
        if !confirmed(&what, &question)? {
            say("nothing was changed");
            return Ok(Exit::Failed);
        }
    }
    let options = RecoverOptions {
        since: args.since,
        order: order(args.backfill_order.as_ref()),
        rescan: args.rescan || args.since.is_some(),
        new_slot: args.new_slot,
        ..RecoverOptions::default()
    };
    let report = block_on(postgres::recover(&connector, &source, &options))?;
    let report = report.map_err(with_remedy)?;
    print(&report.to_string())?;
    let copied = report.copied.iter().flatten();
    let by_time = |copied: &Copied| matches!(copied.due, Due::Since(_));
    if args.since.is_some() && !copied.clone().any(by_time) {
        say("warning: --since was ignored: no table's rows were to be found by their time");
    }
    if args.backfill_order.is_some() && copied.count() == 0 {
        say("warning: --backfill-order was ignored: no rows were to be noted");
    }
    Ok(Exit::Clean)
}
