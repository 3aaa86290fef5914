//! The sweep: marks rows that were published and whose marks were lost (rule 21).
//!
//! It takes a snapshot and then the end of the log. Once that is acknowledged, every row of a transaction that was decided
//! before the snapshot is dealt with, if the slot has brought it at all; that it has is what the conditions in
//! [`sweep`] are for.

use std::ops::Range;
use std::time::SystemTime;

use walrelay_engine::Lsn;

use super::TablePlan;
use super::tables::Change;
use crate::postgres::catalog::{column, position};
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, SlotName, quote_identifier};
use crate::postgres::table_use::Use;

/// So many blocks are looked at in one statement: 8 MiB of a table.
pub const BLOCKS: u64 = 1_024;

/// What a sweep may touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The sweep may begin once this is acknowledged.
    pub end: Lsn,
    /// Rows of transactions before this one are decided.
    pub before: u64,
    /// Transactions are numbered from here backwards: a row's number is short of its upper half.
    pub newest: i64,
    /// Rows of transactions before this one need no sweep, or were not brought by the slot.
    from: i64,
    /// When the slot was created.
    since: SystemTime,
}

/// What came of some blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swept {
    /// Rows that were marked.
    pub rows: u64,
    /// Rows that somebody had locked.
    pub locked: u64,
    /// Rows that are unsent though they were marked.
    pub unsent: u64,
}

/// Looks how far a sweep may go; none where set-up has not recorded where it may begin.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.state`.
///
/// # Errors
/// The query fails.
pub async fn horizon(session: &ControlSession, slot: &SlotName) -> Result<Option<Horizon>, Error> {
    const STATE: Use = Use::own("look how far rows may be swept", "select", &["state"]);
    // The snapshot is older than the end of the log: what it shows committed before that.
    let sql = "select unswept_xid::text::bigint, unswept_since, \
               pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint, \
               pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint, \
               pg_catalog.pg_current_wal_insert_lsn()::text \
               from walrelay.state where slot = $1 and unswept_xid is not null and unswept_since is not null";
    let row = STATE
        .run(session.role(), session.client().query_opt(sql, &[&slot.as_str()]))
        .await?;
    let Some(row) = row else { return Ok(None) };
    let before: i64 = column(&row, 2, STATE.purpose)?;
    Ok(Some(Horizon {
        end: position(&row, 4, STATE.purpose)?.unwrap_or_default(),
        before: u64::try_from(before).unwrap_or_default(),
        newest: column(&row, 3, STATE.purpose)?,
        from: column(&row, 0, STATE.purpose)?,
        since: column(&row, 1, STATE.purpose)?,
    }))
}

/// How many blocks a table has, or the largest of its partitions; none where it cannot be swept: without `created_at` an
/// old row that was written again could not be told from one that the slot has brought.
///
/// # Errors
/// The query fails.
pub async fn blocks(session: &ControlSession, plan: &TablePlan) -> Result<u64, Error> {
    const PURPOSE: &str = "look how large the outbox table is";
    let sql = "select greatest(pg_catalog.pg_relation_size(c.oid), (select max(pg_catalog.pg_relation_size(relid)) \
               from pg_catalog.pg_partition_tree(c.oid) where isleaf)) / current_setting('block_size')::bigint + 1 \
               from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attname = $3 \
               and a.atttypid = 'timestamptz'::regtype \
               where n.nspname = $1 and c.relname = $2";
    let (Some(created_at), Some(_)) = (plan.outbox.created_at(), &plan.marks) else {
        return Ok(0);
    };
    let QualifiedTable { schema, name } = &plan.outbox.table;
    let row = session
        .run(
            PURPOSE,
            session.client().query_opt(sql, &[schema, name, &created_at]),
        )
        .await?;
    let blocks: Option<i64> = row.map(|row| column(&row, 0, PURPOSE)).transpose()?;
    Ok(blocks.map_or(0, |blocks| u64::try_from(blocks).unwrap_or_default()))
}

