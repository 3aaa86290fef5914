//! The marker: marks published rows off the loop, one batch at a time, on a session of its own that ends by itself.
//!
//! It never stops delivery. What keeps rows from being marked is said as *degraded*, and tried again.

mod notes;
mod sweep;

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use walrelay_engine::flow::{self, Flow};
use walrelay_engine::marks::{MarkBatch, Marked, TableNo};

use notes::Notes;
use sweep::Sweep;

use super::session::DatabaseSettings;
use super::status::MarkStatus;
use super::task::poll_task;
use crate::fault::{Fault, FaultKind};
use crate::postgres::marker::MarkerUnfit;
use crate::postgres::marks::{self, MarkStream, Refusal, TablePlan};
use crate::postgres::{Error, KeptSession, SqlState, settled};
use crate::repeats::{Repeats, Telling};

/// How long after the start, or the loss of a stream, the tables are looked at where nothing was to be marked before: there
/// are more urgent things to do.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// What is known of the tables, for as long as nothing speaks against it.
#[derive(Debug, Clone)]
struct Plan {
    tables: Vec<TablePlan>,
    prefix: Option<Refusal>,
}

impl Plan {
    fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        let tables = self.tables.iter().filter_map(|plan| plan.refusal.as_ref());
        tables.chain(&self.prefix)
    }
}

/// What a task brings back.
struct Outcome {
    kept: KeptSession,
    /// None where the look at the tables failed, or something speaks against it.
    plan: Option<Plan>,
    work: Option<(MarkBatch, Result<Marked, Error>)>,
    sweep: Option<Result<sweep::Done, Error>>,
    notes: Option<Result<notes::Done, Error>>,
    failure: Option<Error>,
}

impl Outcome {
    const fn new(kept: KeptSession) -> Self {
        Self {
            kept,
            plan: None,
            work: None,
            sweep: None,
            notes: None,
            failure: None,
        }
    }
}

/// What a task has to do.
enum Work {
    Mark(MarkBatch),
    Sweep(sweep::Step),
    Notes(notes::Step),
    /// Look at the tables.
    Look,
}

/// The one batch that may be under way.
pub(super) struct Marker {
    session: Option<KeptSession>,
    running: Option<JoinHandle<Outcome>>,
    plan: Option<Plan>,
    /// When the tables are looked at: while nothing is known of them, and again while marks are refused.
    look_at: Instant,
    look_interval: Duration,
    /// The session of the running task is older than the stream.
    is_outdated: bool,
    sweep: Sweep,
    notes: Notes,
    /// What keeps a sweep from being made, or rows from being marked by notes.
    sweep_fault: Option<Fault>,
    /// Marks were set that left their rows unsent, and none since that did not.
    endless: Option<Fault>,
    told: Repeats<Fault>,
    status: MarkStatus,
}

impl Marker {
    /// Nothing is known yet; refused tables are looked at again after `look_interval`.
    pub(super) fn new(now: Instant, look_interval: Duration) -> Self {
        Self {
            session: None,
            running: None,
            plan: None,
            look_at: now + FIRST_LOOK,
            look_interval,
            is_outdated: false,
            sweep: Sweep::new(now),
            notes: Notes::default(),
            sweep_fault: None,
            endless: None,
            told: Repeats::default(),
            status: MarkStatus::default(),
        }
    }

    /// How it stands, but for the flow's own figures.
    pub(super) const fn status(&self) -> &MarkStatus {
        &self.status
    }

    /// Rows of a backfill are noted as sent and, perhaps, unmarked.
    pub(super) fn rows_are_noted(&mut self, now: Instant) {
        self.notes.are_there(now);
    }

    /// Starts the next batch, if one is due and none is under way. `stream` is our walsender's process id and its cluster.
    pub(super) fn start_if_due(
        &mut self,
        flow: &mut Flow,
        settings: &DatabaseSettings,
        stream: (i32, u64),
        now: Instant,
    ) {
        if self.running.is_some() {
            return flow.set_marker(flow::Marker::Busy);
        }
        flow.set_marker(flow::Marker::Free);
        let is_look_due = self.wants_look() && now >= self.look_at;
        let work = if let Some(batch) = flow.poll_marks(now) {
            Work::Mark(batch)
        } else if let Some(step) = self.sweep.next(flow.wants_sweep(), flow.durable(), now) {
            Work::Sweep(step)
        } else if let Some(step) = self.notes.next(now) {
            Work::Notes(step)
        } else if is_look_due {
            Work::Look
        } else {
            return;
        };
        flow.set_marker(flow::Marker::Busy);
        let plan = self.plan.take().filter(|_| !is_look_due);
        if plan.is_none() {
            self.look_at = now + self.look_interval;
        }
        let settings = settings.clone();
        let kept = self.session.take();
        self.running = Some(tokio::spawn(async move {
            let (connector, slot) = (&settings.connector, &settings.source.slot);
            let kept = kept.unwrap_or_else(|| KeptSession::new(connector.clone(), slot.clone()));
            run(kept, &settings, stream, plan, work).await
        }));
    }

