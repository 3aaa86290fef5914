//! The replication stream: a walsender session in CopyBoth, read and answered without blocking.
//!
//! One task owns it and polls it beside the broker's socket. Nothing is awaited between a frame and its
//! consumption; all state lives in the wire's buffers, so any future here may be dropped at any point.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html>

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_engine::Lsn;
use walrelay_engine::condense::{CondenseError, Condenser};

use super::connect::Connector;
use super::error::{Error, ServerError, SqlState, Step};
use super::frame::{self, MAX_FRAME};
use super::identifier::{PublicationName, SlotName};
use super::settled::Settled;
use super::startup::ServerVersion;
use super::walsender::{SystemIdentity, Walsender, milliseconds, within};
use crate::net::Progress;

/// What to stream.
#[derive(Debug, Clone)]
pub struct StartOptions {
    /// The slot, which must exist.
    pub slot: SlotName,
    /// The publication that lists the tables.
    pub publication: PublicationName,
    /// How long the server waits for a sign of life of ours before it frees the slot for another process.
    pub wal_sender_timeout: Duration,
    /// The largest value of a row that is buffered, in bytes as PostgreSQL sends it. Of a CopyData frame beyond this
    /// size, values beyond it are passed over; see [`Condenser`].
    pub max_event_bytes: usize,
}

/// A running stream.
#[derive(Debug)]
pub struct Replication {
    session: Walsender,
    identity: SystemIdentity,
    flushed: Lsn,
    /// Size of the frame that [`next_frame`](Self::next_frame) has handed out, until it is consumed.
    current: usize,
    max_event_bytes: usize,
    /// A frame above `max_event_bytes`, until it is consumed; its bytes are no longer in the wire.
    large: Option<Condenser>,
    settled: Option<Settled>,
}

/// What the server sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming<'a> {
    /// The payload of a CopyData frame, condensed where it is large; it stays in the buffer until
    /// [`consume_frame`](Replication::consume_frame).
    Data(&'a [u8]),
    /// A notice or warning, already consumed.
    Notice(ServerError),
}

impl ServerError {
    /// Whether this notice is PostgreSQL 18's word that it skipped a publication that did not exist at this point
    /// of the WAL: rows are lost from here on.
    #[must_use]
    pub fn tells_of_a_skipped_publication(&self) -> bool {
        self.sqlstate == SqlState::NOT_IN_PREREQUISITE_STATE
    }
}

impl Replication {
    /// A session that has just answered START_REPLICATION with CopyBothResponse.
    pub(super) const fn new(
        session: Walsender,
        identity: SystemIdentity,
        flushed: Lsn,
        max_event_bytes: usize,
    ) -> Self {
        Self {
            session,
            identity,
            flushed,
            current: 0,
            max_event_bytes,
            large: None,
            settled: None,
        }
    }

    /// Which cluster and timeline this session's positions belong to.
    #[must_use]
    pub const fn identity(&self) -> SystemIdentity {
        self.identity
    }

    /// Up to where the log was flushed before the stream began. A server that has lost nothing never says less.
    #[must_use]
    pub const fn flushed(&self) -> Lsn {
        self.flushed
    }

    /// The server's version.
    #[must_use]
    pub const fn server_version(&self) -> ServerVersion {
        self.session.server_version
    }

    /// A connector that leads to this session's server and to no other, though a name or a list may do so by now: for
    /// SQL sessions that must see the same slot (rule 15).
    #[must_use]
    pub const fn connector(&self) -> &Connector {
        &self.session.connector
    }

    /// The server process that streams to us, as `pg_replication_slots.active_pid` names it (rule 15). Behind a
    /// pooler it may be another number.
    #[must_use]
    pub const fn process_id(&self) -> i32 {
        self.session.process_id
    }

    /// With what the database has on record as settled.
    #[must_use]
    pub fn with_settled(self, settled: Option<Settled>) -> Self {
        Self { settled, ..self }
    }

    /// What the database has on record as settled, if anything.
    #[must_use]
    pub const fn settled(&self) -> Option<&Settled> {
        self.settled.as_ref()
    }

