//! The commands that look: doctor and status.

use std::time::Duration;

use clap::Args;

use super::{CommonArgs, parse_duration};

/// Below the help of `doctor`.
const DOCTOR_EXAMPLES: &str = "\
Each check is one line: ✓ as it should be, ! something to mind, ✗ nothing is
delivered like this, – not looked at. Below ! and ✗ stands what to do, and the SQL
or the command for it. Nothing is changed, nothing declared, and nothing published
without --probe.

Exit codes: 0 without ✗, 1 with one (with --strict also with !), 78 for a wrong
configuration.

Examples:
  walrelay doctor
  walrelay doctor --probe --strict
  walrelay doctor --routes
  walrelay doctor --json | jq '.groups[].findings[] | select(.outcome == \"failed\")'";

/// Below the help of `status`.
const STATUS_EXAMPLES: &str = "\
Where the relay of this configuration does not answer at admin.listen, the database
alone tells: the slot, who streams from it, how far it is behind.

Exit codes: 0 when events would flow, 1 when not, or when nobody streams.

Examples:
  walrelay status
  walrelay status --watch
  walrelay status --json | jq .slot";

/// `walrelay doctor`
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// Publish one message with a new random routing key, and see that it comes back as unroutable. A queue behind a fanout
    /// exchange, or bound to every key, takes it: its type is walrelay.doctor.
    #[arg(long)]
    pub probe: bool,
    /// List the routing keys of the events in the outbox tables and, with rabbitmq.management, those that no queue is bound
    /// for.
    #[arg(long)]
    pub routes: bool,
    /// Exit with code 1 for warnings too.
    #[arg(long)]
    pub strict: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `walrelay status`
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES)]
pub struct StatusArgs {
    /// Draw it anew until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    pub watch: bool,
    /// How long between two looks.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration, requires = "watch")]
    pub interval: Duration,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}
