//! `walrelay teardown`.

use crate::cli::TeardownArgs;
use crate::config::Loaded;

use super::Exit;

pub(super) fn execute(_args: &TeardownArgs, _loaded: Loaded) -> anyhow::Result<Exit> {
    anyhow::bail!("not built yet")
}