/// Marks (or deletes) the rows in some blocks that were published. The horizon's end must be acknowledged.
///
/// A row is one if it is unsent; its transaction is decided, and began after the slot was created, and after its partition
/// was attached; it says so itself (`created_at`); and it is neither a dead letter nor skipped.
///
/// Grants: select on the table, update on `sent_at` (or delete), select on `walrelay.dead_letters` and `walrelay.skips`.
///
/// # Errors
/// The statement fails.
pub async fn sweep(
    session: &ControlSession,
    slot: &SlotName,
    plan: &TablePlan,
    horizon: &Horizon,
    blocks: Range<u64>,
) -> Result<Swept, Error> {
    const PURPOSE: &str = "mark rows whose marks were lost";
    let (Some(created_at), Some(marks), Some(Change { change, lock, .. })) =
        (plan.outbox.created_at(), &plan.marks, plan.change())
    else {
        return Ok(Swept::default());
    };
    let (created_at, unsent) = (quote_identifier(created_at), &marks.unsent);
    let (table, id, still) = (plan.outbox.table.quoted(), plan.outbox.id(), plan.still_unsent());
    // The upper half of a row's transaction id: it cannot be newer than the newest, nor older by a whole round.
    let full = |xmin: &str| format!("($1 - ((($1 & 4294967295) - {xmin}::text::bigint) & 4294967295))");
    let (xid, attached) = (full("t.xmin"), full("i.xmin"));
    let Range { start, end } = blocks;
    // What is of another shard, the slot has not brought.
    let part = plan
        .part
        .as_ref()
        .map_or_else(String::new, |part| format!("and {part} "));
    let sql = format!(
        "with due as materialized (select t.tableoid as o, t.ctid as c from {table} t \
         where t.ctid >= '({start},0)'::tid and t.ctid < '({end},0)'::tid and {unsent} \
         {part}and {xid} >= $2 and {xid} < $3 and t.{created_at} >= $4 and pg_catalog.concat(t.{id}) <> '' \
         and {xid} > coalesce((select max({attached}) from pg_catalog.pg_inherits i \
         where i.inhrelid in (select relid from pg_catalog.pg_partition_ancestors(t.tableoid))), 0) \
         and pg_catalog.concat(t.{id}) not in (select event_id from walrelay.dead_letters \
         where slot = $5 and outbox = $6 and event_id is not null) \
         and pg_catalog.concat(t.{id}) not in (select coalesce(settled_event_id, event_id) from walrelay.skips \
         where slot = $5 and coalesce(settled_outbox, $6) = $6 and coalesce(settled_event_id, event_id) is not null)), \
         locked as materialized (select t.tableoid as o, t.ctid as c from {table} t \
         where t.ctid = any(array(select c from due)) and (t.tableoid, t.ctid) in (select o, c from due) \
         for {lock} of t skip locked), \
         done as ({change} where t.ctid = any(array(select c from locked)) \
         and (t.tableoid, t.ctid) in (select o, c from locked) returning {still} as is_unsent) \
         select (select count(*) from due), (select count(*) from done), (select count(*) from done where is_unsent)"
    );
    let before = i64::try_from(horizon.before).unwrap_or_default();
    let parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)] = &[
        &horizon.newest,
        &horizon.from,
        &before,
        &horizon.since,
        &slot.as_str(),
        &plan.outbox.table.to_string(),
    ];
    let row = session
        .run_step(Step::Query(PURPOSE), session.client().query_one(&sql, parameters))
        .await
        .map_err(|error| plan.explain_sweep(error))?;
    let count =
        |index| column::<i64>(&row, index, PURPOSE).map(|count| u64::try_from(count).unwrap_or_default());
    let (due, done, unsent) = (count(0)?, count(1)?, count(2)?);
    Ok(Swept {
        rows: done.saturating_sub(unsent),
        locked: due.saturating_sub(done),
        unsent,
    })
}
