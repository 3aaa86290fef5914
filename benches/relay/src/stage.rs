//! The servers, and what every scenario needs of them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay_testbed::{
    Database, Postgres, PostgresOptions, QueueKind, QueueOptions, RabbitMq, RabbitMqOptions, RelayBuilder,
    Vhost, processor_time,
};

/// The exchange of every message, and the one queue that is bound to it.
pub(crate) const EXCHANGE: &str = "outbox";
pub(crate) const QUEUE: &str = "bench";

/// PostgreSQL's settings beside the test bed's own; the page names them.
pub(crate) const POSTGRES_SETTINGS: [(&str, &str); 6] = [
    ("shared_buffers", "256MB"),
    // No checkpoint in the middle of a measurement.
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "1h"),
    // It would start in one scenario and not in the next.
    ("autovacuum", "off"),
    ("synchronous_commit", "on"),
    // The test bed's own, named here for the page: what is measured is the relay, not the disk.
    ("fsync", "off"),
];

/// How long a broker or database may go on working off what came before.
const SETTLE: Duration = Duration::from_secs(5);

/// In so long a process uses so little once it has settled.
const SETTLE_INTERVAL: Duration = Duration::from_millis(100);
const SETTLED_SHARE: f64 = 0.1;

/// Private servers, started once for the whole run.
pub(crate) struct Stage {
    pub(crate) postgres: Postgres,
    pub(crate) broker: RabbitMq,
    pub(crate) vhost: Vhost,
    /// The relay's program.
    pub(crate) walrelay: PathBuf,
    /// This program, which is the polling relay too.
    pub(crate) this: PathBuf,
}

impl Stage {
    pub(crate) async fn start(walrelay: &Path) -> Result<Stage> {
        let options = POSTGRES_SETTINGS
            .into_iter()
            .fold(PostgresOptions::default(), |options, (name, value)| {
                options.setting(name, value)
            });
        let (postgres, broker) = tokio::try_join!(
            Postgres::start(options),
            RabbitMq::start(RabbitMqOptions::default())
        )?;
        let vhost = broker.vhost().await?;
        vhost
            .declare_exchange(EXCHANGE, lapin::ExchangeKind::Topic)
            .await?;
        Ok(Stage {
            postgres,
            broker,
            vhost,
            walrelay: walrelay.to_owned(),
            this: std::env::current_exe().context("find this program")?,
        })
    }

    /// An empty queue of this kind, bound for every key; and servers that have come to rest.
    pub(crate) async fn fresh_queue(&self, kind: QueueKind) -> Result<()> {
        self.vhost.delete_queue(QUEUE).await?;
        self.vhost
            .declare_queue(QueueOptions::of_kind(QUEUE, kind))
            .await?;
        self.vhost.bind(QUEUE, EXCHANGE, "#").await?;
        self.settle().await
    }

    /// Waits until the broker has worked off what came before, for a while.
    pub(crate) async fn settle(&self) -> Result<()> {
        let broker = self.broker_pid()?;
        let until = Instant::now() + SETTLE;
        let mut before = processor_time(broker)?;
        loop {
            // What is looked at is what is used in so long.
            tokio::time::sleep(SETTLE_INTERVAL).await;
            let now = processor_time(broker)?;
            let share = (now - before).as_secs_f64() / SETTLE_INTERVAL.as_secs_f64();
            if share < SETTLED_SHARE || Instant::now() > until {
                return Ok(());
            }
            before = now;
        }
    }

    /// The settings of a relay as a user would have them, but for the log and what becomes of rows.
    pub(crate) fn relay(&self, database: &Database, after_publish: &str) -> RelayBuilder {
        RelayBuilder::new(&self.walrelay)
            .database(database)
            .vhost(&self.vhost)
            .text("log.level", "warn")
            .outboxes(&[])
            .extra(&format!(
                "[[outbox]]\ntable = \"public.outbox_events\"\nafter_publish = \"{after_publish}\""
            ))
    }

    pub(crate) fn broker_pid(&self) -> Result<u32> {
        self.broker.pid().context("the broker does not run")
    }

    /// Drops a database with its slots.
    pub(crate) async fn drop_database(&self, database: &Database) -> Result<()> {
        database.drop_slots().await?;
        let client = self.postgres.client("postgres").await?;
        let sql = format!("drop database {} with (force)", database.name());
        client.batch_execute(&sql).await.context("drop the database")
    }
}

/// The server process that streams from a slot, if one does.
pub(crate) async fn walsender(client: &Client, slot: &str) -> Result<Option<u32>> {
    let sql = "select active_pid from pg_replication_slots where slot_name = $1";
    let row = client
        .query_one(sql, &[&slot])
        .await
        .context("find the walsender")?;
    let pid: Option<i32> = row.get(0);
    Ok(pid.and_then(|pid| u32::try_from(pid).ok()))
}
