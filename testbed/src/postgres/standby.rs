//! A physical standby of a private server.

use std::process::Command;

use super::{DEADLINE, Postgres, PostgresOptions, quoted};
use crate::account::give;
use crate::database::Database;
use crate::error::{Attempt as _, Error, Result};
use crate::folder::Folder;
use crate::ports::free_port;
use crate::process;
use crate::wait::eventually_some;

/// The standby's physical slot on the primary.
const SLOT: &str = "standby";

impl Postgres {
    /// Makes a physical standby of this server and starts it: about 2 s, in which this server is stopped and started again. Its
    /// slot on the primary is named `standby`. A server has one standby at most.
    ///
    /// The copy keeps all settings; those of `options` come after them.
    ///
    /// # Errors
    /// As [`start`](Self::start); [`Error::Postgres`].
    pub async fn standby(&mut self, options: &PostgresOptions) -> Result<Postgres> {
        let client = self.client("postgres").await?;
        let sql = "select from pg_create_physical_replication_slot($1, true)";
        client
            .query(sql, &[&SLOT])
            .await
            .attempt("make a physical slot")?;
        drop(client);
        self.stop(super::StopMode::Fast).await?;
        let mut standby = self.copy().await?;
        self.start_again().await?;
        standby.follow(self, options)?;
        standby.start_again().await?;
        Ok(standby)
    }

    /// Makes a standby the primary, and waits until it is.
    ///
    /// # Errors
    /// [`Error::Postgres`].
    pub async fn promote(&self) -> Result<()> {
        let client = self.client("postgres").await?;
        let row = client.query_one("select pg_promote(true, 60)", &[]).await;
        match row.attempt("promote")?.get(0) {
            true => Ok(()),
            false => Err(Error::Unexpected("no promotion within a minute".to_owned())),
        }
    }

    /// Waits until this standby has replayed all that its primary has written so far.
    ///
    /// # Errors
    /// [`Error::Postgres`], [`Error::Timeout`].
    pub async fn wait_replayed(&self, primary: &Postgres) -> Result<()> {
        let client = primary.client("postgres").await?;
        let row = client
            .query_one("select pg_current_wal_insert_lsn()::text", &[])
            .await;
        let written: String = row.attempt("ask for the end of the WAL")?.get(0);
        let client = self.client("postgres").await?;
        let sql = "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn";
        eventually_some("the standby to catch up", DEADLINE, async || {
            match client.query_one(sql, &[&written]).await {
                Ok(row) => row.get::<_, bool>(0).then_some(Ok(())),
                Err(error) => Some(Err(error)),
            }
        })
        .await?
        .attempt("ask how far the standby is")
    }

    /// A database of the other server of a pair, as it is in this one.
    pub fn same_database(&self, other: &Database) -> Database {
        Database::existing(other.name(), &self.socket_dir(), self.port)
    }

    /// The major version of the server.
    ///
    /// # Errors
    /// [`Error::Postgres`].
    pub async fn major_version(&self) -> Result<i32> {
        let client = self.client("postgres").await?;
        let sql = "select current_setting('server_version_num')::int / 10000";
        let row = client.query_one(sql, &[]).await;
        Ok(row.attempt("ask for the version")?.get(0))
    }

    /// Copies the stopped server's files.
    async fn copy(&self) -> Result<Postgres> {
        let folder = Folder::new("postgres-")?;
        let socket_dir = folder.path().join("socket");
        std::fs::create_dir(&socket_dir).attempt("make a folder for the socket")?;
        give(&socket_dir, self.account)?;
        let mut command = Command::new("cp");
        command.arg("-a").arg(self.data_dir()).arg(folder.path());
        process::run("cp".to_owned(), command).await?;
        Ok(Postgres {
            process: None,
            bin_dir: self.bin_dir.clone(),
            account: self.account,
            port: free_port(),
            folder,
        })
    }

    /// Makes a copy a standby.
    fn follow(&self, primary: &Postgres, options: &PostgresOptions) -> Result<()> {
        // Slots are no part of what a standby has of its primary.
        let slots = self.data_dir().join("pg_replslot");
        std::fs::remove_dir_all(&slots).attempt("remove the copied slots")?;
        std::fs::create_dir(&slots).attempt("make a folder for slots")?;
        give(&slots, self.account)?;
        let signal = self.folder.write("data/standby.signal", "", 0o600)?;
        give(&signal, self.account)?;
        // With dbname, as synchronising slots asks for.
        let conninfo = format!(
            "host={} port={} user=postgres dbname=postgres application_name={SLOT}",
            primary.socket_dir().display(),
            primary.port
        );
        let mut conf = format!(
            "port = {}\nunix_socket_directories = {}\nprimary_conninfo = {}\nprimary_slot_name = '{SLOT}'\n\
             hot_standby_feedback = on\nwal_receiver_status_interval = 1\nwal_retrieve_retry_interval = '200ms'\n",
            self.port,
            quoted(&self.socket_dir().to_string_lossy()),
            quoted(&conninfo),
        );
        for (name, value) in &options.settings {
            conf.push_str(&format!("{name} = {}\n", quoted(value)));
        }
        let path = self.data_dir().join("postgresql.conf");
        let old = std::fs::read_to_string(&path).attempt("read postgresql.conf")?;
        std::fs::write(&path, old + &conf).attempt("write postgresql.conf")
    }
}
