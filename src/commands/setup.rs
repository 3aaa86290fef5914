//! `walrelay setup`.

use super::{Exit, block_on, print, resolve, with_remedy};
use crate::cli::{BackfillArg, SetupArgs};
use crate::config::Loaded;
use crate::postgres::backfill::{Due, Order};
use crate::postgres::{self, SetupOptions, script};

pub(super) fn execute(args: &SetupArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (mut connector, source) = resolve::database(&loaded.config)?;
    if args.print {
        print(&script(&source, args.grant_to.as_deref()))?;
        return Ok(Exit::Clean);
    }
    if let Some(url) = &args.url {
        connector = postgres::Connector::new(url.parse()?);
    }
    let options = SetupOptions {
        due: args.backfill.map(|which| match which {
            BackfillArg::None => Due::None,
            BackfillArg::Unsent => Due::Unsent,
            BackfillArg::All => Due::All,
        }),
        order: order(args.backfill_order.as_ref()),
        grant_to: args.grant_to.clone(),
    };
    let report = block_on(postgres::setup_with(&connector, &source, &options))?;
    print(&report.map_err(with_remedy)?.to_string())?;
    Ok(Exit::Clean)
}

pub(super) fn order(column: Option<&String>) -> Order {
    column.map_or(Order::Default, |column| Order::Column(column.clone()))
}
