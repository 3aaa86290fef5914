//! Reading the rows of a replay ahead, batch by batch.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::mpsc;
use walrelay_engine::event::{Mapping, OutboxTable};
use walrelay_engine::pgoutput::read_relation;

use super::{ReplayError, ReplaySettings};
use crate::postgres::rows::{Scan, TableRow, TextColumns};
use crate::postgres::{self, ControlSession, Outbox, QualifiedTable};

/// Rows of one batch, and the bytes of text at which it ends early.
const BATCH_ROWS: u32 = 500;
const BATCH_BYTES: u32 = 4 * 1024 * 1024;

/// Rows of one table, with the way to read them.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) mapping: Arc<Mapping>,
    pub(super) rows: VecDeque<TableRow>,
}

/// How many rows the filter takes now, over all tables.
///
/// # Errors
/// A table cannot be read, or counting takes too long.
pub async fn count(settings: &ReplaySettings) -> Result<u64, postgres::Error> {
    let session = ControlSession::open(&settings.connector, &settings.slot).await?;
    let counted = async {
        let mut rows = 0;
        for table in &settings.tables {
            rows += scan(settings, table, &session).await?.count(&session).await?;
        }
        Ok(rows)
    };
    let counted = counted.await;
    session.close().await;
    counted
}

/// Reads all tables, batch by batch, each in a short session, for as long as somebody takes them.
pub(super) async fn read(
    settings: &ReplaySettings,
    out: &mpsc::Sender<Result<Chunk, ReplayError>>,
) -> Result<(), ReplayError> {
    for table in &settings.tables {
        let mut prepared: Option<(Scan, Arc<Mapping>)> = None;
        loop {
            let session = ControlSession::open(&settings.connector, &settings.slot).await?;
            let (scan, mapping) = match &mut prepared {
                Some(prepared) => prepared,
                None => {
                    let scan = scan(settings, table, &session).await?;
                    let mapping = Arc::new(mapping(&scan, table)?);
                    prepared.insert((scan, mapping))
                }
            };
            let rows = scan.next(&session, BATCH_ROWS, BATCH_BYTES).await;
            session.close().await;
            let rows = rows?;
            if rows.is_empty() {
                break;
            }
            let chunk = Chunk {
                mapping: Arc::clone(mapping),
                rows: rows.into(),
            };
            if out.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn scan(
    settings: &ReplaySettings,
    table: &OutboxTable,
    session: &ControlSession,
) -> Result<Scan, postgres::Error> {
    let name = QualifiedTable {
        schema: table.schema.clone(),
        name: table.name.clone(),
    };
    let outbox = Outbox {
        columns: table.columns.clone(),
        ..name.into()
    };
    let columns = TextColumns::read(session, &outbox.table, settings.max_event_bytes).await?;
    Scan::new(session, &outbox, columns, settings.filter.clone()).await
}

fn mapping(scan: &Scan, table: &OutboxTable) -> Result<Mapping, ReplayError> {
    let relation = read_relation(scan.columns().relation())?;
    Ok(Mapping::bind(&relation, table)?)
}
