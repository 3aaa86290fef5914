//! Reading the noted rows, a short batch at a time, and striking out those that are settled.

use std::time::SystemTime;

use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow, Transaction};
use walrelay_engine::Lsn;
use walrelay_engine::flow::BackfilledRow;
use walrelay_engine::key::{EventKey, TransactionKey};

use super::table::Table;
use super::table_use;
use crate::postgres::catalog::{column, position};
use crate::postgres::control::{ControlSession, bounded};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, SlotName, quote_literal};
use crate::postgres::own_schema::{Use, check_stream};
use crate::postgres::position::timestamp;

/// The most rows of a batch.
const BATCH_ROWS: i64 = 1000;
/// The most bytes of a batch, but for a single row that is larger.
const BATCH_BYTES: i64 = 4 * 1024 * 1024;

/// Before anybody has analyzed the notes, the planner would read and sort all of them for each batch.
const SETTINGS: &str = "set transaction isolation level repeatable read, read only; set local row_security = off; \
                        set local enable_seqscan = off; set local enable_bitmapscan = off; \
                        set local enable_sort = off; set local jit = off";

const LOAD: Use = table_use(
    "read rows to be backfilled",
    "select",
    "backfill, walrelay.backfills",
);

/// Rows of one table, by rising numbers.
#[derive(Debug)]
pub struct Batch {
    /// The table's schema.
    pub schema: String,
    /// The table's name.
    pub name: String,
    /// The columns that each row has, with the oids of their types.
    pub columns: Vec<(String, u32)>,
    /// The rows.
    pub items: Vec<Item>,
}

