//! A new slot together with the rows that it does not stream (R22).

use walrelay_engine::Lsn;

use super::{Copied, Plan, copy};
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::identifier::{SlotName, quote_literal};
use crate::postgres::slot::{self, NewSlot};
use crate::postgres::table_use::Use;

/// Creates the slot, and notes the due rows in the snapshot of its starting point: what commits later is streamed, so
/// there is neither gap nor overlap. That both went well is noted in the same transaction.
///
/// [`begin_setup`](super::begin_setup) has been committed before: what dies half-way is recognised by that.
///
/// # Errors
/// Slot or rows could not be had; then no slot is left behind, unless the server is gone.
pub(in crate::postgres) async fn create_slot(
    session: &ControlSession,
    slot: &SlotName,
    plans: &[Plan],
) -> Result<(Lsn, Vec<Copied>), Error> {
    let created = slot::create(session.connector(), slot).await?;
    let consistent_point = created.consistent_point;
    let copied = copy_all(session, slot, plans, &created).await;
    created.close().await;
    if copied.is_err() {
        let undone = async {
            let rollback = session.client().batch_execute("rollback");
            session.run("undo the set-up", rollback).await?;
            slot::drop(session, slot).await
        };
        if let Err(error) = undone.await {
            tracing::warn!(slot = %slot, error = %error, "slot of a failed set-up not dropped");
        }
    }
    Ok((consistent_point, copied?))
}

async fn copy_all(
    session: &ControlSession,
    slot: &SlotName,
    plans: &[Plan],
    created: &NewSlot,
) -> Result<Vec<Copied>, Error> {
    const TAKE_UP: &str = "take up the snapshot of the slot";
    const COMPLETE: Use = Use::own("note that set-up ended", "select, update", &["slots"]);
    let sql = format!(
        "begin isolation level repeatable read; set transaction snapshot {}",
        quote_literal(&created.snapshot)
    );
    session.run(TAKE_UP, session.client().batch_execute(&sql)).await?;
    let mut copied = Vec::with_capacity(plans.len());
    for plan in plans {
        copied.push(copy(session, slot, plan, created.consistent_point).await?);
    }
    let sql = "update walrelay.slots set consistent_point = $2::text::pg_lsn where slot = $1";
    let point = created.consistent_point.to_string();
    COMPLETE
        .run(
            session.role(),
            session.client().execute(sql, &[&slot.as_str(), &point]),
        )
        .await?;
    let commit = session.client().batch_execute("commit");
    session.run(COMPLETE.purpose, commit).await?;
    Ok(copied)
}
