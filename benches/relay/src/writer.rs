//! Writers that commit events at a steady rate, each event in a transaction of its own.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use walrelay_testbed::Database;

use crate::backlog::{AGGREGATES, payload};
use crate::consumer::nanoseconds;

/// What one session commits in a second without falling behind.
const PER_WRITER: u32 = 800;

/// Threads that write, each over a session of its own.
pub(crate) struct Writers {
    threads: Vec<JoinHandle<Result<u64>>>,
    began: Instant,
}

impl Writers {
    /// Begins to commit `rate` events a second, for so long.
    pub(crate) fn start(database: &Database, rate: u32, length: Duration) -> Writers {
        let count = rate.div_ceil(PER_WRITER);
        let began = Instant::now();
        let threads = (0..count)
            .map(|index| {
                let database = database.clone();
                let interval = Duration::from_secs_f64(f64::from(count) / f64::from(rate));
                let offset = interval.mul_f64(f64::from(index) / f64::from(count));
                std::thread::spawn(move || write(&database, index, interval, offset, length))
            })
            .collect();
        Writers { threads, began }
    }

    /// Waits for their end: how many events they committed, and how many that were a second.
    pub(crate) async fn join(self) -> Result<(u64, f64)> {
        let Writers { threads, began } = self;
        let joining = tokio::task::spawn_blocking(move || {
            let mut written = 0;
            for thread in threads {
                written += thread.join().map_err(|_panic| anyhow!("a writer panicked"))??;
            }
            anyhow::Ok(written)
        });
        let written = joining.await??;
        Ok((written, written as f64 / began.elapsed().as_secs_f64()))
    }
}

/// Commits an event at each interval, or at once where it is late.
fn write(
    database: &Database,
    index: u32,
    interval: Duration,
    offset: Duration,
    length: Duration,
) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let connecting = async {
        let client = database.client().await?;
        let insert = client
            .prepare(
                "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                 values (gen_random_uuid(), 'order', $1, 'OrderCreated', $2::text::jsonb)",
            )
            .await?;
        anyhow::Ok((client, insert))
    };
    let (client, insert) = runtime.block_on(connecting)?;
    let began = Instant::now();
    let mut due = began + offset;
    let mut written = 0;
    while due < began + length {
        let now = Instant::now();
        if now < due {
            // The thread's own sleep: a runtime's timer only knows milliseconds.
            std::thread::sleep(due - now);
        }
        let aggregate = i64::from((index * 1_000_003 + written as u32) % AGGREGATES);
        let text = payload(nanoseconds());
        runtime
            .block_on(client.execute(&insert, &[&aggregate, &text]))
            .context("commit an event")?;
        written += 1;
        due += interval;
    }
    Ok(written)
}
