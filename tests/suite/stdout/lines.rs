//! A relay without a broker, and the reader of its lines.

use std::io::{BufRead as _, BufReader, PipeReader, Read as _};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio_postgres::Client;
use walrelay_testbed::{Database, Relay, RelayBuilder, eventually_some, shared_postgres};

use crate::world::LONG;

/// A database, and no broker anywhere.
pub(super) struct Alone {
    pub(super) database: Database,
    pub(super) client: Client,
}

impl Alone {
    pub(super) async fn new() -> Result<Self> {
        let database = shared_postgres().await?.database().await?;
        let client = database.client().await?;
        Ok(Self { database, client })
    }

    pub(super) fn relay(&self) -> RelayBuilder {
        RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&self.database)
            .text("delivery.sink", "stdout")
    }

    /// A relay that writes into a pipe, and the end to read.
    pub(super) async fn piped(&self, relay: RelayBuilder) -> Result<(Relay, Lines)> {
        let mut relay = relay.build()?;
        relay.setup().await?;
        let lines = Lines::of(&mut relay)?;
        relay.wait_ready(LONG).await?;
        Ok((relay, lines))
    }

    pub(super) async fn flushed(&self) -> Result<i64> {
        let sql =
            "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = $1";
        let slot = format!("slot_{}", self.database.name());
        Ok(self.client.query_one(sql, &[&slot]).await?.get(0))
    }

    pub(super) async fn wait_flushed(&self, position: i64) -> Result<()> {
        eventually_some("the position", LONG, async || match self.flushed().await {
            Ok(flushed) if flushed < position => None,
            other => Some(other.map(drop)),
        })
        .await?
    }
}

/// The end of a relay's pipe. Nothing is read that was not asked for, but for what a buffer takes.
pub(super) struct Lines(Option<BufReader<PipeReader>>);

impl Lines {
    /// Starts the relay with its output going here.
    pub(super) fn of(relay: &mut Relay) -> Result<Self> {
        let (reader, writer) = std::io::pipe()?;
        relay.start_into(writer)?;
        Ok(Self(Some(BufReader::new(reader))))
    }

    /// The next so many lines, understood.
    pub(super) async fn next(&mut self, count: usize) -> Result<Vec<Value>> {
        let lines = self.next_texts(count).await?;
        Ok(lines
            .iter()
            .map(|line| serde_json::from_str(line))
            .collect::<Result<_, _>>()?)
    }

    /// The next so many lines, each with its end.
    pub(super) async fn next_texts(&mut self, count: usize) -> Result<Vec<String>> {
        let mut reader = self.0.take().context("an end to read")?;
        let reading = tokio::task::spawn_blocking(move || {
            let mut lines = Vec::with_capacity(count);
            for _ in 0..count {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                ensure!(
                    line.ends_with('\n'),
                    "the end of the lines, or half a line: {line}"
                );
                lines.push(line);
            }
            Ok((reader, lines))
        });
        let (reader, lines) = tokio::time::timeout(LONG, reading).await???;
        self.0 = Some(reader);
        Ok(lines)
    }

    /// What is left after the relay has ended.
    pub(super) fn rest(self) -> Result<String> {
        let mut rest = String::new();
        self.0.context("an end to read")?.read_to_string(&mut rest)?;
        Ok(rest)
    }
}
