//! What a person does with dead letters: list, show, retry, discard. All of it works while the relay is down.

use std::time::SystemTime;

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;

use super::{DeadLetter, Reason, State, Summary, event_type, message, summary};
use crate::postgres::catalog::{column, position as lsn};
use crate::postgres::control::{ControlSession, bounded};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::SlotName;
use crate::postgres::outbox::Outbox;
use crate::postgres::own_schema::commit_synchronously;
use crate::postgres::position::EventPosition;
use crate::postgres::table_use::Use;

/// Which dead letters of a slot. All conditions that are given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// In one of these states; any, if empty.
    pub states: Vec<State>,
    /// Set aside for this reason.
    pub reason: Option<Reason>,
    /// Events of this type.
    pub event_type: Option<String>,
    /// Where the rows of outbox tables have the type of an event; those of others in a column `event_type`.
    pub outboxes: Vec<Outbox>,
    /// Failed last at or after this time.
    pub since: Option<SystemTime>,
    /// Events of this id: ids repeat, so there may be several.
    pub event_id: Option<String>,
    /// The one of this key.
    pub position: Option<EventPosition>,
}

impl Filter {
    /// The condition that a dead letter is of a slot and taken, for the parameters of [`Parameters::list`].
    fn condition(&self) -> String {
        format!(
            "slot = $1 and (pg_catalog.cardinality($2::text[]) = 0 or state = any ($2)) \
             and ($3::text is null or reason = $3) \
             and ($4::text is null or {} = $4) \
             and ($5::timestamptz is null or last_failed_at >= $5) \
             and ($6::text is null or event_id = $6) \
             and ($7::text is null or (commit_lsn = $7::pg_lsn and tx_seq = $8::bigint))",
            event_type(&self.outboxes)
        )
    }
}

/// The values of a filter as parameters `$1` to `$8`.
struct Parameters<'a> {
    slot: &'a str,
    states: Vec<&'static str>,
    reason: Option<&'static str>,
    filter: &'a Filter,
    lsn: Option<String>,
    sequence: Option<i64>,
}

impl<'a> Parameters<'a> {
    fn new(slot: &'a SlotName, filter: &'a Filter) -> Self {
        Self {
            slot: slot.as_str(),
            states: filter.states.iter().map(|state| state.as_str()).collect(),
            reason: filter.reason.map(Reason::as_str),
            filter,
            lsn: filter.position.map(|position| position.lsn_text()),
            sequence: filter.position.map(|position| position.sequence()),
        }
    }

    fn list(&self) -> [&(dyn ToSql + Sync); 8] {
        [
            &self.slot,
            &self.states,
            &self.reason,
            &self.filter.event_type,
            &self.filter.since,
            &self.filter.event_id,
            &self.lsn,
            &self.sequence,
        ]
    }
}

/// The oldest `limit` dead letters that the filter takes, in commit order, and how many it takes in all. One that this version
/// cannot read is passed over with a warning, and not counted.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.dead_letters`.
///
/// # Errors
/// The query fails.
pub async fn list(
    session: &ControlSession,
    slot: &SlotName,
    filter: &Filter,
    limit: u32,
) -> Result<(Vec<Summary>, u64), Error> {
    const LIST: Use = Use::own("list the dead letters", "select", &["dead_letters"]);
    let parameters = Parameters::new(slot, filter);
    let limit = i64::from(limit);
    let mut values = parameters.list().to_vec();
    values.push(&limit);
    let (summary, condition) = (summary(&filter.outboxes), filter.condition());
    let sql = format!(
        "select {summary} from walrelay.dead_letters where {condition} order by commit_lsn, tx_seq limit $9"
    );
    let rows = LIST
        .run(session.role(), session.client().query(&sql, &values))
        .await?;
    let summaries = rows
        .iter()
        .filter_map(|row| Summary::read(row, slot, LIST.purpose).transpose());
    let summaries: Vec<_> = summaries.collect::<Result<_, _>>()?;
    let passed_over = u64::try_from(rows.len() - summaries.len()).unwrap_or(u64::MAX);

    let sql = format!("select count(*) from walrelay.dead_letters where {condition}");
    let row = LIST
        .run(
            session.role(),
            session.client().query_one(&sql, &parameters.list()),
        )
        .await?;
    let total: u64 = super::number::<i64, _>(&row, 0, LIST.purpose)?;
    Ok((summaries, total.saturating_sub(passed_over)))
}

/// The dead letters that the filter takes with their columns, in commit order, at most `limit`.
///
/// Grants: as [`list`].
///
/// # Errors
/// As [`list`].
pub async fn show(
    session: &ControlSession,
    slot: &SlotName,
    filter: &Filter,
    limit: u32,
) -> Result<Vec<DeadLetter>, Error> {
    const SHOW: Use = Use::own("read the dead letters", "select", &["dead_letters"]);
    let parameters = Parameters::new(slot, filter);
    let limit = i64::from(limit);
    let mut values = parameters.list().to_vec();
    values.push(&limit);
    let (summary, condition) = (summary(&filter.outboxes), filter.condition());
    let sql = format!(
        "select {summary}, columns::text from walrelay.dead_letters where {condition} \
         order by commit_lsn, tx_seq limit $9"
    );
    let rows = SHOW
        .run(session.role(), session.client().query(&sql, &values))
        .await?;
    rows.iter()
        .filter_map(|row| DeadLetter::read(row, slot, SHOW.purpose).transpose())
        .collect()
}

