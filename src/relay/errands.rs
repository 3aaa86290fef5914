//! Errands: what needs SQL beside the stream, one at a time, off the loop.
//!
//! Each does one thing. Those that follow each other at once share a session, which then ends: no idle one holds up a
//! smart shutdown (I8).

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use walrelay_engine::Lsn;
use walrelay_engine::PgTimestamp;
use walrelay_engine::flow::{RetryToken, StoredEvent};
use walrelay_engine::key::{EventKey, TransactionKey};
use walrelay_engine::window::Seq;

use super::session::DatabaseSettings;
use super::task::poll_task;
use crate::fault::Fault;
use crate::postgres::dead_letters::{self, NewDeadLetter, Reason, State};
use crate::postgres::skips::{self, Skip};
use crate::postgres::{
    ControlSession, Error, EventPosition, KeptSession, QualifiedTable, SlotName, flushed_position, guard,
};

/// The pause after a failed errand.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Debug)]
pub(super) enum Errand {
    /// Store a dead letter, if the slot still streams to this walsender (R15).
    Store {
        /// Its event's place in the window.
        seq: Seq,
        /// The dead letter.
        letter: Box<NewDeadLetter>,
        /// Our walsender's process id.
        process_id: i32,
    },
    /// Look at what a person or the settings say about a held event: a skip (R9), the WAL written since (R10).
    LookAfter {
        /// The held event.
        key: EventKey,
        /// Its id, where it has a usable one.
        event_id: Option<String>,
        /// Count the pending dead letters too; without that policy the role need not be allowed to.
        count: bool,
    },
    /// Record that a skip has settled an event.
    RecordSkip {
        /// The skip.
        skip: Skip,
        /// The event.
        key: EventKey,
    },
    /// Look up a dead letter whose retry was asked for (R16).
    LoadRetry {
        /// The request.
        token: RetryToken,
        /// Which dead letter.
        position: EventPosition,
    },
    /// Delete a dead letter that was delivered, or put one back whose retry failed (R15, R16).
    RecordRetry {
        /// What came of it.
        retry: RetryRecord,
        /// Our walsender's process id.
        process_id: i32,
    },
    /// Compare the publication with its baseline (R5).
    Guard,
}

/// What came of a retry.
#[derive(Debug)]
pub(super) struct RetryRecord {
    /// The request.
    pub(super) token: RetryToken,
    /// The event.
    pub(super) position: EventPosition,
    /// Its id, where it has a usable one.
    pub(super) event_id: Option<String>,
    /// Why it failed, also in words; none where it was delivered.
    pub(super) failure: Option<(Reason, String)>,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Done {
    /// A dead letter is stored.
    Stored {
        /// Its event's place in the window.
        seq: Seq,
        /// Where its transaction ends, at most.
        end: Lsn,
        /// How many are pending now.
        pending: u64,
    },
    /// A held event was looked after.
    LookedAfter {
        /// The event.
        key: EventKey,
        /// Whether a person wants it skipped.
        skip: Option<Skip>,
        /// The end of the server's flushed WAL.
        flushed: Lsn,
        /// How many dead letters are pending, if that was asked.
        pending: Option<u64>,
    },
    /// A skip is on record as settled.
    Recorded,
    /// A dead letter was looked up.
    RetryLoaded {
        /// The request.
        token: RetryToken,
        /// The dead letter, where it is being retried.
        event: Option<Box<StoredEvent>>,
    },
    /// What came of a retry is stored.
    RetryRecorded {
        /// What came of it.
        retry: RetryRecord,
        /// Where its transaction ends, at most.
        end: Lsn,
        /// How many dead letters are pending now.
        pending: u64,
    },
    /// The publication is as it was.
    Guarded,
}

/// The one errand that may run at a time.
#[derive(Debug)]
pub(super) struct Errands {
    /// Here while no errand runs.
    session: Option<KeptSession>,
    running: Option<Running>,
    /// The session of the running errand is older than the stream.
    is_outdated: bool,
    not_before: Instant,
}

type Running = JoinHandle<(KeptSession, Result<Done, Error>)>;

impl Errands {
    pub(super) fn new() -> Self {
        Self {
            session: None,
            running: None,
            is_outdated: false,
            not_before: Instant::now(),
        }
    }

    /// Whether an errand may be started.
    pub(super) fn is_free(&self, now: Instant) -> bool {
        self.running.is_none() && now >= self.not_before
    }

    /// When an errand may be started, if one has failed lately.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.is_none().then_some(self.not_before)
    }

