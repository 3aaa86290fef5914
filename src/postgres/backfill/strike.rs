//! Striking out rows that are settled.

use crate::postgres::control::{ControlSession, bounded};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::SlotName;
use crate::postgres::own_schema::check_stream;
use crate::postgres::table_use::Use;

/// Strikes out all rows of the slot up to this number: their notes are deleted, or kept as settled ones where some of the
/// rows are unmarked, so that a crash does not leave them so. Returns how many.
///
/// Grants: usage on schema `walrelay`, select, delete and update of `is_settled` on `walrelay.backfill`.
///
/// # Errors
/// [`Error::NotOurStream`], as for [`load`](super::load): another server may lack the dead letter that one of these rows
/// became. Or a statement fails.
pub async fn strike_out(
    session: &mut ControlSession,
    slot: &SlotName,
    walsender_pid: i32,
    through: u64,
    are_unmarked: bool,
) -> Result<u64, Error> {
    const STRIKE: Use = Use::own(
        "strike out backfilled rows",
        "select, delete, update (is_settled)",
        &["backfill"],
    );
    let role = session.role().to_owned();
    let step = Step::Query(STRIKE.purpose);
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    check_stream(&transaction, slot, walsender_pid, STRIKE.purpose).await?;
    let sql = match are_unmarked {
        true => {
            "update walrelay.backfill set is_settled = true where slot = $1 and number <= $2 and not is_settled"
        }
        // A settled note is for the marks.
        false => "delete from walrelay.backfill where slot = $1 and number <= $2 and not is_settled",
    };
    let through = i64::try_from(through).unwrap_or(i64::MAX);
    let struck_out = STRIKE
        .run(&role, transaction.execute(sql, &[&slot.as_str(), &through]))
        .await?;
    bounded(step, transaction.commit()).await?;
    Ok(struck_out)
}
