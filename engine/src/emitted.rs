//! Events without a table: the JSON of a logical message as a row of a table that nobody has created.
//!
//! Whoever emits a message writes an object with the columns of an outbox table as its keys. Here it becomes the row that
//! pgoutput would bring, so that everything behind it (mapping, templates, policies, dead letters) knows rows alone.

use std::ops::Range;

use crate::event::OutboxTable;
use crate::json::{Cursor, Depth, JsonFault, Unescaped, is_text};
use crate::pgoutput::{Tuple, kind, relation_of};

/// The schema of the table that stands for the messages: walrelay's own, where nobody keeps an outbox.
pub const SCHEMA: &str = "walrelay";

/// Oids of the types of its columns; fixed in PostgreSQL's `pg_type.dat`.
const TEXT_OID: u32 = 25;

/// The type of its payload, `json`.
pub const PAYLOAD_OID: u32 = 114;

/// Columns beyond the required ones: what set-up's own outbox table has, and the trace.
const OPTIONAL_COLUMNS: [&str; 4] = ["headers", "created_at", "traceparent", "tracestate"];

/// Where what cannot be read is kept: the only column of such a row.
const CONTENT: &str = "content";

/// A larger row's memory is not kept for the next one.
const KEPT_BYTES: usize = 256 * 1024;

/// The name of the table that stands for messages with this prefix.
#[must_use]
pub fn table_name(prefix: &str) -> String {
    format!("messages:{prefix}")
}

/// Whether the table of this schema and name stands for messages, whatever their prefix.
#[must_use]
pub fn is_table(schema: &str, name: &str) -> bool {
    schema == SCHEMA && name.starts_with(&table_name(""))
}

/// Whether these are the columns of an [unreadable](Reader::unreadable) message.
pub(crate) fn are_of_unreadable<'a>(mut columns: impl Iterator<Item = &'a str>) -> bool {
    columns.next() == Some(CONTENT) && columns.next().is_none()
}

/// Why a message is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Its bytes are no text. PostgreSQL sends them as they were written, in whatever encoding.
    #[error("the logical message is not UTF-8 from byte {at} on")]
    NotUtf8 {
        /// The first byte at fault, counted from 1.
        at: usize,
    },
    /// Its text is no JSON object.
    #[error("the logical message is no JSON object of an event: expected {expected} at byte {at}")]
    NotJson {
        /// What should stand there.
        expected: &'static str,
        /// The first byte at fault, counted from 1.
        at: usize,
    },
    /// A string stands for what no text of PostgreSQL can hold: half a pair of surrogates, or a NUL.
    #[error(
        "\"{field}\" of the logical message has an escape that stands for no character: NUL, or half a pair of surrogates"
    )]
    NoText {
        /// The key.
        field: String,
    },
}

impl From<JsonFault> for Malformed {
    fn from(fault: JsonFault) -> Self {
        Self::NotJson {
            expected: fault.expected,
            at: fault.at + 1,
        }
    }
}

/// Makes rows of messages, in memory that it uses again.
#[derive(Debug)]
pub struct Reader {
    columns: Vec<Column>,
    row: Vec<u8>,
}

#[derive(Debug)]
struct Column {
    name: String,
    /// Where the value of the current message stands.
    value: Option<Range<usize>>,
}

impl Column {
    /// Whether its value is JSON as it is written, and not a text that may be written as a string.
    fn is_json(&self) -> bool {
        self.is_payload() || self.name == "headers"
    }

    fn is_payload(&self) -> bool {
        self.name == "payload"
    }
}

impl Reader {
    /// For messages whose events go where `table` says: what its templates name is a column too.
    #[must_use]
    pub fn new(table: &OutboxTable) -> Self {
        let mut columns: Vec<Column> = Vec::new();
        let required = table.columns.required().into_iter().map(|(_, column)| column);
        let known = required.chain(OPTIONAL_COLUMNS);
        let references = table.references();
        let named = references.iter().map(|(_, reference)| reference.column());
        for name in known.chain(named) {
            if columns.iter().all(|column| column.name != name) {
                let name = name.to_owned();
                columns.push(Column { name, value: None });
            }
        }
        Self {
            columns,
            row: Vec::new(),
        }
    }

    /// The Relation message that would come before the rows.
    #[must_use]
    pub fn relation(&self, table: &OutboxTable) -> Vec<u8> {
        let columns = self.columns.iter().map(|column| match column.is_json() {
            true => (column.name.as_str(), PAYLOAD_OID),
            false => (column.name.as_str(), TEXT_OID),
        });
        relation_of(&table.schema, &table.name, columns)
    }

