//! Load: a writer of small transactions, and the account of what became of each.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;
use walrelay_testbed::{Database, Recorder, Relay, eventually, eventually_some};

use crate::world::{LONG, World};

/// How far the writer runs ahead of the consumer: more than the relay's window, so that there is always a backlog.
const AHEAD: usize = 2_000;

/// Every transaction with this number is rolled back.
const ROLLED_BACK: usize = 7;

/// Commits transactions of one to three events without a pause until it is stopped, reconnecting when it must.
pub(crate) struct Writer {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<Written>>,
}

/// The ids of the events, by what is known of their transactions.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Committed, in commit order.
    pub(crate) committed: Vec<String>,
    rolled_back: Vec<String>,
    /// The connection broke before the answer to the commit.
    unknown: HashSet<String>,
}

impl Writer {
    /// Begins to write.
    pub(crate) fn start(database: &Database, recorder: &Arc<Recorder>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(write(database.clone(), recorder.clone(), stopped));
        Self { stop, task }
    }

    /// Ends the writing.
    pub(crate) async fn stop(self) -> Result<Written> {
        self.stop.send_replace(true);
        self.task.await?
    }

    /// Ends the writing, and waits until everything has been delivered, in commit order and nothing else (I1, I2, I3).
    pub(crate) async fn wait_delivered_in_order(self, recorder: &Recorder) -> Result<Written> {
        let written = self.stop().await?;
        written.wait_delivered(recorder).await?;
        ensure!(written.came_in_commit_order(recorder), "not in commit order");
        Ok(written)
    }
}

impl World {
    /// A relay with a writer before it, and a recorder behind it.
    pub(crate) async fn under_load(&self) -> Result<(Relay, Arc<Recorder>, Writer)> {
        let recorder = Arc::new(self.recorder().await?);
        let relay = self.running().await?;
        let writer = Writer::start(&self.database, &recorder);
        Ok((relay, recorder, writer))
    }
}

impl Written {
    /// Waits until every committed event has been delivered, and fails if another one has (I1, I2).
    pub(crate) async fn wait_delivered(&self, recorder: &Recorder) -> Result<()> {
        recorder.wait_for_distinct(self.committed.len(), LONG).await?;
        let all = || {
            let delivered = recorder.distinct_ids();
            std::future::ready(self.committed.iter().all(|id| delivered.contains(id)))
        };
        eventually("every committed event to be delivered", LONG, all).await?;
        let committed: HashSet<&String> = self.committed.iter().collect();
        let delivered = recorder.distinct_ids();
        ensure!(
            !self.rolled_back.iter().any(|id| delivered.contains(id)),
            "an event of a rolled back transaction was delivered"
        );
        let stray = delivered
            .iter()
            .find(|id| !committed.contains(id) && !self.unknown.contains(*id));
        ensure!(stray.is_none(), "{stray:?} was never written");
        Ok(())
    }

    /// Whether each event came for the first time after all that were committed before it (I3).
    pub(crate) fn came_in_commit_order(&self, recorder: &Recorder) -> bool {
        let mut seen = HashSet::new();
        let first: Vec<String> = recorder
            .message_ids()
            .into_iter()
            .filter(|id| !self.unknown.contains(id) && seen.insert(id.clone()))
            .collect();
        first == self.committed
    }
}

async fn write(
    database: Database,
    recorder: Arc<Recorder>,
    mut stopped: watch::Receiver<bool>,
) -> Result<Written> {
    let mut written = Written::default();
    let mut client = None;
    for number in 1.. {
        let least = written.committed.len().saturating_sub(AHEAD);
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => break,
            caught_up = recorder.wait_for_distinct(least, LONG) => caught_up?,
        }
        let connection = match client.take() {
            Some(client) => client,
            None => connect(&database).await?,
        };
        let (sql, ids) = transaction(number);
        match connection.batch_execute(&sql).await {
            Ok(()) if number % ROLLED_BACK == 0 => written.rolled_back.extend(ids),
            Ok(()) => written.committed.extend(ids),
            Err(_) if number % ROLLED_BACK == 0 => written.rolled_back.extend(ids),
            Err(_) => written.unknown.extend(ids),
        }
        client = Some(connection).filter(|client| !client.is_closed());
    }
    Ok(written)
}

async fn connect(database: &Database) -> Result<Client> {
    let what = "PostgreSQL to be back";
    Ok(eventually_some(what, LONG, async || database.client().await.ok()).await?)
}

fn transaction(number: usize) -> (String, Vec<String>) {
    let ids: Vec<String> = (0..1 + number % 3).map(|_| Uuid::new_v4().to_string()).collect();
    let mut sql = "begin;".to_owned();
    for id in &ids {
        let insert = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values ('{id}', 'order', {}, 'OrderCreated', '{{\"number\": {number}}}');",
            number % 10
        );
        sql.push_str(&insert);
    }
    let end = if number.is_multiple_of(ROLLED_BACK) {
        "rollback"
    } else {
        "commit"
    };
    sql.push_str(end);
    (sql, ids)
}
