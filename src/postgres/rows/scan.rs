//! Going through the rows of an outbox table in batches, by key: a batch is one short statement, and nothing is kept open
//! between two of them.

use std::future::Future;
use std::time::SystemTime;

use tokio_postgres::types::{Oid, ToSql};
use walrelay_engine::event::Source as FieldSource;

use super::{TextColumn, TextColumns, Unreadable, output_text};
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, SqlState};
use crate::postgres::identifier::quote_identifier;
use crate::postgres::outbox::Outbox;
use crate::postgres::table_use::Use;

/// Oid of `timestamptz`; fixed in PostgreSQL's `pg_type.dat`.
pub(in crate::postgres) const TIMESTAMPTZ: Oid = 1184;

/// Which rows; all conditions that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of these ids, if there are any.
    pub ids: Vec<String>,
    /// Those of this aggregate: type and id.
    pub aggregate: Option<(String, String)>,
    /// Those of this event type.
    pub event_type: Option<String>,
    /// Those created at or after this time.
    pub since: Option<SystemTime>,
    /// Those created before this time.
    pub until: Option<SystemTime>,
}

/// A way through the rows of one table that a filter takes: in the order of `created_at` and then id, where there is a
/// `created_at` that is never NULL, otherwise of the id.
///
/// Rows without an id are passed over: they cannot become messages. Rows created after the start are left out, where
/// `created_at` is never NULL, unless they are named by id.
#[derive(Debug)]
pub struct Scan {
    outbox: Outbox,
    columns: TextColumns,
    filter: Filter,
    /// The columns of the order.
    order: Vec<String>,
    /// The key of the last row read, as text; none before the first batch.
    after: Option<Vec<String>>,
}

/// A row of the table.
#[derive(Clone, PartialEq, Eq)]
pub struct TableRow {
    /// Its id.
    pub id: String,
    /// When it was created, where the table says so.
    pub created_at: Option<SystemTime>,
    /// The Insert message that would have brought it.
    pub insert: Vec<u8>,
}

/// The id and size only: rows are never logged.
impl std::fmt::Debug for TableRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "row {} of {} bytes", self.id, self.insert.len())
    }
}

impl Scan {
    /// Prepares a way through a table, of which `columns` were read.
    ///
    /// Grants: none.
    ///
    /// # Errors
    /// [`Unreadable`]: the filter needs a column that is not there, or nothing tells the rows apart; or a query fails.
    pub async fn new(
        session: &ControlSession,
        outbox: &Outbox,
        columns: TextColumns,
        mut filter: Filter,
    ) -> Result<Self, Error> {
        let created_at = time_of(outbox, &columns);
        let time_name = || outbox.created_at().unwrap_or("created_at").to_owned();
        if created_at.is_none() && (filter.since.is_some() || filter.until.is_some()) {
            return Err(Unreadable::Column {
                table: columns.table.clone(),
                column: time_name(),
                needed: "of the type timestamptz, which --since and --until go by",
            }
            .into());
        }
        for (field, column) in outbox.columns.required() {
            // A row without a payload is invalid, which is said of each.
            if field != "payload" && columns.column(column).is_none() {
                return Err(Unreadable::Column {
                    table: columns.table.clone(),
                    column: column.to_owned(),
                    needed: "that every event needs",
                }
                .into());
            }
        }
        let mut order = vec![outbox.columns.id.clone()];
        if let Some(column) = created_at.filter(|column| column.not_null) {
            order.insert(0, column.name.clone());
        }
        if !has_key(session, &columns, &order).await? {
            return Err(Unreadable::NoKey {
                table: columns.table.clone(),
                id: outbox.columns.id.clone(),
                created_at: time_name(),
            }
            .into());
        }
        // What is created from now on is the live relay's.
        if filter.ids.is_empty() && filter.until.is_none() && order.len() > 1 {
            filter.until = Some(now(session).await?);
        }
        filter.ids.sort();
        filter.ids.dedup();
        Ok(Self {
            outbox: outbox.clone(),
            columns,
            filter,
            order,
            after: None,
        })
    }

