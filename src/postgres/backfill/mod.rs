//! Rows that the stream of a slot does not bring (R7, R22, R23): noted by `setup` and `recover`, sent by `run`.
//!
//! Only ids are noted; the row is read when its turn comes, with its mark.

mod copy;
mod load;
mod set_up;
mod start;
mod strike;

use walrelay_engine::key::EventKey;

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, SlotName};
use super::outbox::{Marks, Outbox};
use super::rows::TextColumns;
use super::table_use::Use;

pub use copy::{Copied, Due, Order};
pub(super) use copy::{Plan, copy, plan};
pub use load::{Batch, Item, load};
pub(super) use set_up::{SetUp, set_up};
pub use set_up::{are_due_of, check_set_up, noted};
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