/// Asks the relay to deliver again what the filter takes and is pending: in one transaction the rows become
/// `retrying`, and a message for each goes into the log, in commit order (rule 16). Returns the keys.
///
/// Grants: usage on schema `walrelay`, select and update on `walrelay.dead_letters`.
///
/// Cancel safety: a dropped future may or may not have committed.
///
/// # Errors
/// A statement fails; nothing was changed then.
pub async fn request_retry(
    session: &mut ControlSession,
    slot: &SlotName,
    filter: &Filter,
) -> Result<Vec<EventPosition>, Error> {
    let pending = format!("{} and state = 'pending'", filter.condition());
    emit(session, slot, filter, &pending).await
}

/// Puts the messages of all retries under way into the log again: for `recover`, since the earlier ones may be lost.
/// A message too many is harmless. Returns how many.
///
/// Grants: as [`request_retry`].
///
/// # Errors
/// As [`request_retry`].
pub async fn request_again(session: &mut ControlSession, slot: &SlotName) -> Result<u64, Error> {
    let filter = Filter::default();
    let retrying = format!("{} and state = 'retrying'", filter.condition());
    let keys = emit(session, slot, &filter, &retrying).await?;
    Ok(u64::try_from(keys.len()).unwrap_or(u64::MAX))
}

async fn emit(
    session: &mut ControlSession,
    slot: &SlotName,
    filter: &Filter,
    condition: &str,
) -> Result<Vec<EventPosition>, Error> {
    const RETRY: Use = Use::own("ask for a retry", "select, update", &["dead_letters"]);
    let step = Step::Query(RETRY.purpose);
    let role = session.role().to_owned();
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    commit_synchronously(&transaction, RETRY.purpose).await?;
    let rows = lock(&transaction, &role, slot, filter, condition, RETRY).await?;
    let sql = "update walrelay.dead_letters set state = 'retrying' where ctid = any ($1::text[]::tid[]) \
               returning commit_lsn::text, tx_seq";
    let rows = RETRY.run(&role, transaction.query(sql, &[&rows])).await?;
    let keys = rows.iter().map(|row| {
        Ok(EventPosition {
            commit_lsn: lsn(row, 0, RETRY.purpose)?.unwrap_or_default(),
            tx_seq: super::number::<i64, _>(row, 1, RETRY.purpose)?,
        })
    });
    let mut keys: Vec<EventPosition> = keys.collect::<Result<_, Error>>()?;
    keys.sort_unstable();

    let contents: Vec<_> = keys.iter().map(|key| message::encode(slot, *key)).collect();
    let sql = "select count(pg_catalog.pg_logical_emit_message(true, $1, content)) from (select content \
               from unnest($2::text[]) with ordinality m (content, place) order by place) ordered";
    bounded(step, transaction.execute(sql, &[&message::PREFIX, &contents])).await?;
    bounded(step, transaction.commit()).await?;
    Ok(keys)
}

/// Discards what the filter takes, pending or being retried, on record: why, when and by which role. Returns how
/// many.
///
/// Grants: usage on schema `walrelay`, select and update on `walrelay.dead_letters`.
///
/// # Errors
/// The statement fails; nothing was changed then.
pub async fn discard(
    session: &mut ControlSession,
    slot: &SlotName,
    filter: &Filter,
    reason: &str,
) -> Result<u64, Error> {
    const DISCARD: Use = Use::own("discard dead letters", "select, update", &["dead_letters"]);
    let step = Step::Query(DISCARD.purpose);
    let role = session.role().to_owned();
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    let condition = format!("{} and state <> 'discarded'", filter.condition());
    let rows = lock(&transaction, &role, slot, filter, &condition, DISCARD).await?;
    let sql = "update walrelay.dead_letters set state = 'discarded', discard_reason = $2, discarded_at = now(), \
               discarded_by = session_user where ctid = any ($1::text[]::tid[])";
    let discarded = DISCARD
        .run(&role, transaction.execute(sql, &[&rows, &reason]))
        .await?;
    bounded(step, transaction.commit()).await?;
    Ok(discarded)
}

/// Locks the rows of a condition in the order in which everybody does, so that nobody waits for another that waits for
/// him. Returns where the rows stand, for the next statement of the transaction.
async fn lock(
    transaction: &Transaction<'_>,
    role: &str,
    slot: &SlotName,
    filter: &Filter,
    condition: &str,
    table: Use<'static>,
) -> Result<Vec<String>, Error> {
    let sql = format!(
        "select ctid::text from walrelay.dead_letters where {condition} order by commit_lsn, tx_seq for update"
    );
    let parameters = Parameters::new(slot, filter);
    let rows = table
        .run(role, transaction.query(&sql, &parameters.list()))
        .await?;
    rows.iter().map(|row| column(row, 0, table.purpose)).collect()
}
