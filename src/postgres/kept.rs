//! An SQL session that is opened when it is needed and kept for a moment, since the next use often follows at once.
//!
//! A session for each use costs more than the use. One kept for good holds up a smart shutdown of the server for ever,
//! so this one ends after a second without use, and lives no longer than [`LIFE`] however busy it is.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::connect::Connector;
use super::control::{ControlSession, STATEMENT_TIMEOUT};
use super::error::Error;
use super::identifier::SlotName;

/// How long a session is kept without use. Less than the pause between two looks after a held event, so that those do
/// not keep one open in between.
const IDLE: Duration = Duration::from_secs(1);

/// How long a session lives at most, and so holds up a smart shutdown.
const LIFE: Duration = Duration::from_secs(30);

/// How old a session may be when it is used again: a statement that begins then ends within [`LIFE`].
const REUSED_FOR: Duration = LIFE.saturating_sub(STATEMENT_TIMEOUT);

/// At most one SQL session, for one user at a time: [`take`](Self::take) it, use it, [`keep`](Self::keep) it. After an
/// error let it go instead ([`ControlSession::close`]): it may be half dead.
///
/// What is dropped ends its session by itself.
#[derive(Debug)]
pub struct KeptSession {
    connector: Connector,
    slot: SlotName,
    idle: Option<Idle>,
}

/// A session that nobody uses, in a task that closes it in time.
#[derive(Debug)]
struct Idle {
    /// Asks for the session; dropped, has it closed.
    ask: oneshot::Sender<()>,
    task: JoinHandle<Option<ControlSession>>,
}

impl KeptSession {
    /// Sessions for this slot; none is opened yet.
    #[must_use]
    pub const fn new(connector: Connector, slot: SlotName) -> Self {
        Self {
            connector,
            slot,
            idle: None,
        }
    }

    /// The session that was kept, if it still is, or a new one.
    ///
    /// Cancel safety: dropping the future ends the session.
    ///
    /// # Errors
    /// As [`ControlSession::open`].
    pub async fn take(&mut self) -> Result<ControlSession, Error> {
        if let Some(session) = self.take_idle().await {
            return Ok(session);
        }
        ControlSession::open(&self.connector, &self.slot).await
    }

    /// Keeps a session for the next [`take`](Self::take), unless it is too old or broken. Within a runtime only.
    pub fn keep(&mut self, session: ControlSession) {
        let (ask, asked) = oneshot::channel();
        let task = tokio::spawn(wait(session, asked));
        self.idle = Some(Idle { ask, task });
    }

    /// Ends the session that is kept, if there is one, in good order: at the latest at the deadline of
    /// [`ControlSession::close`].
    pub async fn close(&mut self) {
        if let Some(session) = self.take_idle().await {
            session.close().await;
        }
    }

    async fn take_idle(&mut self) -> Option<ControlSession> {
        let Idle { ask, task } = self.idle.take()?;
        // An error means that the task has begun to close it.
        ask.send(()).ok()?;
        // The task is never cancelled and cannot panic; if it did, there is just no session.
        task.await.ok().flatten()
    }
}

/// Keeps a session until it is asked for, and closes it if that takes too long.
async fn wait(session: ControlSession, asked: oneshot::Receiver<()>) -> Option<ControlSession> {
    let is_wanted = match REUSED_FOR.checked_sub(session.age()) {
        Some(left) => tokio::time::timeout(left.min(IDLE), asked)
            .await
            .is_ok_and(|asked| asked.is_ok()),
        None => false,
    };
    if is_wanted && !session.is_closed() {
        return Some(session);
    }
    session.close().await;
    None
}
