//! The prefix of the logical messages that are events.

use std::fmt;
use std::str::FromStr;

use walrelay_engine::emitted;
use walrelay_engine::flow::RETRY_PREFIX;

use super::identifier::QualifiedTable;

/// So that the name of the table that stands for the messages is an identifier of PostgreSQL, of 63 bytes at most.
const LONGEST: usize = 54;

/// What the prefixes of walrelay's own messages begin with: requests for retries, and marks in the log.
const OWN: &str = "walrelay.";

/// The prefix of the logical messages that are events: 1 to 54 bytes, and none of walrelay's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePrefix(String);

/// A text that cannot be the prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessagePrefixError {
    /// By its length or its characters.
    #[error(
        "`{0}` cannot be the prefix of events: it must have 1 to {LONGEST} bytes and no control character"
    )]
    Unfit(String),
    /// It is one of those that walrelay's own messages have.
    #[error("`{0}` cannot be the prefix of events: walrelay's own messages have it")]
    Own(String),
}

impl FromStr for MessagePrefix {
    type Err = MessagePrefixError;

    fn from_str(text: &str) -> Result<Self, MessagePrefixError> {
        if text == RETRY_PREFIX || text.starts_with(OWN) {
            return Err(MessagePrefixError::Own(text.escape_debug().to_string()));
        }
        match (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control) {
            true => Ok(Self(text.to_owned())),
            false => Err(MessagePrefixError::Unfit(text.escape_debug().to_string())),
        }
    }
}

impl MessagePrefix {
    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The table that stands for the messages; nobody has created it.
    #[must_use]
    pub fn table(&self) -> QualifiedTable {
        QualifiedTable {
            schema: emitted::SCHEMA.to_owned(),
            name: emitted::table_name(&self.0),
        }
    }
}

impl fmt::Display for MessagePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The type of a payload that came in a message, where this table stands for messages.
#[must_use]
pub(super) fn payload_type(table: &QualifiedTable) -> Option<u32> {
    emitted::is_table(&table.schema, &table.name).then_some(emitted::PAYLOAD_OID)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_any_prefix_is_printed_so_that_it_parses_back() {
        for prefix in ["outbox", "a \"b\".c:", &"ü".repeat(LONGEST / 2)] {
            let prefix: MessagePrefix = prefix.parse().unwrap();
            let table = prefix.table();
            assert_eq!(table.to_string().parse(), Ok(table.clone()));
            assert_eq!(payload_type(&table), Some(emitted::PAYLOAD_OID));
        }
        assert_eq!(payload_type(&"walrelay.messages".parse().unwrap()), None);
        assert_eq!(payload_type(&"public.\"messages:x\"".parse().unwrap()), None);
    }

    #[test]
    fn what_cannot_be_a_prefix_is_refused() {
        let refused = |text: &str| text.parse::<MessagePrefix>().unwrap_err().to_string();
        for own in ["walrelay", "walrelay.marker"] {
            let expected = format!("`{own}` cannot be the prefix of events: walrelay's own messages have it");
            assert_eq!(refused(own), expected);
        }
        for text in ["", "a\nb", &"x".repeat(LONGEST + 1)] {
            assert!(refused(text).ends_with("it must have 1 to 54 bytes and no control character"));
        }
    }
}
