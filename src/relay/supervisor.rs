//! The relay's one loop: both connections, the flow between them, and what follows a fault.
//!
//! One task owns everything. Each turn does all that is possible without waiting, then waits for either socket, a try
//! to connect, a deadline or the request to stop.

mod care;
mod connections;
mod doubt;
mod ending;
mod errands;
mod retries;
mod role;
mod spans;
mod telling;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, watch};
use walrelay_engine::PgTimestamp;
use walrelay_engine::flow::{Flow, FlowConfig, Intake, Positions, Timeout};
use walrelay_engine::span::PublishSpan;
use walrelay_engine::walsender::StatusUpdate;

use care::Care;
pub use care::CareSettings;
use doubt::Struck;

use super::backfill::Backfill;
use super::broker::Broker;
use super::errands::Errands;
use super::held::{HeldTold, tell_discarded};
use super::marker::Marker;
use super::news::{self, News, Tell};
use super::refused::RefusedTold;
use super::retention::{Retention, RetentionSettings};
use super::session;
use super::side::Side;
use super::sink::Sink;
use super::status::Status;
use super::wake::Wake;
use super::watch::Watch;
use crate::fault::{Fault, FaultKind};
use crate::net::Progress;
use crate::postgres::{Incoming, Replication};

/// The loop goes round at least this often, so that `/livez` can tell that it does.
const TICK: Duration = Duration::from_secs(1);

/// While a backlog is worked off, a turn waits for so long where a read brought less than this, or where the broker has at least
/// so many messages in hand: else each event or confirm would be a wake-up of relay, walsender and broker, which costs several
/// times what the events do.
const LINGER: Duration = Duration::from_millis(1);
const SMALL_READ: usize = 16 * 1024;
const IN_HAND: usize = 100;

/// Everything the relay is given, resolved.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// PostgreSQL's side.
    pub database: session::DatabaseSettings,
    /// RabbitMQ's side, or what takes its place.
    pub sink: Sink,
    /// Delivery.
    pub flow: FlowConfig,
    /// What happens to failed events, and the guard.
    pub care: CareSettings,
    /// The tables whose old rows go.
    pub retention: Vec<RetentionSettings>,
    /// How long a stop waits for what is in flight.
    pub shutdown_grace: Duration,
    /// End on a halt instead of waiting for a person.
    pub exit_on_halt: bool,
    /// Takes the spans of publishes, where they are wanted.
    pub spans: Option<mpsc::Sender<PublishSpan>>,
}

/// Why the relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It was asked to.
    Stopped,
    /// It halted, with `exit_on_halt`.
    Halted(FaultKind),
}

/// Relays until asked to stop: `stop` turns true.
///
/// Nothing outside the process ends it: servers may be down at the start and go away at any time.
pub async fn run(
    settings: RelaySettings,
    status: watch::Sender<Status>,
    stop: watch::Receiver<bool>,
) -> Ending {
    Box::pin(Relay::new(settings, status).run(stop)).await
}

struct Relay {
    settings: RelaySettings,
    flow: Flow,
    database: Side<Replication, session::Opened>,
    /// The settings of the database, with the server that streams, or did last.
    streaming: Arc<session::DatabaseSettings>,
    broker: Broker,
    errands: Errands,
    backfill: Backfill,
    marker: Marker,
    care: Care,
    retention: Retention,
    status: watch::Sender<Status>,
    /// Looks out for the server's shutdown, while a session is up.
    watch: Option<Watch>,
    /// The session that is being opened tells here that it waits for the slot, and what is at risk.
    news: mpsc::Receiver<News>,
    tell: Tell,
    wake: Wake,
    /// After a standstill: nothing is published before the database has said whose turn it is.
    role_unknown: bool,
    held: HeldTold,
    refused: RefusedTold,
    struck: Struck,
    /// The last read of the stream brought little.
    read_little: bool,
    /// When the grace of a requested stop is over.
    stop_by: Option<Instant>,
    halted: Option<FaultKind>,
    spans_refused: u64,
}

impl Relay {
    fn new(settings: RelaySettings, status: watch::Sender<Status>) -> Self {
        let (tell, news) = mpsc::channel(news::CAPACITY);
        let mut flow = Flow::new(settings.flow.clone());
        if settings.spans.is_some() {
            flow.record_spans();
        }
        if settings.sink.is_stream() {
            flow.publish_to_stream();
        }
        Self {
            flow,
            errands: Errands::new(),
            backfill: Backfill::default(),
            marker: Marker::new(Instant::now(), settings.care.guard_interval),
            care: Care::new(Instant::now(), &settings.care),
            retention: Retention::new(&settings.retention, Instant::now()),
            wake: Wake::new(settings.database.start.wal_sender_timeout),
            broker: Broker::new(settings.sink.clone()),
            streaming: Arc::new(settings.database.clone()),
            settings,
            database: Side::new("database"),
            status,
            watch: None,
            news,
            tell,
            role_unknown: false,
            held: HeldTold::default(),
            refused: RefusedTold::default(),
            struck: Struck::default(),
            read_little: false,
            stop_by: None,
            halted: None,
            spans_refused: 0,
        }
    }

