//! What the relay does with dead letters, many at a time: set aside, count, load for a retry, record what came of it.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use tokio_postgres::Transaction;
use walrelay_engine::Lsn;
use walrelay_engine::key::EventKey;

use super::{
    Columns, DeadLetter, Reason, SUMMARY_COLUMNS, Summary, number, read_columns, summary, unreadable,
};
use crate::postgres::catalog::{column, position};
use crate::postgres::control::{ControlSession, bounded};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, SlotName};
use crate::postgres::message_prefix::payload_type;
use crate::postgres::outbox::Outbox;
use crate::postgres::own_schema::{check_stream, commit_synchronously};
use crate::postgres::position::{EventPosition, flushed_position};
use crate::postgres::table_use::Use;

/// An event to set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDeadLetter {
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

/// What came of a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryFate {
    /// Which dead letter.
    pub position: EventPosition,
    /// Why it failed, also in words; none where it was delivered.
    pub failure: Option<(Reason, String)>,
}

/// A transaction for dead letters that has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// A position at or beyond the commit. **What it stands for is settled only once the stream has been received up to
    /// there** (rule 15): a failover may otherwise lose the rows and keep the slot's position.
    pub end: Lsn,
    /// Rows that were not there before, or that are no longer there.
    pub rows: u64,
}

/// What a retry found under its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// This dead letter.
    DeadLetter(Box<DeadLetter>),
    /// One whose columns cannot be read: somebody has changed them.
    Unreadable(Box<Summary>),
    /// None, or one with a word that this version does not know.
    Nothing,
    /// One that was not read, since those before it are large enough.
    Later,
}

/// Sets events aside, all or none, or counts one more attempt of those that were set aside already (their transaction
/// came again because the slot had not passed it). The state of an older row stays. No two may have the same key.
///
/// Grants: usage on schema `walrelay`, select, insert and update on `walrelay.dead_letters`.
///
/// Cancel safety: a dropped future may have stored the rows; storing them again is harmless.
///
/// # Errors
/// [`Error::NotOurStream`] unless the session's server streams from the slot to `walsender_pid`;
/// [`Error::DeadLetterTaken`]; or a statement fails. Nothing was stored then, except that the answer to the commit
/// may be lost.
pub async fn store(
    session: &mut ControlSession,
    slot: &SlotName,
    dead_letters: &[NewDeadLetter],
    walsender_pid: i32,
) -> Result<Committed, Error> {
    const STORE: Use = Use::own("store dead letters", "select, insert, update", &["dead_letters"]);
    let list = |text: fn(&NewDeadLetter) -> Option<&str>| dead_letters.iter().map(text).collect::<Vec<_>>();
    let keys = Keys::new(dead_letters.iter().map(|new| EventPosition::from(&new.key)));
    let outboxes: Vec<_> = dead_letters.iter().map(|new| new.outbox.to_string()).collect();
    let xids: Vec<_> = dead_letters
        .iter()
        .map(|new| i64::from(new.key.transaction.xid))
        .collect();
    let commit_times: Vec<_> = dead_letters.iter().map(|new| commit_time(&new.key)).collect();
    let reasons: Vec<_> = dead_letters.iter().map(|new| new.reason.as_str()).collect();
    let columns = dead_letters
        .iter()
        .map(|new| serde_json::to_string(&new.columns).map_err(|_| unprintable(STORE.purpose)))
        .collect::<Result<Vec<_>, _>>()?;

    let role = session.role().to_owned();
    let transaction = begin(session, slot, walsender_pid, STORE.purpose).await?;
    // Another transaction's row under this key is never overwritten (rule 2). A row that was updated has an `xmax`.
    let sql = "insert into walrelay.dead_letters as d (slot, commit_lsn, tx_seq, outbox, xid, commit_time, event_id, \
               reason, detail, exchange, routing_key, columns) \
               select $1, lsn::pg_lsn, seq, outbox, xid, time, id, reason, detail, exchange, key, columns::json \
               from unnest($2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[], \
               $8::text[], $9::text[], $10::text[], $11::text[], $12::text[]) \
               n (lsn, seq, outbox, xid, time, id, reason, detail, exchange, key, columns) \
               on conflict (slot, commit_lsn, tx_seq) do update set attempts = d.attempts + 1, \
               last_failed_at = now(), reason = excluded.reason, detail = excluded.detail, \
               exchange = excluded.exchange, routing_key = excluded.routing_key \
               where d.xid = excluded.xid and d.commit_time = excluded.commit_time \
               returning commit_lsn::text, tx_seq, xmax = 0";
    let stored = STORE
        .run(
            &role,
            transaction.query(
                sql,
                &[
                    &slot.as_str(),
                    &keys.lsns,
                    &keys.sequences,
                    &outboxes,
                    &xids,
                    &commit_times,
                    &list(|new| new.event_id.as_deref()),
                    &reasons,
                    &list(|new| Some(&new.detail)),
                    &list(|new| new.exchange.as_deref()),
                    &list(|new| new.routing_key.as_deref()),
                    &columns,
                ],
            ),
        )
        .await?;
    let mut rows = 0;
    let mut taken: BTreeSet<_> = dead_letters
        .iter()
        .map(|new| EventPosition::from(&new.key))
        .collect();
    for row in &stored {
        taken.remove(&EventPosition {
            commit_lsn: position(row, 0, STORE.purpose)?.unwrap_or_default(),
            tx_seq: number::<i64, _>(row, 1, STORE.purpose)?,
        });
        rows += u64::from(column::<bool>(row, 2, STORE.purpose)?);
    }
    if let Some(position) = taken.pop_first() {
        let slot = slot.clone();
        return Err(Error::DeadLetterTaken { slot, position });
    }
    bounded(Step::Query(STORE.purpose), transaction.commit()).await?;
    let end = flushed_position(session).await?;
    Ok(Committed { end, rows })
}

