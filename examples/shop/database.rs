//! Sessions with PostgreSQL: a pool that forgets every session whose state is not known.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::{Client, Config, Error, NoTls};

/// How many sessions are open at most.
const SESSIONS: usize = 16;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A transaction whose client is gone must not keep its locks for long: the next try waits for them.
const SETTINGS: &str = "-c lock_timeout=20s -c idle_in_transaction_session_timeout=20s";

/// Sessions that wait to be used again.
#[derive(Debug)]
pub struct Pool {
    config: Config,
    idle: Mutex<Vec<Client>>,
    permits: Semaphore,
}

/// A session for one request. It goes back to the pool by [`Session::give_back`] only: one that is dropped on the way, by
/// an error or because the client has hung up, is closed, and PostgreSQL rolls its open transaction back.
#[derive(Debug)]
pub struct Session<'a> {
    pub(crate) client: Client,
    pool: &'a Pool,
    /// Nobody closes the semaphore, so it is there.
    _permit: Option<SemaphorePermit<'a>>,
}

impl Pool {
    /// A pool that connects when it has to.
    pub fn new(config: &Config) -> Pool {
        Pool {
            config: with_settings(config),
            idle: Mutex::default(),
            permits: Semaphore::new(SESSIONS),
        }
    }

    /// A session; waits while all are in use.
    ///
    /// # Errors
    /// When PostgreSQL cannot be reached or refuses.
    pub async fn session(&self) -> Result<Session<'_>, Error> {
        let permit = self.permits.acquire().await.ok();
        let client = match self.take_idle() {
            Some(client) => client,
            None => connect(&self.config).await?,
        };
        Ok(Session {
            client,
            pool: self,
            _permit: permit,
        })
    }

    fn take_idle(&self) -> Option<Client> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|client| !client.is_closed());
        idle.pop()
    }
}

impl Session<'_> {
    /// Back to the pool; only outside of a transaction.
    pub fn give_back(self) {
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(self.client);
    }
}

/// A session of one's own. It ends when the client is dropped.
pub(crate) async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    // What goes wrong with the connection is told by the client's next statement.
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) fn with_settings(config: &Config) -> Config {
    let mut config = config.clone();
    let options = match config.get_options() {
        Some(options) => format!("{options} {SETTINGS}"),
        None => SETTINGS.to_owned(),
    };
    config.options(options).connect_timeout(CONNECT_TIMEOUT);
    config
}

/// Runs a migration where `table` is missing; where it is there, not even a lock is taken. One program at a time, since
/// `create … if not exists` can collide with itself.
pub(crate) async fn migrate(client: &mut Client, table: &str, sql: &str) -> Result<(), Error> {
    let is_there = "select to_regclass($1::text) is not null";
    if client.query_one(is_there, &[&table]).await?.try_get(0)? {
        return Ok(());
    }
    const LOCK: i64 = 0x73_68_6f_70;
    let transaction = client.transaction().await?;
    transaction
        .execute("select pg_advisory_xact_lock($1)", &[&LOCK])
        .await?;
    transaction.batch_execute(sql).await?;
    transaction.commit().await
}
