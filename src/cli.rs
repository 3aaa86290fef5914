//! The command line: what can be typed, and the configuration sources that it names.

mod dead_letters;
mod insight;
mod route;
mod setup;
mod skip;
mod upkeep;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use walrelay_engine::Lsn;

use crate::config::{Sources, Validator};

pub use dead_letters::{
    ChosenArgs, DeadLettersArgs, DeadLettersCommand, DeadLettersDiscardArgs, DeadLettersListArgs,
    DeadLettersRetryArgs, DeadLettersShowArgs, FilterArgs,
};
pub use insight::{DoctorArgs, StatusArgs};
pub use route::{OutputArg, RouteArgs};
pub use setup::{BackfillArg, SetupArgs, TeardownArgs};
pub use skip::SkipArgs;
pub use upkeep::{PurgeArgs, ReplayArgs};

/// Exit codes and the order of the configuration's sources, below the root's `--help`.
const AFTER_HELP: &str = "\
The configuration is a file, environment variables over it, flags over both.
The file is --config FILE, else $WALRELAY_CONFIG, else ./walrelay.toml,
else /etc/walrelay/walrelay.toml. A key's variable is its path in capitals:
WALRELAY_POSTGRES_URL sets postgres.url.

Exit codes:
  0   done, or stopped by SIGTERM or SIGINT
  1   the command failed
  2   wrong usage of the command line
  69  halted, with --exit-on-halt; or nobody reads stdout, the sink, any more
  70  a bug in walrelay
  78  wrong configuration
  130, 143  a second SIGINT or SIGTERM cut the stop short";

/// Relays a PostgreSQL outbox table to RabbitMQ from the write-ahead log.
#[derive(Debug, Parser)]
#[command(name = "walrelay", version, after_help = AFTER_HELP, max_term_width = 110)]
pub struct Cli {
    /// Flags before the command.
    #[command(flatten)]
    pub common: CommonArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command, before its name or after it.
///
/// clap's global arguments would forget the `--set` before the command when there is one after it, so each
/// command has its own and [`Cli::sources`] joins them.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Configuration")]
pub struct CommonArgs {
    /// Read the configuration from FILE.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Set a key of the configuration, as in --set delivery.max_in_flight=500; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Log lines of this level and above: error, warn, info, debug, trace or off (log.level); levels by target as in
    /// info,walrelay::rabbitmq=debug.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Write log lines as text or json (log.format).
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Relay events until stopped.
    Run(RunArgs),
    /// Create what is missing in the database: outbox table, publication, slot. Can be run again at any time.
    Setup(SetupArgs),
    /// Drop the slot and the publication; the outbox table stays.
    Teardown(TeardownArgs),
    /// Settle one held event without delivering it, on record. Works while the relay is down.
    Skip(SkipArgs),
    /// Look at the events that were set aside, deliver them again or discard them.
    DeadLetters(DeadLettersArgs),
    /// Publish rows that are still in their table again. Runs beside a live relay and does not touch the slot.
    Replay(ReplayArgs),
    /// Delete rows that were sent long ago, never an unsent one.
    Purge(PurgeArgs),
    /// Wait until everything committed up to a position is settled: for cut-overs and upgrades.
    Wait(WaitArgs),
    /// Go on after a halt, with the publication and tables as they are now; make a lost slot anew, with what it missed.
    Recover(RecoverArgs),
    /// Look at everything between the configuration and the first confirm, and say what to do.
    Doctor(DoctorArgs),
    /// Say on one screen how delivery stands.
    Status(StatusArgs),
    /// Show what a row would become: exchange, routing key, properties, headers. Without servers.
    Route(RouteArgs),
    /// Look at the configuration.
    Config(ConfigArgs),
    /// Ask the running relay of this configuration whether it is well: for health checks.
    Health(HealthArgs),
    /// Print a completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the manual page, or write those of all commands to a folder.
    Man(ManArgs),
}

/// `walrelay run`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run setup first, and declare the exchange. For development.
    #[arg(long)]
    pub auto_setup: bool,
    /// Exit with code 69 when a person is needed, instead of waiting for the remedy.
    #[arg(long)]
    pub exit_on_halt: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay wait`
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("position").args(["current", "lsn"]).required(true)))]
pub struct WaitArgs {
    /// Up to everything that is committed now.
    #[arg(long)]
    pub current: bool,
    /// Up to this position of the write-ahead log, such as 16/B374D848.
    #[arg(long, value_name = "LSN")]
    pub lsn: Option<Lsn>,
    /// Give up after this time.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay recover`
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// Send again what a slot that still streams may have missed: rows that are not marked as sent. A slot that is made
    /// anew needs no asking.
    #[arg(long)]
    pub rescan: bool,
    /// Make the slot anew although it still streams: the only way past a transaction that can never be read.
    #[arg(long)]
    pub new_slot: bool,
    /// Of a table without marks, send the rows written at or after a time (2026-11-30T08:00:00Z) or so long ago at most
    /// (2h). Implies --rescan.
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_since)]
    pub since: Option<SystemTime>,
    /// The column that tells when a row was written, and orders the rows; without it created_at.
    #[arg(long, value_name = "COLUMN", value_parser = NonEmptyStringValueParser::new())]
    pub backfill_order: Option<String>,
    /// Do not ask. It is asked where the slot is made anew.
    #[arg(long)]
    pub yes: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// What is wrong with a text that is no duration.
