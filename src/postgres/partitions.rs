//! Whole old partitions of a table that is partitioned by time: found here, detached and dropped by a person.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio_postgres::types::{Oid, ToSql};

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, quote_literal};
use super::outbox::Outbox;
use super::purge::old_row;
use super::rows::Unreadable;
use super::table_use::Use;

/// Blocks that one statement looks through.
const BLOCKS: i64 = 16_384;

/// A partition whose rows are all sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OldPartition {
    /// The partitioned table.
    pub root: Outbox,
    /// The partition.
    pub partition: QualifiedTable,
    /// How many rows it has.
    pub rows: u64,
    /// The end of its range, which it does not include.
    pub end: SystemTime,
    /// Rows were sent before this.
    pub sent_before: SystemTime,
    /// `for values from … to …`, to attach it again.
    pub bound: String,
    /// A default partition keeps others from being detached concurrently.
    pub has_default: bool,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// Partitions that may go.
    pub old: Vec<OldPartition>,
    /// Partitions that are old and hold a row that must stay.
    pub kept: Vec<QualifiedTable>,
}

#[derive(Debug)]
struct Candidate {
    partition: QualifiedTable,
    end: SystemTime,
    bound: String,
    blocks: i64,
}

/// Looks for the partitions of `table` that end before the time `older_than` ago, and whether all their rows were sent
/// before it and belong to no dead letter that waits or is being retried.
///
/// Grants: usage on the partitions' schema, select on the partitions; usage on schema `walrelay`, select on
/// `walrelay.dead_letters`.
///
/// # Errors
/// [`Unreadable`]: the table is not partitioned by the range of one time column; or a query fails.
pub async fn find(session: &ControlSession, outbox: &Outbox, older_than: Duration) -> Result<Found, Error> {
    let table = &outbox.table;
    const PURPOSE: &str = "look for old partitions";
    let sql = "select c.oid, p.partdefid <> 0, pg_catalog.now() - pg_catalog.make_interval(secs => $3::float8) \
               from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               join pg_catalog.pg_partitioned_table p on p.partrelid = c.oid \
               join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = p.partattrs[0] \
               where n.nspname = $1 and c.relname = $2 and p.partstrat = 'r' and p.partnatts = 1 \
               and a.atttypid in ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)";
    let root = session
        .run(
            PURPOSE,
            session
                .client()
                .query_opt(sql, &[&table.schema, &table.name, &older_than.as_secs_f64()]),
        )
        .await?;
    let Some(root) = root else {
        let table = table.clone();
        return Err(Unreadable::NotByTime { table }.into());
    };
    let has_default: bool = column(&root, 1, PURPOSE)?;
    let sent_before: SystemTime = column(&root, 2, PURPOSE)?;
    let mut found = Found::default();
    for candidate in candidates(session, column(&root, 0, PURPOSE)?, sent_before).await? {
        match sent_rows(session, outbox, &candidate, sent_before).await? {
            Some(rows) => found.old.push(OldPartition {
                root: outbox.clone(),
                partition: candidate.partition,
                rows,
                end: candidate.end,
                sent_before,
                bound: candidate.bound,
                has_default,
            }),
            None => found.kept.push(candidate.partition),
        }
    }
    Ok(found)
}

/// The partitions that end before a time, oldest first. What has no end is never old.
async fn candidates(
    session: &ControlSession,
    root: Oid,
    before: SystemTime,
) -> Result<Vec<Candidate>, Error> {
    const PURPOSE: &str = "look for old partitions";
    // Printed in our session's settings, the bound is read back in them.
    let sql = "select s.nspname::text, s.relname::text, s.ends, s.bound, \
               (select coalesce(pg_catalog.max(pg_catalog.pg_relation_size(r.relid)), 0) \
               from (select s.oid union select relid::oid from pg_catalog.pg_partition_tree(s.oid)) r(relid)) \
               / current_setting('block_size')::bigint \
               from (select c.oid, n.nspname, c.relname, pg_catalog.pg_get_expr(c.relpartbound, c.oid) as bound, \
               pg_catalog.substring(pg_catalog.pg_get_expr(c.relpartbound, c.oid), $$TO \\('([^']*)'\\)$$)::timestamptz as ends \
               from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid \
               join pg_catalog.pg_namespace n on n.oid = c.relnamespace where i.inhparent = $1) s \
               where s.ends <= $2 order by s.ends";
    let rows = session
        .run(PURPOSE, session.client().query(sql, &[&root, &before]))
        .await?;
    let candidates = rows.iter().map(|row| {
        Ok(Candidate {
            partition: QualifiedTable {
                schema: column(row, 0, PURPOSE)?,
                name: column(row, 1, PURPOSE)?,
            },
            end: column(row, 2, PURPOSE)?,
            bound: column(row, 3, PURPOSE)?,
            blocks: column(row, 4, PURPOSE)?,
        })
    });
    candidates.collect()
}

