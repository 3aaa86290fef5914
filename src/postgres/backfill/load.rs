//! Reading the noted rows, a short batch at a time, and striking out those that are settled.

use std::fmt;
use std::time::SystemTime;

use tokio_postgres::{Row, Transaction};
use walrelay_engine::Lsn;
use walrelay_engine::key::{EventKey, TransactionKey};

use crate::postgres::catalog::{column, position};
use crate::postgres::control::{ControlSession, bounded};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, SlotName};
use crate::postgres::outbox::Outbox;
use crate::postgres::own_schema::check_stream;
use crate::postgres::position::timestamp;
use crate::postgres::rows::TextColumns;
use crate::postgres::table_use::Use;

/// The most rows of a batch.
const BATCH_ROWS: u32 = 1000;
/// The bytes of text at which a batch ends early.
const BATCH_BYTES: u32 = 4 * 1024 * 1024;

/// Before anybody has analyzed the notes, the planner would read and sort all of them for each batch.
const SETTINGS: &str = "set transaction isolation level repeatable read, read only; set local row_security = off; \
                        set local enable_seqscan = off; set local enable_bitmapscan = off; \
                        set local enable_sort = off; set local jit = off";

const LOAD: Use = Use::own("read rows to be backfilled", "select", &["backfill", "backfills"]);

/// Rows of one table, by rising numbers.
#[derive(Debug)]
pub struct Batch {
    /// The Relation message that the stream would send before the rows; none where there is no such table.
    pub relation: Option<Vec<u8>>,
    /// Which copying noted them: what stands for their transaction.
    pub copy: TransactionKey,
    /// The rows.
    pub items: Vec<Item>,
}

/// A row whose turn has come.
#[derive(Debug)]
pub enum Item {
    /// It is to be sent.
    Row(NotedRow),
    /// It has been deleted since it was noted.
    Deleted {
        /// Its number.
        number: u64,
    },
    /// It has been marked as sent since it was noted.
    Marked {
        /// Its number.
        number: u64,
    },
}

/// A row to be sent.
pub struct NotedRow {
    /// Its key: what stands for a transaction, and its number.
    pub key: EventKey,
    /// The Insert message that would have brought it.
    pub insert: Vec<u8>,
}

/// The key only: rows are never logged.
impl fmt::Debug for NotedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NotedRow")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Item {
    /// The row's number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        match self {
            Self::Row(row) => row.key.tx_seq,
            Self::Deleted { number } | Self::Marked { number } => *number,
        }
    }
}

/// The key of the first row that is noted for the slot, if there is one.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.backfill` and `walrelay.backfills`.
///
/// # Errors
/// The query fails.
pub(super) async fn first(session: &ControlSession, slot: &SlotName) -> Result<Option<EventKey>, Error> {
    let sql = "select c.commit_lsn::text, c.copied_at, b.number from walrelay.backfill b \
               join walrelay.backfills c on c.id = b.backfill \
               where b.slot = $1 and not b.is_settled order by b.number limit 1";
    let row = LOAD
        .run(session.role(), session.client().query_opt(sql, &[&slot.as_str()]))
        .await?;
    let key = |row: &Row| {
        Ok(EventKey {
            transaction: copy_of(row)?,
            tx_seq: column::<i64>(row, 2, LOAD.purpose)?.unsigned_abs(),
        })
    };
    row.as_ref().map(key).transpose()
}

/// Reads the next rows behind the number `after`, within one snapshot; none if no row is left. Values of more than
/// `max_event_bytes`, and those behind as much twice over, are passed over. `outboxes` say what columns are called.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.backfill` and `walrelay.backfills`; select on the table.
///
/// # Errors
/// [`Error::NotOurStream`] unless the session's server streams from the slot to `walsender_pid`: another one may know
/// nothing of the rows. Or a query fails, such as where row security would hide rows.
pub async fn load(
    session: &mut ControlSession,
    slot: &SlotName,
    outboxes: &[Outbox],
    walsender_pid: i32,
    after: u64,
    max_event_bytes: usize,
) -> Result<Option<Batch>, Error> {
    let role = session.role().to_owned();
    let step = Step::Query(LOAD.purpose);
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    bounded(step, transaction.batch_execute(SETTINGS)).await?;
    check_stream(&transaction, slot, walsender_pid, LOAD.purpose).await?;
    let batch = next_batch(&transaction, &role, slot, outboxes, after, max_event_bytes).await?;
    bounded(step, transaction.commit()).await?;
    Ok(batch)
}

