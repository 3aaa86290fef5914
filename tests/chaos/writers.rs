//! Writers that carry out their plans whatever becomes of the database.
//!
//! A commit whose answer was lost is neither known to be done nor undone: at the end the database is asked what is
//! committed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;
use walrelay_testbed::Database;

use crate::history::{Committed, digest};
use crate::journal::Journal;
use crate::schedule::{AGGREGATES, Settings, Statement, Transaction, WriterKind};

/// How many events may be committed and not delivered before small transactions wait.
const AHEAD: u64 = 4_000;

/// The same for large ones.
const LARGE_AHEAD: u64 = 1_000;

/// How long to wait before looking again, while a server is down or delivery is behind.
const AGAIN: Duration = Duration::from_millis(20);

/// Makes the writers' tables and functions, once the outbox table is there.
pub(crate) async fn prepare(database: &Database) -> Result<()> {
    let aggregates =
        format!("insert into chaos_aggregates select n, 0 from generate_series(0, {AGGREGATES} - 1) n");
    Ok(database
        .execute(&format!("{};{aggregates}", include_str!("writers.sql")))
        .await?)
}

/// All writers of a run.
#[derive(Debug)]
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<HashSet<Uuid>>>,
}

impl Writers {
    pub(crate) fn start(settings: Settings, database: &Database, journal: &Journal) -> Writers {
        let (stop, committed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let writer = |number| Writer {
            settings,
            number,
            database: database.clone(),
            journal: journal.clone(),
            stop: stop.clone(),
            committed: committed.clone(),
            rolled_back: HashSet::new(),
        };
        let tasks = (0..WriterKind::ALL.len())
            .map(|number| tokio::spawn(writer(number).write()))
            .collect();
        Writers {
            stop,
            committed,
            tasks,
        }
    }

    /// How many events are committed, as far as the writers know.
    pub(crate) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Ends the writing; what was rolled back.
    pub(crate) async fn stop(self) -> Result<HashSet<Uuid>> {
        self.stop.store(true, Ordering::Relaxed);
        let mut rolled_back = HashSet::new();
        for task in self.tasks {
            rolled_back.extend(task.await.context("a writer")?);
        }
        Ok(rolled_back)
    }
}

/// How many events are committed, by the database's account.
pub(crate) async fn count_committed(client: &Client) -> Result<u64> {
    let row = client
        .query_one("select count(*) from chaos_committed", &[])
        .await?;
    Ok(row.get::<_, i64>(0).try_into()?)
}

/// What is committed, by the database's account.
pub(crate) async fn committed(client: &Client) -> Result<HashMap<Uuid, Committed>> {
    let sql = "select id::text, aggregate, number, payload from chaos_committed";
    let rows = client.query(sql, &[]).await?;
    rows.iter()
        .map(|row| {
            let payload: &str = row.get(3);
            let committed = Committed {
                aggregate: row.get(1),
                number: row.get(2),
                digest: digest(payload.as_bytes()),
            };
            Ok((row.get::<_, &str>(0).parse()?, committed))
        })
        .collect()
}

/// What was ever stored as a dead letter.
pub(crate) async fn dead_letters(client: &Client) -> Result<HashSet<Uuid>> {
    let rows = client
        .query("select id::text from chaos_dead_letters", &[])
        .await?;
    rows.iter()
        .map(|row| Ok(row.get::<_, &str>(0).parse()?))
        .collect()
}

struct Writer {
    settings: Settings,
    number: usize,
    database: Database,
    journal: Journal,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    rolled_back: HashSet<Uuid>,
}

impl Writer {
    async fn write(mut self) -> HashSet<Uuid> {
        let mut client = None;
        for number in 0.. {
            let transaction = Transaction::of(&self.settings, self.number, number);
            if !self.turn().await {
                break;
            }
            let connection = match client.take() {
                Some(client) => client,
                None => match self.connect().await {
                    Some(client) => client,
                    None => break,
                },
            };
            let prefix = prefix(self.number, number);
            let done = carry_out(&connection, &prefix, &transaction).await;
            let undone = |statement: &&Statement| transaction.is_rolled_back || statement.is_undone;
            for (place, statement) in transaction.statements.iter().enumerate() {
                if undone(&statement) {
                    self.rolled_back
                        .extend((0..statement.rows).map(|row| id(&prefix, place, row)));
                } else if done.is_ok() {
                    self.committed.fetch_add(statement.rows.into(), Ordering::Relaxed);
                }
            }
            client = Some(connection).filter(|_| done.is_ok());
            tokio::time::sleep(transaction.pause).await;
        }
        self.rolled_back
    }

    /// Waits while delivery is far behind. False: the writing is over.
    async fn turn(&self) -> bool {
        let ahead = match WriterKind::ALL[self.number] {
            WriterKind::Small | WriterKind::Asynchronous => AHEAD,
            WriterKind::Large => LARGE_AHEAD,
        };
        while !self.stop.load(Ordering::Relaxed) {
            let committed = self.committed.load(Ordering::Relaxed);
            if committed.saturating_sub(self.journal.distinct()) <= ahead {
                return true;
            }
            tokio::time::sleep(AGAIN).await;
        }
        false
    }

    /// A connection, however long the database is down; none once the writing is over.
    async fn connect(&self) -> Option<Client> {
        while !self.stop.load(Ordering::Relaxed) {
            if let Ok(client) = self.database.client().await {
                let asynchronous = WriterKind::ALL[self.number] == WriterKind::Asynchronous;
                let sql = if asynchronous {
                    "set synchronous_commit = off"
                } else {
                    ""
                };
                if client.batch_execute(sql).await.is_ok() {
                    return Some(client);
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
        None
    }
}

async fn carry_out(client: &Client, prefix: &str, transaction: &Transaction) -> Result<()> {
    client.batch_execute("begin").await?;
    for (place, statement) in transaction.statements.iter().enumerate() {
        let Statement {
            first,
            span,
            rows,
            size,
            ..
        } = statement;
        let mut sql = format!("select chaos_write('{prefix}{place:04x}', {first}, {span}, {rows}, {size})");
        if statement.is_undone {
            sql = format!("savepoint undone; {sql}; rollback to savepoint undone");
        }
        client.batch_execute(&sql).await?;
        if !statement.pause.is_zero() {
            tokio::time::sleep(statement.pause).await;
        }
    }
    let end = if transaction.is_rolled_back {
        "rollback"
    } else {
        "commit"
    };
    Ok(client.batch_execute(end).await?)
}

/// The beginning of the ids of a transaction: the statement's place and the row's number make them whole.
fn prefix(writer: usize, number: u64) -> String {
    format!("{writer:04x}{number:016x}")
}

fn id(prefix: &str, place: usize, row: u32) -> Uuid {
    let digits = format!("{prefix}{place:04x}{row:08x}");
    Uuid::from_u128(u128::from_str_radix(&digits, 16).unwrap_or_default())
}