/// How many rows it has, if all of them may go.
async fn sent_rows(
    session: &ControlSession,
    root: &Outbox,
    candidate: &Candidate,
    before: SystemTime,
) -> Result<Option<u64>, Error> {
    let asked = Use::outbox(
        "look whether all rows of a partition were sent",
        "select",
        &candidate.partition,
        &["dead_letters"],
    );
    let (table, old) = (candidate.partition.quoted(), old_row(root, "$1", "$2"));
    let outbox = root.table.to_string();
    let mut total = 0;
    let mut from = 0;
    while from < candidate.blocks {
        let end = from + BLOCKS;
        let sql = format!(
            "select pg_catalog.count(*), pg_catalog.count(*) filter (where ({old}) is not true) from {table} t \
             where t.ctid >= '({from},0)'::tid and t.ctid < '({end},0)'::tid"
        );
        let parameters: [&(dyn ToSql + Sync); 2] = [&before, &outbox];
        let query = session.client().query_one(&sql, &parameters);
        let row = asked.run(session.role(), query).await?;
        let (rows, staying): (i64, i64) = (column(&row, 0, asked.purpose)?, column(&row, 1, asked.purpose)?);
        if staying > 0 {
            return Ok(None);
        }
        total += rows.unsigned_abs();
        from = end;
    }
    Ok(Some(total))
}

/// The SQL that detaches and drops it. A row may still arrive until it is detached, so what is dropped is looked at once
/// more, in the transaction that drops it.
impl fmt::Display for OldPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (root, partition) = (self.root.table.quoted(), self.partition.quoted());
        let time = |time| humantime::format_rfc3339_seconds(time);
        let concurrently = if self.has_default { "" } else { " concurrently" };
        let before = quote_literal(&humantime::format_rfc3339_micros(self.sent_before).to_string());
        let old = old_row(
            &self.root,
            &format!("{before}::timestamptz"),
            &quote_literal(&self.root.table.to_string()),
        );
        let problem = quote_literal(&format!(
            "{partition} holds a row that must stay; alter table {root} attach partition {partition} {}",
            self.bound
        ));
        let Self { rows, end, .. } = self;
        writeln!(f, "-- {partition} ends {}, {rows} rows, all sent", time(*end))?;
        writeln!(f, "set lock_timeout = '5s';")?;
        writeln!(
            f,
            "alter table {root} detach partition {partition}{concurrently};"
        )?;
        // A dollar quote that none of the names can close.
        writeln!(f, "do $walrelay$ begin")?;
        writeln!(f, "    lock table {partition} in access exclusive mode;")?;
        writeln!(
            f,
            "    if exists (select from {partition} t where ({old}) is not true) then"
        )?;
        writeln!(f, "        raise exception using message = {problem};")?;
        writeln!(f, "    end if;")?;
        writeln!(f, "    drop table {partition};")?;
        writeln!(f, "end $walrelay$;")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sql_for_an_old_partition_is_as_reviewed() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let partition = OldPartition {
            root: "\"Shop\".outbox".parse::<QualifiedTable>().unwrap().into(),
            partition: "\"Shop\".\"Outbox 2026-01\"".parse().unwrap(),
            rows: 1200,
            end: at(1_769_904_000),
            sent_before: at(1_793_000_000),
            bound: "FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')".to_owned(),
            has_default: false,
        };
        insta::assert_snapshot!("old_partition", partition);
        let with_default = OldPartition {
            has_default: true,
            ..partition
        };
        assert!(!with_default.to_string().contains("concurrently"));
    }
}
