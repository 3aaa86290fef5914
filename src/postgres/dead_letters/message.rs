//! The logical message by which a dead letter comes back into the stream (rule 16).
//!
//! Any role can write such a message, so it names slot and key and nothing else: what is published comes from
//! `walrelay.dead_letters`, which not every role can write.

use serde::{Deserialize, Serialize};
use walrelay_engine::flow::RETRY_PREFIX;

use crate::postgres::identifier::SlotName;
use crate::postgres::position::EventPosition;

/// The prefix of walrelay's logical messages.
/// <https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION-TABLE>
pub const PREFIX: &str = RETRY_PREFIX;

/// Longer contents are none of ours: they are not looked at.
const MAX_CONTENT: usize = 256;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content<'a> {
    #[serde(borrow)]
    retry: Retry<'a>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retry<'a> {
    #[serde(borrow)]
    slot: &'a str,
    key: String,
}

/// The content of the message that asks for a retry.
#[must_use]
pub fn encode(slot: &SlotName, position: EventPosition) -> String {
    // By hand: neither a slot's name nor a key holds anything that JSON would escape.
    format!(r#"{{"retry":{{"slot":"{slot}","key":"{position}"}}}}"#)
}

/// The key that a message asks to retry in this slot; `None` for every other message, whoever wrote it.
///
/// Only a **transactional** message counts: another one may come from a transaction that was rolled back.
#[must_use]
pub fn parse(slot: &SlotName, prefix: &str, content: &[u8]) -> Option<EventPosition> {
    if prefix != PREFIX || content.len() > MAX_CONTENT {
        return None;
    }
    let Content { retry } = serde_json::from_slice(content).ok()?;
    (retry.slot == slot.as_str())
        .then(|| retry.key.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slot() -> SlotName {
        "shop".parse().unwrap()
    }

    #[test]
    fn a_request_names_slot_and_key_only() {
        let position = "16/B374D848:3".parse().unwrap();
        let content = encode(&slot(), position);
        assert_eq!(content, r#"{"retry":{"slot":"shop","key":"16/B374D848:3"}}"#);
        assert_eq!(parse(&slot(), PREFIX, content.as_bytes()), Some(position));
    }

    #[test]
    fn the_longest_request_is_short_enough() {
        let slot = "s".repeat(63).parse().unwrap();
        let position = format!("FFFFFFFF/FFFFFFFF:{}", i64::MAX).parse().unwrap();
        assert_eq!(
            parse(&slot, PREFIX, encode(&slot, position).as_bytes()),
            Some(position)
        );
    }

    #[test]
    fn messages_of_others_are_ignored() {
        let ours = encode(&slot(), "0/1:0".parse().unwrap());
        assert_eq!(parse(&"other".parse().unwrap(), PREFIX, ours.as_bytes()), None);
        assert_eq!(parse(&slot(), "walrelay.marker", ours.as_bytes()), None);
        for content in [
            "",
            "{}",
            "retry",
            r#"{"retry":{"slot":"shop"}}"#,
            r#"{"retry":{"slot":"shop","key":"0/1"}}"#,
            r#"{"retry":{"slot":"shop","key":"0/1:0","payload":"mine"}}"#,
            r#"{"retry":{"slot":"shop","key":"0/1:0"}} x"#,
        ] {
            assert_eq!(parse(&slot(), PREFIX, content.as_bytes()), None, "{content}");
        }
        let padded = format!("{}{ours}", " ".repeat(MAX_CONTENT));
        assert_eq!(parse(&slot(), PREFIX, padded.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn no_content_makes_the_parser_panic(content in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_eq!(parse(&slot(), PREFIX, &content), None);
        }
    }
}
