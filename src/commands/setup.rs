//! `walrelay setup`.

use super::{Exit, block_on, print, resolve, with_remedy_as};
use crate::cli::{BackfillArg, SetupArgs};
use crate::config::Loaded;
use crate::postgres::backfill::{Due, Order};
use crate::postgres::{self, SetupOptions, script};

pub(super) fn execute(args: &SetupArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database_as(&loaded.config, args.url.as_deref())?;
    if args.print {
        print(&script(&source, args.grant_to.as_deref()))?;
        return Ok(Exit::Clean);
    }
    let options = SetupOptions {
        due: args.backfill.map(|which| match which {
            BackfillArg::None => Due::None,
            BackfillArg::Unsent => Due::Unsent,
            BackfillArg::All => Due::All,
        }),
        order: order(args.backfill_order.as_ref()),
        grant_to: args.grant_to.clone(),
        new_slot: args.new_slot,
    };
    let report = block_on(postgres::setup_with(&connector, &source, &options))?;
    let report = report.map_err(|error| with_remedy_as(args.url.as_deref(), error))?;
    print(&report.to_string())?;
    Ok(Exit::Clean)
}

pub(super) fn order(column: Option<&String>) -> Order {
    column.map_or(Order::Default, |column| Order::Column(column.clone()))
}