/// How many dead letters of the slot wait: pending or being retried.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.dead_letters`.
///
/// # Errors
/// The query fails.
pub async fn pending_count(session: &ControlSession, slot: &SlotName) -> Result<u64, Error> {
    const COUNT: Use = Use::own("count the dead letters", "select", &["dead_letters"]);
    let sql = "select count(*) from walrelay.dead_letters where slot = $1 and state <> 'discarded'";
    let row = COUNT
        .run(session.role(), session.client().query_one(sql, &[&slot.as_str()]))
        .await?;
    number::<i64, _>(&row, 0, COUNT.purpose)
}

/// As [`pending_count`]; none where the role may not read them, which it need not unless a policy stores some.
///
/// Grants: usage on schema `walrelay`.
///
/// # Errors
/// A query fails.
pub async fn pending_count_if_allowed(
    session: &ControlSession,
    slot: &SlotName,
) -> Result<Option<u64>, Error> {
    const PURPOSE: &str = "look whether dead letters may be counted";
    let sql = "select coalesce(pg_catalog.has_table_privilege(pg_catalog.to_regclass('walrelay.dead_letters')::oid, 'select'), false)";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    match column(&row, 0, PURPOSE)? {
        true => pending_count(session, slot).await.map(Some),
        false => Ok(None),
    }
}

