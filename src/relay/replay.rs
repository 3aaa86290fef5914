//! A replay: rows that are still in their table, published again beside a live relay, over a link of its own.
//!
//! A [task](reader) reads ahead, at most two batches, each in a session of its own; the slot is never touched. One loop owns the link.

mod reader;

use std::future::poll_fn;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use walrelay_engine::DecodeError;
use walrelay_engine::event::{MappingError, OutboxTable};
use walrelay_engine::flow::{Replay, ReplayConfig, Replayed};
use walrelay_engine::pgoutput::read_insert;

use reader::Chunk;
pub use reader::count;

use super::broker::{Broker, NotOpened};
use super::faults;
use super::sink::Sink;
use crate::fault::{Class, Fault, FaultKind};
use crate::postgres::rows::Filter;
use crate::postgres::{self, SlotName};

/// How often progress is told while nothing else happens.
const TICK: Duration = Duration::from_secs(1);

/// A broker that was reached and goes away is waited for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to replay, and how.
#[derive(Debug, Clone)]
pub struct ReplaySettings {
    /// The database.
    pub connector: postgres::Connector,
    /// The slot, which names the sessions; it is not touched.
    pub slot: SlotName,
    /// The tables to look through, in this order.
    pub tables: Vec<OutboxTable>,
    /// Which rows.
    pub filter: Filter,
    /// The longest column that is read, in bytes.
    pub max_event_bytes: u32,
    /// Where the messages go; brokers are tried in turn.
    pub sink: Sink,
    /// Delivery.
    pub delivery: ReplayConfig,
    /// How long a stop waits for what is in flight.
    pub shutdown_grace: Duration,
}

/// What is told on the way.
#[derive(Debug)]
pub enum ReplayEvent {
    /// A row was not delivered.
    Failed {
        /// Its message id.
        id: String,
        /// Why, in one line.
        why: String,
    },
    /// So far.
    Progress(Replayed),
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayEnd {
    /// What became of the rows.
    pub counts: Replayed,
    /// Messages that were sent and not answered when it was stopped.
    pub unanswered: usize,
    /// Whether it was stopped before the last row.
    pub is_cut: bool,
}

/// Why a replay cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// Reading the table.
    #[error(transparent)]
    Database(#[from] postgres::Error),
    /// The table's rows cannot become messages.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A table's columns or a row are not what we made of them.
    #[error("a row cannot be read")]
    Row(#[from] DecodeError),
    /// The broker.
    #[error("{}", .0.message)]
    Broker(Fault),
}

impl ReplayError {
    /// Which fault this is.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Database(error) => error.kind(),
            Self::Mapping(error) => super::faults::mapping_kind(error),
            Self::Row(_) => FaultKind::DatabaseProtocol,
            Self::Broker(fault) => fault.kind,
        }
    }
}

/// Publishes the rows. `tell` hears of every failure, and of progress at least once a second; a `stop` that turns true
/// ends it once what is in flight has been answered.
///
/// Cancel safety: dropping the future drops both connections; what is in flight may or may not be delivered.
///
/// # Errors
/// See [`ReplayError`]; what was confirmed until then has been told.
pub async fn replay(
    settings: ReplaySettings,
    mut stop: watch::Receiver<bool>,
    mut tell: impl FnMut(ReplayEvent),
) -> Result<ReplayEnd, ReplayError> {
    let mut replayer = Replayer::new(settings);
    loop {
        let now = Instant::now();
        replayer.turn(now, &mut tell)?;
        if replayer.is_over(now) {
            return Ok(replayer.end().await);
        }
        let deadline = replayer.deadline(now);
        let stopping = replayer.stop_by.is_some();
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop), if !stopping => replayer.stop(),
            result = pin!(poll_fn(|cx| replayer.poll_work(cx))) => result?,
            () = tokio::time::sleep_until(deadline.into()) => {}
        }
    }
}

struct Replayer {
    settings: ReplaySettings,
    engine: Replay,
    broker: Broker,
    /// When there was last a link; none before the first.
    reached: Option<Instant>,
    /// Brokers that no try has been made to reach yet.
    untried: usize,
    chunks: mpsc::Receiver<Result<Chunk, ReplayError>>,
    chunk: Option<Chunk>,
    all_read: bool,
    reader: JoinHandle<()>,
    /// When the grace of a requested stop is over.
    stop_by: Option<Instant>,
}

impl Drop for Replayer {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Replayer {
    fn new(settings: ReplaySettings) -> Self {
        // One batch waits here, one is being read, and one is taken from.
        let (out, chunks) = mpsc::channel(1);
        let reader = settings.clone();
        Self {
            engine: Replay::new(settings.delivery.clone()),
            broker: Broker::new(settings.sink.clone()),
            reached: None,
            untried: settings.sink.count(),
            chunks,
            chunk: None,
            all_read: false,
            reader: tokio::spawn(async move {
                if let Err(error) = reader::read(&reader, &out).await {
                    // Without a receiver nobody wants to know.
                    drop(out.send(Err(error)).await);
                }
            }),
            settings,
            stop_by: None,
        }
    }

