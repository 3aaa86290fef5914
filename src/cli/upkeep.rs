//! The commands about rows that were sent: replay and purge.

use std::time::{Duration, SystemTime};

use clap::{ArgGroup, Args};

use super::{CommonArgs, parse_duration, parse_since};
use crate::postgres::QualifiedTable;

/// Below the help of `replay`.
const REPLAY_EXAMPLES: &str = "\
The messages are those of the first delivery, with the same ids, but for the header
replayed = true in place of commit_lsn and tx_seq. Rows that fail are listed by id,
and the exit code is 1 then.

Examples:
  walrelay replay 7b7f5c1e-9c1b-4a52-9f0e-2f1d1c0f4a11
  walrelay replay --aggregate order/42
  walrelay replay --since 2026-11-30T08:00:00Z --until 2026-11-30T09:00:00Z --dry-run
  walrelay replay --event-type OrderCreated --since 2h --rate 200 --yes";

/// Below the help of `purge`.
const PURGE_EXAMPLES: &str = "\
Rows that are not marked as sent stay, and so do those of dead letters that are
pending or being retried.

Examples:
  walrelay purge --older-than 7d --dry-run
  walrelay purge --older-than 7d --table shop.outbox --batch 5000
  walrelay purge --partitions --print --older-than 30d > old_partitions.sql";

/// `walrelay replay`
#[derive(Debug, Args)]
#[command(after_help = REPLAY_EXAMPLES, group(
    ArgGroup::new("which").args(["events", "id", "aggregate", "event_type", "since", "until"]).required(true).multiple(true)
))]
pub struct ReplayArgs {
    /// The rows of these ids. All conditions that are given must hold.
    #[arg(value_name = "EVENT_ID")]
    pub events: Vec<String>,
    /// The row of this id too; may be repeated.
    #[arg(long, value_name = "EVENT_ID")]
    pub id: Vec<String>,
    /// Rows of this aggregate, as order/42.
    #[arg(long, value_name = "TYPE/ID", value_parser = parse_aggregate)]
    pub aggregate: Option<(String, String)>,
    /// Rows of this event type.
    #[arg(long, value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Rows created at or after a time (2026-11-30T08:00:00Z) or so long ago at most (2h).
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_since)]
    pub since: Option<SystemTime>,
    /// Rows created before a time, or longer ago than that.
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_since)]
    pub until: Option<SystemTime>,
    /// In this table only; without it in each of the configuration.
    #[arg(long, value_name = "TABLE")]
    pub table: Option<QualifiedTable>,
    /// Publish so many messages a second at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Say how many rows that would be, and publish none.
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask. It is asked unless all rows are named by their ids.
    #[arg(long)]
    pub yes: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay purge`
#[derive(Debug, Args)]
#[command(after_help = PURGE_EXAMPLES)]
pub struct PurgeArgs {
    /// Rows sent longer ago than this.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub older_than: Duration,
    /// In this table only; without it in each of the configuration.
    #[arg(long, value_name = "TABLE")]
    pub table: Option<QualifiedTable>,
    /// Delete so many rows in one transaction at most.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub batch: u32,
    /// Do not ask.
    #[arg(long)]
    pub yes: bool,
    /// Say how many rows that would be, and delete none.
    #[arg(long)]
    pub dry_run: bool,
    /// Look for whole partitions instead of rows: old, and every row sent.
    #[arg(long, requires = "print", conflicts_with = "dry_run")]
    pub partitions: bool,
    /// Print the SQL that drops those partitions; run it by hand.
    #[arg(long, requires = "partitions")]
    pub print: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Ids may hold slashes, types may not.
fn parse_aggregate(text: &str) -> Result<(String, String), &'static str> {
    let (aggregate_type, id) = text.split_once('/').ok_or("expected type/id, as in order/42")?;
    Ok((aggregate_type.to_owned(), id.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregate_is_split_at_the_first_slash() {
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(parse_aggregate("order/42"), pair("order", "42"));
        assert_eq!(parse_aggregate("file/a/b"), pair("file", "a/b"));
        assert!(parse_aggregate("order").is_err());
    }
}