    /// The table's columns.
    #[must_use]
    pub const fn columns(&self) -> &TextColumns {
        &self.columns
    }

    /// How many rows the filter takes now.
    ///
    /// Grants: usage on the table's schema, select on the table.
    ///
    /// # Errors
    /// The query fails.
    pub async fn count(&self, session: &ControlSession) -> Result<u64, Error> {
        const PURPOSE: &str = "count the rows";
        let (conditions, parameters) = self.conditions();
        let table = self.columns.table.quoted();
        let sql = format!("select pg_catalog.count(*) from {table} t where {conditions}");
        let parameters = borrowed(&parameters);
        let query = session.client().query_one(&sql, &parameters);
        let row = self.run(PURPOSE, session, query).await?;
        let count: i64 = column(&row, 0, PURPOSE)?;
        Ok(count.unsigned_abs())
    }

    /// Reads the next rows, none at the end: at most `limit`, and fewer once they have `max_bytes` of text together.
    ///
    /// Grants: usage on the table's schema, select on the table.
    ///
    /// Cancel safety: a dropped future has read nothing; the next call reads the same rows.
    ///
    /// # Errors
    /// The query fails.
    pub async fn next(
        &mut self,
        session: &ControlSession,
        limit: u32,
        max_bytes: u32,
    ) -> Result<Vec<TableRow>, Error> {
        const PURPOSE: &str = "read rows of the outbox table";
        let (mut conditions, mut parameters) = self.conditions();
        let keys: Vec<_> = self.order.iter().map(|name| text_of(name)).collect();
        let ordered = self
            .order
            .iter()
            .map(|name| format!("t.{}", quote_identifier(name)));
        let ordered = ordered.collect::<Vec<_>>().join(", ");
        if let Some(after) = &self.after {
            let mut places = Vec::new();
            for (name, value) in self.order.iter().zip(after) {
                parameters.push(Box::new(value.clone()));
                places.push(self.cast(name, parameters.len()));
            }
            conditions.push_str(&format!(" and ({ordered}) > ({})", places.join(", ")));
        }
        let mut selected = keys;
        selected.push(match time_of(&self.outbox, &self.columns) {
            Some(column) => format!("t.{}", quote_identifier(&column.name)),
            None => "null::timestamptz".to_owned(),
        });
        let table = self.columns.table.quoted();
        let rest = format!("from {table} t where {conditions} order by {ordered} limit {limit}");
        let sql = self.columns.select(&selected, &rest, max_bytes);
        let parameters = borrowed(&parameters);
        let query = session.client().query(&sql, &parameters);
        let found = self.run(PURPOSE, session, query).await?;

        let first = selected.len();
        let id_at = self.order.len() - 1;
        let rows = found.iter().map(|row| {
            Ok(TableRow {
                id: column(row, id_at, PURPOSE)?,
                created_at: column(row, first - 1, PURPOSE)?,
                insert: self.columns.insert(row, first, PURPOSE)?,
            })
        });
        let rows: Vec<_> = rows.collect::<Result<_, Error>>()?;
        if let Some(row) = found.last() {
            let key = (0..self.order.len()).map(|at| column(row, at, PURPOSE));
            self.after = Some(key.collect::<Result<_, Error>>()?);
        }
        Ok(rows)
    }

