//! `walrelay skip`, and how commands name one event.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use walrelay_engine::Lsn;

use super::CommonArgs;
use crate::postgres::EventPosition;
use crate::postgres::skips::Selector;

/// Its three forms.
const USAGE: &str = "walrelay skip [OPTIONS] --reason <TEXT> <EVENT_ID|LSN:SEQ>
       walrelay skip [OPTIONS] --list
       walrelay skip [OPTIONS] --withdraw <NUMBER>";

/// Below the help of `skip`.
const EXAMPLES: &str = "\
Examples:
  walrelay skip 7b7f5c1e-9c1b-4a52-9f0e-2f1d1c0f4a11 --reason 'the customer was a test'
  walrelay skip 16/B374D848:0 --reason 'no usable id'
  walrelay skip --list
  walrelay skip --withdraw 7";

/// `walrelay skip`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub struct SkipArgs {
    /// The event: its id, or its key LSN:SEQ as log and /readyz name it.
    #[arg(
        value_name = "EVENT_ID|LSN:SEQ",
        value_parser = parse_selector,
        required_unless_present_any = ["list", "withdraw"],
        requires = "reason"
    )]
    pub event: Option<Selector>,
    /// Why it is not wanted; kept in walrelay.skips.
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), requires = "event")]
    pub reason: Option<String>,
    /// List the requests that have taken no event yet.
    #[arg(long, conflicts_with_all = ["event", "reason", "withdraw"])]
    pub list: bool,
    /// Take the request of this number back, as long as it has taken no event.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["event", "reason"])]
    pub withdraw: Option<i64>,
    /// Flags after the command.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Ids may look like anything, but one that begins with a position and a colon is a key with a typing error.
pub(super) fn parse_selector(text: &str) -> Result<Selector, &'static str> {
    let is_key = text
        .split_once(':')
        .is_some_and(|(lsn, _)| lsn.parse::<Lsn>().is_ok());
    match text.parse::<EventPosition>() {
        Ok(position) => Ok(Selector::Position(position)),
        Err(_) if is_key => Err("expected a number after the position, as in 16/B374D848:0"),
        Err(_) if text.is_empty() => Err("an event id is not empty"),
        Err(_) => Ok(Selector::EventId(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_a_typing_error_is_no_id() {
        for (text, valid) in [
            ("16/B374D848:0", true),
            ("16/B374D848:x", false),
            ("16/B374D848:", false),
            ("16/B374D848:-1", false),
            ("16/B374D848", true),
            ("order:7", true),
            ("7b7f5c1e-0000-4000-8000-000000000000", true),
            ("", false),
        ] {
            assert_eq!(parse_selector(text).is_ok(), valid, "{text}");
        }
    }
}