    /// Looks at the next complete frame in the buffer, without waiting; `None`: read more with
    /// [`io`](Self::io). The same frame is returned until [`consume_frame`](Self::consume_frame).
    ///
    /// What has come of a large frame is taken out of the buffer and condensed, so call it after every read.
    ///
    /// # Errors
    /// What the server reports, that it ended the stream ([`Error::ServerShutdown`]), a large frame that cannot be
    /// condensed, or what is not the protocol. After an error the session is of no further use.
    pub fn next_frame(&mut self) -> Result<Option<Incoming<'_>>, Error> {
        const STEP: Step = Step::Stream;
        let (tag, size) = loop {
            self.begin_large()?;
            if self.large.is_some() {
                return self.continue_large();
            }
            let Some(frame) = frame::peek(self.session.wire.input(), MAX_FRAME, STEP)? else {
                return Ok(None);
            };
            match frame.tag {
                // ParameterStatus: a setting changed with the server's configuration.
                b'S' => {
                    let size = frame.size;
                    self.session.wire.consume(size);
                }
                b'E' => {
                    return Err(Error::Server {
                        step: STEP,
                        source: Box::new(ServerError::parse(frame.body)),
                    });
                }
                // CopyDone and CommandComplete, which the server sends of its own accord only at a shutdown.
                b'c' | b'C' => return Err(Error::ServerShutdown),
                tag => break (tag, frame.size),
            }
        };
        match tag {
            b'd' => {
                self.current = size;
                let payload = self.session.wire.input().get(frame::HEADER..size);
                Ok(payload.map(Incoming::Data))
            }
            b'N' => {
                let body = self.session.wire.input().get(frame::HEADER..size);
                let notice = ServerError::parse(body.unwrap_or_default());
                self.session.wire.consume(size);
                Ok(Some(Incoming::Notice(notice)))
            }
            _ => Err(Error::Protocol {
                step: STEP,
                what: "a message out of place in the stream",
            }),
        }
    }

    /// Begins to condense the next frame, if it is a large one.
    fn begin_large(&mut self) -> Result<(), Error> {
        if self.large.is_none()
            && let Some((b'd', size)) = frame::peek_header(self.session.wire.input(), Step::Stream)?
            && let size = usize::try_from(size).unwrap_or(usize::MAX)
            && size > self.max_event_bytes.max(frame::HEADER)
        {
            self.session.wire.consume(frame::HEADER);
            self.large = Some(Condenser::new(size - frame::HEADER, self.max_event_bytes));
        }
        Ok(())
    }

    /// Moves what has come of a large frame from the wire to the condenser.
    fn continue_large(&mut self) -> Result<Option<Incoming<'_>>, Error> {
        let Some(large) = &mut self.large else {
            return Ok(None);
        };
        let fed = large
            .feed(self.session.wire.input())
            .map_err(|error| match error {
                CondenseError::Decode(source) => Error::Decode(source),
                CondenseError::TooLarge { size, limit } => Error::FrameTooLarge {
                    size: size as u64,
                    cap: limit as u64,
                },
            })?;
        self.session.wire.consume(fed);
        Ok(large.payload().map(Incoming::Data))
    }

    /// Drops the data frame that [`next_frame`](Self::next_frame) returned last; no effect without one.
    pub fn consume_frame(&mut self) {
        self.large.take_if(|large| large.payload().is_some());
        self.session.wire.consume(std::mem::take(&mut self.current));
    }

    /// Appends a status update to the output; [`io`](Self::io) sends it.
    pub fn queue_status(&mut self, update: &[u8; 34]) {
        frame::write(self.session.wire.output(), b'd', update);
    }

    /// Writes what is queued and, if `read`, reads what has come; pending while neither makes progress.
    ///
    /// # Errors
    /// The connection broke, or the server closed it ([`Error::Closed`]). Frames that came before are in
    /// the buffer: look at them first.
    pub fn poll_io(&mut self, cx: &mut Context<'_>, read: bool) -> Poll<Result<Progress, Error>> {
        self.session.wire.poll_io(cx, read).map(|result| match result {
            Ok(Progress::Eof) => Err(Error::Closed { step: Step::Stream }),
            Ok(progress) => Ok(progress),
            Err(source) => Err(Error::Io {
                step: Step::Stream,
                source,
            }),
        })
    }

    /// [`poll_io`](Self::poll_io) as a future. Cancel safe: nothing read or queued is lost.
    ///
    /// # Errors
    /// As [`poll_io`](Self::poll_io).
    pub async fn io(&mut self, read: bool) -> Result<Progress, Error> {
        std::future::poll_fn(|cx| self.poll_io(cx, read)).await
    }

    /// Ends the stream in good order: sends what is queued and CopyDone, waits until the server has ended it
    /// too, then says goodbye. What still arrives is dropped: in the middle of a transaction the server sends the
    /// rest of it first, which `deadline` bounds.
    ///
    /// When this returns without error, the server has read the last status update and freed the slot.
    ///
    /// Cancel safety: dropping the future closes the connection.
    ///
    /// # Errors
    /// The connection broke, or the deadline came first. Either way the socket is closed.
    pub async fn close(mut self, deadline: Instant) -> Result<(), Error> {
        self.consume_frame();
        let unread = self.large.take().map_or(0, |large| large.left());
        frame::write(self.session.wire.output(), b'c', &[]);
        within(deadline, Step::Stream, await_ready(&mut self.session, unread)).await?;
        self.session.terminate(deadline).await
    }
}

