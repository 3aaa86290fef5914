//! `walrelay dead-letters` and its commands.

use std::time::SystemTime;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Subcommand};

use super::{CommonArgs, parse_selector, parse_since};
use crate::postgres::EventPosition;
use crate::postgres::dead_letters::{Reason, State};
use crate::postgres::skips::Selector;

/// `walrelay dead-letters`
#[derive(Debug, Args)]
pub struct DeadLettersArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: DeadLettersCommand,
    /// Flags between `dead-letters` and its command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// The commands of `walrelay dead-letters`.
#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// List them in commit order, without their columns.
    List(DeadLettersListArgs),
    /// Print one with its columns.
    Show(DeadLettersShowArgs),
    /// Ask the relay to deliver them again; they stay until the broker has confirmed.
    Retry(DeadLettersRetryArgs),
    /// Mark them as unwanted; the rows stay, with the reason.
    Discard(DeadLettersDiscardArgs),
}

/// Which dead letters; all conditions that are given must hold.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which")]
pub struct FilterArgs {
    /// Those set aside for this reason: unroutable, nacked, unanswered, refused or invalid.
    #[arg(long, value_name = "REASON")]
    pub reason: Option<Reason>,
    /// Those of this event type.
    #[arg(long, value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Those that failed last at or after a time (2026-11-30T08:00:00Z) or so long ago at most (2h).
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_since)]
    pub since: Option<SystemTime>,
    /// Those of this event id.
    #[arg(long, value_name = "EVENT_ID")]
    pub id: Option<String>,
    /// The one of this key.
    #[arg(long, value_name = "LSN:SEQ")]
    pub key: Option<EventPosition>,
}

/// Which dead letters a command changes.
#[derive(Debug, Args)]
#[command(group(selection()))]
pub struct ChosenArgs {
    /// All of them.
    #[arg(long)]
    pub all: bool,
    /// Do not ask. It is asked unless --id or --key is given.
    #[arg(long)]
    pub yes: bool,
    /// Which.
    #[command(flatten)]
    pub filter: FilterArgs,
}

/// `walrelay dead-letters list`
#[derive(Debug, Args)]
pub struct DeadLettersListArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Print so many at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    pub limit: u32,
    /// Those in this state: pending, retrying or discarded; without it the first two.
    #[arg(long, value_name = "STATE")]
    pub state: Option<State>,
    /// Which.
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay dead-letters show`
#[derive(Debug, Args)]
pub struct DeadLettersShowArgs {
    /// The event: its id, or its key LSN:SEQ.
    #[arg(value_name = "EVENT_ID|LSN:SEQ", value_parser = parse_selector)]
    pub event: Selector,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay dead-letters retry`
#[derive(Debug, Args)]
pub struct DeadLettersRetryArgs {
    /// Which.
    #[command(flatten)]
    pub chosen: ChosenArgs,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay dead-letters discard`
#[derive(Debug, Args)]
pub struct DeadLettersDiscardArgs {
    /// Why they are not wanted; kept in their rows.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub because: String,
    /// Which.
    #[command(flatten)]
    pub chosen: ChosenArgs,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// A command that changes dead letters must be told which.
fn selection() -> ArgGroup {
    ArgGroup::new("selection")
        .args(["all", "reason", "event_type", "since", "id", "key"])
        .required(true)
        .multiple(true)
}

impl DeadLettersCommand {
    pub(super) fn common(&self) -> &CommonArgs {
        match self {
            Self::List(args) => &args.common,
            Self::Show(args) => &args.common,
            Self::Retry(args) => &args.common,
            Self::Discard(args) => &args.common,
        }
    }
}
