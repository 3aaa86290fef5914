//! A dead letter made a message again: its stored columns go through the mapping that every row goes through.

use super::Scratch;
use super::prepare::encode;
use crate::amqp::Message;
use crate::decode::DecodeError;
use crate::emitted;
use crate::event::{InvalidRow, Mapping, MappingError, OutboxTable};
use crate::key::EventKey;
use crate::marks::TableNo;
use crate::pgoutput::{TextValue, insert_of, read_insert, read_relation, relation_of};

/// The oid of `text`, which stands for all columns but the payload: they are read as text whatever they are.
/// Fixed in PostgreSQL's `pg_type.dat`.
const TEXT_OID: u32 = 25;

/// An event as `walrelay.dead_letters` keeps it.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// The key of its first try, which its headers name.
    pub key: EventKey,
    /// Its id, where it has a usable one.
    pub event_id: Option<String>,
    /// Its table's schema.
    pub schema: String,
    /// Its table's name.
    pub table: String,
    /// The oid of the payload's type; none where the table has no such column any more.
    pub payload_type: Option<u32>,
    /// The columns with pgoutput's own text, or none for NULL; none at all where what is stored cannot be read.
    pub columns: Option<Vec<(String, Option<String>)>>,
}

/// The key only: rows are never logged.
impl std::fmt::Debug for StoredEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredEvent")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

/// Why a dead letter cannot become a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Its table is not among the outbox tables.
    #[error("table {schema}.{table} is not in the configuration")]
    UnknownTable {
        /// The table's schema.
        schema: String,
        /// The table's name.
        table: String,
    },
    /// Nothing tells how to read its payload.
    #[error("table {schema}.{table} is gone or has no column \"{column}\"")]
    NoPayloadColumn {
        /// The table's schema.
        schema: String,
        /// The table's name.
        table: String,
        /// The column that is configured as the payload's.
        column: String,
    },
    /// A logical message that no event could be read from, kept for a person to look at.
    #[error(
        "it is a logical message that was no event, of which no message can be made: correct who wrote it, and discard the dead letter"
    )]
    NoEvent,
    /// A column was passed over as too large when the row was first read, or was not there.
    #[error(
        "its row was kept without column \"{column}\", which was larger than delivery.max_event_bytes or not there"
    )]
    NotKept {
        /// The column.
        column: String,
    },
    /// The payload's type cannot be carried.
    #[error(transparent)]
    Mapping(MappingError),
    /// The row cannot become a message.
    #[error(transparent)]
    Row(InvalidRow),
    /// What is stored are no columns.
    #[error("its stored columns are no object of strings and nulls")]
    Unreadable,
    /// The stored columns are nothing that PostgreSQL could have sent.
    #[error("its stored row is no row of PostgreSQL")]
    Columns(#[from] DecodeError),
}

impl StoredEvent {
    /// Makes the message of its first try.
    pub(super) fn message(
        &self,
        tables: &[OutboxTable],
        app_id: &str,
        scratch: &mut Scratch,
    ) -> Result<Message, Unfit> {
        let (schema, table) = (self.schema.clone(), self.table.clone());
        let Some((_, configured)) = self.configured(tables) else {
            return Err(Unfit::UnknownTable { schema, table });
        };
        let Some(payload_type) = self.payload_type else {
            let column = configured.columns.payload.clone();
            return Err(Unfit::NoPayloadColumn {
                schema,
                table,
                column,
            });
        };
        let columns = self.columns.as_deref().ok_or(Unfit::Unreadable)?;
        let is_message = emitted::is_table(&schema, &table);
        if is_message && emitted::are_of_unreadable(columns.iter().map(|(name, _)| name.as_str())) {
            return Err(Unfit::NoEvent);
        }
        let (relation, insert) = (
            self.relation(columns, &configured.columns.payload, payload_type),
            insert(columns),
        );
        let (relation, insert) = (read_relation(&relation)?, read_insert(&insert)?);
        let mapping = Mapping::bind(&relation, configured).map_err(|error| match error {
            MappingError::ColumnMissing { column, .. }
            | MappingError::TemplateColumnMissing { column, .. } => Unfit::NotKept { column },
            error @ (MappingError::PayloadType { .. } | MappingError::Template { .. }) => {
                Unfit::Mapping(error)
            }
        })?;
        encode(
            &mapping,
            &insert.new,
            self.key.into(),
            app_id,
            scratch,
            &mut Vec::new(),
        )
        .map_err(Unfit::Row)
    }

    /// Its table as configured, and that one's place.
    pub(super) fn configured<'a>(&self, tables: &'a [OutboxTable]) -> Option<(TableNo, &'a OutboxTable)> {
        let mut tables = (0..).zip(tables);
        tables.find(|(_, known)| known.schema == self.schema && known.name == self.table)
    }

    /// The Relation message that would come before the row.
    fn relation(&self, columns: &[Column], payload: &str, payload_type: u32) -> Vec<u8> {
        let columns = columns.iter().map(|(name, _)| {
            let type_oid = if name == payload { payload_type } else { TEXT_OID };
            (name.as_str(), type_oid)
        });
        relation_of(&self.schema, &self.table, columns)
    }
}

/// Name and text.
type Column = (String, Option<String>);

/// The Insert message that brought the row.
fn insert(columns: &[Column]) -> Vec<u8> {
    let values = columns.iter().map(|(_, value)| match value {
        None => TextValue::Null,
        Some(text) => TextValue::Text(text),
    });
    insert_of(values)
}
