//! What a change of walrelay's own tables waits for, and on which server it is made.

use tokio_postgres::GenericClient;

use super::catalog::column;
use super::control::bounded;
use super::error::{Error, Step};
use super::identifier::SlotName;

/// Makes the open transaction's commit wait until it is flushed, whatever the role's or database's default.
pub(super) async fn commit_synchronously(
    transaction: &impl GenericClient,
    purpose: &'static str,
) -> Result<(), Error> {
    let sql = "set local synchronous_commit = on";
    bounded(Step::Query(purpose), transaction.batch_execute(sql)).await
}

/// Checks that the transaction's server streams from the slot to the walsender `ours` (rule 15): another one may have
/// other rows.
pub(super) async fn check_stream(
    transaction: &impl GenericClient,
    slot: &SlotName,
    ours: i32,
    purpose: &'static str,
) -> Result<(), Error> {
    let sql = "select active_pid from pg_catalog.pg_replication_slots where slot_name = $1";
    let row = bounded(
        Step::Query(purpose),
        transaction.query_opt(sql, &[&slot.as_str()]),
    )
    .await?;
    let found: Option<i32> = row.map_or(Ok(None), |row| column(&row, 0, purpose))?;
    if found == Some(ours) {
        return Ok(());
    }
    let slot = slot.clone();
    Err(Error::NotOurStream { slot, ours, found })
}