/// A row whose turn has come.
#[derive(Debug)]
pub enum Item {
    /// It is to be sent.
    Row(BackfilledRow),
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

/// What is known of a noted row before its values are read.
struct Found {
    number: i64,
    /// Whether it is still in the table, and whether its mark keeps it from being sent.
    exists: bool,
    is_marked: bool,
    /// The sizes of its columns as text.
    sizes: Vec<i64>,
}

/// Reads the next rows behind the number `after`, within one snapshot; none if no row is left. Values of more than
/// `max_event_bytes`, and those behind as much twice over, are passed over.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.backfill` and `walrelay.backfills`; select on the table.
///
/// # Errors
/// [`Error::NotOurStream`] unless the session's server streams from the slot to `walsender_pid`: another one may know
/// nothing of the rows. Or a query fails, such as where row security would hide rows.
pub async fn load(
    session: &mut ControlSession,
    slot: &SlotName,
    walsender_pid: i32,
    after: u64,
    max_event_bytes: usize,
) -> Result<Option<Batch>, Error> {
    let role = session.role().to_owned();
    let step = Step::Query(LOAD.purpose);
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    bounded(step, transaction.batch_execute(SETTINGS)).await?;
    check_stream(&transaction, slot, walsender_pid, LOAD.purpose).await?;
    let batch = next_batch(&transaction, &role, slot, after, max_event_bytes).await?;
    bounded(step, transaction.commit()).await?;
    Ok(batch)
}

async fn next_batch(
    transaction: &Transaction<'_>,
    role: &str,
    slot: &SlotName,
    after: u64,
    max_event_bytes: usize,
) -> Result<Option<Batch>, Error> {
    let sql = "select c.id, c.outbox, c.commit_lsn::text, c.copied_at from walrelay.backfill b \
               join walrelay.backfills c on c.id = b.backfill \
               where b.slot = $1 and b.number > $2 and not b.is_settled order by b.number limit 1";
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let next = LOAD
        .run(role, transaction.query_opt(sql, &[&slot.as_str(), &after]))
        .await?;
    let Some(next) = next else { return Ok(None) };
    let backfill: i64 = column(&next, 0, LOAD.purpose)?;
    let outbox: &str = column(&next, 1, LOAD.purpose)?;
    let commit_lsn: Lsn = position(&next, 2, LOAD.purpose)?.unwrap_or_default();
    let copied_at: SystemTime = column(&next, 3, LOAD.purpose)?;
    let key = TransactionKey::backfill(commit_lsn, timestamp(copied_at));

    // Printed by us, so it parses; if not, there is no such table.
    let name: QualifiedTable = outbox.parse().unwrap_or_else(|_| QualifiedTable {
        schema: String::new(),
        name: outbox.to_owned(),
    });
    let table = Table::read(transaction, &name).await?;
    let found = find(transaction, slot, backfill, after, &name, table.as_ref()).await?;
    let columns = table.iter().flat_map(|table| &table.columns);
    let columns = columns
        .map(|column| (column.name.clone(), column.type_oid))
        .collect();
    let items = match &table {
        Some(table) => {
            let reader = Reader {
                transaction,
                slot,
                name: &name,
                table,
                key,
                limit: i64::try_from(max_event_bytes).unwrap_or(i64::MAX),
            };
            reader.items(found).await?
        }
        None => found.iter().map(|found| found.passed(true)).collect(),
    };
    Ok(Some(Batch {
        schema: name.schema,
        name: name.name,
        columns,
        items,
    }))
}

/// Looks the next noted rows up, with their marks and sizes, as many as a batch takes; without a table, all are gone.
async fn find(
    transaction: &Transaction<'_>,
    slot: &SlotName,
    backfill: i64,
    after: i64,
    name: &QualifiedTable,
    table: Option<&Table>,
) -> Result<Vec<Found>, Error> {
    let noted = format!(
        "(select * from walrelay.backfill where slot = $1 and backfill = $2 and number > $3 and not is_settled \
         order by number limit {BATCH_ROWS}) b"
    );
    let sql = match table {
        Some(table) => sized(&noted, name, table),
        None => format!("select b.number, false, false, '{{}}'::bigint[] from {noted} order by b.number"),
    };
    let step = Step::Query(LOAD.purpose);
    let rows = bounded(
        step,
        transaction.query(&sql, &[&slot.as_str(), &backfill, &after]),
    )
    .await?;
    let found = rows.iter().map(|row| {
        Ok(Found {
            number: column(row, 0, LOAD.purpose)?,
            exists: column(row, 1, LOAD.purpose)?,
            is_marked: column(row, 2, LOAD.purpose)?,
            sizes: column(row, 3, LOAD.purpose)?,
        })
    });
    let mut found = found.collect::<Result<Vec<Found>, Error>>()?;
    let mut bytes = 0;
    let fits = found.iter().take_while(|found| {
        let is_first = bytes == 0;
        bytes += found.sizes.iter().sum::<i64>();
        is_first || bytes <= BATCH_BYTES
    });
    let count = fits.count();
    found.truncate(count);
    Ok(found)
}

/// Numbers, marks and sizes of the noted rows. The size of a text costs making it, so it is asked only of as many rows as
/// fill a batch with what they take on disk.
fn sized(noted: &str, name: &QualifiedTable, table: &Table) -> String {
    let is_marked = if table.has("sent_at") {
        "t.sent_at is not null"
    } else {
        "false"
    };
    let columns = || table.columns.iter();
    let sizes: Vec<_> = columns().map(|column| column.text_size()).collect();
    let stored: Vec<_> = columns().map(|column| column.stored_size()).collect();
    format!(
        "select b.number, t.sizes is not null, coalesce(t.is_marked, false) and not b.was_sent, \
         coalesce(t.sizes, '{{}}') from (select b.*, coalesce(t.stored, 0) as stored, \
         sum(coalesce(t.stored, 0)) over (order by b.number) as through from {noted} \
         left join lateral (select {stored} as stored from {source}) t on true) b \
         left join lateral (select {is_marked} as is_marked, array[{sizes}] as sizes from {source}) t on true \
         where b.through - b.stored <= {BATCH_BYTES} order by b.number",
        stored = stored.join(" + "),
        sizes = sizes.join(", "),
        source = source(name, table),
    )
}

/// The row of the table that a noted row `b` means.
fn source(name: &QualifiedTable, table: &Table) -> String {
    format!(
        "{} t where t.id = b.id::{} order by t.tableoid, t.ctid offset b.place - 1 limit 1",
        name.quoted(),
        table.id_type()
    )
}

impl Found {
    const fn is_due(&self) -> bool {
        self.exists && !self.is_marked
    }

    fn passed(&self, was_deleted: bool) -> Item {
        let number = unsigned(self.number);
        match was_deleted {
            true => Item::Deleted { number },
            false => Item::Marked { number },
        }
    }

