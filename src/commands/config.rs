//! `walrelay config check` and `walrelay config show`.

use crate::cli::{ConfigArgs, ConfigCommand};
use crate::config::Loaded;

use super::{Exit, print, say};

/// The configuration is valid when it gets here.
pub(super) fn execute(args: &ConfigArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    for variable in &loaded.unknown_variables {
        say(&format!("warning: {variable}"));
    }
    match args.command {
        ConfigCommand::Check(_) => {
            let file = match &loaded.file {
                Some(path) => path.display().to_string(),
                None => "no file".to_owned(),
            };
            print(&format!("configuration is valid ({file})\n"))?;
        }
        ConfigCommand::Show(_) => print(&loaded.settings.to_toml())?,
    }
    Ok(Exit::Clean)
}
