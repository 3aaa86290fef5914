//! Errands: what needs SQL beside the stream, one at a time, off the loop.
//!
//! Each does one thing. Those that follow each other at once share a session, which then ends: no idle one holds up a
//! smart shutdown (I8).

mod load;

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use walrelay_engine::Lsn;
use walrelay_engine::flow::{RetryToken, StoredEvent};
use walrelay_engine::key::EventKey;
use walrelay_engine::marks::TableNo;
use walrelay_engine::window::Seq;

use super::backfill::{Answer, Request};
use super::session::DatabaseSettings;
use super::status::SlotSample;
use super::task::poll_task;
use crate::fault::Fault;
use crate::postgres::dead_letters::{self, NewDeadLetter, RetryFate};
use crate::postgres::skips::{self, Skip};
use crate::postgres::slot::{SlotState, WalStatus};
use crate::postgres::{
    ControlSession, Error, EventPosition, KeptSession, SlotName, backfill, flushed_position, guard,
};

/// The pause after a failed errand.
const RETRY: Duration = Duration::from_secs(1);

/// What is to be done.
#[derive(Debug)]
pub(super) enum Errand {
    /// Store dead letters, if the slot still streams to this walsender (R15).
    Store {
        /// Each with its event's place in the window.
        letters: Vec<(Seq, NewDeadLetter)>,
        /// Our walsender's process id.
        process_id: i32,
        /// How many are pending.
        pending: Pending,
    },
    /// Look at what a person or the settings say about a held event: a skip (R9), the WAL written since (R10).
    LookAfter {
        /// The held event.
        key: EventKey,
        /// Its table's place in the configuration.
        table: TableNo,
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
    /// Load dead letters whose retries were asked for (R16).
    LoadRetries {
        /// The requests, each with the key of its dead letter.
        requests: Vec<(RetryToken, EventPosition)>,
        /// Bytes to load at most, or a single larger one.
        bytes: usize,
        /// Our walsender's process id.
        process_id: i32,
    },
    /// Delete dead letters that were delivered, and put back those whose retry failed (R15, R16).
    RecordRetries {
        /// What came of each.
        retries: Vec<RetryRecord>,
        /// Our walsender's process id.
        process_id: i32,
        /// How many dead letters are pending.
        pending: Pending,
    },
    /// Strike out backfilled rows that are settled, and load the next (R22).
    Backfill {
        /// Which.
        request: Request,
        /// Our walsender's process id.
        process_id: i32,
        /// The largest value that is loaded.
        max_event_bytes: usize,
    },
    /// Compare the publication with its baseline (R5).
    Guard,
}

/// Which errand it is, whatever its particulars.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrandKind {
    Store,
    LookAfter,
    RecordSkip,
    LoadRetries,
    RecordRetries,
    Backfill,
    Guard,
}

impl Errand {
    const fn kind(&self) -> ErrandKind {
        match self {
            Self::Store { .. } => ErrandKind::Store,
            Self::LookAfter { .. } => ErrandKind::LookAfter,
            Self::RecordSkip { .. } => ErrandKind::RecordSkip,
            Self::LoadRetries { .. } => ErrandKind::LoadRetries,
            Self::RecordRetries { .. } => ErrandKind::RecordRetries,
            Self::Backfill { .. } => ErrandKind::Backfill,
            Self::Guard => ErrandKind::Guard,
        }
    }
}

/// How many dead letters are pending: counting them takes a look at each, so what is known is carried on where it will
/// do. A person's discards make it too high, never too low.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending {
    /// As many as are known of, if they were counted lately.
    pub(super) known: Option<u64>,
    /// With so many they are counted, since the number matters then (R10).
    pub(super) exact_from: u64,
}