/// The dead letters whose retries were asked for in the stream, in the order of `positions`, with at most `bytes` of
/// columns or a single larger one. Publish only those whose state is [`Retrying`](super::State::Retrying): a message
/// may be forged, and may be older than the row's fate.
///
/// It waits for whoever changes a row: a walsender sends a commit before other sessions can see it, so without the
/// lock the row could still look [`Pending`](super::State::Pending), and the request would be dropped for good.
///
/// Grants: usage on schema `walrelay`, select and update on `walrelay.dead_letters`.
///
/// # Errors
/// [`Error::NotOurStream`] as for [`store`], since another server may not know the row; or the query fails.
pub async fn load(
    session: &ControlSession,
    slot: &SlotName,
    positions: &[EventPosition],
    bytes: usize,
    walsender_pid: i32,
) -> Result<Vec<Found>, Error> {
    const LOAD: Use = Use::own("read dead letters to retry", "select, update", &["dead_letters"]);
    check_stream(session.client(), slot, walsender_pid, LOAD.purpose).await?;
    let sql = format!(
        "with found as materialized (select d.*, place from ({KEYS}) k cross join lateral \
         (select * from walrelay.dead_letters where slot = $1 and commit_lsn = lsn and tx_seq = seq for share) d), \
         measured as (select *, sum(octet_length(columns::text)) over (order by place) as bytes, \
         row_number() over (order by place) as number from found) \
         select {}, case when bytes <= $4 or number = 1 then columns::text end, place \
         from measured order by place",
        summary(&[])
    );
    let keys = Keys::new(positions.iter().copied());
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    let rows = LOAD
        .run(
            session.role(),
            session
                .client()
                .query(&sql, &[&slot.as_str(), &keys.lsns, &keys.sequences, &bytes]),
        )
        .await?;
    let mut found = vec![Found::Nothing; positions.len()];
    for row in &rows {
        let place: usize = number::<i64, _>(row, SUMMARY_COLUMNS + 1, LOAD.purpose)?;
        let is_read = column::<Option<&str>>(row, SUMMARY_COLUMNS, LOAD.purpose)?.is_some();
        let place = found.get_mut(place.wrapping_sub(1));
        let place = place.ok_or_else(|| unreadable(LOAD.purpose))?;
        *place = match is_read {
            true => {
                let Some(summary) = Summary::read(row, slot, LOAD.purpose)? else {
                    continue;
                };
                match read_columns(row, LOAD.purpose)? {
                    Some(columns) => Found::DeadLetter(Box::new(DeadLetter { summary, columns })),
                    None => Found::Unreadable(Box::new(summary)),
                }
            }
            false => Found::Later,
        };
    }
    Ok(found)
}

/// The oids of the types of tables' payloads, in their order; none where there is no such table or column. A table that
/// stands for messages is in no catalog.
///
/// Grants: none.
///
/// # Errors
/// The query fails.
pub async fn payload_types(session: &ControlSession, outboxes: &[Outbox]) -> Result<Vec<Option<u32>>, Error> {
    const PURPOSE: &str = "look up the payload's type";
    let sql = "select atttypid from unnest($1::text[], $2::text[]) with ordinality t (name, payload, place) \
               left join pg_catalog.pg_attribute on attrelid = pg_catalog.to_regclass(name) \
               and attname = payload and not attisdropped order by place";
    let quoted: Vec<_> = outboxes.iter().map(|outbox| outbox.table.quoted()).collect();
    let payloads: Vec<_> = outboxes.iter().map(|outbox| &outbox.columns.payload).collect();
    let rows = session
        .run(PURPOSE, session.client().query(sql, &[&quoted, &payloads]))
        .await?;
    let found = rows.iter().map(|row| column(row, 0, PURPOSE));
    let found = found
        .zip(outboxes)
        .map(|(found, outbox)| match payload_type(&outbox.table) {
            Some(of_messages) => Ok(Some(of_messages)),
            None => found,
        });
    found.collect()
}

