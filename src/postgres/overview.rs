//! How a slot and its tables stand, read in one short session: for `walrelay status`. Nothing is changed, and nothing that
//! could take long is asked for.

use std::time::Duration;

use walrelay_engine::Lsn;

use super::backfill;
use super::catalog::column;
use super::connect::Connector;
use super::control::ControlSession;
use super::dead_letters;
use super::error::{Error, SqlState};
use super::identifier::QualifiedTable;
use super::outbox::Outbox;
use super::position::flushed_position;
use super::preflight::{Source, Unfit};
use super::slot::{SlotState, explain_missing};
use super::walsender::milliseconds;
use crate::fault::chain;

/// How long counting may take; a large table without an index for it takes longer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Rows beyond this are not counted one by one.
const MOST: u64 = 100_000;

/// Why unsent rows of a table cannot be counted.
const NO_MARKS: &str = "it has no marks";

/// How things stand.
#[derive(Debug, Clone)]
pub struct Overview {
    /// The slot.
    pub slot: SlotState,
    /// Who streams from it, as far as that may be seen: `walrelay shop from 10.0.0.7`.
    pub streamer: Option<String>,
    /// Where the log ends.
    pub end: Lsn,
    /// The tables, in the order of the settings.
    pub tables: Vec<TableCounts>,
    /// Dead letters that wait or are retried.
    pub dead_letters: Count,
    /// Rows that go out before the stream.
    pub backfill_left: Count,
}

/// Rows of a table.
#[derive(Debug, Clone)]
pub struct TableCounts {
    /// The table.
    pub table: QualifiedTable,
    /// All of them, as the planner estimates.
    pub rows: Option<u64>,
    /// Those without a mark.
    pub unsent: Count,
}

/// A number, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Count {
    /// So many.
    Exactly(u64),
    /// So many or more.
    AtLeast(u64),
    /// Not counted, and why.
    Unknown(String),
}

impl Count {
    fn of(result: Result<u64, Error>) -> Self {
        match result {
            Ok(count) => Self::Exactly(count),
            Err(error) => Self::Unknown(chain(&error)),
        }
    }
}

impl Overview {
    /// Reads it all.
    ///
    /// # Errors
    /// There is no session, no such slot, or a query about the slot fails.
    pub async fn read(connector: &Connector, source: &Source) -> Result<Self, Error> {
        let session = ControlSession::open(connector, &source.slot).await?;
        let overview = Self::read_in(&session, source).await;
        session.close().await;
        overview
    }

    async fn read_in(session: &ControlSession, source: &Source) -> Result<Self, Error> {
        let slot = SlotState::read(session, &source.slot).await?;
        let Some(slot) = slot else {
            let slot = source.slot.clone();
            return Err(explain_missing(session, Unfit::SlotMissing { slot }).await.into());
        };
        let mut tables = Vec::with_capacity(source.outboxes.len());
        for outbox in &source.outboxes {
            tables.push(TableCounts::read(session, outbox).await);
        }
        Ok(Self {
            streamer: streamer(session, &slot).await?,
            end: flushed_position(session).await?,
            slot,
            tables,
            dead_letters: Count::of(dead_letters::pending_count(session, &source.slot).await),
            backfill_left: Count::of(backfill::rows_left(session, &source.slot).await),
        })
    }

    /// Bytes of the log that are not confirmed.
    #[must_use]
    pub fn behind_bytes(&self) -> u64 {
        let confirmed = self.slot.confirmed_flush_lsn.unwrap_or(self.end);
        self.end.get().saturating_sub(confirmed.get())
    }

    /// Bytes of the log that are kept for the slot.
    #[must_use]
    pub fn retained_bytes(&self) -> u64 {
        self.slot.retained_bytes(self.end)
    }
}

async fn streamer(session: &ControlSession, slot: &SlotState) -> Result<Option<String>, Error> {
    const PURPOSE: &str = "look who streams from the slot";
    let sql = "select pg_catalog.concat(nullif(application_name, ''), ' from ' || pg_catalog.host(client_addr)) \
               from pg_catalog.pg_stat_activity where pid = $1";
    let row = session
        .run(PURPOSE, session.client().query_opt(sql, &[&slot.active_pid]))
        .await?;
    row.map_or(Ok(None), |row| column(&row, 0, PURPOSE))
}

impl TableCounts {
    async fn read(session: &ControlSession, outbox: &Outbox) -> Self {
        Self {
            table: outbox.table.clone(),
            rows: estimate(session, &outbox.table).await.ok().flatten(),
            unsent: unsent(session, outbox).await.unwrap_or_else(|error| {
                let why = match error.sqlstate() {
                    Some(SqlState::QUERY_CANCELED) => "it takes too long".to_owned(),
                    Some(SqlState::UNDEFINED_COLUMN) if outbox.marker.is_none() => NO_MARKS.to_owned(),
                    _ => chain(&error),
                };
                Count::Unknown(why)
            }),
        }
    }
}

/// What the planner believes; of a partitioned table the sum of its leaves.
async fn estimate(session: &ControlSession, table: &QualifiedTable) -> Result<Option<u64>, Error> {
    const PURPOSE: &str = "estimate the rows of the outbox table";
    let sql = "select sum(greatest(p.reltuples, 0))::bigint from pg_catalog.pg_class c \
               join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               cross join lateral (select c.oid as relid where c.relkind = 'r' union all \
               select t.relid from pg_catalog.pg_partition_tree(c.oid) t where c.relkind = 'p' and t.isleaf) t \
               join pg_catalog.pg_class p on p.oid = t.relid \
               where n.nspname = $1 and c.relname = $2 having bool_and(p.reltuples >= 0)";
    let row = session
        .run(
            PURPOSE,
            session.client().query_opt(sql, &[&table.schema, &table.name]),
        )
        .await?;
    let rows: Option<i64> = row.map_or(Ok(None), |row| column(&row, 0, PURPOSE))?;
    Ok(rows.and_then(|rows| u64::try_from(rows).ok()))
}

async fn unsent(session: &ControlSession, outbox: &Outbox) -> Result<Count, Error> {
    const PURPOSE: &str = "count the rows without a mark";
    // Whether there is such a column is seen by the query itself.
    let Some(marks) = outbox.marks(|_| true) else {
        return Ok(Count::Unknown(NO_MARKS.to_owned()));
    };
    let begin = format!(
        "begin read only; set local statement_timeout = {}",
        milliseconds(PATIENCE)
    );
    session
        .run(PURPOSE, session.client().batch_execute(&begin))
        .await?;
    let sql = format!(
        "select count(*) from (select from {} t where {} limit {}) rows",
        outbox.table.quoted(),
        marks.unsent,
        MOST + 1
    );
    let counted = session.run(PURPOSE, session.client().query_one(&sql, &[])).await;
    session
        .run(PURPOSE, session.client().batch_execute("rollback"))
        .await?;
    let count: i64 = column(&counted?, 0, PURPOSE)?;
    let count = u64::try_from(count).unwrap_or_default();
    Ok(if count > MOST {
        Count::AtLeast(MOST)
    } else {
        Count::Exactly(count)
    })
}
