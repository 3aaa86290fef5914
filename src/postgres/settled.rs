//! The settled prefix on record: what a new process need not publish again (rule 19).

use walrelay_engine::Lsn;
use walrelay_engine::marks::SettledPrefix;

use super::catalog::{column, position};
use super::control::ControlSession;
use super::error::Error;
use super::identifier::SlotName;
use super::position::EventPosition;
use super::table_use::Use;
use super::walsender::SystemIdentity;

const STATE: Use = Use::own("read the settled prefix", "select", &["state"]);

/// What the database has on record about a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// Everything up to here is settled; none where nothing is on record.
    pub position: Option<EventPosition>,
    /// Nothing was left to be marked then.
    pub is_complete: bool,
    /// Nothing may be acknowledged before the stream has been received beyond this, since a dead letter counts among what
    /// is settled (rule 15); `0/0` where none does.
    pub barrier: Lsn,
}

/// Reads what is on record. To be called while `walsender_pid` streams from the slot to us: another server of the same
/// cluster may have gone on another way, and what is settled there says nothing about this stream.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.state`; without select on `walrelay.dead_letters` there may be
/// dead letters.
///
/// # Errors
/// The query fails.
pub async fn load(
    session: &ControlSession,
    slot: &SlotName,
    identity: SystemIdentity,
    walsender_pid: i32,
) -> Result<Option<Settled>, Error> {
    let sql = "select s.settled_commit_lsn::text, s.settled_tx_seq, s.settled_complete, \
               pg_catalog.pg_current_wal_flush_lsn()::text, r.confirmed_flush_lsn::text \
               from walrelay.state s join pg_catalog.pg_replication_slots r on r.slot_name = s.slot \
               where s.slot = $1 and s.system_id = $2 and r.active_pid = $3";
    let system_id = identity.system_id.to_string();
    let row = STATE
        .run(
            session.role(),
            session
                .client()
                .query_opt(sql, &[&slot.as_str(), &system_id, &walsender_pid]),
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let sequence: Option<i64> = column(&row, 1, STATE.purpose)?;
    let commit_lsn = position(&row, 0, STATE.purpose)?;
    let settled = commit_lsn
        .zip(sequence)
        .map(|(commit_lsn, sequence)| EventPosition {
            commit_lsn,
            tx_seq: u64::try_from(sequence).unwrap_or_default(),
        });
    let flushed = position(&row, 3, STATE.purpose)?.unwrap_or_default();
    let confirmed = position(&row, 4, STATE.purpose)?.unwrap_or_default();
    let barrier = match settled {
        None => Lsn::INVALID,
        Some(settled) => match counts_on_a_dead_letter(session, slot, confirmed, settled).await {
            Ok(false) => Lsn::INVALID,
            Ok(true) | Err(Error::GrantMissing { .. }) => flushed,
            Err(error) => return Err(error),
        },
    };
    Ok(Some(Settled {
        position: settled,
        is_complete: column(&row, 2, STATE.purpose)?,
        barrier,
    }))
}

async fn counts_on_a_dead_letter(
    session: &ControlSession,
    slot: &SlotName,
    from: Lsn,
    through: EventPosition,
) -> Result<bool, Error> {
    const LETTERS: Use = Use::own(
        "look for dead letters that are not acknowledged",
        "select",
        &["dead_letters"],
    );
    let sql = "select exists (select from walrelay.dead_letters where slot = $1 and commit_lsn >= $2::text::pg_lsn \
               and (commit_lsn, tx_seq) <= ($3::text::pg_lsn, $4))";
    let (from, lsn, sequence) = (from.to_string(), through.lsn_text(), through.sequence());
    let row = LETTERS
        .run(
            session.role(),
            session
                .client()
                .query_one(sql, &[&slot.as_str(), &from, &lsn, &sequence]),
        )
        .await?;
    column(&row, 0, LETTERS.purpose)
}

/// Stores a settled prefix in the open transaction. Without effect where the slot's row is of another cluster.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.state` and update on the columns named here.
pub(super) async fn store(
    transaction: &tokio_postgres::Transaction<'_>,
    role: &str,
    slot: &SlotName,
    prefix: &SettledPrefix,
    system_id: u64,
) -> Result<(), Error> {
    const STORE: Use = Use::own("store the settled prefix", STORE_PRIVILEGES, &["state"]);
    let sql = "update walrelay.state set settled_commit_lsn = $2::text::pg_lsn, settled_tx_seq = $3, \
               settled_complete = $4, unswept_xid = coalesce($5::text::xid8, unswept_xid) \
               where slot = $1 and system_id = $6";
    let (commit_lsn, tx_seq) = prefix.position;
    let position = EventPosition { commit_lsn, tx_seq };
    let swept_before = prefix.swept_before.map(|transaction| transaction.to_string());
    STORE
        .run(
            role,
            transaction.execute(
                sql,
                &[
                    &slot.as_str(),
                    &position.lsn_text(),
                    &position.sequence(),
                    &prefix.is_complete,
                    &swept_before,
                    &system_id.to_string(),
                ],
            ),
        )
        .await
        .map(drop)
}

/// Records that rows may stay unmarked, after a batch has failed: the position will be reported all the same.
///
/// Grants: as for storing the prefix.
///
/// # Errors
/// The statement fails.
pub async fn note_unmarked(session: &ControlSession, slot: &SlotName, system_id: u64) -> Result<(), Error> {
    const NOTE: Use = Use::own("record that rows are unmarked", STORE_PRIVILEGES, &["state"]);
    let sql = "update walrelay.state set settled_complete = false \
               where slot = $1 and system_id = $2 and settled_complete";
    let system_id = system_id.to_string();
    NOTE.run(
        session.role(),
        session.client().execute(sql, &[&slot.as_str(), &system_id]),
    )
    .await
    .map(drop)
}

/// What storing needs on `walrelay.state`.
pub(super) const STORE_PRIVILEGES: &str =
    "select, update (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid)";
