//! A database that is set up, without a broker: for what works while no relay runs.

use anyhow::Result;
use tokio_postgres::Client;
use walrelay::postgres::{
    Candidate, Connector, ControlSession, Error, QualifiedTable, Replication, SetupReport, Source,
    StartOptions, Started, setup,
};
use walrelay_testbed::{CommandOutput, Database, Relay, RelayBuilder, eventually, shared_postgres};

use crate::world::LONG;

/// A database with outbox table, publication, slot and baseline.
pub(crate) struct SetUp {
    pub(crate) database: Database,
    pub(crate) client: Client,
    pub(crate) connector: Connector,
    pub(crate) source: Source,
    /// Never started: it holds the configuration for commands.
    relay: Relay,
}

impl SetUp {
    /// A fresh database of the shared server.
    pub(crate) async fn new() -> Result<Self> {
        Self::on(shared_postgres().await?.database().await?).await
    }

    /// A fresh database of a private server.
    pub(crate) async fn on(database: Database) -> Result<Self> {
        let relay = RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&database)
            .rabbitmq_uri("amqp://127.0.0.1:1/%2f")
            .text("log.level", "warn")
            .build()?;
        let set_up = Self {
            client: database.client().await?,
            connector: Connector::new(database.url().parse()?),
            source: source(&database)?,
            database,
            relay,
        };
        set_up.set_up_again().await?;
        Ok(set_up)
    }

    /// Runs set-up, as `walrelay setup` does.
    pub(crate) async fn set_up_again(&self) -> Result<SetupReport> {
        Ok(setup(&self.connector, &self.source).await?)
    }

    /// A short session as the superuser.
    pub(crate) async fn session(&self) -> Result<ControlSession> {
        Ok(ControlSession::open(&self.connector, &self.source.slot).await?)
    }

    /// A short session as a role that may replicate and nothing else; and the role.
    pub(crate) async fn session_as_plain_role(&self) -> Result<(ControlSession, String)> {
        let role = format!("plain_{}", self.database.name());
        let sql = format!("create role {role} login replication");
        self.client.batch_execute(&sql).await?;
        let url = self.database.url().replace("postgres@", &format!("{role}@"));
        let connector = Connector::new(url.parse()?);
        let session = ControlSession::open(&connector, &self.source.slot).await?;
        Ok((session, role))
    }

    /// A stream from the slot, as the relay's; and its server process.
    pub(crate) async fn stream(&self) -> Result<(Replication, i32)> {
        let options = StartOptions {
            slot: self.source.slot.clone(),
            publication: self.source.publication.clone(),
            wal_sender_timeout: LONG,
            max_event_bytes: 16 * 1024 * 1024,
        };
        // The server lets go of a slot a moment after its session has ended.
        eventually("the slot to be free", LONG, || async {
            let sql = "select exists (select from pg_replication_slots where slot_name = $1 and active)";
            let row = self.client.query_one(sql, &[&self.source.slot.as_str()]).await;
            row.is_ok_and(|row| !row.get::<_, bool>(0))
        })
        .await?;
        let candidate = Candidate::open(&self.connector, &options).await?;
        let Started::Streaming(stream) = candidate.start(&options, self.connector.deadline()).await? else {
            anyhow::bail!("the slot is in use")
        };
        let pid = stream.process_id();
        Ok((stream, pid))
    }

    /// Runs a command of the binary.
    pub(crate) async fn run(&self, arguments: &[&str]) -> Result<CommandOutput> {
        Ok(self.relay.run_command(arguments).await?)
    }

    /// One value as text.
    pub(crate) async fn text(&self, sql: &str) -> Result<String> {
        Ok(self.client.query_one(sql, &[]).await?.try_get(0)?)
    }
}

fn source(database: &Database) -> Result<Source> {
    Ok(Source {
        slot: format!("slot_{}", database.name()).parse()?,
        publication: "walrelay".parse()?,
        outboxes: vec!["public.outbox_events".parse::<QualifiedTable>()?.into()],
        messages: None,
        shard: None,
    })
}

/// An error with its sources and its kind, as an operator reads it.
pub(crate) fn said(error: &Error) -> String {
    format!("{}: {}", error.kind().label(), walrelay::fault::chain(error))
}
