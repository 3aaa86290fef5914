//! Retention: rows that were sent long ago are deleted in small batches, beside the stream and never in its way.
//!
//! A task of its own does a round: a short session, batches with rests between them. A failure is told and counted; delivery
//! does not notice. Only the active instance does so, while it streams.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::session::DatabaseSettings;
use super::status::RetentionStatus;
use super::task::poll_task;
use crate::fault::{Fault, FaultKind};
use crate::postgres::{ControlSession, Error, Outbox, Purge};
use crate::repeats::{Repeats, Telling};

/// Rows deleted by one statement at most.
const BATCH: u32 = 1000;

/// How long a round goes on: its session holds up a smart shutdown.
const ROUND: Duration = Duration::from_secs(5);

/// The shortest rest after a batch, which is as long as the batch took at least; and the rest between two rounds.
const REST: Duration = Duration::from_millis(100);
const ROUND_REST: Duration = Duration::from_secs(1);

/// The first way through waits so long, since there may be a backlog after a start.
const FIRST: Duration = Duration::from_secs(10);

/// A table whose old rows go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSettings {
    /// The table.
    pub outbox: Outbox,
    /// How long rows stay after they were marked as sent.
    pub keep_sent: Duration,
}

/// The tables, and the one round that may run at a time.
#[derive(Debug)]
pub(super) struct Retention {
    tables: Vec<Kept>,
    running: Option<JoinHandle<Round>>,
    status: RetentionStatus,
}

#[derive(Debug)]
struct Kept {
    settings: RetentionSettings,
    /// The way through the table that a round has not finished.
    purge: Option<Purge>,
    due: Instant,
    fault: Option<Fault>,
    told: Repeats<FaultKind>,
}

/// What a round did.
#[derive(Debug)]
struct Round {
    /// Of which table.
    at: usize,
    rows: u64,
    ended: Result<Option<Left>, Error>,
}

/// The way that is left, and how long to rest before it.
#[derive(Debug)]
struct Left {
    purge: Purge,
    rest: Duration,
}

impl RetentionSettings {
    /// From the end of one way through the table to the next: what is due then is little.
    fn interval(&self) -> Duration {
        (self.keep_sent / 60).clamp(Duration::from_secs(1), Duration::from_secs(3600))
    }
}

impl Retention {
    pub(super) fn new(settings: &[RetentionSettings], now: Instant) -> Self {
        let tables = settings.iter().map(|settings| Kept {
            due: now + settings.interval().min(FIRST),
            settings: settings.clone(),
            purge: None,
            fault: None,
            told: Repeats::default(),
        });
        Self {
            tables: tables.collect(),
            running: None,
            status: RetentionStatus::default(),
        }
    }

    /// Starts the next round, if one is due and none runs.
    pub(super) fn start_if_due(&mut self, database: &DatabaseSettings, now: Instant) {
        if self.running.is_some() {
            return;
        }
        let next = self
            .tables
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, kept)| kept.due);
        let Some((at, kept)) = next.filter(|(_, kept)| now >= kept.due) else {
            return;
        };
        let (database, settings, purge) = (database.clone(), kept.settings.clone(), kept.purge.take());
        self.running = Some(tokio::spawn(async move {
            let mut rows = 0;
            let ended = round(&database, &settings, purge, &mut rows).await;
            Round { at, rows, ended }
        }));
    }

    /// When a round is due, if none runs.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = self.tables.iter().map(|kept| kept.due).min();
        due.filter(|_| self.running.is_none())
    }

    /// Gives up the round that runs: the database session is gone, or the relay stops.
    pub(super) fn interrupt(&mut self) {
        if let Some(running) = self.running.take() {
            running.abort();
        }
    }

    /// How it stands, once a round has ended. Pending while none runs.
    ///
    /// # Panics
    /// If the task panicked: half a relay must not live on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<&RetentionStatus> {
        let Some(running) = &mut self.running else {
            return Poll::Pending;
        };
        let round = ready!(poll_task(running, cx));
        self.running = None;
        self.take_in(round, Instant::now());
        Poll::Ready(&self.status)
    }

    fn take_in(&mut self, round: Round, now: Instant) {
        let Some(kept) = self.tables.get_mut(round.at) else {
            return;
        };
        let table = &kept.settings.outbox.table;
        self.status.deleted += round.rows;
        if round.rows > 0 {
            tracing::debug!(table = %table, rows = round.rows, "old rows deleted");
        }
        match round.ended {
            Ok(left) => {
                let interval = kept.settings.interval();
                kept.due = now + left.as_ref().map_or(interval, |left| left.rest.max(ROUND_REST));
                kept.purge = left.map(|left| left.purge);
                if kept.fault.take().is_some() {
                    kept.told.over();
                    tracing::info!(table = %table, "retention works again");
                }
            }
            Err(error) => {
                kept.due = now + kept.settings.interval().min(Duration::from_secs(60));
                self.status.failures += 1;
                let fault = Fault::new(error.kind(), &error);
                let (cause, remedy) = (fault.kind.label(), fault.kind.remedy());
                let error = fault.message.as_str();
                match kept.told.note(fault.kind, now) {
                    Telling::News => {
                        tracing::warn!(table = %table, cause, error, remedy, "retention fails; events flow meanwhile");
                    }
                    Telling::Repeated { repeated, seconds } => {
                        tracing::warn!(table = %table, cause, error, repeated, seconds, "retention still fails");
                    }
                    Telling::Quiet => {
                        tracing::debug!(table = %table, cause, error, "retention fails as before")
                    }
                }
                kept.fault = Some(fault);
            }
        }
        self.status.fault = self.tables.iter().find_map(|kept| kept.fault.clone());
    }
}

impl Drop for Retention {
    fn drop(&mut self) {
        self.interrupt();
    }
}

/// Deletes old rows for a while. `rows` counts them even if it fails.
async fn round(
    database: &DatabaseSettings,
    settings: &RetentionSettings,
    purge: Option<Purge>,
    rows: &mut u64,
) -> Result<Option<Left>, Error> {
    let session = ControlSession::open(&database.connector, &database.source.slot).await?;
    let ended = batches(&session, settings, purge, rows).await;
    session.close().await;
    ended
}

async fn batches(
    session: &ControlSession,
    settings: &RetentionSettings,
    purge: Option<Purge>,
    rows: &mut u64,
) -> Result<Option<Left>, Error> {
    let started = Instant::now();
    let mut purge = match purge {
        Some(purge) => purge,
        None => Purge::prepare(session, &settings.outbox, settings.keep_sent).await?,
    };
    loop {
        let begun = Instant::now();
        let purged = purge.next(session, BATCH).await?;
        *rows += purged.rows;
        if purged.is_over {
            return Ok(None);
        }
        // A batch without rows has only looked.
        let least = if purged.rows == 0 { Duration::ZERO } else { REST };
        let rest = begun.elapsed().max(least);
        // No session is left idle for longer.
        if started.elapsed() >= ROUND || rest > ROUND_REST {
            return Ok(Some(Left { purge, rest }));
        }
        tokio::time::sleep(rest).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::QualifiedTable;

    #[test]
    fn a_table_is_gone_through_once_an_hour_at_most_and_more_often_where_rows_stay_shortly() {
        let interval = |keep_sent| {
            RetentionSettings {
                outbox: "outbox".parse::<QualifiedTable>().unwrap().into(),
                keep_sent: Duration::from_secs(keep_sent),
            }
            .interval()
            .as_secs()
        };
        assert_eq!(interval(7 * 86_400), 3600);
        assert_eq!(interval(3600), 60);
        assert_eq!(interval(1), 1);
    }
}
