//! Rows that did not come by the stream, in the form in which it would have brought them: whatever reads a row of a
//! table or of `walrelay.dead_letters` goes through the same decoder and mapping as the stream.
//!
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>

use super::{CONDENSED, Insert, Message, Relation, kind, tag};
use crate::decode::DecodeError;

/// A column's value, with the text of its type's output function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TextValue<'a> {
    /// SQL's NULL.
    Null,
    /// The text.
    Text(&'a str),
    /// A text that was not read because it is too large, as [`Value::Oversized`](super::Value::Oversized).
    Oversized {
        /// Its length in bytes.
        length: u32,
        /// How long it might have been.
        limit: u32,
    },
}

/// The Relation message that would come before a table's rows: its columns in order, each with its type's oid.
#[must_use]
pub fn relation_of<'a>(
    schema: &str,
    table: &str,
    columns: impl ExactSizeIterator<Item = (&'a str, u32)>,
) -> Vec<u8> {
    let mut out = vec![tag::RELATION];
    put_oid(&mut out);
    put_text(&mut out, schema);
    put_text(&mut out, table);
    // The replica identity, which nothing looks at.
    out.push(b'd');
    put_count(&mut out, columns.len());
    for (name, type_oid) in columns {
        out.push(0);
        put_text(&mut out, name);
        out.extend_from_slice(&type_oid.to_be_bytes());
        out.extend_from_slice(&(-1_i32).to_be_bytes());
    }
    out
}

/// The Insert message that would bring a row, in the order of its Relation's columns.
#[must_use]
pub fn insert_of<'a>(values: impl ExactSizeIterator<Item = TextValue<'a>>) -> Vec<u8> {
    // The marker lets values through that were left out as too large.
    let mut out = vec![CONDENSED, tag::INSERT];
    put_oid(&mut out);
    out.push(kind::NEW_ROW);
    put_count(&mut out, values.len());
    for value in values {
        match value {
            TextValue::Null => out.push(kind::NULL),
            TextValue::Text(text) => {
                out.push(kind::TEXT);
                // A longer one is cut off for the decoder, which says so.
                let length = i32::try_from(text.len()).unwrap_or(i32::MAX);
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            TextValue::Oversized { length, limit } => {
                out.push(kind::OVERSIZED);
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(&limit.to_be_bytes());
            }
        }
    }
    out
}

/// Reads what [`relation_of`] wrote.
///
/// # Errors
/// It is no Relation message.
pub fn read_relation(message: &[u8]) -> Result<Relation<'_>, DecodeError> {
    if let Message::Relation(relation) = Message::decode(message)? {
        return Ok(relation);
    }
    Err(another("Relation", message))
}

/// Reads what [`insert_of`] wrote.
///
/// # Errors
/// It is no Insert message.
pub fn read_insert(message: &[u8]) -> Result<Insert<'_>, DecodeError> {
    if let Message::Insert(insert) = Message::decode(message)? {
        return Ok(insert);
    }
    Err(another("Insert", message))
}

fn another(wanted: &'static str, message: &[u8]) -> DecodeError {
    DecodeError::UnknownTag {
        message: wanted,
        field: "tag",
        tag: message.first().copied().unwrap_or_default(),
    }
}

/// The relation's oid, which nothing looks at.
fn put_oid(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0; size_of::<u32>()]);
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    let count = u16::try_from(count).unwrap_or(u16::MAX);
    out.extend_from_slice(&count.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::Value;

    #[test]
    fn what_is_written_is_decoded_as_what_it_was() {
        let columns = [("id", 2950), ("payload", 3802), ("large", 25)];
        let written = relation_of("Shop", "out box", columns.into_iter());
        assert!(read_insert(&written).is_err());
        let relation = read_relation(&written).unwrap();
        assert_eq!((relation.namespace, relation.name), ("Shop", "out box"));
        let found: Vec<_> = relation
            .columns()
            .map(|column| (column.name, column.type_oid))
            .collect();
        assert_eq!(found, columns);

        let values = [
            TextValue::Text("ü \u{1}"),
            TextValue::Null,
            TextValue::Oversized {
                length: 70_000,
                limit: 1024,
            },
        ];
        let written = insert_of(values.into_iter());
        assert!(read_relation(&written).is_err());
        let insert = read_insert(&written).unwrap();
        let oversized = Value::Oversized {
            length: 70_000,
            limit: 1024,
        };
        let found: Vec<_> = insert.new.values().collect();
        assert_eq!(found, [Value::Text("ü \u{1}".as_bytes()), Value::Null, oversized]);
    }
}
