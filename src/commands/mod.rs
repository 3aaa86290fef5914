//! The commands, and how they end.

mod brokers;
mod config;
mod confirm;
mod dead_letters;
mod doctor;
mod exit;
mod generate;
mod health;
mod outbox;
mod progress;
mod purge;
mod recover;
mod replay;
mod resolve;
mod route;
mod run;
mod setup;
mod skip;
mod status;
mod stream;
mod table;
mod teardown;
mod wait;

use std::io::{self, Write as _};
use std::panic::{self, AssertUnwindSafe};

use anyhow::Context as _;

use crate::cli::{Cli, Command};
use crate::config::{self as configuration, ConfigError, Loaded, Sources};
use crate::fault::chain;
use crate::postgres::{self, ControlSession};
use crate::telemetry;

pub use exit::Exit;
use exit::WrongUsage;

/// Carries the command out, says on stderr what failed, and returns how the process is to end.
#[must_use]
pub fn dispatch(cli: &Cli) -> Exit {
    ending(|| carry_out(cli))
}

fn ending(command: impl FnOnce() -> anyhow::Result<Exit>) -> Exit {
    match panic::catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(exit)) => exit,
        Ok(Err(error)) => {
            if let Some(error) = error.downcast_ref::<ConfigError>() {
                say(&error.to_string());
                return match error.is_wrong_usage() {
                    true => Exit::Usage,
                    false => Exit::Configuration,
                };
            }
            say(&format!("walrelay: {error:#}"));
            match error.downcast_ref::<WrongUsage>() {
                Some(_) => Exit::Usage,
                None => Exit::Failed,
            }
        }
        // The panic hook has said what happened.
        Err(_) => Exit::Bug,
    }
}

fn carry_out(cli: &Cli) -> anyhow::Result<Exit> {
    let load = || {
        configuration::load(&Sources {
            agreements: resolve::AGREEMENTS,
            ..cli.sources(resolve::VALIDATORS)
        })
    };
    let logging = || with_logging(load()?);
    match &cli.command {
        Command::Config(args) => config::execute(args, &load()?),
        Command::Run(args) => run::execute(args, &logging()?),
        Command::Setup(args) => setup::execute(args, &logging()?),
        Command::Teardown(args) => teardown::execute(args, &logging()?),
        Command::Skip(args) => skip::execute(args, &logging()?),
        Command::DeadLetters(args) => dead_letters::execute(&args.command, &logging()?),
        Command::Replay(args) => replay::execute(args, &logging()?),
        Command::Purge(args) => purge::execute(args, &logging()?),
        Command::Wait(args) => wait::execute(args, &logging()?),
        Command::Recover(args) => recover::execute(args, &logging()?),
        Command::Doctor(args) => doctor::execute(args, &load()?),
        Command::Status(args) => status::execute(args, &load()?),
        Command::Route(args) => route::execute(args, &load()?),
        Command::Health(args) => health::execute(args, &load()?),
        // These need no configuration: who builds a package has none.
        Command::Completions(args) => generate::completions(args),
        Command::Man(args) => generate::man(args),
    }
}

/// Sets logging up, and logs what came to light before.
fn with_logging(loaded: Loaded) -> anyhow::Result<Loaded> {
    telemetry::init(&loaded.config.log)?;
    for variable in &loaded.unknown_variables {
        tracing::warn!(
            name = variable.name,
            nearest = variable.nearest,
            "unknown environment variable is ignored"
        );
    }
    Ok(loaded)
}

/// Runs a command on one thread, since one task owns the data path.
fn block_on<T>(command: impl Future<Output = T>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    let result = runtime.block_on(command);
    // A name look-up that hangs in the system's resolver must not hold up the exit.
    runtime.shutdown_background();
    Ok(result)
}

/// Does something in one short SQL session.
async fn in_session<T>(
    connector: &postgres::Connector,
    slot: &postgres::SlotName,
    work: impl AsyncFnOnce(&mut ControlSession) -> Result<T, postgres::Error>,
) -> Result<T, postgres::Error> {
    let mut session = ControlSession::open(connector, slot).await?;
    let result = work(&mut session).await;
    session.close().await;
    result
}

/// An error of PostgreSQL in one line, with the remedy from the table of faults.
fn with_remedy(error: postgres::Error) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", chain(&error), error.remedy())
}

/// As [`with_remedy`], where an administrator's URL may have taken the place of the configured one.
fn with_remedy_as(url: Option<&str>, error: postgres::Error) -> anyhow::Error {
    if url.is_none() {
        return with_remedy(error);
    }
    let remedy = error
        .remedy()
        .replace(" (postgres.password_file)", "")
        .replace("postgres.url", "--url");
    anyhow::anyhow!("{}: {remedy}", chain(&error))
}

/// Writes the result of a command to stdout. A reader that has gone away is no failure.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("write to stdout"),
    }
}

/// Writes a line for a person to stderr; where nobody reads it, nothing is left to do about that.
fn say(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_has_its_code() {
        assert_eq!(ending(|| Ok(Exit::Halted)).code(), 69);
        assert_eq!(ending(|| Ok(Exit::CutShort(15))).code(), 143);
        assert_eq!(ending(|| anyhow::bail!("no server")).code(), 1);
        assert_eq!(ending(|| panic!("a bug")).code(), 70);
        let usage = || anyhow::bail!(WrongUsage("--url: no".to_owned()));
        assert_eq!(ending(usage).code(), 2);
        let nothing = || {
            configuration::load(&Sources {
                file: Some("/nowhere".into()),
                ..Sources::default()
            })
        };
        assert_eq!(
            ending(|| nothing().map(|_| Exit::Clean).context("start")).code(),
            78
        );
    }
}