    /// Awaits a statement with the filter's conditions, and says which table they do not fit.
    async fn run<T>(
        &self,
        purpose: &'static str,
        session: &ControlSession,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, Error> {
        let table = &self.columns.table;
        let reading = Use::outbox(purpose, "select", table, &[]);
        let result = reading.run(session.role(), statement).await;
        result.map_err(|error| {
            let Error::Server { step, source } = error else {
                return error;
            };
            match source.sqlstate {
                SqlState::INVALID_TEXT | SqlState::OUT_OF_RANGE => Unreadable::Condition {
                    table: table.clone(),
                    message: source.message,
                }
                .into(),
                _ => Error::Server { step, source },
            }
        })
    }

    /// What the filter says, and its parameters from `$1` on. Texts are cast to the column's type, so that an index of
    /// the column serves.
    fn conditions(&self) -> (String, Vec<Box<dyn ToSql + Sync + Send>>) {
        let filter = &self.filter;
        let mut parameters: Vec<Box<dyn ToSql + Sync + Send>> = Vec::new();
        let id = self.outbox.id();
        let mut conditions = format!("t.{id} is not null");
        if !filter.ids.is_empty() {
            parameters.push(Box::new(filter.ids.clone()));
            let id_type = self.columns.type_of(&self.outbox.columns.id);
            conditions.push_str(&format!(
                " and t.{id} = any(${}::text[]::{id_type}[])",
                parameters.len()
            ));
        }
        let (aggregate_type, aggregate_id) = filter.aggregate.clone().unzip();
        for (name, value) in [
            ("aggregate_type", aggregate_type),
            ("aggregate_id", aggregate_id),
            ("event_type", filter.event_type.clone()),
        ] {
            let Some(value) = value else { continue };
            if let FieldSource::Constant(constant) = self.outbox.field(name) {
                conditions.push_str(if constant == value {
                    " and true"
                } else {
                    " and false"
                });
            } else if let Some(column) = self.outbox.column_of(name) {
                parameters.push(Box::new(value));
                let value = self.cast(&column, parameters.len());
                conditions.push_str(&format!(" and t.{} = {value}", quote_identifier(&column)));
            }
        }
        let created_at = time_of(&self.outbox, &self.columns).map(|column| quote_identifier(&column.name));
        for (comparison, time) in [(">=", filter.since), ("<", filter.until)] {
            if let (Some(time), Some(created_at)) = (time, &created_at) {
                parameters.push(Box::new(time));
                let at = parameters.len();
                conditions.push_str(&format!(" and t.{created_at} {comparison} ${at}::timestamptz"));
            }
        }
        (conditions, parameters)
    }

    /// A text parameter as a value of a column's type.
    fn cast(&self, name: &str, parameter: usize) -> String {
        format!("${parameter}::text::{}", self.columns.type_of(name))
    }
}

/// The column of the time at which a row was written, where the table has one that serves.
fn time_of<'a>(outbox: &Outbox, columns: &'a TextColumns) -> Option<&'a TextColumn> {
    let column = columns.column(outbox.created_at()?);
    column.filter(|column| column.type_oid == TIMESTAMPTZ)
}

fn text_of(name: &str) -> String {
    output_text(&format!("t.{}", quote_identifier(name)))
}

fn borrowed(parameters: &[Box<dyn ToSql + Sync + Send>]) -> Vec<&(dyn ToSql + Sync)> {
    parameters
        .iter()
        .map(|parameter| &**parameter as &(dyn ToSql + Sync))
        .collect()
}

/// The database's time.
async fn now(session: &ControlSession) -> Result<SystemTime, Error> {
    const PURPOSE: &str = "ask for the time";
    let query = session.client().query_one("select pg_catalog.now()", &[]);
    column(&session.run(PURPOSE, query).await?, 0, PURPOSE)
}

/// Whether a unique index tells the rows apart by columns of the order alone, so that none is passed over at the border
/// between two batches.
async fn has_key(session: &ControlSession, columns: &TextColumns, order: &[String]) -> Result<bool, Error> {
    const PURPOSE: &str = "look for a unique index of the outbox table";
    let sql = "select exists (select from pg_catalog.pg_index i join pg_catalog.pg_class c on c.oid = i.indrelid \
               join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = $2 and i.indisunique and i.indisvalid \
               and i.indpred is null and i.indexprs is null \
               and not exists (select from pg_catalog.unnest(i.indkey::int2[]) with ordinality k(attnum, place) \
               join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum \
               where k.place <= i.indnkeyatts and a.attname <> all($3::text[])))";
    let table = &columns.table;
    let row = session
        .run(
            PURPOSE,
            session
                .client()
                .query_one(sql, &[&table.schema, &table.name, &order]),
        )
        .await?;
    column(&row, 0, PURPOSE)
}
