//! `walrelay setup`.

use crate::cli::SetupArgs;
use crate::config::Loaded;

use super::Exit;

pub(super) fn execute(_args: &SetupArgs, _loaded: Loaded) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