const NO_DURATION: &str = "expected a duration such as 90s, 2h or 7d";

fn parse_patience(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(Duration::ZERO) => Err("no answer comes in no time: expected more than 0s".to_owned()),
        Ok(patience) => Ok(patience),
        Err(_) => Err(NO_DURATION.to_owned()),
    }
}

/// A duration of a flag.
fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    humantime::parse_duration(text).map_err(|_| NO_DURATION)
}

fn parse_since(text: &str) -> Result<SystemTime, &'static str> {
    let ago = humantime::parse_duration(text)
        .ok()
        .and_then(|ago| SystemTime::now().checked_sub(ago));
    ago.or_else(|| humantime::parse_rfc3339_weak(text).ok())
        .ok_or("expected a time such as 2026-11-30T08:00:00Z or a duration such as 2h")
}

/// `walrelay config`
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub command: ConfigCommand,
    /// Flags between `config` and its command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The commands of `walrelay config`.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say whether the configuration is valid, without connecting anywhere.
    Check(ConfigCommandArgs),
    /// Print the values in effect and where each comes from, passwords masked.
    Show(ConfigCommandArgs),
}

/// `walrelay config check` and `walrelay config show`
#[derive(Debug, Args)]
pub struct ConfigCommandArgs {
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay health`
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 when it is well, 1 when it is not or does not answer.")]
pub struct HealthArgs {
    /// Ask /readyz, whether events would flow, instead of /livez, whether the process works.
    #[arg(long)]
    pub ready: bool,
    /// How long to wait for the answer.
    #[arg(long, value_name = "DURATION", default_value = "3s", value_parser = parse_patience)]
    pub timeout: Duration,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay completions`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell's.
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// `walrelay man`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write a page for each command into this folder, which exists, instead of printing the first.
    #[arg(value_name = "FOLDER")]
    pub directory: Option<PathBuf>,
}

impl Cli {
    /// The sources of the configuration: this command line and the process's environment.
    #[must_use]
    pub fn sources<'a>(&self, validators: &'a [Validator]) -> Sources<'a> {
        let mut sources = Sources {
            environment: std::env::vars_os().collect(),
            validators,
            ..Sources::default()
        };
        // The later wins, as everywhere on a command line.
        for common in [&self.common].into_iter().chain(self.command.common()) {
            sources.file = common.config.clone().or(sources.file);
            sources.set.extend(common.set.iter().cloned());
            let level = common
                .log_level
                .iter()
                .map(|level| ("--log-level", "log.level", level.clone()));
            let format = common
                .log_format
                .iter()
                .map(|format| ("--log-format", "log.format", format.clone()));
            sources.flags.extend(level.chain(format));
        }
        if let Command::Setup(SetupArgs {
            shard: Some(shard), ..
        }) = &self.command
        {
            sources.flags.push(("--shard", "postgres.shard", shard.clone()));
        }
        sources
    }
}

