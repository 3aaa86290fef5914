//! One side's connection: being opened in a task of its own, up, or waiting for its next try.

use std::future::Future;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;

use super::backoff::Backoff;
use super::faults;
use super::status::{SideState, SideStatus};
use super::task::poll_task;
use crate::fault::{Class, Fault, FaultKind};
use crate::repeats::{Repeats, Telling};

/// A connection that lasted this long has proved itself: the next pauses are short again.
const PROVED_AFTER: Duration = Duration::from_secs(5);

/// A connection to one server, opened again and again. `O` is what a try brings, the connection among it.
#[derive(Debug)]
pub(super) struct Side<C, O = C> {
    name: &'static str,
    state: State<C, O>,
    backoff: Backoff,
    status: SideStatus,
    /// Whether the fault of the status struck a connection that was up, and opening one does not look for it.
    struck_while_up: bool,
    /// The faults that have been told since the connection was last of use; several servers in turn have several.
    told: Repeats<(FaultKind, Option<String>)>,
}

#[derive(Debug)]
enum State<C, O> {
    Waiting { until: Instant },
    Opening { attempt: JoinHandle<Result<O, Fault>> },
    Up { connection: Box<C>, since: Instant },
}

impl<C: Send + 'static, O: Send + 'static> Side<C, O> {
    /// A side whose first try is due at once. `name` is for the log.
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            state: State::Waiting {
                until: Instant::now(),
            },
            backoff: Backoff::default(),
            status: SideStatus {
                state: SideState::Connecting,
                since: SystemTime::now(),
                fault: None,
            },
            struck_while_up: false,
            told: Repeats::default(),
        }
    }

    /// The connection, while it is up.
    pub(super) fn up(&mut self) -> Option<&mut C> {
        match &mut self.state {
            State::Up { connection, .. } => Some(connection),
            State::Waiting { .. } | State::Opening { .. } => None,
        }
    }

    /// How it stands.
    pub(super) const fn status(&self) -> &SideStatus {
        &self.status
    }

    /// When the next try is due.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until } => Some(*until),
            State::Opening { .. } | State::Up { .. } => None,
        }
    }

    /// Starts the next try if it is due. It runs in a task of its own, so that the other side is served meanwhile.
    pub(super) fn open_if_due<F>(&mut self, now: Instant, open: impl FnOnce() -> F)
    where
        F: Future<Output = Result<O, Fault>> + Send + 'static,
    {
        if self.deadline().is_some_and(|until| now >= until) {
            self.state = State::Opening {
                attempt: tokio::spawn(open()),
            };
        }
    }

    /// The result of a try, once it is there. Pending while none runs.
    ///
    /// # Panics
    /// If the task panicked: half a relay must not live on.
    pub(super) fn poll_opened(&mut self, cx: &mut Context<'_>) -> Poll<Result<O, Fault>> {
        let State::Opening { attempt } = &mut self.state else {
            return Poll::Pending;
        };
        poll_task(attempt, cx)
    }

    /// Whether a fault that needs a person has struck a connection that was up, so that a new one tells nothing: it
    /// will be struck again when delivery gets to the same point.
    pub(super) fn is_in_doubt(&self) -> bool {
        let fault = self.status.fault.as_ref();
        self.struck_while_up && fault.is_some_and(|fault| fault.kind.class() == Class::Halted)
    }

    /// Whether there is neither a connection nor a try to make one.
    pub(super) const fn is_idle(&self) -> bool {
        matches!(self.state, State::Waiting { .. })
    }

    /// Whether a try to connect waits for its turn.
    pub(super) fn is_waiting(&self) -> bool {
        self.status.state == SideState::Waiting
    }

    /// The try that runs waits for its turn, which may take days. Returns whether it does: no effect without a try.
    pub(super) fn waits(&mut self) -> bool {
        let opening = matches!(self.state, State::Opening { .. });
        if opening {
            self.struck_while_up = false;
            self.status = SideStatus {
                state: SideState::Waiting,
                since: SystemTime::now(),
                fault: None,
            };
        }
        opening
    }

    /// Nothing is tried for now, for want of what it is opened with.
    pub(super) fn hold_back(&mut self) {
        if self.status.state != SideState::Waiting {
            self.struck_while_up = false;
            self.status = SideStatus {
                state: SideState::Waiting,
                since: SystemTime::now(),
                fault: None,
            };
        }
    }

    /// The next try is due at once, whatever there is. Returns the connection that was up, for a last word.
    pub(super) fn begin_again(&mut self, now: Instant) -> Option<C> {
        let before = std::mem::replace(&mut self.state, State::Waiting { until: now });
        if self.status.fault.is_none() {
            self.status.state = SideState::Connecting;
            self.status.since = SystemTime::now();
        }
        match before {
            State::Up { connection, .. } => Some(*connection),
            State::Waiting { .. } => None,
            State::Opening { attempt } => {
                attempt.abort();
                None
            }
        }
    }

    /// It is up. A doubtful one keeps its fault until it has proved itself, so that readiness does not flap.
    pub(super) fn opened(&mut self, connection: C, now: Instant) {
        self.state = State::Up {
            connection: Box::new(connection),
            since: now,
        };
        let doubted = self.is_in_doubt();
        self.status.state = SideState::Up;
        if doubted {
            tracing::debug!(side = self.name, "connected, but not yet proved");
        } else {
            self.status.since = SystemTime::now();
            self.status.fault = None;
            self.tell_over();
        }
    }

    /// Ends the doubt about a connection that is up.
    pub(super) fn proved(&mut self) {
        if matches!(self.state, State::Up { .. }) && self.is_in_doubt() {
            self.struck_while_up = false;
            self.set_fault(None);
            tracing::info!(side = self.name, "fault is over");
        }
    }

    /// Whether the connection has been up for so long that what is wrong with it would have been seen.
    pub(super) fn has_lasted(&self, now: Instant) -> bool {
        matches!(&self.state, State::Up { since, .. } if now >= *since + PROVED_AFTER)
    }

    /// It failed, or could not be opened: logged when it is news, and tried again after a pause. Returns the connection
    /// that was up, for a last word.
    pub(super) fn failed(&mut self, fault: Fault, now: Instant) -> Option<C> {
        if self.has_lasted(now) {
            self.backoff.reset();
        }
        let doubted = self.is_in_doubt();
        self.struck_while_up =
            matches!(self.state, State::Up { .. }) && !faults::is_looked_for_when_opening(fault.kind);
        let delay = self.backoff.next(fault.kind.class());
        self.tell(&fault, delay, now);
        let was_down = doubted || self.status.state == SideState::Down;
        self.status = SideStatus {
            state: SideState::Down,
            since: if was_down {
                self.status.since
            } else {
                SystemTime::now()
            },
            fault: Some(fault),
        };
        match std::mem::replace(&mut self.state, State::Waiting { until: now + delay }) {
            State::Up { connection, .. } => Some(*connection),
            State::Waiting { .. } => None,
            State::Opening { attempt } => {
                attempt.abort();
                None
            }
        }
    }

    /// Something speaks against the connection although it is up, or no longer does.
    pub(super) fn set_fault(&mut self, fault: Option<Fault>) {
        match &fault {
            Some(fault) => self.tell(fault, Duration::ZERO, Instant::now()),
            None => self.tell_over(),
        }
        self.status.fault = fault;
        self.status.since = SystemTime::now();
    }

    /// Takes the connection away for good; the side opens no other one.
    pub(super) fn take(&mut self) -> Option<C> {
        let far = Instant::now() + Duration::from_secs(365 * 24 * 3600);
        match std::mem::replace(&mut self.state, State::Waiting { until: far }) {
            State::Up { connection, .. } => Some(*connection),
            State::Waiting { .. } => None,
            State::Opening { attempt } => {
                attempt.abort();
                None
            }
        }
    }

    /// One line per change: a fault that merely goes on, or comes again in turn with others, is counted, and otherwise
    /// repeated at debug only. For a person the words count too: the second missing column is news.
    fn tell(&mut self, fault: &Fault, delay: Duration, now: Instant) {
        let halted = fault.kind.class() == Class::Halted;
        let words = halted.then(|| fault.message.clone());
        let telling = self.told.note((fault.kind, words), now);
        let (side, cause, remedy) = (self.name, fault.kind.label(), fault.kind.remedy());
        let (error, delay_ms) = (fault.message.as_str(), delay.as_millis());
        match telling {
            Telling::Quiet => tracing::debug!(side, cause, error, delay_ms, "as before"),
            Telling::News if halted => tracing::error!(side, cause, error, remedy, delay_ms, "halted"),
            Telling::News => tracing::warn!(side, cause, error, remedy, delay_ms, "unavailable"),
            Telling::Repeated { repeated, seconds } if halted => {
                tracing::error!(side, cause, error, remedy, repeated, seconds, "still halted");
            }
            Telling::Repeated { repeated, seconds } => {
                tracing::warn!(side, cause, error, remedy, repeated, seconds, "still unavailable");
            }
        }
    }

    /// What goes wrong from now on is news again.
    fn tell_over(&mut self) {
        let repeated = self.told.over();
        if repeated > 0 {
            tracing::debug!(side = self.name, repeated, "failures are over");
        }
    }
}
