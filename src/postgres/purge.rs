//! Deleting rows that were sent long ago, in small batches: for the daemon's retention and for `walrelay purge`.
//!
//! A batch is one statement. It never touches a row that is not marked as sent, nor one of a dead letter that waits or is
//! being retried, whichever slot set it aside; rows that somebody else has locked are passed over.

use std::time::{Duration, SystemTime};

use tokio_postgres::types::{Oid, ToSql};

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, quote_identifier};
use super::outbox::{Marks, Outbox};
use super::rows::{TIMESTAMPTZ, Unreadable};
use super::table_use::Use;

/// Blocks that one statement looks through where no index leads to the old rows.
const BLOCKS: i64 = 256;

/// A dead letter of an event with a longer id has no id, so that its row could not be told.
const LONGEST_ID: usize = 1024;

/// One way through a table, deleting what is old.
#[derive(Debug, Clone)]
pub struct Purge {
    outbox: Outbox,
    /// The column of the time at which a row was sent, quoted.
    sent_at: String,
    /// How rows show that they are sent.
    marks: Marks,
    /// Rows sent before this are old.
    sent_before: SystemTime,
    walk: Walk,
}

/// How the old rows are found.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Walk {
    /// Along an index whose first column is this time, from the last batch's newest on.
    Index {
        column: String,
        from: Option<SystemTime>,
    },
    /// Block by block, all partitions at once.
    Blocks { from: i64, end: i64 },
}

/// What a batch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purged {
    /// Rows deleted.
    pub rows: u64,
    /// Whether the way is over.
    pub is_over: bool,
}