impl Command {
    /// The flags after the command, in their order.
    fn common(&self) -> Vec<&CommonArgs> {
        match self {
            Self::Run(args) => vec![&args.common],
            Self::Setup(args) => vec![&args.common],
            Self::Teardown(args) => vec![&args.common],
            Self::Skip(args) => vec![&args.common],
            Self::Wait(args) => vec![&args.common],
            Self::Replay(args) => vec![&args.common],
            Self::Purge(args) => vec![&args.common],
            Self::Recover(args) => vec![&args.common],
            Self::Doctor(args) => vec![&args.common],
            Self::Status(args) => vec![&args.common],
            Self::Route(args) => vec![&args.common],
            Self::Health(args) => vec![&args.common],
            Self::Completions(_) | Self::Man(_) => Vec::new(),
            Self::DeadLetters(args) => vec![&args.common, args.command.common()],
            Self::Config(args) => match &args.command {
                ConfigCommand::Check(inner) | ConfigCommand::Show(inner) => vec![&args.common, &inner.common],
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parsed(line: &str) -> Cli {
        Cli::try_parse_from(line.split(' ')).expect("valid usage")
    }

    /// The help of a command, as on a terminal of 100 columns.
    fn help(path: &[&str]) -> String {
        let mut root = Cli::command().term_width(100);
        root.build();
        let mut command = &mut root;
        for name in path {
            command = command.find_subcommand_mut(name).expect("a command");
        }
        command.render_long_help().to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_before_and_after_the_command_are_joined() {
        let cli = parsed(
            "walrelay --config a --set x=1 --log-level warn run --set y=2 --log-level debug --exit-on-halt",
        );
        let sources = cli.sources(&[]);
        assert_eq!(sources.file, Some("a".into()));
        assert_eq!(sources.set, ["x=1", "y=2"]);
        let levels: Vec<_> = sources.flags.iter().map(|(_, _, level)| level.as_str()).collect();
        assert_eq!(levels, ["warn", "debug"]);
        assert!(matches!(
            cli.command,
            Command::Run(RunArgs {
                exit_on_halt: true,
                auto_setup: false,
                ..
            })
        ));
    }

    #[test]
    fn the_last_file_wins() {
        let cli = parsed("walrelay --config a config --config b --set x=1 check --config c --set y=2");
        assert_eq!(cli.sources(&[]).file, Some("c".into()));
        assert_eq!(cli.sources(&[]).set, ["x=1", "y=2"]);
    }

    #[test]
    fn every_command_that_reads_the_configuration_takes_the_flags_of_all() {
        fn check(command: &clap::Command) {
            let inner: Vec<_> = command
                .get_subcommands()
                .filter(|inner| !["help", "completions", "man"].contains(&inner.get_name()))
                .collect();
            for flag in ["config", "set", "log_level", "log_format"] {
                let has = command.get_arguments().any(|argument| argument.get_id() == flag);
                assert!(has, "{} lacks {flag}", command.get_name());
            }
            inner.into_iter().for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn a_command_that_changes_dead_letters_must_be_told_which() {
        for (line, valid) in [
            ("walrelay dead-letters retry", false),
            ("walrelay dead-letters retry --yes", false),
            ("walrelay dead-letters retry --all", true),
            (
                "walrelay dead-letters retry --failure unroutable --since 2h",
                true,
            ),
            ("walrelay dead-letters retry --failure lost", false),
            ("walrelay dead-letters retry --since yesterday", false),
            ("walrelay dead-letters retry --since 2026-11-30T08:00:00Z", true),
            ("walrelay dead-letters discard --key 0/1:0", false),
            ("walrelay dead-letters retry --failure unroutable", true),
            ("walrelay dead-letters retry event-1", true),
            ("walrelay dead-letters retry event-1 --id event-1", false),
            ("walrelay dead-letters discard --key 0/1 --because old", false),
            ("walrelay dead-letters discard 0/1:0 --reason old", true),
            ("walrelay dead-letters discard 0/1:x --reason old", false),
            (
                "walrelay dead-letters discard --failure invalid --reason old",
                true,
            ),
            ("walrelay dead-letters discard --key 0/1:0 --because old", true),
            ("walrelay skip 0/1:0", false),
            ("walrelay skip 0/1:0 --reason=", false),
            ("walrelay skip 0/1:0 --reason why", true),
            ("walrelay skip 0/1:x --reason why", false),
            ("walrelay skip", false),
            ("walrelay skip --reason why", false),
            ("walrelay skip --list", true),
            ("walrelay skip --list 0/1:0 --reason why", false),
            ("walrelay skip --withdraw 7", true),
            ("walrelay skip --withdraw 7 --list", false),
            ("walrelay replay event-1 event-2", true),
            ("walrelay health --timeout 0s", false),
            ("walrelay wait", false),
            ("walrelay wait --current --lsn 0/1", false),
            ("walrelay wait --lsn 0/1 --timeout 5s", true),
        ] {
            assert_eq!(Cli::try_parse_from(line.split(' ')).is_ok(), valid, "{line}");
        }
    }

    #[test]
    fn the_help_of_every_command_is_as_reviewed() {
        insta::assert_snapshot!("help", help(&[]));
        insta::assert_snapshot!("help_run", help(&["run"]));
        insta::assert_snapshot!("help_setup", help(&["setup"]));
        insta::assert_snapshot!("help_teardown", help(&["teardown"]));
        insta::assert_snapshot!("help_skip", help(&["skip"]));
        insta::assert_snapshot!("help_dead_letters", help(&["dead-letters"]));
        insta::assert_snapshot!("help_dead_letters_list", help(&["dead-letters", "list"]));
        insta::assert_snapshot!("help_dead_letters_show", help(&["dead-letters", "show"]));
        insta::assert_snapshot!("help_dead_letters_retry", help(&["dead-letters", "retry"]));
        insta::assert_snapshot!("help_dead_letters_discard", help(&["dead-letters", "discard"]));
        insta::assert_snapshot!("help_replay", help(&["replay"]));
        insta::assert_snapshot!("help_purge", help(&["purge"]));
        insta::assert_snapshot!("help_wait", help(&["wait"]));
        insta::assert_snapshot!("help_recover", help(&["recover"]));
        insta::assert_snapshot!("help_doctor", help(&["doctor"]));
        insta::assert_snapshot!("help_status", help(&["status"]));
        insta::assert_snapshot!("help_route", help(&["route"]));
        insta::assert_snapshot!("help_health", help(&["health"]));
        insta::assert_snapshot!("help_completions", help(&["completions"]));
        insta::assert_snapshot!("help_man", help(&["man"]));
        insta::assert_snapshot!("help_config", help(&["config"]));
        insta::assert_snapshot!("help_config_check", help(&["config", "check"]));
        insta::assert_snapshot!("help_config_show", help(&["config", "show"]));
    }
}