    /// When there is something to do by itself.
    pub(super) fn deadline(&self, flow: &Flow) -> Option<Instant> {
        if self.running.is_some() {
            return None;
        }
        let look = self.wants_look().then_some(self.look_at);
        let sweep = self.sweep.deadline(flow.wants_sweep(), flow.durable());
        look.into_iter().chain(sweep).chain(self.notes.deadline()).min()
    }

    /// Takes in what came of the batch, once it is over. Pending while none is under way.
    ///
    /// # Panics
    /// If the task panicked: half a relay must not live on.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, flow: &mut Flow) -> Poll<()> {
        let Some(running) = &mut self.running else {
            return Poll::Pending;
        };
        let outcome = ready!(poll_task(running, cx));
        let now = Instant::now();
        self.running = None;
        self.session = Some(outcome.kept).filter(|_| !std::mem::take(&mut self.is_outdated));
        if let Some(plan) = &outcome.plan {
            for (table, plan) in (0..TableNo::MAX).zip(&plan.tables) {
                flow.refuse_marks(table, plan.refusal.is_some());
            }
        }
        let mut failure = outcome.failure;
        match outcome.work {
            Some((batch, Ok(marked))) => {
                tracing::debug!(rows = marked.rows, locked = marked.locked.len(), "rows marked");
                if let Some(table) = marked.endless.first() {
                    self.endless = endless(outcome.plan.as_ref(), usize::from(*table));
                } else if marked.rows > 0 {
                    self.endless = None;
                }
                flow.handle_marked(batch, marked, now);
            }
            Some((batch, Err(error))) => {
                if error.sqlstate().is_some_and(SqlState::is_of_a_row) {
                    flow.handle_mark_refused(batch, now);
                } else {
                    flow.handle_marks_failed(batch, now);
                }
                failure = Some(error);
            }
            None => {}
        }
        match outcome.sweep {
            Some(Ok(done)) => {
                self.sweep_fault = None;
                if let Some(table) = done.endless() {
                    self.endless = endless(outcome.plan.as_ref(), table);
                }
                if let Some((losses, before)) = self.sweep.done(done, flow.wants_sweep(), now) {
                    flow.marks_swept(losses, before);
                }
            }
            Some(Err(error)) => {
                self.sweep.failed(now);
                self.sweep_fault = Some(fault(&error));
            }
            None => {}
        }
        match outcome.notes {
            Some(Ok(done)) => {
                self.sweep_fault = None;
                if let Some(table) = done.endless {
                    self.endless = endless(outcome.plan.as_ref(), table);
                }
                self.notes.done(done, now);
            }
            Some(Err(error)) => {
                self.notes.failed(now);
                self.sweep_fault = Some(fault(&error));
            }
            None => {}
        }
        self.tell(outcome.plan.as_ref(), failure);
        self.plan = outcome.plan;
        Poll::Ready(())
    }

    /// The stream is lost, perhaps with its server: the next batch opens a session of its own.
    pub(super) fn stream_lost(&mut self) {
        self.session = None;
        self.is_outdated = self.running.is_some();
        self.plan = None;
        self.look_at = Instant::now() + FIRST_LOOK;
        self.sweep = Sweep::new(Instant::now());
        self.notes.failed(Instant::now());
    }

    /// Ends the session that is kept, if no batch is under way.
    pub(super) async fn close(&mut self) {
        if let Some(mut kept) = self.session.take() {
            kept.close().await;
        }
    }

    /// What keeps rows from being marked is to be said before there is one to mark.
    const fn wants_look(&self) -> bool {
        self.plan.is_none() || !self.status.degraded.is_empty()
    }

    /// One line for each thing that has begun to keep rows from being marked, and one when that is over.
    fn tell(&mut self, plan: Option<&Plan>, failure: Option<Error>) {
        let mut faults: Vec<Fault> = Vec::new();
        if let Some(error) = failure {
            self.status.failed_at = Some(SystemTime::now());
            faults.push(fault(&error));
        }
        faults.extend(self.sweep_fault.clone());
        faults.extend(self.endless.clone());
        let refusals = plan.iter().flat_map(|plan| plan.refusals());
        faults.extend(refusals.map(|refusal| Fault::new(refusal.kind(), refusal)));
        for fault in &faults {
            let (cause, error, remedy) = (fault.kind.label(), fault.message.as_str(), fault.kind.remedy());
            match self.told.note(fault.clone(), Instant::now()) {
                Telling::News => tracing::warn!(cause, error, remedy, "rows are not marked"),
                Telling::Repeated { repeated, seconds } => {
                    tracing::warn!(
                        cause,
                        error,
                        remedy,
                        repeated,
                        seconds,
                        "rows are still not marked"
                    );
                }
                Telling::Quiet => tracing::debug!(cause, error, "rows are not marked, as before"),
            }
        }
        if faults.is_empty() && !self.status.degraded.is_empty() {
            self.told.over();
            tracing::info!("rows are marked again");
        }
        self.status.degraded = faults;
    }
}