/// Records what came of retries, all or none. The row of one whose message was confirmed is deleted; that of a failed
/// one waits again, whatever the policy (rule 16), with one attempt more. One that is no longer there, or no longer being
/// retried, is no error.
///
/// If the log passed a request and its record were lost by a failover, the row would stay in retry for ever: see
/// [`Committed::end`].
///
/// Grants: usage on schema `walrelay`, select, update and delete on `walrelay.dead_letters`.
///
/// # Errors
/// As [`store`], without [`Error::DeadLetterTaken`].
pub async fn record_retries(
    session: &mut ControlSession,
    slot: &SlotName,
    fates: &[RetryFate],
    walsender_pid: i32,
) -> Result<Committed, Error> {
    const RECORD: Use = Use::own(
        "record retries of dead letters",
        "select, update, delete",
        &["dead_letters"],
    );
    let role = session.role().to_owned();
    let transaction = begin(session, slot, walsender_pid, RECORD.purpose).await?;
    let sql = format!(
        "select place, d.ctid::text from ({KEYS}) k cross join lateral \
         (select ctid from walrelay.dead_letters where slot = $1 and commit_lsn = lsn and tx_seq = seq \
         and state = 'retrying' for update) d"
    );
    let keys = Keys::new(fates.iter().map(|fate| fate.position));
    let found = RECORD
        .run(
            &role,
            transaction.query(&sql, &[&slot.as_str(), &keys.lsns, &keys.sequences]),
        )
        .await?;
    let (mut delivered, mut failed) = (Vec::new(), Vec::new());
    let (mut reasons, mut details) = (Vec::new(), Vec::new());
    for row in &found {
        let place: usize = number::<i64, _>(row, 0, RECORD.purpose)?;
        let fate = fates.get(place.wrapping_sub(1));
        let at: String = column(row, 1, RECORD.purpose)?;
        match &fate.ok_or_else(|| unreadable(RECORD.purpose))?.failure {
            None => delivered.push(at),
            Some((reason, detail)) => {
                failed.push(at);
                reasons.push(reason.as_str());
                details.push(detail);
            }
        }
    }
    let mut rows = 0;
    if !delivered.is_empty() {
        let sql = "delete from walrelay.dead_letters where ctid = any ($1::text[]::tid[])";
        rows = RECORD.run(&role, transaction.execute(sql, &[&delivered])).await?;
    }
    if !failed.is_empty() {
        let sql = "update walrelay.dead_letters d set state = 'pending', attempts = attempts + 1, \
                   last_failed_at = now(), reason = failed.reason, detail = failed.detail \
                   from unnest($1::text[]::tid[], $2::text[], $3::text[]) failed (at, reason, detail) \
                   where d.ctid = failed.at";
        RECORD
            .run(&role, transaction.execute(sql, &[&failed, &reasons, &details]))
            .await?;
    }
    bounded(Step::Query(RECORD.purpose), transaction.commit()).await?;
    let end = flushed_position(session).await?;
    Ok(Committed { end, rows })
}

/// Keys as parameters `$2` and `$3` of [`KEYS`].
struct Keys {
    lsns: Vec<String>,
    sequences: Vec<i64>,
}

/// Keys and their places from 1, in the order in which everybody locks rows. Each is then looked up in the index: a join
/// would leave it to the planner, which without statistics compares every row with every key.
const KEYS: &str = "select lsn::pg_lsn as lsn, seq, place \
                    from unnest($2::text[], $3::bigint[]) with ordinality u (lsn, seq, place) order by 1, 2";

impl Keys {
    fn new(positions: impl Iterator<Item = EventPosition>) -> Self {
        let (lsns, sequences) = positions
            .map(|position| (position.lsn_text(), position.sequence()))
            .unzip();
        Self { lsns, sequences }
    }
}

/// Begins a transaction that rule 15 allows to stand for events: it commits synchronously, and its server streams
/// from the slot to us.
pub(in crate::postgres) async fn begin<'a>(
    session: &'a mut ControlSession,
    slot: &SlotName,
    ours: i32,
    purpose: &'static str,
) -> Result<Transaction<'a>, Error> {
    let transaction = bounded(Step::Query(purpose), session.client_mut().transaction()).await?;
    commit_synchronously(&transaction, purpose).await?;
    check_stream(&transaction, slot, ours, purpose).await?;
    Ok(transaction)
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

fn unprintable(purpose: &'static str) -> Error {
    Error::Protocol {
        step: Step::Query(purpose),
        what: "a row that is no JSON",
    }
}
