//! Asking a person before something that cannot be taken back.

use std::io::{self, BufRead as _, IsTerminal as _};

use super::say;

/// Asks on a terminal. Without one there is nobody to ask, and the error says `what` needs `--yes`.
pub(super) fn confirmed(what: &str, question: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        anyhow::bail!("{what}: say --yes where there is no terminal to ask on");
    }
    say(&format!("{question} Type yes:"));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}