    async fn run(mut self, mut stop: watch::Receiver<bool>) -> Ending {
        loop {
            let now = Instant::now();
            self.turn(now);
            self.tell_status(now);
            if let Some(ending) = self.ending(now) {
                self.farewell().await;
                return ending;
            }
            if self.lingers() {
                tokio::time::sleep(LINGER).await;
            }
            let deadline = self.deadline(now);
            let stopping = self.stop_by.is_some();
            tokio::select! {
                biased;
                // An error means that nobody can ask any more, which is as good as being asked.
                _ = stop.wait_for(|stop| *stop), if !stopping => self.stop(),
                () = poll_fn(|cx| self.poll_work(cx)) => {}
                () = tokio::time::sleep_until(deadline.into()) => {}
            }
        }
    }

    /// Everything that is possible without waiting. The broker's answers come first: they make room.
    fn turn(&mut self, now: Instant) {
        self.notice_standstill(now);
        self.flow.tell_time(wall_clock());
        if self.stop_by.is_none() {
            let (settings, tell) = (&self.settings.database, &self.tell);
            self.database
                .open_if_due(now, || session::open(settings.clone(), tell.clone()));
        }
        if !self.role_unknown {
            self.broker.open_if_due(&self.flow, now);
        }
        if let Err(fault) = self.broker.read(&mut self.flow, now) {
            self.lose_link(fault, now);
        }
        if let Err(fault) = self.backfill.admit(&mut self.flow, now) {
            self.fail_session(fault, now);
        }
        self.read_stream(now);
        self.handle_timeouts(now);
        self.end_doubts(now);
        let published = self.broker.publish(&mut self.flow, now);
        if published > 0 {
            tracing::trace!(published, in_flight = self.flow.in_flight(), "published");
        }
        self.begin_anew(now);
        self.send_status(now);
        self.start_errand(now);
        self.start_marks(now);
        if self.streams() {
            self.retention.start_if_due(&self.settings.database, now);
        }
        if let Some(watch) = &mut self.watch {
            watch.look_if_due(!self.flow.wants_stream(), now);
        }
        tell_discarded(&mut self.flow);
        let prefix = self.settings.flow.messages.as_deref();
        self.refused
            .tell(self.flow.counters().refused_messages, prefix, now);
        self.pass_spans(now);
        if let Some(delivery) = self
            .held
            .tell(&self.flow, self.settings.database.source.slot.as_str())
        {
            self.status.send_modify(|status| status.delivery = delivery);
        }
    }

    /// Hands frames of the stream to the flow for as long as it has room.
    fn read_stream(&mut self, now: Instant) {
        while let Some(session) = self.database.up() {
            match session.next_frame() {
                Ok(None) => return,
                Ok(Some(Incoming::Data(payload))) => match self.flow.handle_stream(payload, now) {
                    Ok(Intake::Taken) => {
                        if let Some(watch) = &mut self.watch {
                            watch.frame_taken(payload, self.flow.durable(), now);
                        }
                        session.consume_frame();
                        retries::sort(&mut self.flow, &self.settings.database.source.slot);
                    }
                    Ok(Intake::NoRoom) => return,
                    Err(error) => return self.fail_stream(&error, now),
                },
                Ok(Some(Incoming::Notice(notice))) => {
                    tracing::warn!(sqlstate = notice.sqlstate.as_str(), error = %notice, "notice from the server");
                    if notice.tells_of_a_skipped_publication() {
                        let fault = Fault::new(FaultKind::PublicationMissing, &notice);
                        return self.fail_session(fault, now);
                    }
                }
                Err(error) => return self.fail_session(Fault::new(error.kind(), &error), now),
            }
        }
    }

    fn handle_timeouts(&mut self, now: Instant) {
        match self.flow.handle_timeout(now) {
            None => {}
            Some(Timeout::Confirm) => {
                let fault = self.broker.unanswered(self.settings.flow.confirm_timeout);
                self.drop_link(fault, now);
            }
            Some(Timeout::Silence) => {
                let limit = self.settings.flow.silence_timeout;
                let message = format!("PostgreSQL sent nothing for {limit:?}, though asked");
                self.fail_session(
                    Fault {
                        kind: FaultKind::DatabaseSilent,
                        message,
                    },
                    now,
                );
            }
        }
    }

