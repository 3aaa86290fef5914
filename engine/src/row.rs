//! A row kept beside its message, so that it can become a dead letter as PostgreSQL sent it.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::pgoutput::{Relation, Tuple, Value};

/// The names of a relation, shared by its rows.
#[derive(Debug, PartialEq, Eq)]
pub struct TableNames {
    /// The table, as `schema.name`.
    pub table: String,
    columns: Vec<String>,
}

impl TableNames {
    /// The names in a Relation message.
    #[must_use]
    pub fn of(relation: &Relation<'_>) -> Arc<Self> {
        Arc::new(Self {
            table: format!("{}.{}", relation.namespace, relation.name),
            columns: relation.columns().map(|column| column.name.to_owned()).collect(),
        })
    }
}

/// A row's columns as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The names.
    pub names: Arc<TableNames>,
    /// A JSON object of strings and nulls, in the order of the columns.
    pub columns: String,
}

impl Row {
    /// Keeps a row: pgoutput's own text of each column, as the strings of a JSON object. Nothing is parsed.
    #[must_use]
    pub fn keep(names: &Arc<TableNames>, row: &Tuple<'_>) -> Self {
        let mut columns = String::from("{");
        for (name, value) in names.columns.iter().zip(row.values()) {
            // What was passed over is not there to be kept.
            if matches!(value, Value::Oversized { .. }) {
                continue;
            }
            if columns.len() > 1 {
                columns.push(',');
            }
            push_string(&mut columns, name);
            columns.push(':');
            match value {
                Value::Text(text) | Value::Binary(text) => {
                    push_string(&mut columns, &String::from_utf8_lossy(text))
                }
                Value::Null | Value::Unchanged | Value::Oversized { .. } => columns.push_str("null"),
            }
        }
        columns.push('}');
        Self {
            names: Arc::clone(names),
            columns,
        }
    }

    /// Bytes held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.columns.len()
    }

    /// Never: a row has at least its braces.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }
}

/// Appends a JSON string (RFC 8259, section 7).
fn push_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                // Writing to a String cannot fail.
                let written = write!(out, "\\u{:04x}", u32::from(control));
                debug_assert!(written.is_ok());
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pgoutput::Message;
    use crate::pgoutput::sample::{Cell, Sample, SampleColumn};

    #[test]
    fn a_row_is_kept_as_strings_exactly_as_postgresql_sent_them() {
        let column = |name: &str| SampleColumn {
            flags: 0,
            name: name.to_owned(),
            type_oid: 25,
            type_modifier: -1,
        };
        let relation = Sample::Relation {
            oid: 1,
            namespace: "shop".to_owned(),
            name: "outbox".to_owned(),
            replica_identity: b'd',
            columns: vec![column("id"), column("payload"), column("sent \"at\"")],
        }
        .encode();
        let payload = "{\"n\": 0.10000000000000000001,\n\"t\": \"\\u00e4 ü \u{1}\"}";
        let insert = Sample::Insert {
            oid: 1,
            new: vec![
                Cell::Text(b"1".to_vec()),
                Cell::Text(payload.as_bytes().to_vec()),
                Cell::Null,
            ],
        }
        .encode();
        let (Ok(Message::Relation(relation)), Ok(Message::Insert(insert))) =
            (Message::decode(&relation), Message::decode(&insert))
        else {
            panic!("not what was encoded")
        };
        let row = Row::keep(&TableNames::of(&relation), &insert.new);
        assert_eq!(row.names.table, "shop.outbox");
        assert_eq!(
            row.columns,
            "{\"id\":\"1\",\"payload\":\"{\\\"n\\\": 0.10000000000000000001,\\u000a\\\"t\\\": \\\"\\\\u00e4 ü \\u0001\\\"}\",\
             \"sent \\\"at\\\"\":null}"
        );
    }
}
