//! `walrelay setup` and `walrelay teardown`.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::CommonArgs;

/// `walrelay setup`
#[derive(Debug, Args)]
pub struct SetupArgs {
    /// Which rows that are in a table already are sent before the stream: none, unsent (those without sent_at) or all.
    /// Without it, unsent where the table has the column sent_at, else none.
    #[arg(long, value_name = "WHICH")]
    pub backfill: Option<BackfillArg>,
    /// Send those rows in the order of this column; without it, created_at where the table has it, else in no particular
    /// order.
    #[arg(long, value_name = "COLUMN", value_parser = NonEmptyStringValueParser::new())]
    pub backfill_order: Option<String>,
    /// Set up one of several relays that share the tables: the shard 1/4 is the second of four (postgres.shard, which `run`
    /// and all other commands need as well).
    #[arg(long, value_name = "K/N", value_parser = NonEmptyStringValueParser::new())]
    pub shard: Option<String>,
    /// Give this role the rights that the relay needs.
    #[arg(long, value_name = "ROLE", value_parser = NonEmptyStringValueParser::new())]
    pub grant_to: Option<String>,
    /// Connect with this URL instead of postgres.url: an administrator's.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Create the slot even where one was set up before and is gone. Of what that one missed, nothing is sent but the rows
    /// that --backfill notes: for the moment after `walrelay wait --current`, while nobody writes. Otherwise run
    /// `walrelay recover`.
    #[arg(long)]
    pub new_slot: bool,
    /// Print the SQL for those who run their own migrations; change nothing, connect nowhere.
    #[arg(long, conflicts_with_all = ["backfill", "backfill_order", "url", "new_slot"])]
    pub print: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Which rows are sent before the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum BackfillArg {
    /// None of them.
    None,
    /// Those without `sent_at`.
    Unsent,
    /// All of them.
    All,
}

/// `walrelay teardown`
#[derive(Debug, Args)]
pub struct TeardownArgs {
    /// Connect with this URL instead of postgres.url: an administrator's.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}
