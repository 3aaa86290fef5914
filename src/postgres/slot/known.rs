//! Whether a slot that is not there was there before: a new one would begin behind the events that it has missed.

use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::identifier::SlotName;
use crate::postgres::preflight::Unfit;
use crate::postgres::slot::SlotState;
use crate::postgres::table_use::Use;

/// Whether set-up or recovery has made this slot for this database, and no teardown has followed. A set-up that was
/// interrupted does not count, since nothing was streamed from its slot; a recovery does, since there was one before.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.slots` and `walrelay.state`.
///
/// # Errors
/// The query fails.
pub(in crate::postgres) async fn is_known(session: &ControlSession, slot: &SlotName) -> Result<bool, Error> {
    const LOOK: Use = Use::own(
        "look whether the slot was set up before",
        "select",
        &["slots", "state"],
    );
    let sql = "select pg_catalog.to_regclass('walrelay.slots') is not null";
    let row = session
        .run(LOOK.purpose, session.client().query_one(sql, &[]))
        .await?;
    if !column::<bool>(&row, 0, LOOK.purpose)? {
        return Ok(false);
    }
    let sql = "select exists (select from walrelay.slots left join walrelay.state using (slot) \
               where slot = $1 and (consistent_point is not null or baseline_by = 'recover'))";
    let row = LOOK
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    column(&row, 0, LOOK.purpose)
}

/// Says of a slot that is missing if it was never set up, as far as that can be found out: the remedies differ.
pub async fn explain_missing(session: &ControlSession, unfit: Unfit) -> Unfit {
    let Unfit::SlotMissing { slot } = unfit else {
        return unfit;
    };
    match is_known(session, &slot).await {
        Ok(false) => Unfit::NotSetUp { slot },
        Ok(true) | Err(_) => Unfit::SlotMissing { slot },
    }
}

/// Looks whether there is such a slot, or was one: its name may be misspelt. Who may not look at that is told nothing.
///
/// # Errors
/// [`Unfit::NotSetUp`], or the slots cannot be looked at.
pub async fn check_known(session: &ControlSession, slot: &SlotName) -> Result<(), Error> {
    if SlotState::read(session, slot).await?.is_some() {
        return Ok(());
    }
    match is_known(session, slot).await {
        Ok(false) => Err(Unfit::NotSetUp { slot: slot.clone() }.into()),
        Ok(true) | Err(_) => Ok(()),
    }
}
