//! What the relay does with dead letters: set aside, count, retry.

use std::time::{Duration, SystemTime};

use tokio_postgres::Transaction;
use walrelay_engine::Lsn;
use walrelay_engine::key::EventKey;

use super::{Columns, DeadLetter, Reason, SUMMARY, table_use};
use crate::postgres::catalog::column;
use crate::postgres::control::{ControlSession, bounded};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, SlotName};
use crate::postgres::own_schema::{Use, commit_synchronously};
use crate::postgres::position::{EventPosition, flushed_position};

/// An event to set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
    /// The slot that brought it.
    pub slot: SlotName,
    /// Its key.
    pub key: EventKey,
    /// Its outbox table.
    pub outbox: QualifiedTable,
    /// Its id, where the row has a usable one.
    pub event_id: Option<String>,
    /// Why it is set aside.
    pub reason: Reason,
    /// The same in words, in one line.
    pub detail: String,
    /// The exchange tried, where the row got so far.
    pub exchange: Option<String>,
    /// The routing key tried, where the row got so far.
    pub routing_key: Option<String>,
    /// The row.
    pub columns: Columns,
}

/// Sets an event aside, or counts one more attempt of one that was set aside already (its transaction came again
/// because the slot had not passed it). The state of the older row stays.
///
/// Returns a position at or beyond the commit. **The event is settled only once the stream has been received up to
/// there** (rule 15): a failover may otherwise lose the row and keep the slot's position.
///
/// Grants: usage on schema `walrelay`, select, insert and update on `walrelay.dead_letters`.
///
/// Cancel safety: a dropped future may have stored the row; storing it again is harmless.
///
/// # Errors
/// [`Error::NotOurStream`] unless the session's server streams from the slot to `walsender_pid`;
/// [`Error::DeadLetterTaken`]; or a statement fails. Nothing was stored then, except that the answer to the commit
/// may be lost.
pub async fn store(
    session: &mut ControlSession,
    dead_letter: &NewDeadLetter,
    walsender_pid: i32,
) -> Result<Lsn, Error> {
    const STORE: Use = table_use("store a dead letter", "select, insert, update");
    let NewDeadLetter { slot, key, .. } = dead_letter;
    let position = EventPosition::from(key);
    let columns = serde_json::to_string(&dead_letter.columns).map_err(|_| Error::Protocol {
        step: Step::Query(STORE.purpose),
        what: "a row that is no JSON",
    })?;

    let role = session.role().to_owned();
    let transaction = begin(session, slot, walsender_pid, STORE.purpose).await?;
    // Another transaction's row under this key is never overwritten (rule 2).
    let sql = "insert into walrelay.dead_letters as d (slot, commit_lsn, tx_seq, outbox, xid, commit_time, event_id, \
               reason, detail, exchange, routing_key, columns) \
               values ($1, $2::text::pg_lsn, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::json) \
               on conflict (slot, commit_lsn, tx_seq) do update set attempts = d.attempts + 1, \
               last_failed_at = now(), reason = excluded.reason, detail = excluded.detail, \
               exchange = excluded.exchange, routing_key = excluded.routing_key \
               where d.xid = excluded.xid and d.commit_time = excluded.commit_time";
    let stored = STORE
        .run(
            &role,
            transaction.execute(
                sql,
                &[
                    &slot.as_str(),
                    &position.lsn_text(),
                    &position.sequence(),
                    &dead_letter.outbox.to_string(),
                    &i64::from(key.transaction.xid),
                    &commit_time(key),
                    &dead_letter.event_id,
                    &dead_letter.reason.as_str(),
                    &dead_letter.detail,
                    &dead_letter.exchange,
                    &dead_letter.routing_key,
                    &columns,
                ],
            ),
        )
        .await?;
    if stored == 0 {
        let slot = slot.clone();
        return Err(Error::DeadLetterTaken { slot, position });
    }
    bounded(Step::Query(STORE.purpose), transaction.commit()).await?;
    flushed_position(session).await
}

/// How many dead letters of the slot wait: pending or being retried.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.dead_letters`.
///
/// # Errors
/// The query fails.
pub async fn pending_count(session: &ControlSession, slot: &SlotName) -> Result<u64, Error> {
    const COUNT: Use = table_use("count the dead letters", "select");
    let sql = "select count(*) from walrelay.dead_letters where slot = $1 and state <> 'discarded'";
    let row = COUNT
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    super::number::<i64, _>(&row, 0, COUNT.purpose)
}

/// A dead letter whose retry was asked for in the stream. Publish it only if its state is
/// [`Retrying`](super::State::Retrying): a message may be forged, and may be older than the row's fate.
///
/// It waits for whoever changes the row: a walsender sends a commit before other sessions can see it, so without the
/// lock the row could still look [`Pending`](super::State::Pending), and the request would be dropped for good.
///
/// Grants: usage on schema `walrelay`, select and update on `walrelay.dead_letters`.
///
/// # Errors
/// The query fails, or the row was written by a newer version.
pub async fn load(
    session: &ControlSession,
    slot: &SlotName,
    position: EventPosition,
) -> Result<Option<DeadLetter>, Error> {
    const LOAD: Use = table_use("read a dead letter to retry", "select, update");
    let sql = format!(
        "select {SUMMARY}, columns::text from walrelay.dead_letters \
         where slot = $1 and commit_lsn = $2::text::pg_lsn and tx_seq = $3 for share"
    );
    let (lsn, sequence) = (position.lsn_text(), position.sequence());
    let row = LOAD
        .run(
            session.role(),
            session
                .client()
                .query_opt(&sql, &[&slot.as_str(), &lsn, &sequence]),
        )
        .await?;
    row.map(|row| DeadLetter::read(&row, LOAD.purpose)).transpose()
}

