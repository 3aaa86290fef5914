//! `walrelay recover`, for a slot that still streams.

use super::{Exit, block_on, print, resolve, with_remedy};
use crate::config::Loaded;
use crate::postgres;

pub(super) fn execute(loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let report = block_on(postgres::recover(&connector, &source))?;
    print(&report.map_err(with_remedy)?.to_string())?;
    Ok(Exit::Clean)
}
