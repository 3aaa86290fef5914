//! `walrelay completions` and `walrelay man`: what a package installs beside the binary.

use anyhow::Context as _;
use clap::CommandFactory as _;

use super::{Exit, print};
use crate::cli::{Cli, CompletionsArgs, ManArgs};

pub(super) fn completions(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "walrelay", &mut script);
    print(&String::from_utf8(script).context("write the completions")?)?;
    Ok(Exit::Clean)
}

pub(super) fn man(args: &ManArgs) -> anyhow::Result<Exit> {
    let command = Cli::command();
    if let Some(folder) = &args.directory {
        let what = || format!("write the manual pages to {}", folder.display());
        // A misspelt path is not to become a tree of folders.
        anyhow::ensure!(
            folder.is_dir(),
            "{} is no folder: create it first",
            folder.display()
        );
        clap_mangen::generate_to(command, folder).with_context(what)?;
    } else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command)
            .render(&mut page)
            .context("write the manual page")?;
        print(&String::from_utf8(page).context("write the manual page")?)?;
    }
    Ok(Exit::Clean)
}
