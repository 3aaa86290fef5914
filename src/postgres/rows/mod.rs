//! Rows of an outbox table read by SQL, with each column's text exactly as the stream brings it.
//!
//! A cast to text is not the text of the stream: `true::text` is `true`, the stream says `t`; a `char(n)` loses its
//! blanks, an `inet` gains `/32`. `concat` calls the type's output function, as pgoutput does, and sessions of ours have
//! the stream's own settings.

mod grants;
mod scan;

use tokio_postgres::Row;
use tokio_postgres::types::Oid;
use walrelay_engine::pgoutput::{TextValue, insert_of, relation_of};

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, quote_identifier};
use crate::fault::FaultKind;

pub(super) use grants::TableUse;
pub(super) use scan::TIMESTAMPTZ;
pub use scan::{Filter, Scan, TableRow};

/// The columns of a table as the stream would bring them, for statements that read its rows.
#[derive(Debug, Clone)]
pub struct TextColumns {
    table: QualifiedTable,
    columns: Vec<TextColumn>,
    relation: Vec<u8>,
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
        column: &'static str,
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
    #[error("the table {table} has no index that begins with id")]
    NoIdIndex {
        /// The table.
        table: QualifiedTable,
    },
    /// Its partitions are not old as a whole.
    #[error("the table {table} is not partitioned by the range of one time column")]
    NotByTime {
        /// The table.
        table: QualifiedTable,
    },
    /// Nothing to go through the table by.
    #[error("the table {table} has no unique index on id, or on id and created_at alone")]
    NoKey {
        /// The table.
        table: QualifiedTable,
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
        const PURPOSE: &str = "look at the columns of the outbox table";
        let sql = "select c.oid, pg_catalog.row_security_active(c.oid) \
                   from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                   where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p')";
        let found = session
            .run(
                PURPOSE,
                session.client().query_opt(sql, &[&table.schema, &table.name]),
            )
            .await?;
        let Some(found) = found else {
            let table = table.clone();
            return Err(Unreadable::Missing { table }.into());
        };
        if column(&found, 1, PURPOSE)? {
            let role = quote_identifier(session.role());
            let table = table.clone();
            return Err(Unreadable::RowSecurity { table, role }.into());
        }
        let oid: Oid = column(&found, 0, PURPOSE)?;
        let sql = "select attname::text, atttypid, pg_catalog.format_type(atttypid, -1), attnotnull \
                   from pg_catalog.pg_attribute \
                   where attrelid = $1 and attnum > 0 and not attisdropped and attgenerated = '' order by attnum";
        let rows = session.run(PURPOSE, session.client().query(sql, &[&oid])).await?;
        let columns = rows.iter().map(|row| {
            Ok(TextColumn {
                name: column(row, 0, PURPOSE)?,
                type_oid: column(row, 1, PURPOSE)?,
                type_name: column(row, 2, PURPOSE)?,
                not_null: column(row, 3, PURPOSE)?,
            })
        });
        let columns: Vec<TextColumn> = columns.collect::<Result<_, Error>>()?;
        let names = columns
            .iter()
            .map(|column| (column.name.as_str(), column.type_oid));
        Ok(Self {
            relation: relation_of(&table.schema, &table.name, names),
            table: table.clone(),
            columns,
            limit,
        })
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

    /// The Relation message that the stream would send before the rows; decode it with
    /// [`pgoutput::Message`](walrelay_engine::pgoutput::Message).
    #[must_use]
    pub fn relation(&self) -> &[u8] {
        &self.relation
    }

    /// A statement whose rows [`insert`](Self::insert) reads from column `keys.len()` on. `keys` are expressions that
    /// it yields before, `rest` is what follows the select list, with the table under the alias `t`: from, where, order
    /// by, and a limit. It ends early, though never before its first row, once the rows have `max_bytes` of text.
    #[must_use]
    pub fn select(&self, keys: &[String], rest: &str, max_bytes: u32) -> String {
        let all = || 0..self.columns.len();
        let limit = self.limit;
        let inner_keys = keys.iter().enumerate().map(|(at, key)| format!("{key} as k{at}"));
        let values = self.columns.iter().enumerate().map(|(at, column)| {
            let name = quote_identifier(&column.name);
            format!("{} as c{at}", output_text(&format!("t.{name}")))
        });
        // The texts are made once, within; without, those that are too large are left behind.
        let lengths = all().map(|at| format!("pg_catalog.octet_length(q.c{at}) as l{at}"));
        let sizes = all().map(|at| format!("case when q.l{at} <= {limit} then q.l{at} else 0 end::bigint"));
        let outer_keys = (0..keys.len()).map(|at| format!("r.k{at}"));
        let texts = all().map(|at| format!("case when r.l{at} <= {limit} then r.c{at} end"));
        format!(
            "select {}, array[{}]::int[] from (select q.*, \
             pg_catalog.sum({}) over (rows between unbounded preceding and 1 preceding) as before \
             from (select q.*, {} from (select {} {rest}) q) q) r where coalesce(r.before, 0) < {max_bytes}",
            list(outer_keys.chain(texts), ", "),
            list(all().map(|at| format!("r.l{at}")), ", "),
            list(sizes, " + "),
            list(lengths, ", "),
            list(inner_keys.chain(values), ", "),
        )
    }

    /// The Insert message that would bring a row of [`select`](Self::select), whose columns begin at `first`.
    ///
    /// # Errors
    /// The row is not of that statement.
    pub fn insert(&self, row: &Row, first: usize, purpose: &'static str) -> Result<Vec<u8>, Error> {
        let lengths: Vec<Option<i32>> = column(row, first + self.columns.len(), purpose)?;
        let mut values = Vec::with_capacity(self.columns.len());
        for at in 0..self.columns.len() {
            let text: Option<&str> = column(row, first + at, purpose)?;
            let length = lengths.get(at).copied().flatten();
            values.push(match (text, length) {
                (Some(text), _) => TextValue::Text(text),
                (None, None) => TextValue::Null,
                (None, Some(length)) => TextValue::Oversized {
                    length: length.unsigned_abs(),
                    limit: self.limit,
                },
            });
        }
        Ok(insert_of(values.into_iter()))
    }
}

/// An SQL expression for the text of a value as its type's output function gives it, NULL for NULL. (`is null` would
/// be true of a composite value of NULLs.)
pub(super) fn output_text(value: &str) -> String {
    format!("case when pg_catalog.num_nulls({value}) = 0 then pg_catalog.concat({value}) end")
}

fn list(parts: impl Iterator<Item = String>, separator: &str) -> String {
    parts.collect::<Vec<_>>().join(separator)
}
