//! The replication slot: created, looked at, dropped.
//!
//! <https://www.postgresql.org/docs/current/view-pg-replication-slots.html>

mod known;

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use walrelay_engine::Lsn;

use super::catalog::{column, position};
use super::connect::Connector;
use super::control::ControlSession;
use super::error::{Error, Step};
use super::identifier::{SlotName, quote_identifier};
use super::replication::{application_name, text_settings};
use super::walsender::{Walsender, milliseconds, within};

pub(super) use known::is_known;
pub use known::{check_known, explain_missing};

/// The output plugin that the relay reads.
pub const PLUGIN: &str = "pgoutput";

/// How long creation waits for each open write transaction; `statement_timeout` does not bound it.
const CREATE_LOCK_TIMEOUT: Duration = Duration::from_secs(20);
/// How long creation may take altogether.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);

/// A slot as the server sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// The output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// Whether it is a logical slot.
    pub logical: bool,
    /// The database it belongs to; `None` for a physical slot.
    pub database: Option<String>,
    /// The server process that streams from it.
    pub active_pid: Option<i32>,
    /// Whether its WAL is still there.
    pub wal_status: Option<WalStatus>,
    /// Bytes of WAL that may still be written before the slot is in danger; `None` without
    /// `max_slot_wal_keep_size`.
    pub safe_wal_size: Option<i64>,
    /// Whether standbys synchronise it, so that it outlives a promotion; never before 17.
    pub failover: bool,
    /// The oldest WAL that the slot keeps.
    pub restart_lsn: Option<Lsn>,
    /// Up to where we have confirmed.
    pub confirmed_flush_lsn: Option<Lsn>,
}

/// Whether the WAL that a slot needs is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalStatus {
    /// Within `max_wal_size`.
    Reserved,
    /// Beyond `max_wal_size`, kept for the slot.
    Extended,
    /// No longer kept, and removed at the next checkpoint unless the slot moves on.
    Unreserved,
    /// Gone: the slot is of no further use.
    Lost,
    /// A state that this version does not know.
    Other,
}

impl WalStatus {
    /// The word for it in metrics, PostgreSQL's own.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Extended => "extended",
            Self::Unreserved => "unreserved",
            Self::Lost => "lost",
            Self::Other => "other",
        }
    }

    fn from_text(text: &str) -> Self {
        match text {
            "reserved" => Self::Reserved,
            "extended" => Self::Extended,
            "unreserved" => Self::Unreserved,
            "lost" => Self::Lost,
            _ => Self::Other,
        }
    }
}

/// A slot just created. Its session keeps the snapshot of what the slot does not stream, until it is closed.
#[derive(Debug)]
pub(super) struct NewSlot {
    /// Transactions that commit from here on are streamed.
    pub(super) consistent_point: Lsn,
    /// The snapshot's name, for `set transaction snapshot`: it holds what committed before.
    pub(super) snapshot: String,
    session: Walsender,
    deadline: Instant,
}

impl NewSlot {
    /// Ends the session. A transaction that took the snapshot up keeps it.
    pub(super) async fn close(self) {
        if let Err(error) = self.session.terminate(self.deadline).await {
            tracing::debug!(error = %error, "session not closed in good order");
        }
    }
}

impl SlotState {
    /// Reads the slot's row; `None` if there is no such slot.
    ///
    /// # Errors
    /// The query fails.
    pub async fn read(session: &ControlSession, slot: &SlotName) -> Result<Option<Self>, Error> {
        const PURPOSE: &str = "look at the replication slot";
        let sql = format!(
            "select {} from pg_catalog.pg_replication_slots r where r.slot_name = $1",
            Self::SELECTED
        );
        let name = slot.as_str();
        let row = session
            .run(PURPOSE, session.client().query_opt(&sql, &[&name]))
            .await?;
        row.map_or(Ok(None), |row| Self::of(&row, 0, PURPOSE))
    }

    /// What [`of`](Self::of) reads, of a row `r` of `pg_replication_slots` that may be none.
    pub(super) const SELECTED: &str = "r.slot_name is not null, r.plugin, coalesce(r.slot_type = 'logical', false), r.database, r.active_pid, \
         r.wal_status, r.safe_wal_size, r.restart_lsn::text, r.confirmed_flush_lsn::text, \
         coalesce((pg_catalog.to_jsonb(r) ->> 'failover')::boolean, false)";

