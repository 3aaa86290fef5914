//! `walrelay route`.

use std::path::PathBuf;

use clap::Args;

use super::CommonArgs;
use crate::postgres::QualifiedTable;

/// Below the help of `route`.
const ROUTE_EXAMPLES: &str = "\
The file holds one JSON object: each column of the row with its value. A text is the
column's text as PostgreSQL has it, and of a bytea \\x and hex digits; an object or an
array is the value of a json column, byte for byte as it stands in the file; null is
NULL. Every column that the configuration names has to be there.

No server is asked: whether the exchange is there and a queue bound,
walrelay doctor --routes tells.

Exit codes: 0 when the row would become a message, 1 when not, 78 for a wrong
configuration.

Examples:
  walrelay route --json row.json
  walrelay route --json row.json --output json | jq -r .routing_key
  psql -Atc 'select to_json(t) from outbox_events t limit 1' | walrelay route --json -";

/// `walrelay route`
#[derive(Debug, Args)]
#[command(after_help = ROUTE_EXAMPLES)]
pub struct RouteArgs {
    /// The row, as a JSON object in this file, or - for stdin.
    #[arg(long, value_name = "FILE")]
    pub json: PathBuf,
    /// Its table; without it the only one of the configuration.
    #[arg(long, value_name = "TABLE")]
    pub table: Option<QualifiedTable>,
    /// How to print what it would become.
    #[arg(long, value_name = "FORMAT", default_value = "human")]
    pub output: OutputArg,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// For whom something is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputArg {
    /// For people.
    Human,
    /// For programs.
    Json,
}