impl Purge {
    /// Prepares a way through a table, and decides how: along an index on the time at which rows were written or sent, where
    /// there is one, otherwise through all blocks. Along the former, a row must have been written before that time as well.
    ///
    /// Grants: none.
    ///
    /// # Errors
    /// [`Unreadable`]: no such table, no time at which rows were sent, no index that begins with the id, row security; or a query fails.
    pub async fn prepare(
        session: &ControlSession,
        outbox: &Outbox,
        older_than: Duration,
    ) -> Result<Self, Error> {
        let table = &outbox.table;
        let sent_at = outbox.sent_at();
        const PURPOSE: &str = "look how old rows can be found";
        let found = session
            .run(
                PURPOSE,
                session.client().query_opt(
                    "select c.oid, pg_catalog.row_security_active(c.oid), \
                     (select a.atttypid from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = $4 \
                     and not a.attisdropped), \
                     pg_catalog.now() - pg_catalog.make_interval(secs => $3::float8), \
                     (select pg_catalog.max(pg_catalog.pg_relation_size(r.relid)) \
                     from (select c.oid union select relid::oid from pg_catalog.pg_partition_tree(c.oid)) r(relid)) \
                     / current_setting('block_size')::bigint \
                     from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                     where n.nspname = $1 and c.relname = $2 and c.relkind in ('r', 'p')",
                    &[&table.schema, &table.name, &older_than.as_secs_f64(), &sent_at],
                ),
            )
            .await?;
        let own = || table.clone();
        let Some(found) = found else {
            return Err(Unreadable::Missing { table: own() }.into());
        };
        if column(&found, 1, PURPOSE)? {
            let role = quote_identifier(session.role());
            return Err(Unreadable::RowSecurity { table: own(), role }.into());
        }
        let is_time = column::<Option<Oid>>(&found, 2, PURPOSE)? == Some(TIMESTAMPTZ);
        let (Some(sent_at), Some(marks)) = (sent_at.filter(|_| is_time), outbox.marks(|_| is_time)) else {
            return Err(Unreadable::Column {
                table: own(),
                column: sent_at.unwrap_or("sent_at").to_owned(),
                needed: "of the type timestamptz, by which rows are old",
            }
            .into());
        };
        let indexed = indexed(session, outbox, column(&found, 0, PURPOSE)?).await?;
        let is_indexed = |name: &&str| indexed.iter().any(|indexed| indexed == name);
        let id = &outbox.columns.id;
        if !is_indexed(&id.as_str()) {
            let id = id.clone();
            return Err(Unreadable::NoIdIndex { table: own(), id }.into());
        }
        let by_time = [outbox.created_at(), Some(sent_at)]
            .into_iter()
            .flatten()
            .find(is_indexed);
        let walk = match by_time {
            Some(column) => Walk::Index {
                column: quote_identifier(column),
                from: None,
            },
            None => Walk::Blocks {
                from: 0,
                end: column::<Option<i64>>(&found, 4, PURPOSE)?.unwrap_or_default(),
            },
        };
        Ok(Self {
            outbox: outbox.clone(),
            sent_at: quote_identifier(sent_at),
            marks,
            sent_before: column(&found, 3, PURPOSE)?,
            walk,
        })
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &QualifiedTable {
        &self.outbox.table
    }

    /// Deletes the next old rows: `limit` at most, and those of other partitions with the same ids.
    ///
    /// Grants: usage on the table's schema; select, delete and update of any column of the table (its rows are locked);
    /// usage on schema `walrelay`, select on `walrelay.dead_letters`.
    ///
    /// Cancel safety: a dropped future may have deleted rows that are not counted.
    ///
    /// # Errors
    /// The statement fails; nothing was deleted then.
    pub async fn next(&mut self, session: &ControlSession, limit: u32) -> Result<Purged, Error> {
        const PURPOSE: &str = "delete rows that were sent long ago";
        let (table, id, old) = (self.outbox.table.quoted(), self.outbox.id(), self.old());
        let (range, order, newest) = match &self.walk {
            Walk::Index { column, from } => {
                let from = match from {
                    Some(_) => format!("and t.{column} >= $3"),
                    None => "and $3::timestamptz is null".to_owned(),
                };
                (
                    format!("t.{column} < $1 {from}"),
                    format!("order by t.{column}"),
                    column,
                )
            }
            Walk::Blocks { from, .. } => {
                let end = from + BLOCKS;
                let range = format!(
                    "t.ctid >= '({from},0)'::tid and t.ctid < '({end},0)'::tid and $3::timestamptz is null"
                );
                (range, String::new(), &self.sent_at)
            }
        };
        let from = match &self.walk {
            Walk::Index { from, .. } => *from,
            Walk::Blocks { .. } => None,
        };
        // The second look at each condition is for rows of other partitions that share their id with a locked one.
        let sql = format!(
            "with due as materialized (select t.{id} as id from {table} t where {range} and {old} {order} \
             limit {limit} for update of t skip locked), \
             gone as (delete from {table} t where t.{id} = any(array(select id from due)) and {old} \
             returning t.{newest} as at) \
             select pg_catalog.count(*), pg_catalog.max(at), (select pg_catalog.count(*) from due) from gone"
        );
        let outbox = self.outbox.table.to_string();
        let parameters: [&(dyn ToSql + Sync); 3] = [&self.sent_before, &outbox, &from];
        let query = session.client().query_one(&sql, &parameters);
        let privileges = format!("select, {}, delete", self.marks.update());
        let usage = Use::outbox(PURPOSE, &privileges, &self.outbox.table, &["dead_letters"]);
        let row = usage.run(session.role(), query).await?;
        let rows: i64 = column(&row, 0, PURPOSE)?;
        let newest: Option<SystemTime> = column(&row, 1, PURPOSE)?;
        let rows = rows.unsigned_abs();
        let is_exhausted = column::<i64>(&row, 2, PURPOSE)? < i64::from(limit);
        let is_over = match &mut self.walk {
            Walk::Index { from, .. } => {
                *from = newest.or(*from);
                is_exhausted
            }
            Walk::Blocks { from, end } => {
                if is_exhausted {
                    *from += BLOCKS;
                }
                *from >= *end
            }
        };
        Ok(Purged { rows, is_over })
    }

    /// How many rows are old now.
    ///
    /// Grants: usage on the table's schema, select on the table; usage on schema `walrelay`, select on
    /// `walrelay.dead_letters`.
    ///
    /// # Errors
    /// The query fails.
    pub async fn count(&self, session: &ControlSession) -> Result<u64, Error> {
        const PURPOSE: &str = "count the rows that were sent long ago";
        let (table, old) = (self.outbox.table.quoted(), self.old());
        let also = match &self.walk {
            Walk::Index { column, .. } => format!("t.{column} < $1"),
            Walk::Blocks { .. } => "true".to_owned(),
        };
        let sql = format!("select pg_catalog.count(*) from {table} t where {also} and {old}");
        let outbox = self.outbox.table.to_string();
        let parameters: [&(dyn ToSql + Sync); 2] = [&self.sent_before, &outbox];
        let query = session.client().query_one(&sql, &parameters);
        let asked = Use::outbox(PURPOSE, "select", &self.outbox.table, &["dead_letters"]);
        let row = asked.run(session.role(), query).await?;
        Ok(column::<i64>(&row, 0, PURPOSE)?.unsigned_abs())
    }

    /// The condition that a row `t` may go: `$1` is the time, `$2` the table as dead letters name it.
    fn old(&self) -> String {
        old_row(&self.outbox, "$1", "$2")
    }
}

/// The condition that a row `t` was sent before a time and belongs to no dead letter that waits.
pub(super) fn old_row(outbox: &Outbox, time: &str, name: &str) -> String {
    let (sent, kept) = (outbox.sent_before(time), no_dead_letter(&outbox.id(), name));
    format!("{sent} and {kept}")
}

/// The condition that a row `t` belongs to no dead letter that waits or is being retried.
pub(super) fn no_dead_letter(id: &str, outbox: &str) -> String {
    format!(
        "pg_catalog.octet_length(pg_catalog.concat(t.{id})) between 1 and {LONGEST_ID} \
         and not exists (select from walrelay.dead_letters d where d.outbox = {outbox} \
         and d.state <> 'discarded' and d.event_id = pg_catalog.concat(t.{id}))"
    )
}

/// The columns of the id and the times with which a usable index begins. Of the times only one that serves: a
/// `timestamptz`, and never NULL if it is not that of sending itself.
async fn indexed(session: &ControlSession, outbox: &Outbox, table: Oid) -> Result<Vec<String>, Error> {
    const PURPOSE: &str = "look for indexes of the outbox table";
    let sql = "select a.attname::text from pg_catalog.pg_index i \
               join pg_catalog.pg_class c on c.oid = i.indexrelid join pg_catalog.pg_am m on m.oid = c.relam \
               join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0] \
               where i.indrelid = $1 and i.indisvalid and i.indpred is null and m.amname = 'btree' \
               and (a.attname = $3 or (a.attname in ($4, $5) and a.atttypid = $2 \
               and (a.attnotnull or a.attname = $5)))";
    let (created_at, sent_at) = (outbox.created_at(), outbox.sent_at());
    let parameters: [&(dyn ToSql + Sync); 5] =
        [&table, &TIMESTAMPTZ, &outbox.columns.id, &created_at, &sent_at];
    let rows = session
        .run(PURPOSE, session.client().query(sql, &parameters))
        .await?;
    rows.iter().map(|row| column(row, 0, PURPOSE)).collect()
}
