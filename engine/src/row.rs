//! A row kept beside its message, so that it can become a dead letter as PostgreSQL sent it.

use std::fmt;
use std::sync::Arc;

use crate::pgoutput::{Relation, Tuple, Value};

/// The names of a relation, shared by its rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TableNames {
    /// The table's schema.
    pub schema: String,
    /// The table's name.
    pub name: String,
    columns: Vec<String>,
}

impl TableNames {
    /// The names in a Relation message.
    #[must_use]
    pub fn of(relation: &Relation<'_>) -> Arc<Self> {
        Arc::new(Self {
            schema: relation.namespace.to_owned(),
            name: relation.name.to_owned(),
            columns: relation.columns().map(|column| column.name.to_owned()).collect(),
        })
    }
}

/// A row as the stream brought it. It costs a copy of its bytes; its text is made only when it is asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct Row {
    /// The names.
    pub names: Arc<TableNames>,
    count: u16,
    values: Vec<u8>,
}

/// The size only: rows are never logged.
impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "row of {}.{} with {} bytes",
            self.names.schema,
            self.names.name,
            self.values.len()
        )
    }
}

impl Row {
    /// Keeps a row in `buffer`, which is cleared first.
    #[must_use]
    pub fn keep(names: &Arc<TableNames>, row: &Tuple<'_>, mut buffer: Vec<u8>) -> Self {
        let (count, values) = row.raw();
        buffer.clear();
        buffer.extend_from_slice(values);
        Self {
            names: Arc::clone(names),
            count,
            values: buffer,
        }
    }

    /// The columns in order, each with pgoutput's own text; none where it is NULL. What was passed over as too large is
    /// left out.
    #[must_use]
    pub fn columns(&self) -> Vec<(String, Option<String>)> {
        let row = Tuple::from_raw(self.count, &self.values);
        let columns = self.names.columns.iter().zip(row.values());
        let text = columns.filter_map(|(name, value)| match value {
            Value::Text(text) | Value::Binary(text) => {
                Some((name.clone(), Some(String::from_utf8_lossy(text).into_owned())))
            }
            Value::Null | Value::Unchanged => Some((name.clone(), None)),
            Value::Oversized { .. } => None,
        });
        text.collect()
    }

    /// Gives the buffer back.
    #[must_use]
    pub fn into_buffer(self) -> Vec<u8> {
        self.values
    }

    /// Bytes held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it has no columns.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
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
        let row = Row::keep(&TableNames::of(&relation), &insert.new, b"used before".to_vec());
        assert_eq!(
            (row.names.schema.as_str(), row.names.name.as_str()),
            ("shop", "outbox")
        );
        let text = |text: &str| Some(text.to_owned());
        let expected = [
            ("id", text("1")),
            ("payload", text(payload)),
            ("sent \"at\"", None),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        assert_eq!(row.columns(), expected);
        assert!(!format!("{row:?}").contains("0.1"), "payloads are not logged");
    }
}
