//! A database of a test's own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};

use crate::error::{Attempt as _, Result};
use crate::wait::eventually_some;

/// A fresh database in a private server; it goes with the server.
#[derive(Debug, Clone)]
pub struct Database {
    name: String,
    socket_dir: PathBuf,
    port: u16,
}

impl Database {
    pub(crate) async fn create(socket_dir: &Path, port: u16) -> Result<Database> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let name = format!("test_{}", id.get(..12).unwrap_or(&id));
        let client = connect(socket_dir, port, "postgres").await?;
        // template0, because nobody is ever connected to it.
        let sql = format!("create database {name} template template0");
        client
            .batch_execute(&sql)
            .await
            .attempt(format!("create database {name}"))?;
        Ok(Database {
            name,
            socket_dir: socket_dir.to_owned(),
            port,
        })
    }

    /// One that is there already.
    pub(crate) fn existing(name: &str, socket_dir: &Path, port: u16) -> Database {
        Database {
            name: name.to_owned(),
            socket_dir: socket_dir.to_owned(),
            port,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server's TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its libpq URL, over TCP, as the superuser.
    pub fn url(&self) -> String {
        self.url_through(self.port)
    }

    /// Its libpq URL by way of another port of 127.0.0.1: a [`TcpProxy`](crate::TcpProxy)'s.
    pub fn url_through(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/{}", self.name)
    }

    /// Connects as the superuser over the Unix socket; the connection's task runs in the caller's runtime.
    ///
    /// # Errors
    /// [`Error::Postgres`](crate::Error::Postgres).
    pub async fn client(&self) -> Result<Client> {
        connect(&self.socket_dir, self.port, &self.name).await
    }

    /// Runs statements on a connection of their own.
    ///
    /// # Errors
    /// [`Error::Postgres`](crate::Error::Postgres).
    pub async fn execute(&self, sql: &str) -> Result<()> {
        self.client()
            .await?
            .batch_execute(sql)
            .await
            .attempt(format!("execute {sql:.60}"))
    }

    /// Drops the database's replication slots, ending their walsenders first, so that tests on a shared
    /// server do not use them up.
    ///
    /// # Errors
    /// [`Error::Postgres`](crate::Error::Postgres), or [`Error::Timeout`](crate::Error::Timeout) when a
    /// walsender comes back again and again: stop the relay first.
    pub async fn drop_slots(&self) -> Result<()> {
        let client = self.client().await?;
        let sql = "select count(pg_terminate_backend(active_pid)) from pg_replication_slots where database = current_database();
                   select pg_drop_replication_slot(slot_name) from pg_replication_slots
                   where database = current_database() and not active;";
        let left = "select from pg_replication_slots where database = current_database()";
        eventually_some("the slots to be dropped", Duration::from_secs(10), async || {
            // A slot that became active in between is an error here; the next round ends its walsender.
            drop(client.batch_execute(sql).await);
            match client.query(left, &[]).await {
                Ok(rows) => rows.is_empty().then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        })
        .await?
        .attempt("drop the slots")
    }
}

pub(crate) fn config(socket_dir: &Path, port: u16, database: &str) -> Config {
    let mut config = Config::new();
    config
        .host_path(socket_dir)
        .port(port)
        .user("postgres")
        .dbname(database)
        .application_name("walrelay-testbed");
    config.connect_timeout(Duration::from_secs(10));
    config
}

pub(crate) async fn connect(socket_dir: &Path, port: u16, database: &str) -> Result<Client> {
    let connecting = config(socket_dir, port, database).connect(NoTls).await;
    let (client, connection) = connecting.attempt(format!("connect to database {database}"))?;
    // It ends with the client; what went wrong is told by the client's next query.
    tokio::spawn(connection);
    Ok(client)
}
