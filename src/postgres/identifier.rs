//! Names of PostgreSQL objects: parsed by its rules, quoted by its rules.

use std::fmt;
use std::str::FromStr;

/// The longest identifier in bytes; the server cuts longer ones off silently, we refuse them.
/// <https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS>
const MAX_IDENTIFIER: usize = 63;

/// The schema of a table named without one.
const DEFAULT_SCHEMA: &str = "public";

/// A table by schema and name, both as stored in the catalog.
///
/// Parsed from `outbox_events`, `public.outbox_events` or `"Shop"."Outbox"`: an unquoted part is folded to lower
/// case, a quoted one is taken as it is. Printed so that it parses back to the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QualifiedTable {
    /// The schema, `public` where none is named.
    pub schema: String,
    /// The table.
    pub name: String,
}

/// Why a text names no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// A part between the dots is empty.
    #[error("`{text}` is not a table name: a part of it is empty")]
    Empty {
        /// The text as given.
        text: String,
    },
    /// More than schema and table.
    #[error("`{text}` is not a table name: expected table or schema.table")]
    TooManyParts {
        /// The text as given.
        text: String,
    },
    /// A quote is missing or stands in the middle.
    #[error("`{text}` is not a table name: a double quote is out of place")]
    Quote {
        /// The text as given.
        text: String,
    },
    /// A character that only a quoted identifier may hold.
    #[error("`{text}` is not a table name: `{character}` is allowed only within double quotes")]
    Character {
        /// The text as given.
        text: String,
        /// The first such character.
        character: char,
    },
    /// Longer than PostgreSQL stores.
    #[error("`{text}` is not a table name: a part is longer than {MAX_IDENTIFIER} bytes")]
    TooLong {
        /// The text as given.
        text: String,
    },
}

impl FromStr for QualifiedTable {
    type Err = IdentifierError;

    fn from_str(text: &str) -> Result<Self, IdentifierError> {
        let mut parts = split(text)?.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, None) => Ok(Self {
                schema: DEFAULT_SCHEMA.to_owned(),
                name,
            }),
            (Some(schema), Some(name), None) => Ok(Self { schema, name }),
            _ => Err(IdentifierError::TooManyParts {
                text: text.to_owned(),
            }),
        }
    }
}

impl QualifiedTable {
    /// The name for use in SQL, every part quoted.
    #[must_use]
    pub fn quoted(&self) -> String {
        format!(
            "{}.{}",
            quote_identifier(&self.schema),
            quote_identifier(&self.name)
        )
    }
}

impl fmt::Display for QualifiedTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (part, separator) in [(&self.schema, "."), (&self.name, "")] {
            if is_plain(part) {
                write!(f, "{part}{separator}")?;
            } else {
                write!(f, "{}{separator}", quote_identifier(part))?;
            }
        }
        Ok(())
    }
}

/// The name of a replication slot: 1 to 63 of `a-z`, `0-9` and `_`.
/// <https://www.postgresql.org/docs/current/warm-standby.html#STREAMING-REPLICATION-SLOTS-MANIPULATION>
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SlotName(String);

/// A text that cannot name a slot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot name a replication slot: use 1 to {MAX_IDENTIFIER} of a-z, 0-9 and _")]
pub struct SlotNameError(String);

impl FromStr for SlotName {
    type Err = SlotNameError;

    fn from_str(text: &str) -> Result<Self, SlotNameError> {
        let fits = (1..=MAX_IDENTIFIER).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(SlotNameError(text.to_owned()))
        }
    }
}

impl SlotName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SlotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a publication as stored in the catalog: 1 to 63 bytes, taken as it is, without case folding.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PublicationName(String);

/// A text that cannot name a publication.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` cannot name a publication: it must have 1 to {MAX_IDENTIFIER} bytes and no control character")]
pub struct PublicationNameError(String);

impl FromStr for PublicationName {
    type Err = PublicationNameError;

    fn from_str(text: &str) -> Result<Self, PublicationNameError> {
        if (1..=MAX_IDENTIFIER).contains(&text.len()) && !text.chars().any(char::is_control) {
            Ok(Self(text.to_owned()))
        } else {
            Err(PublicationNameError(text.escape_debug().to_string()))
        }
    }
}