    /// The slot of a row that has [`SELECTED`](Self::SELECTED) from column `first` on.
    pub(super) fn of(row: &Row, first: usize, purpose: &'static str) -> Result<Option<Self>, Error> {
        if !column::<bool>(row, first, purpose)? {
            return Ok(None);
        }
        Ok(Some(Self {
            plugin: column(row, first + 1, purpose)?,
            logical: column(row, first + 2, purpose)?,
            database: column(row, first + 3, purpose)?,
            active_pid: column(row, first + 4, purpose)?,
            wal_status: column::<Option<String>>(row, first + 5, purpose)?
                .as_deref()
                .map(WalStatus::from_text),
            safe_wal_size: column(row, first + 6, purpose)?,
            restart_lsn: position(row, first + 7, purpose)?,
            confirmed_flush_lsn: position(row, first + 8, purpose)?,
            failover: column(row, first + 9, purpose)?,
        }))
    }

    /// Bytes of WAL that the slot retains, given where the log ends.
    #[must_use]
    pub fn retained_bytes(&self, end: Lsn) -> u64 {
        let from = self.restart_lsn.unwrap_or(end);
        end.get().saturating_sub(from.get())
    }

    /// Whether the slot's WAL is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.wal_status == Some(WalStatus::Lost)
    }
}

/// Creates the slot. The publication must exist already.
///
/// It waits for write transactions that are open, 20 s for each and a minute altogether.
///
/// Cancel safety: a dropped future may leave the slot behind.
///
/// # Errors
/// No session, no free slot, no `wal_level = logical`, or a transaction that stays open.
pub(super) async fn create(connector: &Connector, slot: &SlotName) -> Result<NewSlot, Error> {
    let settings: Vec<_> = [
        ("lock_timeout", milliseconds(CREATE_LOCK_TIMEOUT)),
        // The snapshot lives in a transaction that is idle until somebody has taken it up.
        ("idle_in_transaction_session_timeout", "0".to_owned()),
    ]
    .into_iter()
    .chain(text_settings())
    .collect();
    let name = format!("{} setup", application_name(connector, slot));
    let mut session = Walsender::open(connector, &name, &settings).await?;
    let deadline = Instant::now() + CREATE_TIMEOUT;

    // The option list came with 15, which still takes the old form, but for how long?
    let snapshot = match session.server_version.major {
        ..15 => "EXPORT_SNAPSHOT",
        15..17 => "(SNAPSHOT 'export')",
        // Costs nothing where no standby synchronises it.
        _ => "(SNAPSHOT 'export', FAILOVER)",
    };
    let command = format!(
        "CREATE_REPLICATION_SLOT {} LOGICAL {PLUGIN} {snapshot}",
        quote_identifier(slot.as_str())
    );
    let query = session.query(&command, Step::CreateSlot);
    let rows = within(deadline, Step::CreateSlot, query).await?;
    let row = rows.first().map(Vec::as_slice).unwrap_or_default();
    let [_, Some(point), Some(snapshot), ..] = row else {
        return Err(Error::Protocol {
            step: Step::CreateSlot,
            what: "an answer without consistent point and snapshot",
        });
    };
    let consistent_point = point.parse().map_err(|_| Error::Protocol {
        step: Step::CreateSlot,
        what: "a consistent point that is no position",
    })?;
    Ok(NewSlot {
        consistent_point,
        snapshot: snapshot.clone(),
        session,
        deadline: deadline + CREATE_TIMEOUT,
    })
}

/// Drops the slot, and with it the server's memory of what has been delivered.
///
/// # Errors
/// The slot does not exist, or a process streams from it (55006: never dropped under a running relay).
pub async fn drop(session: &ControlSession, slot: &SlotName) -> Result<(), Error> {
    let sql = "select pg_catalog.pg_drop_replication_slot($1)";
    let name = slot.as_str();
    session
        .run_step(Step::DropSlot, session.client().execute(sql, &[&name]))
        .await?;
    Ok(())
}
