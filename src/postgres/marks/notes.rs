//! Marks by notes: rows of a backfill that were sent and whose marks did not come in time (rule 22). Their notes stay until
//! the mark is committed, so that no crash leaves such a row unsent for ever.

use walrelay_engine::event::AfterPublish;

use super::TablePlan;
use super::tables::Change;
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::SlotName;

const PURPOSE: &str = "mark rows of a backfill";

/// So many notes are looked at in one statement.
const NOTES: i64 = 1_000;

/// What came of some notes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noted {
    /// The last one; none where no note was left.
    pub last: Option<i64>,
    /// Rows that were marked.
    pub rows: u64,
    /// Rows that somebody had locked: their notes stay.
    pub locked: u64,
    /// Rows that are still unsent though they were marked.
    pub unsent: u64,
}

/// Marks (or deletes) the rows of the next settled notes behind the number `after`, and strikes these out. A row that is
/// gone, is marked, is a dead letter or was skipped needs no mark.
///
/// Grants: select on the table, update on `sent_at` (or delete); select and delete on `walrelay.backfill`; select on
/// `walrelay.backfills`, `walrelay.dead_letters` and `walrelay.skips`.
///
/// # Errors
/// The statement fails.
pub async fn mark_noted(
    session: &ControlSession,
    slot: &SlotName,
    plan: &TablePlan,
    after: i64,
) -> Result<Noted, Error> {
    let Some(Change { change, lock, due }) = plan.change() else {
        return Ok(Noted::default());
    };
    let (table, id, id_type) = (plan.outbox.table.quoted(), plan.outbox.id(), &plan.id_type);
    let still = plan.still_unsent();
    let sql = format!(
        "with noted as materialized (select b.number, b.id from walrelay.backfill b \
         join walrelay.backfills c on c.id = b.backfill \
         where b.slot = $1 and b.is_settled and c.outbox = $2 and b.number > $3 order by b.number limit {NOTES}), \
         due as materialized (select t.{id} as id from {table} t \
         where t.{id} = any(array(select id from noted)::{id_type}[]) and {due} \
         and pg_catalog.concat(t.{id}) not in (select event_id from walrelay.dead_letters \
         where slot = $1 and outbox = $2 and event_id is not null) \
         and pg_catalog.concat(t.{id}) not in (select coalesce(settled_event_id, event_id) from walrelay.skips \
         where slot = $1 and coalesce(settled_outbox, $2) = $2 and coalesce(settled_event_id, event_id) is not null)), \
         locked as materialized (select t.{id} as id from {table} t where t.{id} = any(array(select id from due)) \
         for {lock} of t skip locked), \
         done as ({change} where t.{id} = any(array(select id from locked)) and {due} returning t.{id} as id, {still} as is_unsent), \
         left_over as (select id from due except all select id from done), \
         struck_out as (delete from walrelay.backfill b using noted n where b.slot = $1 and b.number = n.number \
         and n.id not in (select pg_catalog.format('%s', id) from left_over)) \
         select (select max(number) from noted), (select count(*) from done where not is_unsent), (select count(*) from left_over), \
         (select count(*) from done where is_unsent)"
    );
    let outbox = plan.outbox.table.to_string();
    let row = session
        .run_step(
            Step::Query(PURPOSE),
            session
                .client()
                .query_one(&sql, &[&slot.as_str(), &outbox, &after]),
        )
        .await
        .map_err(|error| plan.explain_sweep(error))?;
    let count =
        |index| column::<i64>(&row, index, PURPOSE).map(|count| u64::try_from(count).unwrap_or_default());
    Ok(Noted {
        last: column(&row, 0, PURPOSE)?,
        rows: count(1)?,
        locked: count(2)?,
        unsent: count(3)?,
    })
}

/// Whether rows of a table have settled notes.
///
/// Grants: select on `walrelay.backfill` and `walrelay.backfills`.
///
/// # Errors
/// The query fails.
pub async fn has_notes(session: &ControlSession, slot: &SlotName, plan: &TablePlan) -> Result<bool, Error> {
    let sql = "select exists (select from walrelay.backfill b join walrelay.backfills c on c.id = b.backfill \
               where b.slot = $1 and b.is_settled and c.outbox = $2)";
    let outbox = plan.outbox.table.to_string();
    let row = session
        .run(
            PURPOSE,
            session.client().query_one(sql, &[&slot.as_str(), &outbox]),
        )
        .await?;
    column(&row, 0, PURPOSE)
}

/// Strikes out the settled notes of tables whose rows are not marked, or not any more.
///
/// Grants: select and delete on `walrelay.backfill`; select on `walrelay.backfills`.
///
/// # Errors
/// The statement fails.
pub async fn drop_needless(
    session: &ControlSession,
    slot: &SlotName,
    plans: &[TablePlan],
) -> Result<(), Error> {
    let marked = plans
        .iter()
        .filter(|plan| plan.after_publish != AfterPublish::Keep);
    let outboxes: Vec<String> = marked.map(|plan| plan.outbox.table.to_string()).collect();
    let sql = "delete from walrelay.backfill b using walrelay.backfills c where c.id = b.backfill and b.slot = $1 \
               and b.is_settled and c.outbox <> all($2)";
    session
        .run(
            PURPOSE,
            session.client().execute(sql, &[&slot.as_str(), &outboxes]),
        )
        .await
        .map(drop)
}
