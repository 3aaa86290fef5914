//! The advisory lock under which set-up, teardown and recover run, one at a time in a database.

use std::time::Duration;

use tokio::time::Instant;

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;

/// The bytes of `walrelay`.
const KEY: i64 = i64::from_be_bytes(*b"walrelay");

/// How long to wait for another holder. Less than an SQL session may live.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often to look whether the lock is free.
const PAUSE: Duration = Duration::from_millis(200);

const PURPOSE: &str = "take the lock for set-up";

/// Takes the lock for the rest of the session. While another session holds it, says which and waits.
///
/// # Errors
/// [`Error::SetUpUnderWay`] if the lock is not free in time, or a query fails.
pub(super) async fn lock(session: &ControlSession) -> Result<(), Error> {
    let give_up = Instant::now() + PATIENCE;
    let mut told = None;
    loop {
        let sql = "select pg_catalog.pg_try_advisory_lock($1)";
        let row = session
            .run(PURPOSE, session.client().query_one(sql, &[&KEY]))
            .await?;
        if column(&row, 0, PURPOSE)? {
            return Ok(());
        }
        let holder = holder(session).await?;
        if Instant::now() >= give_up {
            let holder = holder.unwrap_or_else(|| "no process any more".to_owned());
            return Err(Error::SetUpUnderWay {
                holder,
                waited: PATIENCE,
            });
        }
        if holder.is_some() && told != holder {
            tracing::info!(holder, "waiting for another setup, teardown or recover to end");
            told = holder;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Who holds the lock, in words; nobody, if it has been released since.
async fn holder(session: &ControlSession) -> Result<Option<String>, Error> {
    let sql = "select pid, coalesce(application_name, '') from pg_catalog.pg_locks \
               left join pg_catalog.pg_stat_activity using (pid) \
               where locktype = 'advisory' and granted and objsubid = 1 \
               and (classid::bigint << 32 | objid::bigint) = $1 \
               and pg_locks.database = \
               (select oid from pg_catalog.pg_database where datname = pg_catalog.current_database())";
    let row = session
        .run(PURPOSE, session.client().query_opt(sql, &[&KEY]))
        .await?;
    row.map(|row| {
        let (pid, name): (i32, &str) = (column(&row, 0, PURPOSE)?, column(&row, 1, PURPOSE)?);
        Ok(format!("server process {pid} (application_name \"{name}\")"))
    })
    .transpose()
}
