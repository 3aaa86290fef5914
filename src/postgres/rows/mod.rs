//! Rows of an outbox table read by SQL, with each column's text exactly as the stream brings it.
//!
//! A cast to text is not the text of the stream: `true::text` is `true`, the stream says `t`; a `char(n)` loses its
//! blanks, an `inet` gains `/32`. `concat` calls the type's output function, as pgoutput does, and sessions of ours have
//! the stream's own settings.

mod scan;
mod select;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Oid;
use walrelay_engine::pgoutput::relation_of;

use super::catalog::column;
use super::control::{ControlSession, bounded};
use super::error::{Error, Step};
use super::identifier::{QualifiedTable, quote_identifier};
use crate::fault::FaultKind;

pub(super) use scan::TIMESTAMPTZ;
pub use scan::{Filter, Scan, TableRow};

/// The columns of a table as the stream would bring them, for statements that read its rows.
#[derive(Debug, Clone)]
pub struct TextColumns {
    table: QualifiedTable,
    columns: Vec<TextColumn>,
    relation: Vec<u8>,
    /// Whether row security hides rows from our role.
    hides_rows: bool,
    /// The longest text of a column that is read, in bytes.
    limit: u32,
}

/// A column of such a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextColumn {
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_oid: Oid,
    /// The type without a length, for casting a text to it.
    pub type_name: String,
    /// Whether every value takes as many bytes.
    is_fixed_size: bool,
    /// Whether NULL is refused.
    pub not_null: bool,
}

/// What keeps a table's rows from being read or deleted whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// No such table.
    #[error("the table {table} does not exist")]
    Missing {
        /// The table.
        table: QualifiedTable,
    },
    /// Row security would hide rows without a word.
    #[error(
        "row security of the table {table} would hide rows from the role {role}: as a superuser, \
         alter role {role} bypassrls"
    )]
    RowSecurity {
        /// The table.
        table: QualifiedTable,
        /// Our role, quoted.
        role: String,
    },
    /// A column is not there, or not of a type that serves.
    #[error("the table {table} has no column `{column}` {needed}")]
    Column {
        /// The table.
        table: QualifiedTable,
        /// The column.
        column: String,
        /// Of which type, and what for.
        needed: &'static str,
    },
    /// A value to look for is none of its column's type.
    #[error("the conditions do not fit the table {table} ({message}); say which table is meant with --table")]
    Condition {
        /// The table.
        table: QualifiedTable,
        /// What the server said.
        message: String,
    },
    /// A row cannot be found by its id.
    #[error("the table {table} has no index that begins with {id}")]
    NoIdIndex {
        /// The table.
        table: QualifiedTable,
        /// The column of the id.
        id: String,
    },
    /// Its partitions are not old as a whole.
    #[error("the table {table} is not partitioned by the range of one time column")]
    NotByTime {
        /// The table.
        table: QualifiedTable,
    },
    /// Nothing to go through the table by.
    #[error("the table {table} has no unique index on {id}, or on {id} and {created_at} alone")]
    NoKey {
        /// The table.
        table: QualifiedTable,
        /// The column of the id.
        id: String,
        /// The column of the time at which a row was written.
        created_at: String,
    },
}

impl Unreadable {
    /// Which fault this is.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Self::Missing { .. } => FaultKind::TableMissing,
            Self::Condition { .. } => FaultKind::ConditionUnfit,
            Self::RowSecurity { .. } => FaultKind::DatabaseForbidden,
            Self::Column { .. } | Self::NoIdIndex { .. } | Self::NotByTime { .. } | Self::NoKey { .. } => {
                FaultKind::TableUnfit
            }
        }
    }
}

impl TextColumns {
    /// Looks the columns up. Generated columns are left out, as the stream does.
    ///
    /// `limit` is `delivery.max_event_bytes`: a longer text is not read, and its event is invalid as one of the stream.
    ///
    /// Grants: none.
    ///
    /// # Errors
    /// [`Unreadable`] where there is no such table, or row security hides rows of it; or a query fails.
    pub async fn read(session: &ControlSession, table: &QualifiedTable, limit: u32) -> Result<Self, Error> {
        let Some(found) = Self::find(session.client(), table, limit).await? else {
            let table = table.clone();
            return Err(Unreadable::Missing { table }.into());
        };
        if found.hides_rows {
            let role = quote_identifier(session.role());
            let table = table.clone();
            return Err(Unreadable::RowSecurity { table, role }.into());
        }
        Ok(found)
    }

    /// As [`read`](Self::read); none if there is no such table.
    pub(super) async fn find(
        client: &impl GenericClient,
        table: &QualifiedTable,
        limit: u32,
    ) -> Result<Option<Self>, Error> {
        const PURPOSE: &str = "look at the columns of the outbox table";
        const STEP: Step = Step::Query(PURPOSE);
        let sql = "select c.oid, pg_catalog.row_security_active(c.oid) \
                   from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                   where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p')";
        let found = bounded(STEP, client.query_opt(sql, &[&table.schema, &table.name])).await?;
        let Some(found) = found else { return Ok(None) };
        let oid: Oid = column(&found, 0, PURPOSE)?;
        let sql = "select a.attname::text, a.atttypid, pg_catalog.format_type(a.atttypid, -1), t.typlen > 0, \
                   a.attnotnull from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid \
                   where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' \
                   order by a.attnum";
        let rows = bounded(STEP, client.query(sql, &[&oid])).await?;
        let columns = rows.iter().map(|row| {
            Ok(TextColumn {
                name: column(row, 0, PURPOSE)?,
                type_oid: column(row, 1, PURPOSE)?,
                type_name: column(row, 2, PURPOSE)?,
                is_fixed_size: column(row, 3, PURPOSE)?,
                not_null: column(row, 4, PURPOSE)?,
            })
        });
        let columns: Vec<TextColumn> = columns.collect::<Result<_, Error>>()?;
        let names = columns
            .iter()
            .map(|column| (column.name.as_str(), column.type_oid));
        Ok(Some(Self {
            relation: relation_of(&table.schema, &table.name, names),
            table: table.clone(),
            hides_rows: column(&found, 1, PURPOSE)?,
            columns,
            limit,
        }))
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &QualifiedTable {
        &self.table
    }

    /// A column by name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&TextColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    /// A column's type as SQL names it, for casting a text to it; one that is not there has none.
    pub(super) fn type_of(&self, name: &str) -> &str {
        self.column(name)
            .map_or("text", |column| column.type_name.as_str())
    }

    /// Whether row security hides rows from our role.
    pub(super) const fn hides_rows(&self) -> bool {
        self.hides_rows
    }

    /// The Relation message that the stream would send before the rows, for
    /// [`read_relation`](walrelay_engine::pgoutput::read_relation).
    #[must_use]
    pub fn relation(&self) -> &[u8] {
        &self.relation
    }
}

/// An SQL expression for the text of a value as its type's output function gives it, NULL for NULL. (`is null` would
/// be true of a composite value of NULLs.)
pub(super) fn output_text(value: &str) -> String {
    format!("case when pg_catalog.num_nulls({value}) = 0 then pg_catalog.concat({value}) end")
}