impl PublicationName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PublicationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Puts an identifier into double quotes, doubling those within. It serves SQL and replication commands.
#[must_use]
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Puts a text into single quotes for a replication command, whose grammar knows no backslash escapes.
/// In SQL, pass parameters instead.
#[must_use]
pub fn quote_literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Splits at dots outside quotes; folds unquoted parts, unquotes quoted ones.
fn split(text: &str) -> Result<Vec<String>, IdentifierError> {
    let own = || text.to_owned();
    let mut parts = Vec::new();
    let mut rest = text.trim();
    loop {
        let (part, after) = if let Some(quoted) = rest.strip_prefix('"') {
            unquote(quoted).ok_or_else(|| IdentifierError::Quote { text: own() })?
        } else {
            let end = rest.find('.').unwrap_or(rest.len());
            let (part, after) = rest.split_at(end);
            (fold(text, part)?, after)
        };
        if part.is_empty() {
            return Err(IdentifierError::Empty { text: own() });
        }
        if part.len() > MAX_IDENTIFIER {
            return Err(IdentifierError::TooLong { text: own() });
        }
        parts.push(part);
        match after.strip_prefix('.') {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(parts),
            None => return Err(IdentifierError::Quote { text: own() }),
        }
    }
}

/// Reads up to the closing quote; yields the unquoted text and what follows.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let (before, after) = rest.split_once('"')?;
        name.push_str(before);
        match after.strip_prefix('"') {
            Some(next) => {
                name.push('"');
                rest = next;
            }
            None => return Some((name, after)),
        }
    }
}

fn fold(text: &str, part: &str) -> Result<String, IdentifierError> {
    for (index, character) in part.chars().enumerate() {
        let starts = character == '_' || character.is_ascii_alphabetic() || !character.is_ascii();
        let follows = index > 0 && (character == '$' || character.is_ascii_digit());
        if character == '"' {
            return Err(IdentifierError::Quote {
                text: text.to_owned(),
            });
        }
        if !starts && !follows {
            return Err(IdentifierError::Character {
                text: text.to_owned(),
                character,
            });
        }
    }
    Ok(part.to_ascii_lowercase())
}

/// Whether the name reads back as itself without quotes.
fn is_plain(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_')
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(schema: &str, name: &str) -> QualifiedTable {
        QualifiedTable {
            schema: schema.to_owned(),
            name: name.to_owned(),
        }
    }

    #[test]
    fn a_table_is_read_as_postgresql_reads_it() {
        for (text, schema, name) in [
            ("outbox_events", "public", "outbox_events"),
            ("Shop.Outbox", "shop", "outbox"),
            ("\"Shop\".\"Out.box\"", "Shop", "Out.box"),
            ("shop.\"a\"\"b\"", "shop", "a\"b"),
            ("ünder.t$1", "ünder", "t$1"),
        ] {
            assert_eq!(text.parse(), Ok(table(schema, name)), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_table_is_refused() {
        for text in [
            "", ".", "a.", ".a", "a..b", "a.b.c", "\"a", "a\"b", "\"a\"b", "\"\"", "a b", "1a", "a;b", "a-b",
        ] {
            assert!(text.parse::<QualifiedTable>().is_err(), "{text}");
        }
        assert!("a".repeat(64).parse::<QualifiedTable>().is_err());
    }

    #[test]
    fn quotes_within_names_are_doubled() {
        assert_eq!(quote_identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(quote_literal("a'b\\"), "'a''b\\'");
        assert_eq!(table("s", "a\"b").quoted(), "\"s\".\"a\"\"b\"");
    }

    #[test]
    fn only_what_the_server_takes_names_a_slot() {
        assert_eq!("walrelay_2".parse::<SlotName>().unwrap().as_str(), "walrelay_2");
        for text in ["", "Walrelay", "wal-relay", "a b", "ä", &"a".repeat(64)] {
            assert!(text.parse::<SlotName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_publication_may_hold_any_printable_text() {
        assert_eq!(
            "My \"pub\"".parse::<PublicationName>().unwrap().as_str(),
            "My \"pub\""
        );
        for text in ["", "a\0b", "a\nb", &"ä".repeat(32)] {
            assert!(text.parse::<PublicationName>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_table_reads_back_as_itself(schema in "\\PC{1,12}", name in "\\PC{1,12}") {
            let table = table(&schema, &name);
            prop_assert_eq!(table.to_string().parse(), Ok(table.clone()));
            prop_assert_eq!(table.quoted().parse(), Ok(table));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in ".{0,40}") {
            drop(text.parse::<QualifiedTable>());
        }
    }
}
