//! `walrelay run`.

use crate::cli::RunArgs;
use crate::config::Loaded;

use super::Exit;

pub(super) fn execute(_args: &RunArgs, _loaded: Loaded) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
