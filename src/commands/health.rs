//! `walrelay health`.

use super::{Exit, print};
use crate::admin::client::ask;
use crate::cli::HealthArgs;
use crate::config::Loaded;
use crate::fault::chain;

pub(super) fn execute(args: &HealthArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let path = if args.ready { "/readyz" } else { "/livez" };
    let answer = ask(loaded.config.admin.listen, path, None, args.timeout).map_err(|error| {
        let line = chain(&error);
        anyhow::anyhow!("{line}: no relay of this configuration runs here, or its admin.listen is another")
    })?;
    print(&answer.body)?;
    Ok(if answer.status == 200 {
        Exit::Clean
    } else {
        Exit::Failed
    })
}