    /// Starts an errand.
    pub(super) fn start(&mut self, settings: &DatabaseSettings, errand: Errand) {
        let settings = settings.clone();
        let kept = self.session.take();
        self.running = Some(tokio::spawn(async move {
            let (connector, slot) = (&settings.connector, &settings.source.slot);
            let mut kept = kept.unwrap_or_else(|| KeptSession::new(connector.clone(), slot.clone()));
            let done = run(&mut kept, &settings, errand).await;
            (kept, done)
        }));
    }

    /// The stream is lost, perhaps with its server: the next errand opens a session of its own.
    pub(super) fn stream_lost(&mut self) {
        self.session = None;
        self.is_outdated = self.running.is_some();
    }

    /// Ends the session that is kept, if no errand runs.
    pub(super) async fn close(&mut self) {
        if let Some(mut kept) = self.session.take() {
            kept.close().await;
        }
    }

    /// What came of the errand, once it is over. Pending while none runs.
    ///
    /// # Panics
    /// If the task panicked: half a relay must not live on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Done, Fault>> {
        let Some(running) = &mut self.running else {
            return Poll::Pending;
        };
        let (kept, result) = ready!(poll_task(running, cx));
        self.running = None;
        self.session = Some(kept).filter(|_| !std::mem::take(&mut self.is_outdated));
        if result.is_err() {
            self.not_before = Instant::now() + RETRY;
        }
        Poll::Ready(result.map_err(|error| Fault::new(error.kind(), &error)))
    }
}

async fn run(kept: &mut KeptSession, settings: &DatabaseSettings, errand: Errand) -> Result<Done, Error> {
    let mut session = kept.take().await?;
    let done = carry_out(&mut session, settings, errand).await;
    match done {
        Ok(_) => kept.keep(session),
        Err(_) => session.close().await,
    }
    done
}

async fn carry_out(
    session: &mut ControlSession,
    settings: &DatabaseSettings,
    errand: Errand,
) -> Result<Done, Error> {
    let slot = &settings.source.slot;
    Ok(match errand {
        Errand::Store {
            seq,
            letter,
            process_id,
        } => {
            let end = dead_letters::store(session, &letter, process_id).await?;
            Done::Stored {
                seq,
                end,
                pending: dead_letters::pending_count(session, slot).await?,
            }
        }
        Errand::LookAfter { key, event_id, count } => {
            let skip = skips::take(session, slot, &key, event_id.as_deref()).await?;
            let pending = match count {
                true => Some(dead_letters::pending_count(session, slot).await?),
                false => None,
            };
            Done::LookedAfter {
                key,
                skip,
                flushed: flushed_position(session).await?,
                pending,
            }
        }
        Errand::RecordSkip { skip, key } => {
            skips::settled(session, &skip, &key).await?;
            Done::Recorded
        }
        Errand::LoadRetry { token, position } => Done::RetryLoaded {
            token,
            event: retrying(session, slot, position).await?.map(Box::new),
        },
        Errand::RecordRetry { retry, process_id } => {
            let position = retry.position;
            let end = match &retry.failure {
                None => dead_letters::settle_retry(session, slot, position, process_id).await?,
                Some((reason, detail)) => {
                    dead_letters::fail_retry(session, slot, position, *reason, detail, process_id).await?
                }
            };
            Done::RetryRecorded {
                retry,
                end,
                pending: dead_letters::pending_count(session, slot).await?,
            }
        }
        Errand::Guard => {
            guard::check(session, &settings.source).await?;
            Done::Guarded
        }
    })
}

/// The event of a dead letter, if that is being retried: not every message says the truth (R16).
async fn retrying(
    session: &ControlSession,
    slot: &SlotName,
    position: EventPosition,
) -> Result<Option<StoredEvent>, Error> {
    let Some(letter) = dead_letters::load(session, slot, position).await? else {
        return Ok(None);
    };
    let summary = letter.summary;
    if summary.state != State::Retrying {
        return Ok(None);
    }
    // Printed by us, so it parses; if not, there is no such table.
    let outbox = summary.outbox.parse().unwrap_or(QualifiedTable {
        schema: String::new(),
        name: summary.outbox,
    });
    Ok(Some(StoredEvent {
        key: EventKey {
            transaction: TransactionKey {
                commit_lsn: position.commit_lsn,
                xid: summary.xid,
                commit_time: timestamp(summary.commit_time),
            },
            tx_seq: position.tx_seq,
        },
        event_id: summary.event_id,
        payload_type: dead_letters::payload_type(session, &outbox).await?,
        schema: outbox.schema,
        table: outbox.name,
        columns: letter.columns.0,
    }))
}

fn timestamp(time: SystemTime) -> PgTimestamp {
    let micros = |distance: Duration| i64::try_from(distance.as_micros()).unwrap_or(i64::MAX);
    PgTimestamp::from_unix_micros(match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => micros(after),
        Err(before) => -micros(before.duration()),
    })
}
