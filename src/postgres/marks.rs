//! Marks: rows whose events are confirmed or discarded get their `sent_at`, or are deleted (rules 18 and 20).

mod notes;
mod owners;
pub mod sweep;
mod tables;

use std::time::Duration;

use tokio_postgres::Transaction;
use walrelay_engine::Lsn;
use walrelay_engine::marks::{MarkBatch, Marked, TableIds};

pub use notes::{Noted, drop_needless, has_notes, mark_noted};
pub(super) use owners::{Claims, claim, release};
use tables::Change;
pub(super) use tables::plan_table;
pub use tables::{Refusal, TablePlan, plan, prefix_refusal};

use super::catalog::{column, position};
use super::control::{ControlSession, bounded};
use super::dead_letters;
use super::error::{Error, Step};
use super::identifier::SlotName;
use super::settled;

/// How long a batch waits for a lock on the table; rows that are locked it passes over.
const LOCK_TIMEOUT: Duration = Duration::from_millis(400);

/// For whom a batch is committed.
#[derive(Debug, Clone, Copy)]
pub struct MarkStream<'a> {
    /// The slot.
    pub slot: &'a SlotName,
    /// Our walsender's process id.
    pub walsender_pid: i32,
    /// The cluster that it is of.
    pub system_id: u64,
}

/// Marks the rows of a batch and stores its settled prefix, in one transaction. `plans` are the tables in the order of the
/// configuration; ids of one whose marks are refused are left out. `stores` says whether the role may store the prefix.
///
/// Rows that another transaction has locked are left alone and told, and so are those that are not to be seen yet: the stream
/// brings a commit before it is visible, and with a synchronous standby long before. A row that is gone or marked already is no
/// error.
///
/// Grants: select on `id` and `sent_at`, update on `sent_at` (or delete); for the prefix see `walrelay.state`.
///
/// Cancel safety: a dropped future may have committed; marking again is harmless.
///
/// # Errors
/// [`Error::NotOurStream`] unless the session's server streams to us; or a statement fails. Nothing was committed then,
/// except that the answer to the commit may be lost.
pub async fn commit(
    session: &mut ControlSession,
    stream: MarkStream<'_>,
    plans: &[TablePlan],
    batch: &MarkBatch,
    stores: bool,
) -> Result<Marked, Error> {
    const PURPOSE: &str = "mark published rows";
    let role = session.role().to_owned();
    let transaction = dead_letters::begin(session, stream.slot, stream.walsender_pid, PURPOSE).await?;
    // Before the position is reported all the same.
    let sql = format!("set local lock_timeout = {}", LOCK_TIMEOUT.as_millis());
    bounded(Step::Query(PURPOSE), transaction.batch_execute(&sql)).await?;
    let mut marked = Marked {
        seen: Some(seen(&transaction).await?),
        ..Marked::default()
    };
    for ids in &batch.tables {
        let plan = plans.get(usize::from(ids.table));
        match plan.filter(|plan| plan.is_marked()) {
            Some(plan) => mark(&transaction, plan, ids, &mut marked).await?,
            None => marked.given_up += u64::try_from(ids.len()).unwrap_or(u64::MAX),
        }
    }
    if let Some(prefix) = batch.prefix.filter(|_| stores) {
        let prefix = prefix.with(marked.is_whole());
        settled::store(&transaction, &role, stream.slot, &prefix, stream.system_id).await?;
    }
    bounded(Step::Query(PURPOSE), transaction.commit()).await?;
    Ok(marked)
}