/// The session's name in `pg_stat_activity` and `pg_stat_replication`.
pub(super) fn application_name(connector: &Connector, slot: &SlotName) -> String {
    match &connector.target().application_name {
        Some(name) => name.clone(),
        None => format!("walrelay {slot}"),
    }
}

/// What a walsender session needs set, whatever the server's, database's or role's defaults are: our own
/// time-out, and the form of values as text.
pub(super) fn session_settings(wal_sender_timeout: Duration) -> Vec<(&'static str, String)> {
    let idle = (wal_sender_timeout.as_secs() / 2).max(1);
    [
        ("wal_sender_timeout", milliseconds(wal_sender_timeout)),
        ("tcp_keepalives_idle", idle.to_string()),
        // Off, whatever the server's default: Linux counts a closed window as silence, so it would cut a relay
        // that does not read under back-pressure although it sends its status (seen on 15).
        ("tcp_user_timeout", "0".to_owned()),
    ]
    .into_iter()
    .chain(text_settings())
    .collect()
}

/// What shapes values as text.
pub(super) fn text_settings() -> impl Iterator<Item = (&'static str, String)> {
    [
        ("bytea_output", "hex"),
        ("DateStyle", "ISO"),
        ("IntervalStyle", "postgres"),
        ("TimeZone", "UTC"),
        ("extra_float_digits", "1"),
        ("client_min_messages", "warning"),
    ]
    .into_iter()
    .map(|(name, value)| (name, value.to_owned()))
}

/// Reads and drops `unread` bytes of the current frame, then frames until ReadyForQuery. Data is dropped as it comes,
/// so that no large frame is buffered.
async fn await_ready(session: &mut Walsender, mut unread: usize) -> Result<(), Error> {
    const STEP: Step = Step::Stream;
    loop {
        loop {
            let dropped = unread.min(session.wire.input().len());
            session.wire.consume(dropped);
            unread -= dropped;
            if unread > 0 {
                break;
            }
            if let Some((b'd', size)) = frame::peek_header(session.wire.input(), STEP)? {
                unread = usize::try_from(size).unwrap_or(usize::MAX);
                continue;
            }
            let Some(frame) = frame::peek(session.wire.input(), MAX_FRAME, STEP)? else {
                break;
            };
            let (tag, size) = (frame.tag, frame.size);
            if tag == b'E' {
                return Err(Error::Server {
                    step: STEP,
                    source: Box::new(ServerError::parse(frame.body)),
                });
            }
            session.wire.consume(size);
            if tag == b'Z' {
                return Ok(());
            }
        }
        let read = session.wire.fill().await;
        if read.map_err(|source| Error::Io { step: STEP, source })? == 0 {
            return Err(Error::Closed { step: STEP });
        }
    }
}

#[cfg(test)]
mod tests;