impl Pending {
    /// After a transaction that has changed `known` to this.
    async fn after(
        self,
        session: &ControlSession,
        slot: &SlotName,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<Counted, Error> {
        match self.known.map(change).filter(|count| *count < self.exact_from) {
            Some(count) => Ok(Counted {
                count,
                is_exact: false,
            }),
            None => Ok(Counted {
                count: dead_letters::pending_count(session, slot).await?,
                is_exact: true,
            }),
        }
    }
}

/// How many dead letters are pending.
#[derive(Debug, Clone, Copy)]
pub(super) struct Counted {
    pub(super) count: u64,
    /// Counted just now.
    pub(super) is_exact: bool,
}

/// A retry that is over.
#[derive(Debug)]
pub(super) struct RetryRecord {
    /// The request.
    pub(super) token: RetryToken,
    /// The event's id, where it has a usable one.
    pub(super) event_id: Option<String>,
    /// What came of it.
    pub(super) fate: RetryFate,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Done {
    /// Dead letters are stored.
    Stored {
        /// Their events' places in the window.
        seqs: Vec<Seq>,
        /// Where their transaction ends, at most.
        end: Lsn,
        /// How many are pending now.
        pending: Counted,
    },
    /// A held event was looked after.
    LookedAfter {
        /// The event.
        key: EventKey,
        /// Whether a person wants it skipped.
        skip: Option<Skip>,
        /// The end of the server's flushed WAL.
        flushed: Lsn,
        /// How much more may be written before the slot is lost, where there is a limit.
        safe_bytes: Option<i64>,
        /// How many dead letters are pending, if that was asked.
        pending: Option<Counted>,
    },
    /// A skip is on record as settled.
    Recorded,
    /// Dead letters were looked up, in the order of their requests. What is not among them is left for the next time.
    RetriesLoaded(Vec<(RetryToken, LoadedRetry)>),
    /// What came of retries is stored.
    RetriesRecorded {
        /// What came of each.
        retries: Vec<RetryRecord>,
        /// Where their transaction ends, at most.
        end: Lsn,
        /// How many dead letters are pending now.
        pending: Counted,
    },
    /// Rows were struck out and loaded.
    Backfill(Box<Answer>),
    /// The publication is as it was.
    Guarded {
        /// How the slot stands, if it is still there.
        sample: Option<SlotSample>,
        /// How many dead letters are pending, if the role may count them.
        dead_letters: Option<u64>,
        /// Rows of our tables wait to be sent before the stream.
        are_due: bool,
    },
}

/// What a retry found.
#[derive(Debug)]
pub(super) enum LoadedRetry {
    /// Its dead letter, as an event.
    Event(Box<StoredEvent>),
    /// None that is being retried.
    NotRetrying(EventPosition),
}

/// The one errand that may run at a time.
#[derive(Debug)]
pub(super) struct Errands {
    /// Here while no errand runs.
    session: Option<KeptSession>,
    running: Option<(ErrandKind, Running)>,
    /// The session of the running errand is older than the stream.
    is_outdated: bool,
    not_before: Instant,
}

type Running = JoinHandle<(KeptSession, Result<Done, Error>)>;

/// What came of an errand.
#[derive(Debug)]
pub(super) struct Ended {
    /// Which one.
    pub(super) kind: ErrandKind,
    /// Its result.
    pub(super) result: Result<Done, Fault>,
    /// The stream of its time is lost: a fault of that server tells nothing of the one that streams now.
    pub(super) is_outdated: bool,
}

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
    pub(super) fn start(&mut self, settings: &Arc<DatabaseSettings>, errand: Errand) {
        let settings = Arc::clone(settings);
        let kept = self.session.take();
        let kind = errand.kind();
        let running = tokio::spawn(async move {
            let (connector, slot) = (&settings.connector, &settings.source.slot);
            let mut kept = kept.unwrap_or_else(|| KeptSession::new(connector.clone(), slot.clone()));
            let done = run(&mut kept, &settings, errand).await;
            (kept, done)
        });
        self.running = Some((kind, running));
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
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        let Some((kind, running)) = &mut self.running else {
            return Poll::Pending;
        };
        let kind = *kind;
        let (kept, result) = ready!(poll_task(running, cx));
        self.running = None;
        let is_outdated = mem::take(&mut self.is_outdated);
        self.session = Some(kept).filter(|_| !is_outdated);
        if result.is_err() && !is_outdated {
            self.not_before = Instant::now() + RETRY;
        }
        Poll::Ready(Ended {
            kind,
            result: result.map_err(|error| Fault::new(error.kind(), &error)),
            is_outdated,
        })
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
            letters,
            process_id,
            pending,
        } => {
            let (seqs, letters): (Vec<_>, Vec<_>) = letters.into_iter().unzip();
            let stored = dead_letters::store(session, slot, &letters, process_id).await?;
            Done::Stored {
                seqs,
                end: stored.end,
                pending: pending
                    .after(session, slot, |known| known.saturating_add(stored.rows))
                    .await?,
            }
        }
        Errand::LookAfter {
            key,
            table,
            event_id,
            count,
        } => {
            let outbox = settings.source.outbox(usize::from(table));
            let skip = skips::take(session, slot, &key, event_id.as_deref()).await?;
            let skip = skip.map(|skip| Skip {
                outbox: outbox.map(|outbox| outbox.to_string()),
                ..skip
            });
            let pending = match count {
                true => Some(Counted {
                    count: dead_letters::pending_count(session, slot).await?,
                    is_exact: true,
                }),
                false => None,
            };
            let state = SlotState::read(session, slot).await?;
            Done::LookedAfter {
                key,
                skip,
                flushed: flushed_position(session).await?,
                safe_bytes: state.and_then(|state| state.safe_wal_size),
                pending,
            }
        }
        Errand::RecordSkip { skip, key } => {
            skips::settled(session, &skip, &key).await?;
            Done::Recorded
        }
        Errand::LoadRetries {
            requests,
            bytes,
            process_id,
        } => Done::RetriesLoaded(
            load::load_retries(
                session,
                slot,
                &settings.source.outboxes,
                requests,
                bytes,
                process_id,
            )
            .await?,
        ),
        Errand::RecordRetries {
            retries,
            process_id,
            pending,
        } => {
            let fates: Vec<_> = retries.iter().map(|retry| retry.fate.clone()).collect();
            let recorded = dead_letters::record_retries(session, slot, &fates, process_id).await?;
            Done::RetriesRecorded {
                retries,
                end: recorded.end,
                pending: pending
                    .after(session, slot, |known| known.saturating_sub(recorded.rows))
                    .await?,
            }
        }
        Errand::Backfill {
            request,
            process_id,
            max_event_bytes,
        } => {
            let struck_out = match request.settled {
                0 => 0,
                settled => {
                    let keeps = request.are_unmarked;
                    backfill::strike_out(session, slot, process_id, settled, keeps).await?
                }
            };
            Done::Backfill(Box::new(Answer {
                request,
                struck_out,
                left: match request.count {
                    true => Some(backfill::rows_left(session, slot).await?),
                    false => None,
                },
                batch: match request.after {
                    Some(after) => {
                        let outboxes = &settings.source.outboxes;
                        backfill::load(session, slot, outboxes, process_id, after, max_event_bytes).await?
                    }
                    None => None,
                },
            }))
        }
        Errand::Guard => {
            let seen = guard::check(session, &settings.source).await?;
            let end = seen.log_end;
            // The list of copyings is read only where there is one: a role may have no right to it before.
            let are_due = backfill::noted(session, slot).await?.first.is_some()
                && backfill::are_due_of(session, slot, settings.source.tables()).await?;
            let sample = seen.slot.map(|slot| SlotSample {
                retained_bytes: slot.retained_bytes(end),
                safe_bytes: slot.safe_wal_size,
                wal_status: slot.wal_status.map(WalStatus::label),
                end,
            });
            Done::Guarded {
                sample,
                dead_letters: dead_letters::pending_count_if_allowed(session, slot).await?,
                are_due,
            }
        }
    })
}

#[cfg(test)]
mod tests;