/// The oid of the type of a table's payload; none where there is no such table or column.
///
/// Grants: none.
///
/// # Errors
/// The query fails.
pub async fn payload_type(session: &ControlSession, outbox: &QualifiedTable) -> Result<Option<u32>, Error> {
    const STEP: Step = Step::Query("look up the payload's type");
    let sql = "select atttypid from pg_catalog.pg_attribute where attrelid = pg_catalog.to_regclass($1) \
               and attname = 'payload' and not attisdropped";
    let quoted = outbox.quoted();
    let row = bounded(STEP, session.client().query_opt(sql, &[&quoted])).await?;
    row.map(|row| column(&row, 0, "look up the payload's type"))
        .transpose()
}

/// Deletes the row of a retry whose message was confirmed. One that is no longer there, or no longer being retried,
/// is no error.
///
/// Returns a position as [`store`] does: if the log passes the request and this is lost by a failover, the row would
/// stay in retry for ever.
///
/// Grants: usage on schema `walrelay`, select and delete on `walrelay.dead_letters`.
///
/// # Errors
/// As [`store`], without [`Error::DeadLetterTaken`].
pub async fn settle_retry(
    session: &mut ControlSession,
    slot: &SlotName,
    position: EventPosition,
    walsender_pid: i32,
) -> Result<Lsn, Error> {
    const SETTLE: Use = table_use("delete a delivered dead letter", "select, delete");
    let role = session.role().to_owned();
    let transaction = begin(session, slot, walsender_pid, SETTLE.purpose).await?;
    let sql = "delete from walrelay.dead_letters \
               where slot = $1 and commit_lsn = $2::text::pg_lsn and tx_seq = $3 and state = 'retrying'";
    let (lsn, sequence) = (position.lsn_text(), position.sequence());
    SETTLE
        .run(
            &role,
            transaction.execute(sql, &[&slot.as_str(), &lsn, &sequence]),
        )
        .await?;
    bounded(Step::Query(SETTLE.purpose), transaction.commit()).await?;
    flushed_position(session).await
}

/// Puts the row of a failed retry back among those that wait, whatever the policy (rule 16), with one attempt more.
/// One that is no longer there, or no longer being retried, is no error.
///
/// Returns a position as [`store`] does.
///
/// Grants: usage on schema `walrelay`, select and update on `walrelay.dead_letters`.
///
/// # Errors
/// As [`settle_retry`].
pub async fn fail_retry(
    session: &mut ControlSession,
    slot: &SlotName,
    position: EventPosition,
    reason: Reason,
    detail: &str,
    walsender_pid: i32,
) -> Result<Lsn, Error> {
    const FAIL: Use = table_use("put a dead letter back", "select, update");
    let role = session.role().to_owned();
    let transaction = begin(session, slot, walsender_pid, FAIL.purpose).await?;
    let sql = "update walrelay.dead_letters set state = 'pending', attempts = attempts + 1, last_failed_at = now(), \
               reason = $4, detail = $5 \
               where slot = $1 and commit_lsn = $2::text::pg_lsn and tx_seq = $3 and state = 'retrying'";
    let (lsn, sequence) = (position.lsn_text(), position.sequence());
    FAIL.run(
        &role,
        transaction.execute(sql, &[&slot.as_str(), &lsn, &sequence, &reason.as_str(), &detail]),
    )
    .await?;
    bounded(Step::Query(FAIL.purpose), transaction.commit()).await?;
    flushed_position(session).await
}

/// Begins a transaction that rule 15 allows to stand for events: it commits synchronously, and its server streams
/// from the slot to us.
pub(in crate::postgres) async fn begin<'a>(
    session: &'a mut ControlSession,
    slot: &SlotName,
    ours: i32,
    purpose: &'static str,
) -> Result<Transaction<'a>, Error> {
    let step = Step::Query(purpose);
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    commit_synchronously(&transaction, purpose).await?;
    let sql = "select active_pid from pg_catalog.pg_replication_slots where slot_name = $1";
    let row = bounded(step, transaction.query_opt(sql, &[&slot.as_str()])).await?;
    let found: Option<i32> = row.map_or(Ok(None), |row| column(&row, 0, purpose))?;
    if found == Some(ours) {
        return Ok(transaction);
    }
    let slot = slot.clone();
    Err(Error::NotOurStream { slot, ours, found })
}

/// When the event's transaction committed.
fn commit_time(key: &EventKey) -> SystemTime {
    let micros = key.transaction.commit_time.unix_micros();
    let distance = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 {
        SystemTime::UNIX_EPOCH - distance
    } else {
        SystemTime::UNIX_EPOCH + distance
    }
}