    /// Everything that is possible without waiting.
    fn turn(&mut self, now: Instant, tell: &mut impl FnMut(ReplayEvent)) -> Result<(), ReplayError> {
        self.broker.open_if_due(&self.engine, now);
        if let Err(fault) = self.broker.read(&mut self.engine, now) {
            self.lose_link(fault, now)?;
        }
        if self.engine.handle_timeout(now) {
            let fault = self.broker.unanswered(self.settings.delivery.confirm_timeout);
            self.lose_link(fault, now)?;
        }
        self.admit(now)?;
        if self.broker.side.up().is_some() {
            self.reached = Some(now);
        }
        self.broker.publish(&mut self.engine, now);
        while let Some(failed) = self.engine.next_failed() {
            let (exchange, routing_key) = (failed.exchange.as_deref(), failed.routing_key.as_deref());
            let why = faults::why(&failed.failure, exchange, routing_key);
            let id = failed.id;
            tell(ReplayEvent::Failed { id, why });
        }
        tell(ReplayEvent::Progress(self.engine.counts()));
        Ok(())
    }

    /// Hands rows to the engine for as long as it has room.
    fn admit(&mut self, now: Instant) -> Result<(), ReplayError> {
        while let Some(chunk) = self.chunk.as_mut().filter(|_| self.stop_by.is_none()) {
            let Some(row) = chunk.rows.front() else {
                self.chunk = None;
                return Ok(());
            };
            if !self.engine.has_room(row.insert.len()) {
                return Ok(());
            }
            let created_at = row.created_at.unwrap_or_else(SystemTime::now);
            let timestamp = created_at
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            let insert = read_insert(&row.insert)?;
            self.engine
                .admit(&chunk.mapping, &insert.new, &row.id, timestamp.as_secs());
            chunk.rows.pop_front();
            // A row that fails at once leaves room for ever: the others are to be told of meanwhile.
            if now.elapsed() > TICK {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Polls the link, a try to connect, and the reader.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ReplayError>> {
        let now = Instant::now();
        let mut worked = false;
        if let Poll::Ready(result) = self.broker.poll_opened(cx, &mut self.engine, now) {
            worked = true;
            match result {
                Ok(()) => self.untried = 0,
                Err(NotOpened { fault, .. }) => {
                    self.untried = self.untried.saturating_sub(1);
                    self.lose_link(fault, now)?;
                }
            }
        }
        if let Poll::Ready(result) = self.broker.poll_io(cx, &mut self.engine, now) {
            worked = true;
            if let Err(fault) = result {
                self.lose_link(fault, now)?;
            }
        }
        if self.chunk.is_none()
            && !self.all_read
            && let Poll::Ready(chunk) = self.chunks.poll_recv(cx)
        {
            worked = true;
            match chunk {
                Some(chunk) => self.chunk = Some(chunk?),
                None => self.all_read = true,
            }
        }
        if worked {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// The link is lost. One that was reached is waited for, unless only a person can help; before, each broker is tried
    /// once.
    fn lose_link(&mut self, fault: Fault, now: Instant) -> Result<(), ReplayError> {
        let is_waited_for = self.untried > 0
            || fault.kind.class() != Class::Halted
                && self
                    .reached
                    .is_some_and(|reached| now.duration_since(reached) < PATIENCE);
        if !is_waited_for {
            return Err(ReplayError::Broker(fault));
        }
        self.broker.lost(&mut self.engine, fault, now);
        Ok(())
    }

    fn stop(&mut self) {
        self.stop_by = Some(Instant::now() + self.settings.shutdown_grace);
    }

    fn is_over(&self, now: Instant) -> bool {
        let nothing_left = self.all_read && self.chunk.is_none();
        match self.stop_by {
            Some(stop_by) => self.engine.is_drained() || now >= stop_by,
            None => nothing_left && self.engine.is_drained(),
        }
    }

    async fn end(mut self) -> ReplayEnd {
        self.broker.close().await;
        ReplayEnd {
            counts: self.engine.counts(),
            unanswered: self.engine.in_flight(),
            is_cut: self.stop_by.is_some() && !(self.all_read && self.chunk.is_none()),
        }
    }

    fn deadline(&mut self, now: Instant) -> Instant {
        [self.engine.deadline(), self.broker.deadline(), self.stop_by]
            .into_iter()
            .flatten()
            .fold(now + TICK, Instant::min)
    }
}