async fn mark(
    transaction: &Transaction<'_>,
    plan: &TablePlan,
    ids: &TableIds,
    marked: &mut Marked,
) -> Result<(), Error> {
    const PURPOSE: &str = "mark published rows";
    let step = Step::Query(PURPOSE);
    let texts: Vec<&str> = ids.iter().collect();
    let Some(Change { change, lock, due }) = plan.change() else {
        marked.given_up += u64::try_from(ids.len()).unwrap_or(u64::MAX);
        return Ok(());
    };
    let (table, id, id_type) = (plan.outbox.table.quoted(), plan.outbox.id(), &plan.id_type);
    // Whoever has a row locked may keep it so for long.
    let still = plan.still_unsent();
    let sql = format!(
        "with done as ({change} where {due} and t.{id} = any(array(select t.{id} from {table} t \
         where t.{id} = any($1::text[]::{id_type}[]) and {due} for {lock} skip locked)) returning {still} as is_unsent) \
         select count(*), count(*) filter (where is_unsent) from done"
    );
    let row = bounded(step, transaction.query_one(&sql, &[&texts]))
        .await
        .map_err(|error| plan.explain(error))?;
    let count =
        |index| column::<i64>(&row, index, PURPOSE).map(|count| u64::try_from(count).unwrap_or_default());
    let (rows, unsent) = (count(0)?, count(1)?);
    marked.rows += rows.saturating_sub(unsent);
    if unsent > 0 {
        marked.endless.push(ids.table);
    }
    if rows < u64::try_from(texts.len()).unwrap_or(u64::MAX) {
        for (id, xid) in left(transaction, plan, ids, &texts, &due).await? {
            marked.locked.push((ids.table, id, xid));
        }
    }
    Ok(())
}

/// The ids among `texts` whose rows are there and `due`, or whose transaction is not visible yet; with that transaction.
async fn left(
    transaction: &Transaction<'_>,
    plan: &TablePlan,
    ids: &TableIds,
    texts: &[&str],
    due: &str,
) -> Result<Vec<(String, u32)>, Error> {
    const PURPOSE: &str = "look which rows are not marked yet";
    let (table, id, id_type) = (plan.outbox.table.quoted(), plan.outbox.id(), &plan.id_type);
    let xids: Vec<i64> = ids.xids().iter().map(|xid| i64::from(*xid)).collect();
    // One statement, so one snapshot. The upper half of a transaction's id is that of the newest, by the shorter way round.
    let sql = format!(
        "with wanted as (select * from unnest($1::text[], $2::bigint[]) as wanted (id, xid)), \
         now as (select s, pg_catalog.pg_snapshot_xmax(s)::text::bigint as newest \
         from pg_catalog.pg_current_snapshot() s) \
         select wanted.id, wanted.xid from wanted, now where wanted.xid <> 0 and not pg_catalog.pg_visible_in_snapshot(\
         (newest + (((wanted.xid - newest) & 4294967295) # 2147483648) - 2147483648)::text::xid8, s) \
         union \
         select wanted.id, wanted.xid from (select t.{id} as id from {table} t \
         where t.{id} = any($1::text[]::{id_type}[]) and {due}) t join wanted on t.id = wanted.id::{id_type}"
    );
    let rows = bounded(Step::Query(PURPOSE), transaction.query(&sql, &[&texts, &xids])).await?;
    let read = |row| {
        let xid: i64 = column(row, 1, PURPOSE)?;
        Ok((column(row, 0, PURPOSE)?, u32::try_from(xid).unwrap_or_default()))
    };
    rows.iter().map(read).collect()
}

/// The oldest transaction that still runs, and the end of the log after that was looked at: whatever is older committed
/// before that end, if it did.
async fn seen(transaction: &Transaction<'_>) -> Result<(Lsn, u64), Error> {
    const PURPOSE: &str = "look at running transactions";
    let sql = "select pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot())::text::bigint, \
               pg_catalog.pg_current_wal_insert_lsn()::text";
    let row = bounded(Step::Query(PURPOSE), transaction.query_one(sql, &[])).await?;
    let oldest: i64 = column(&row, 0, PURPOSE)?;
    let end = position(&row, 1, PURPOSE)?.unwrap_or_default();
    Ok((end, u64::try_from(oldest).unwrap_or_default()))
}