    /// Reports the positions, if that is due.
    fn send_status(&mut self, now: Instant) {
        let Some(session) = self.database.up() else { return };
        if let Some(positions) = self.flow.poll_status(now) {
            session.queue_status(&status_update(positions).encode());
            self.status.send_modify(|status| status.status_updates += 1);
        }
    }

    /// Starts the next batch of marks, if one is due.
    fn start_marks(&mut self, now: Instant) {
        let Some(session) = self.database.up() else { return };
        let stream = (session.process_id(), session.identity().system_id);
        self.flow.hold_prefix(self.care.has_unrecorded_skip());
        self.marker
            .start_if_due(&mut self.flow, &self.streaming, stream, now);
    }

    /// Polls both sockets, both tries to connect and the look for a shutdown. What they bring is dealt with in the next
    /// turn.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        let mut worked = self.notice_standstill(now);
        if let Poll::Ready(Some(news)) = self.news.poll_recv(cx) {
            worked = true;
            match news {
                News::SlotInUse { holder } => self.stand_by(&holder, now),
                News::AtRisk(risks) => self.note_risks(risks),
            }
        }
        if let Poll::Ready(result) = self.database.poll_opened(cx) {
            worked = true;
            self.session_opened(result, now);
        }
        if let Poll::Ready(result) = self.broker.poll_opened(cx, &mut self.flow, now) {
            worked = true;
            self.link_opened(result, now);
        }
        worked |= self.marker.poll(cx, &mut self.flow).is_ready();
        if let Poll::Ready(ended) = self.errands.poll(cx) {
            worked = true;
            self.errand_ended(ended, now);
        }
        if let Poll::Ready(retention) = self.retention.poll(cx) {
            worked = true;
            self.status
                .send_modify(|status| status.retention.clone_from(retention));
        }
        if let Some(watch) = &mut self.watch
            && let Poll::Ready(seen) = watch.poll_look(cx)
        {
            worked = true;
            let silence = watch.unanswered_for(now);
            self.looked(seen, silence, now);
        }
        if let Poll::Ready(result) = self.broker.poll_io(cx, &mut self.flow, now) {
            worked = true;
            if let Err(fault) = result {
                self.lose_link(fault, now);
            }
        }
        let read = self.flow.wants_stream();
        if let Some(session) = self.database.up()
            && let Poll::Ready(result) = session.poll_io(cx, read)
        {
            worked = true;
            match result {
                Ok(Progress::Read(count)) => {
                    self.read_little = count < SMALL_READ;
                    self.flow.handle_bytes(now);
                }
                Ok(Progress::Drained | Progress::Eof) => {}
                Err(error) => {
                    self.read_stream(now);
                    if self.database.up().is_some() {
                        self.fail_session(Fault::new(error.kind(), &error), now);
                    }
                }
            }
        }
        if worked { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether to let more come before the sockets are looked at again. Never where the broker would be kept waiting, as it
    /// would with one message at a time in strict order, or with a window of few.
    fn lingers(&mut self) -> bool {
        let in_hand = (self.settings.flow.limits.events / 2).max(IN_HAND);
        let read_little = std::mem::take(&mut self.read_little);
        (read_little || self.flow.unanswered() >= in_hand) && self.flow.is_behind()
    }

    /// Whether it is this instance that streams from the slot, as far as is known, and goes on doing so.
    fn streams(&mut self) -> bool {
        self.database.up().is_some() && !self.role_unknown && self.stop_by.is_none()
    }

    fn deadline(&mut self, now: Instant) -> Instant {
        let database = if self.stop_by.is_none() {
            self.database.deadline()
        } else {
            None
        };
        let broker = self.broker.deadline().filter(|_| !self.role_unknown);
        let look = self.watch.as_ref().and_then(Watch::deadline);
        let errand = self.errand_deadline(now);
        let retention = match self.streams() {
            true => self.retention.deadline(),
            false => None,
        };
        [
            self.flow.deadline(),
            database,
            broker,
            look,
            errand,
            retention,
            self.marker
                .deadline(&self.flow)
                .filter(|_| self.database.up().is_some()),
            self.stop_by,
        ]
        .into_iter()
        .flatten()
        .fold(now + TICK.min(self.wake.tick()), Instant::min)
    }
}

fn status_update(positions: Positions) -> StatusUpdate {
    StatusUpdate {
        written: positions.received,
        flushed: positions.durable,
        applied: positions.durable,
        sent_at: wall_clock(),
        reply_requested: positions.reply_requested,
    }
}

fn wall_clock() -> PgTimestamp {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    PgTimestamp::from_unix_micros(i64::try_from(since_epoch.as_micros()).unwrap_or(i64::MAX))
}
