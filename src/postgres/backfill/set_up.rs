//! How far the set-up of a slot has come, and what is noted where it has ended.

use super::{Noted, is_installed, load};
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::identifier::{QualifiedTable, SlotName};
use crate::postgres::preflight::Unfit;
use crate::postgres::table_use::Use;

/// How far the set-up or the recovery of a slot has come.
#[derive(Debug)]
pub(in crate::postgres) enum SetUp {
    /// None began.
    NotBegun,
    /// It began, and did not end. Only the same can be done again, since set-up and recovery note other rows.
    Interrupted(Unfit),
    /// It ended.
    Ended,
}

/// How far the set-up of the slot has come, on a server that may not have our schema.
///
/// # Errors
/// A query fails.
pub(in crate::postgres) async fn set_up(session: &ControlSession, slot: &SlotName) -> Result<SetUp, Error> {
    match is_installed(session).await? {
        true => look(session, slot).await,
        false => Ok(SetUp::NotBegun),
    }
}

async fn look(session: &ControlSession, slot: &SlotName) -> Result<SetUp, Error> {
    const LOOK: Use = Use::own("look whether set-up ended", "select", &["slots"]);
    let sql = "select consistent_point is null from walrelay.slots where slot = $1";
    let row = LOOK
        .run(session.role(), session.client().query_opt(sql, &[&slot.as_str()]))
        .await?;
    let Some(row) = row else {
        return Ok(SetUp::NotBegun);
    };
    match column(&row, 0, LOOK.purpose)? {
        true => Ok(SetUp::Interrupted(by_whom(session, slot).await?)),
        false => Ok(SetUp::Ended),
    }
}

/// Apart from what is asked each time: it takes a right of its own.
async fn by_whom(session: &ControlSession, slot: &SlotName) -> Result<Unfit, Error> {
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

/// Checks that no set-up of the slot was interrupted.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.slots`; on `walrelay.state` to tell what was interrupted.
///
/// # Errors
/// [`Unfit::SetupInterrupted`] or [`Unfit::RecoveryInterrupted`], or the query fails.
pub async fn check_set_up(session: &ControlSession, slot: &SlotName) -> Result<(), Error> {
    match look(session, slot).await? {
        SetUp::Interrupted(unfit) => Err(unfit.into()),
        SetUp::NotBegun | SetUp::Ended => Ok(()),
    }
}

/// Looks what is noted of the slot. Where nothing is, a role needs no right to the list of copyings.
///
/// Grants: as for [`check_set_up`]; select on `walrelay.backfill`, and on `walrelay.backfills` where rows are noted.
///
/// # Errors
/// Those of [`check_set_up`].
pub async fn noted(session: &ControlSession, slot: &SlotName) -> Result<Noted, Error> {
    const LOOK: Use = Use::own("look for rows to be backfilled", "select", &["backfill"]);
    check_set_up(session, slot).await?;
    let sql = "select exists (select from walrelay.backfill where slot = $1 and not is_settled), \
               exists (select from walrelay.backfill where slot = $1 and is_settled)";
    let row = LOOK
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    Ok(Noted {
        first: match column(&row, 0, LOOK.purpose)? {
            true => load::first(session, slot).await?,
            false => None,
        },
        is_unmarked: column(&row, 1, LOOK.purpose)?,
    })
}

/// Whether all rows that go out before the stream are of these tables, and there are such rows. Reads one of them only:
/// rows go out in the order in which they were noted, so it is of the earliest copying that has any left.
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
    let sql = "select not exists (select from walrelay.backfills c where c.slot = $1 and c.id >= next.backfill \
               and c.copied_rows > 0 and c.outbox <> all($2)) \
               from (select backfill from walrelay.backfill where slot = $1 and not is_settled \
               order by number limit 1) next";
    let tables: Vec<String> = tables.map(ToString::to_string).collect();
    let row = LOOK
        .run(
            session.role(),
            session.client().query_opt(sql, &[&slot.as_str(), &tables]),
        )
        .await?;
    row.map_or(Ok(false), |row| column(&row, 0, LOOK.purpose))
}