async fn next_batch(
    transaction: &Transaction<'_>,
    role: &str,
    slot: &SlotName,
    outboxes: &[Outbox],
    after: u64,
    max_event_bytes: usize,
) -> Result<Option<Batch>, Error> {
    let sql = "select c.commit_lsn::text, c.copied_at, c.id, c.outbox from walrelay.backfill b \
               join walrelay.backfills c on c.id = b.backfill \
               where b.slot = $1 and b.number > $2 and not b.is_settled order by b.number limit 1";
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let next = LOAD
        .run(role, transaction.query_opt(sql, &[&slot.as_str(), &after]))
        .await?;
    let Some(next) = next else { return Ok(None) };
    let key = copy_of(&next)?;
    let backfill: i64 = column(&next, 2, LOAD.purpose)?;
    let outbox: &str = column(&next, 3, LOAD.purpose)?;

    // Printed by us, so it parses; if not, there is no such table.
    let name: QualifiedTable = outbox.parse().unwrap_or_else(|_| QualifiedTable {
        schema: String::new(),
        name: outbox.to_owned(),
    });
    let limit = u32::try_from(max_event_bytes).unwrap_or(u32::MAX);
    let columns = TextColumns::find(transaction, &name, limit).await?;
    let configured = outboxes.iter().find(|outbox| outbox.table == name).cloned();
    let outbox = configured.unwrap_or_else(|| name.into());
    // With each row its number, whether it is in the table, and whether its mark keeps it from being sent.
    let keys = [
        "b.number",
        "m.sent is not null",
        "coalesce(m.sent, false) and not b.was_sent",
    ]
    .map(str::to_owned);
    let noted = format!(
        "(select * from walrelay.backfill where slot = $1 and backfill = $2 and number > $3 and not is_settled \
         order by number limit {BATCH_ROWS}) b"
    );
    let sql = match &columns {
        Some(columns) => columns.select(&keys, &rows_of(&noted, columns, &outbox), BATCH_BYTES),
        None => format!("select b.number, false, false from {noted} order by b.number"),
    };
    let rows = bounded(
        Step::Query(LOAD.purpose),
        transaction.query(&sql, &[&slot.as_str(), &backfill, &after]),
    )
    .await?;
    let items = rows.iter().map(|row| {
        let number = column::<i64>(row, 0, LOAD.purpose)?.unsigned_abs();
        let (exists, is_marked): (bool, bool) =
            (column(row, 1, LOAD.purpose)?, column(row, 2, LOAD.purpose)?);
        Ok(match &columns {
            Some(columns) if exists && !is_marked => Item::Row(NotedRow {
                key: EventKey {
                    transaction: key,
                    tx_seq: number,
                },
                insert: columns.insert(row, keys.len(), LOAD.purpose)?,
            }),
            _ if exists => Item::Marked { number },
            _ => Item::Deleted { number },
        })
    });
    Ok(Some(Batch {
        items: items.collect::<Result<_, Error>>()?,
        relation: columns.map(|columns| columns.relation().to_vec()),
        copy: key,
    }))
}

/// What stands for the transaction of a noted row, from the row's first columns.
fn copy_of(row: &Row) -> Result<TransactionKey, Error> {
    let commit_lsn: Lsn = position(row, 0, LOAD.purpose)?.unwrap_or_default();
    let copied_at: SystemTime = column(row, 1, LOAD.purpose)?;
    Ok(TransactionKey::backfill(commit_lsn, timestamp(copied_at)))
}

/// Noted rows `b`, each with the row `t` of the table that it means if that is to be sent, and with its mark `m` if there
/// is one.
fn rows_of(noted: &str, columns: &TextColumns, outbox: &Outbox) -> String {
    let source = format!(
        "{} t where t.{} = b.id::{} order by t.tableoid, t.ctid offset b.place - 1 limit 1",
        columns.table().quoted(),
        outbox.id(),
        columns.type_of(&outbox.columns.id)
    );
    let marks = outbox.marks(|name| columns.column(name).is_some());
    let sent = marks.map_or_else(|| "false".to_owned(), |marks| marks.sent);
    format!(
        "from {noted} left join lateral (select {sent} as sent from {source}) m on true \
         left join lateral (select t.* from {source}) t on b.was_sent or not m.sent order by b.number"
    )
}