    /// The Relation message that would come before [unreadable](Self::unreadable) rows.
    #[must_use]
    pub fn unreadable_relation(table: &OutboxTable) -> Vec<u8> {
        relation_of(&table.schema, &table.name, std::iter::once((CONTENT, TEXT_OID)))
    }

    /// The row of a message. Payload and headers stay byte for byte as they are written; of other strings the text is
    /// taken, and of anything else its JSON, as PostgreSQL's `->>` does. `null` is NULL but for the payload, whose JSON it is.
    /// Of keys that come twice the last counts; others than the columns' are passed over.
    ///
    /// # Errors
    /// The content is no JSON object, or a text cannot be one of PostgreSQL's.
    pub fn read(&mut self, content: &[u8]) -> Result<Tuple<'_>, Malformed> {
        let text = std::str::from_utf8(content).map_err(|error| Malformed::NotUtf8 {
            at: error.valid_up_to() + 1,
        })?;
        let columns = &mut self.columns;
        columns.iter_mut().for_each(|column| column.value = None);
        let mut json = Cursor::new(text);
        json.object(Depth::MESSAGE, |key, value| {
            if let Some(column) = columns.iter_mut().find(|column| is_text(key, &column.name)) {
                column.value = Some(value);
            }
        })?;
        json.end()?;

        let Self { columns, row } = self;
        clear(row);
        for column in columns {
            let value = column.value.clone().and_then(|place| text.get(place));
            match value {
                None => row.push(kind::NULL),
                Some("null") if !column.is_payload() => row.push(kind::NULL),
                Some(value) => {
                    match value.strip_prefix('"').filter(|_| !column.is_json()) {
                        Some(string) => put_string(row, string.strip_suffix('"').unwrap_or(string))
                            .ok_or_else(|| Malformed::NoText {
                                field: column.name.clone(),
                            })?,
                        None => put(row, |row| row.extend_from_slice(value.as_bytes())),
                    }
                }
            }
        }
        Ok(self.tuple(self.columns.len()))
    }

    /// The row of a message that was too large to be kept: no more is known than that its payload would be.
    pub fn oversized(&mut self, length: u64, limit: u64) -> Tuple<'_> {
        clear(&mut self.row);
        for column in &self.columns {
            if column.is_payload() {
                self.row.push(kind::OVERSIZED);
                for number in [length, limit] {
                    let number = u32::try_from(number).unwrap_or(u32::MAX);
                    self.row.extend_from_slice(&number.to_be_bytes());
                }
            } else {
                self.row.push(kind::NULL);
            }
        }
        self.tuple(self.columns.len())
    }

    /// The row of a message that is no event, so that a person can see what it says. What no text of PostgreSQL holds is
    /// replaced.
    pub fn unreadable(&mut self, content: &[u8]) -> Tuple<'_> {
        clear(&mut self.row);
        let text = String::from_utf8_lossy(content).replace('\0', "\u{FFFD}");
        put(&mut self.row, |row| row.extend_from_slice(text.as_bytes()));
        self.tuple(1)
    }

    fn tuple(&self, count: usize) -> Tuple<'_> {
        // A template has few columns.
        Tuple::from_raw(u16::try_from(count).unwrap_or(u16::MAX), &self.row)
    }
}

fn clear(row: &mut Vec<u8>) {
    row.clear();
    row.shrink_to(KEPT_BYTES);
}

/// Appends a text value, which `write` appends.
fn put(row: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    const LENGTH: usize = size_of::<i32>();
    row.push(kind::TEXT);
    let start = row.len();
    row.extend_from_slice(&[0; LENGTH]);
    write(row);
    // A message has less than 1 GiB.
    let length = i32::try_from(row.len() - start - LENGTH).unwrap_or(i32::MAX);
    if let Some(place) = row.get_mut(start..start + LENGTH) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

/// Appends the text that a string of JSON stands for; `None` where it stands for none.
fn put_string(row: &mut Vec<u8>, raw: &str) -> Option<()> {
    if !raw.contains('\\') {
        put(row, |row| row.extend_from_slice(raw.as_bytes()));
        return Some(());
    }
    let mut is_text = true;
    put(row, |row| {
        for character in Unescaped(raw) {
            match character.filter(|character| *character != '\0') {
                Some(character) => row.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
                None => is_text = false,
            }
        }
    });
    is_text.then_some(())
}

#[cfg(test)]
mod tests;
