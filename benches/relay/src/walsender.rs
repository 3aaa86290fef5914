//! PostgreSQL's limit: `pg_recvlogical` reads the stream into nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use walrelay_testbed::{Service, processor_time};

use crate::backlog::Shape;
use crate::book::{Notes, Quantity};
use crate::drain::{CEILING_SLOT, Shared};
use crate::stage::{Stage, walsender};

const DEADLINE: Duration = Duration::from_secs(120);

/// How often the walsender's processor time is looked at: it is gone when it has ended.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) fn case(shape: Shape) -> String {
    format!("walsender alone / {}", shape.name())
}

/// Measures how fast the server sends a backlog, from the program's start to its end.
pub(crate) async fn measure(
    stage: &Stage,
    notes: &mut Notes<'_>,
    shared: &Shared,
    shape: Shape,
    events: u32,
) -> Result<()> {
    let client = &shared.outbox.client;
    let end: String = client
        .query_one("select pg_current_wal_flush_lsn()::text", &[])
        .await?
        .get(0);
    let database = shared.outbox.database.url();
    let program = stage.postgres.bin_dir().join("pg_recvlogical");
    let arguments = [
        "--dbname",
        &database,
        "--slot",
        CEILING_SLOT,
        "--start",
        "--file",
        "/dev/null",
        "--no-loop",
        "--endpos",
        &end,
        "--option",
        "proto_version=1",
        "--option",
        "publication_names=walrelay",
    ];
    let mut receiver = Service::new("pg_recvlogical", program, &arguments);
    stage.settle().await?;
    let began = Instant::now();
    receiver.start()?;
    let mut used = Duration::ZERO;
    let mut process = None;
    while receiver.exit_status()?.is_none() && began.elapsed() < DEADLINE {
        if process.is_none() {
            process = walsender(client, CEILING_SLOT).await?;
        }
        used = process.and_then(|pid| processor_time(pid).ok()).unwrap_or(used);
        tokio::time::sleep(LOOK).await;
    }
    let elapsed = began.elapsed();
    let status = receiver.wait_exit(LOOK).await?;
    ensure!(
        status.success(),
        "pg_recvlogical ended with {status}: {}",
        receiver.log().join("\n")
    );
    let (case, events) = (case(shape), f64::from(events));
    notes.note(&case, Quantity::Rate, events / elapsed.as_secs_f64());
    notes.note(&case, Quantity::WalsenderCpu, used.as_secs_f64() * 1e6 / events);
    Ok(())
}