/// What is said where rows of the table with this place are unsent though they were marked.
fn endless(plan: Option<&Plan>, table: usize) -> Option<Fault> {
    let table = plan?.tables.get(table)?.outbox.table.clone();
    let unfit = MarkerUnfit::Endless { table };
    Some(Fault::new(unfit.kind(), &unfit))
}

fn fault(error: &Error) -> Fault {
    let kind = if error.kind() == FaultKind::DatabaseForbidden {
        FaultKind::MarksForbidden
    } else {
        FaultKind::MarksFailing
    };
    Fault::new(kind, error)
}

async fn run(
    mut kept: KeptSession,
    settings: &DatabaseSettings,
    (walsender_pid, system_id): (i32, u64),
    plan: Option<Plan>,
    work: Work,
) -> Outcome {
    let mut session = match kept.take().await {
        Ok(session) => session,
        Err(error) => return failed(kept, work, error),
    };
    let plan = match plan {
        Some(plan) => Ok(plan),
        None => look(&session, settings).await,
    };
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => {
            session.close().await;
            return failed(kept, work, error);
        }
    };
    let stream = MarkStream {
        slot: &settings.source.slot,
        walsender_pid,
        system_id,
    };
    let mut outcome = Outcome::new(kept);
    let is_sound = match work {
        Work::Look => true,
        Work::Mark(batch) => {
            let result =
                marks::commit(&mut session, stream, &plan.tables, &batch, plan.prefix.is_none()).await;
            let is_sound = result.is_ok();
            if !is_sound
                && plan.prefix.is_none()
                && let Err(error) = settled::note_unmarked(&session, stream.slot, system_id).await
            {
                tracing::debug!(error = %error, "not recorded that rows are unmarked");
            }
            outcome.work = Some((batch, result));
            is_sound
        }
        Work::Sweep(step) => {
            let done = sweep::carry_out(&session, &settings.source, &plan.tables, step).await;
            let is_sound = done.is_ok();
            outcome.sweep = Some(done);
            is_sound
        }
        Work::Notes(step) => {
            let done = notes::carry_out(&session, stream.slot, &plan.tables, step).await;
            let is_sound = done.is_ok();
            outcome.notes = Some(done);
            is_sound
        }
    };
    if is_sound {
        outcome.kept.keep(session);
        outcome.plan = Some(plan);
    } else {
        session.close().await;
    }
    outcome
}

async fn look(session: &crate::postgres::ControlSession, settings: &DatabaseSettings) -> Result<Plan, Error> {
    Ok(Plan {
        tables: marks::plan(session, &settings.source).await?,
        prefix: marks::prefix_refusal(session).await?,
    })
}

fn failed(kept: KeptSession, work: Work, error: Error) -> Outcome {
    let mut outcome = Outcome::new(kept);
    match work {
        Work::Mark(batch) => outcome.work = Some((batch, Err(error))),
        Work::Sweep(_) => outcome.sweep = Some(Err(error)),
        Work::Notes(_) => outcome.notes = Some(Err(error)),
        Work::Look => outcome.failure = Some(error),
    }
    outcome
}
