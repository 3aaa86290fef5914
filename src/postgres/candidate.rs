//! A walsender session that has not started its stream: it may wait for a slot that another process streams from.

use tokio::time::Instant;
use walrelay_engine::Lsn;

use super::connect::Connector;
use super::error::{Error, ServerError, SqlState, Step};
use super::frame;
use super::identifier::{SlotName, quote_identifier, quote_literal};
use super::preflight::Unfit;
use super::replication::{Replication, StartOptions, application_name, session_settings};
use super::walsender::{SystemIdentity, Walsender, within};

/// An open session that could stream.
#[derive(Debug)]
pub struct Candidate {
    session: Walsender,
    identity: SystemIdentity,
    flushed: Lsn,
}

/// What became of a try to stream.
#[derive(Debug)]
pub enum Started {
    /// The stream runs.
    Streaming(Replication),
    /// Another process has the slot; the session can try again.
    SlotInUse(Candidate),
}

impl Candidate {
    /// Opens a session with the first server that will do. Each has the connector's deadline.
    ///
    /// Cancel safety: dropping the future closes the connection.
    ///
    /// # Errors
    /// Everything that keeps a session from being opened.
    pub async fn open(connector: &Connector, options: &StartOptions) -> Result<Self, Error> {
        let name = application_name(connector, &options.slot);
        let settings = session_settings(options.wal_sender_timeout);
        let mut session = Walsender::open(connector, &name, &settings).await?;
        // While reading is paused, status updates that nobody receives are the only sign of a dead connection.
        session
            .wire
            .stream()
            .limit_unacknowledged(options.wal_sender_timeout)
            .map_err(|source| Error::Io {
                step: Step::OpenReplication,
                source,
            })?;
        let (identity, flushed) = session.identify(connector.deadline()).await?;
        Ok(Self {
            session,
            identity,
            flushed,
        })
    }

    /// The server's process that streams from the slot, if there is one. Asking costs no line in the server's log, unlike
    /// a try to start.
    ///
    /// Cancel safety: not to be used any more after a dropped future, since an answer may be under way.
    ///
    /// # Errors
    /// No answer by the deadline, or [`Unfit::SlotMissing`].
    pub async fn slot_holder(&mut self, slot: &SlotName, deadline: Instant) -> Result<Option<String>, Error> {
        const STEP: Step = Step::Query("look at the replication slot");
        let sql = format!(
            "select active_pid from pg_catalog.pg_replication_slots where slot_name = {}",
            quote_literal(slot.as_str())
        );
        let rows = within(deadline, STEP, self.session.query(&sql, STEP)).await?;
        let row = rows.into_iter().next();
        let row = row.ok_or_else(|| Unfit::SlotMissing { slot: slot.clone() })?;
        Ok(row.into_iter().next().flatten())
    }

    /// Starts the stream at the slot's own position.
    ///
    /// Always `0/0`: a position beyond the slot's confirmed one would skip events without a word, one before it is
    /// moved up anyway.
    ///
    /// Cancel safety: dropping the future closes the connection.
    ///
    /// # Errors
    /// No answer by the deadline, or what the server says against streaming, other than that the slot is in use.
    pub async fn start(mut self, options: &StartOptions, deadline: Instant) -> Result<Started, Error> {
        const STEP: Step = Step::StartStreaming;
        self.session.send_query(&start_command(options));
        match within(deadline, STEP, await_copy_both(&mut self.session)).await {
            Ok(()) => Ok(Started::Streaming(Replication::new(
                self.session,
                self.identity,
                self.flushed,
                options.max_event_bytes,
            ))),
            Err(error) if error.sqlstate() == Some(SqlState::OBJECT_IN_USE) => Ok(Started::SlotInUse(self)),
            Err(error) => Err(error),
        }
    }
}

/// Protocol 1 and no `streaming`: whole committed transactions only. With `messages`, since they ask for retries (R16);
/// PostgreSQL has them from version 14 on.
/// <https://www.postgresql.org/docs/current/protocol-logical-replication.html>
fn start_command(options: &StartOptions) -> String {
    format!(
        "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', messages 'true', publication_names {})",
        quote_identifier(options.slot.as_str()),
        // A list of identifiers within a literal.
        quote_literal(&quote_identifier(options.publication.as_str())),
    )
}

