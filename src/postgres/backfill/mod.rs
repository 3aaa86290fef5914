//! Rows that the stream of a slot does not bring (R7, R22, R23): noted by `setup` and `recover`, sent by `run`.
//!
//! Only ids are noted; the row is read when its turn comes, with its mark.

mod copy;
mod load;
mod start;
mod strike;

use walrelay_engine::key::EventKey;

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, SlotName};
use super::outbox::{Marks, Outbox};
use super::preflight::Unfit;
use super::rows::TextColumns;
use super::table_use::Use;

pub use copy::{Copied, Due, Order};
pub(super) use copy::{Plan, copy, plan};
pub use load::{Batch, Item, load};
pub(super) use start::create_slot;
pub use strike::strike_out;

/// How the rows of a table show that they are sent, if they can.
pub(super) async fn marks(session: &ControlSession, outbox: &Outbox) -> Result<Option<Marks>, Error> {
    let columns = columns_of(session, &outbox.table).await?;
    Ok(columns.and_then(|columns| outbox.marks(|name| columns.column(name).is_some())))
}

/// What a table has, for those who read no rows of it.
async fn columns_of(session: &ControlSession, name: &QualifiedTable) -> Result<Option<TextColumns>, Error> {
    TextColumns::find(session.client(), name, u32::MAX).await
}

/// How many rows of the slot are still to be sent.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.backfill`.
///
/// # Errors
/// The query fails.
pub async fn rows_left(session: &ControlSession, slot: &SlotName) -> Result<u64, Error> {
    const COUNT: Use = Use::own("count the rows to be backfilled", "select", &["backfill"]);
    let sql = "select count(*) from walrelay.backfill where slot = $1 and not is_settled";
    let row = COUNT
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    let count: i64 = column(&row, 0, COUNT.purpose)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

/// What is noted of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noted {
    /// The first of the rows that go out before its stream, if there are any.
    pub first: Option<EventKey>,
    /// Rows that went out and may have no mark yet.
    pub is_unmarked: bool,
}

/// Looks what is noted of the slot.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.slots` and `walrelay.backfill`.
///
/// # Errors
/// [`Unfit::SetupInterrupted`] or [`Unfit::RecoveryInterrupted`], or the query fails.
pub async fn noted(session: &ControlSession, slot: &SlotName) -> Result<Noted, Error> {
    const LOOK: Use = Use::own("look whether set-up ended", "select", &["slots", "backfill"]);
    let sql = "select exists (select from walrelay.slots where slot = $1 and consistent_point is null), \
               exists (select from walrelay.backfill where slot = $1 and not is_settled), \
               exists (select from walrelay.backfill where slot = $1 and is_settled)";
    let row = LOOK
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    if column(&row, 0, LOOK.purpose)? {
        return Err(interrupted(session, slot).await?.into());
    }
    let is_due = column(&row, 1, LOOK.purpose)?;
    Ok(Noted {
        first: match is_due {
            true => load::first(session, slot).await?,
            false => None,
        },
        is_unmarked: column(&row, 2, LOOK.purpose)?,
    })
}

/// Whether all rows that go out before the stream are of these tables, and there are such rows.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.backfill` and `walrelay.backfills`.
///
/// # Errors
/// The query fails.
pub async fn are_due_of(
    session: &ControlSession,
    slot: &SlotName,
    tables: impl Iterator<Item = &QualifiedTable>,
) -> Result<bool, Error> {
    const LOOK: Use = Use::own(
        "look whose rows are to be backfilled",
        "select",
        &["backfill", "backfills"],
    );
    let sql = "select coalesce(bool_and(c.outbox = any($2)), false) from walrelay.backfill b \
               join walrelay.backfills c on c.id = b.backfill where b.slot = $1 and not b.is_settled";
    let tables: Vec<String> = tables.map(ToString::to_string).collect();
    let row = LOOK
        .run(
            session.role(),
            session.client().query_one(sql, &[&slot.as_str(), &tables]),
        )
        .await?;
    column(&row, 0, LOOK.purpose)
}

/// Whether a set-up of the slot began and did not end; none where none began.
pub(super) async fn was_interrupted(
    session: &ControlSession,
    slot: &SlotName,
) -> Result<Option<bool>, Error> {
    const LOOK: Use = Use::own("look whether set-up ended", "select", &["slots"]);
    if !is_installed(session).await? {
        return Ok(None);
    }
    let sql = "select consistent_point is null from walrelay.slots where slot = $1";
    let row = LOOK
        .run(session.role(), session.client().query_opt(sql, &[&slot.as_str()]))
        .await?;
    row.map(|row| column(&row, 0, LOOK.purpose)).transpose()
}

/// What was interrupted, where something [was](was_interrupted): only the same can be done again, since set-up and recovery
/// note other rows.
pub(super) async fn interrupted(session: &ControlSession, slot: &SlotName) -> Result<Unfit, Error> {
    const LOOK: Use = Use::own("look what was interrupted", "select", &["state"]);
    let sql = "select exists (select from walrelay.state where slot = $1 and baseline_by = 'recover')";
    let row = LOOK
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    let slot = slot.clone();
    Ok(match column(&row, 0, LOOK.purpose)? {
        true => Unfit::RecoveryInterrupted { slot },
        false => Unfit::SetupInterrupted { slot },
    })
}

/// Notes that the slot is about to be created: until [`copy`] has ended with it, it is of no use.
pub(super) async fn begin_setup(session: &ControlSession, slot: &SlotName) -> Result<(), Error> {
    const BEGIN: Use = Use::own("note that set-up begins", "insert, update", &["slots"]);
    let sql = "insert into walrelay.slots (slot) values ($1) \
               on conflict (slot) do update set consistent_point = null, set_up_at = now()";
    BEGIN
        .run(session.role(), session.client().execute(sql, &[&slot.as_str()]))
        .await
        .map(drop)
}

/// Forgets the slot and all rows noted for it, if there is such a schema.
pub(super) async fn forget(session: &ControlSession, slot: &SlotName) -> Result<(), Error> {
    const FORGET: Use = Use::own(
        "forget what was to be backfilled",
        "delete",
        &["slots", "backfills", "backfill"],
    );
    if !is_installed(session).await? {
        return Ok(());
    }
    for table in ["backfill", "backfills", "slots"] {
        let sql = format!("delete from walrelay.{table} where slot = $1");
        FORGET
            .run(session.role(), session.client().execute(&sql, &[&slot.as_str()]))
            .await?;
    }
    Ok(())
}

/// Whether the tables of this module are there.
async fn is_installed(session: &ControlSession) -> Result<bool, Error> {
    const PURPOSE: &str = "look for walrelay's schema";
    let sql = "select pg_catalog.to_regclass('walrelay.backfill') is not null";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    column(&row, 0, PURPOSE)
}