    /// Which columns are kept: none of more than `limit` bytes, and no more than twice that in all.
    fn kept(&self, limit: i64) -> Vec<bool> {
        let mut total = 0;
        let kept = self.sizes.iter().map(|size| {
            let fits = *size <= limit && total + size <= limit.saturating_mul(2);
            total += if fits { *size } else { 0 };
            fits
        });
        kept.collect()
    }
}

/// Reads values of rows that were found in the same snapshot.
struct Reader<'a> {
    transaction: &'a Transaction<'a>,
    slot: &'a SlotName,
    name: &'a QualifiedTable,
    table: &'a Table,
    key: TransactionKey,
    limit: i64,
}

impl Reader<'_> {
    async fn items(&self, found: Vec<Found>) -> Result<Vec<Item>, Error> {
        let everything = vec![true; self.table.columns.len()];
        let is_whole = |found: &Found| found.kept(self.limit).iter().all(|kept| *kept);
        let whole: Vec<_> = found
            .iter()
            .filter(|found| found.is_due() && is_whole(found))
            .map(|found| found.number)
            .collect();
        let mut rows = match whole.is_empty() {
            true => Vec::new(),
            false => self.read(&whole, &everything).await?,
        }
        .into_iter();
        let mut items = Vec::with_capacity(found.len());
        for found in found {
            if !found.is_due() {
                items.push(found.passed(!found.exists));
                continue;
            }
            let kept = found.kept(self.limit);
            let row = if kept.iter().all(|kept| *kept) {
                rows.next()
            } else {
                self.read(&[found.number], &kept).await?.into_iter().next()
            };
            let row = row.ok_or(Error::Protocol {
                step: Step::Query(LOAD.purpose),
                what: "a row less than there were in the same snapshot",
            })?;
            items.push(Item::Row(self.row(&found, &row, &kept)?));
        }
        Ok(items)
    }

    /// As text, by the simple protocol: so each type's own output function makes it, as for the stream.
    async fn read(&self, numbers: &[i64], kept: &[bool]) -> Result<Vec<SimpleQueryRow>, Error> {
        let columns = self.table.columns.iter().zip(kept);
        let columns: Vec<_> = columns
            .map(|(column, kept)| match kept {
                true => format!("t.{}", column.quoted()),
                false => format!("null as {}", column.quoted()),
            })
            .collect();
        let numbers: Vec<_> = numbers.iter().map(i64::to_string).collect();
        let sql = format!(
            "select t.* from walrelay.backfill b cross join lateral (select {columns} from {source}) t \
             where b.slot = {slot} and b.number in ({numbers}) order by b.number",
            columns = columns.join(", "),
            source = source(self.name, self.table),
            slot = quote_literal(self.slot.as_str()),
            numbers = numbers.join(", "),
        );
        let messages = bounded(Step::Query(LOAD.purpose), self.transaction.simple_query(&sql)).await?;
        let rows = messages.into_iter().filter_map(|message| {
            if let SimpleQueryMessage::Row(row) = message {
                Some(row)
            } else {
                None
            }
        });
        Ok(rows.collect())
    }

    fn row(&self, found: &Found, row: &SimpleQueryRow, kept: &[bool]) -> Result<BackfilledRow, Error> {
        let mut made = BackfilledRow::new(EventKey {
            transaction: self.key,
            tx_seq: unsigned(found.number),
        });
        for (index, (kept, size)) in kept.iter().zip(&found.sizes).enumerate() {
            if *kept {
                let text = row.try_get(index).map_err(|source| Error::Sql {
                    step: Step::Query(LOAD.purpose),
                    source,
                })?;
                made.push(text);
            } else {
                made.push_oversized(unsigned(*size), unsigned(self.limit));
            }
        }
        Ok(made)
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_beyond_the_limit_are_passed_over_and_no_more_than_twice_as_much_is_kept() {
        let found = |sizes: &[i64]| Found {
            number: 1,
            exists: true,
            is_marked: false,
            sizes: sizes.to_vec(),
        };
        assert_eq!(found(&[64, 10, 0]).kept(64), [true, true, true]);
        assert_eq!(found(&[10, 65, 10]).kept(64), [true, false, true]);
        assert_eq!(found(&[60, 60, 60, 8]).kept(64), [true, true, false, true]);
    }
}