/// Waits for CopyBothResponse. After an error that leaves the session usable it reads on until ReadyForQuery.
async fn await_copy_both(session: &mut Walsender) -> Result<(), Error> {
    const STEP: Step = Step::StartStreaming;
    let mut failure = None;
    loop {
        let (tag, body) = frame::read_reply(&mut session.wire, STEP).await?;
        match tag {
            b'W' => return Ok(()),
            b'E' => {
                let error = ServerError::parse(&body);
                let usable = error.severity == "ERROR";
                let error = Error::Server {
                    step: STEP,
                    source: Box::new(error),
                };
                if !usable {
                    return Err(error);
                }
                failure = Some(error);
            }
            b'N' | b'S' => {}
            _ => {
                return Err(failure.filter(|_| tag == b'Z').unwrap_or(Error::Protocol {
                    step: STEP,
                    what: "an answer that is not CopyBothResponse",
                }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::super::startup::ServerVersion;
    use super::*;
    use crate::net::{Stream, Wire};

    fn options() -> StartOptions {
        StartOptions {
            slot: "a_1".parse().unwrap(),
            publication: "My \"p'ub".parse().unwrap(),
            wal_sender_timeout: Duration::from_secs(10),
            max_event_bytes: 1024,
        }
    }

    /// What becomes of a try to start that the server answers with these frames, and what it was sent afterwards.
    async fn started(answer: &[(u8, &[u8])]) -> Result<Started, Error> {
        let (ours, mut server) = UnixStream::pair().unwrap();
        let candidate = Candidate {
            session: Walsender {
                wire: Wire::new(Stream::Unix(ours)),
                connector: Connector::new("postgres://u@h".parse().unwrap()),
                server_version: ServerVersion { major: 15, minor: 0 },
                process_id: 7,
            },
            identity: SystemIdentity {
                system_id: 7,
                timeline: 1,
            },
            flushed: Lsn::new(100),
        };
        let mut bytes = Vec::new();
        for (tag, body) in answer {
            frame::write(&mut bytes, *tag, body);
        }
        server.write_all(&bytes).await.unwrap();
        let started = candidate
            .start(&options(), Instant::now() + Duration::from_secs(60))
            .await;
        let mut query = [0; 5];
        server.read_exact(&mut query).await.unwrap();
        assert_eq!(query[0], b'Q');
        started
    }

    #[test]
    fn names_are_quoted_for_the_grammar_they_stand_in() {
        assert_eq!(
            start_command(&options()),
            r#"START_REPLICATION SLOT "a_1" LOGICAL 0/0 (proto_version '1', messages 'true', publication_names '"My ""p''ub"')"#
        );
    }

    #[tokio::test]
    async fn a_slot_in_use_leaves_the_session_for_another_try() {
        let in_use = b"SERROR\0VERROR\0C55006\0Mslot is active\0\0";
        let started = started(&[(b'E', in_use), (b'Z', b"I")]).await.unwrap();
        let Started::SlotInUse(candidate) = started else {
            panic!("streaming");
        };
        // Nothing of the failed try is left behind to be taken for an answer.
        assert!(candidate.session.wire.input().is_empty());
    }

    #[tokio::test]
    async fn every_other_refusal_is_an_error() {
        let lost = b"SERROR\0VERROR\0C55000\0Mslot is lost\0\0";
        let error = started(&[(b'E', lost), (b'Z', b"I")]).await.unwrap_err();
        assert_eq!(error.sqlstate(), Some(SqlState::NOT_IN_PREREQUISITE_STATE));
        let fatal = b"SFATAL\0VFATAL\0C57P01\0Mshutdown\0\0";
        let error = started(&[(b'E', fatal)]).await.unwrap_err();
        assert_eq!(error.sqlstate(), Some(SqlState::ADMIN_SHUTDOWN));
        assert!(matches!(
            started(&[(b'Z', b"I")]).await,
            Err(Error::Protocol { .. })
        ));
        assert!(matches!(
            started(&[(b'N', b"\0"), (b'W', b"\0\0\0")]).await,
            Ok(Started::Streaming(_))
        ));
    }
}
