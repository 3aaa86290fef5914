//! A walsender session that runs commands: opened, identified, one simple query at a time.
//!
//! A walsender takes the simple query protocol only.
//! <https://www.postgresql.org/docs/current/protocol-replication.html>

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use walrelay_engine::Lsn;

use super::connect::{Connector, ServerTry};
use super::error::{Error, ServerError, Step};
use super::frame;
use super::preflight::Unfit;
use super::servers::Tries;
use super::startup::{self, MIN_SERVER_MAJOR, ServerVersion};
use crate::net::{Stream, Wire};

/// Which history of which cluster a position belongs to. Positions of another system id or timeline mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SystemIdentity {
    /// The cluster's system identifier.
    pub system_id: u64,
    /// The timeline; a promotion begins a new one.
    pub timeline: u32,
}

/// One row of an answer: every column as text, NULL as `None`.
pub(super) type Row = Vec<Option<String>>;

/// An open session.
#[derive(Debug)]
pub(super) struct Walsender {
    pub(super) wire: Wire<Stream>,
    /// Pinned to this session's server.
    pub(super) connector: Connector,
    pub(super) server_version: ServerVersion,
    pub(super) process_id: i32,
}

impl Walsender {
    /// Connects to the first server that will do, starts up and checks its version. Each server has the connector's deadline.
    pub(super) async fn open(
        connector: &Connector,
        application_name: &str,
        options: &[(&str, String)],
    ) -> Result<Self, Error> {
        let servers = connector.servers();
        let mut tries = Tries::of(servers.len());
        for server in servers {
            match Self::open_at(server, connector.deadline(), application_name, options).await {
                Ok(session) => return Ok(session),
                Err(error) => tries.failed(&server, error)?,
            }
        }
        Err(tries.into_error())
    }

    async fn open_at(
        server: ServerTry<'_>,
        deadline: Instant,
        application_name: &str,
        options: &[(&str, String)],
    ) -> Result<Self, Error> {
        let (stream, connector) = server.open(deadline).await?;
        let mut wire = Wire::new(stream);
        let greeting = startup::walsender(&mut wire, &connector, application_name, options);
        let greeting = within(deadline, Step::OpenReplication, greeting).await?;
        let server_version = greeting.server_version.ok_or(Error::Protocol {
            step: Step::OpenReplication,
            what: "no server_version at startup",
        })?;
        if server_version.major < MIN_SERVER_MAJOR {
            return Err(Unfit::ServerTooOld {
                version: server_version,
            }
            .into());
        }
        greeting.role.check(connector.target().session_attrs)?;
        // Without it nothing tells our stream from another's: no dead letter could be stored, nor a row be backfilled.
        let process_id = greeting.process_id.ok_or(Error::Protocol {
            step: Step::OpenReplication,
            what: "no process id at startup",
        })?;
        Ok(Self {
            wire,
            connector,
            server_version,
            process_id,
        })
    }

    /// Runs `IDENTIFY_SYSTEM`: the cluster's identity, and up to where its log is flushed.
    pub(super) async fn identify(&mut self, deadline: Instant) -> Result<(SystemIdentity, Lsn), Error> {
        const STEP: Step = Step::IdentifySystem;
        let rows = within(deadline, STEP, self.query("IDENTIFY_SYSTEM", STEP)).await?;
        let row = rows.first().map(Vec::as_slice).unwrap_or_default();
        let [Some(system_id), Some(timeline), Some(position), ..] = row else {
            return Err(Error::Protocol {
                step: STEP,
                what: "an answer without system id, timeline and position",
            });
        };
        match (system_id.parse(), timeline.parse(), position.parse::<Lsn>()) {
            (Ok(system_id), Ok(timeline), Ok(flushed)) => {
                Ok((SystemIdentity { system_id, timeline }, flushed))
            }
            _ => Err(Error::Protocol {
                step: STEP,
                what: "a system id, timeline or position that is no number",
            }),
        }
    }

    /// Runs one command to its end and returns its rows.
    pub(super) async fn query(&mut self, command: &str, step: Step) -> Result<Vec<Row>, Error> {
        self.send_query(command);
        let mut rows = Vec::new();
        let mut failure = None;
        loop {
            let (tag, body) = frame::read_reply(&mut self.wire, step).await?;
            match tag {
                b'D' => rows.push(read_row(&body).ok_or(Error::Protocol {
                    step,
                    what: "a malformed row",
                })?),
                b'E' => {
                    let error = ServerError::parse(&body);
                    // Nothing follows a FATAL error, not even ReadyForQuery.
                    let fatal = error.severity != "ERROR";
                    failure = Some(Error::Server {
                        step,
                        source: Box::new(error),
                    });
                    if fatal {
                        break;
                    }
                }
                b'Z' => break,
                b'T' | b'C' | b'N' | b'S' | b'I' => {}
                _ => {
                    return Err(Error::Protocol {
                        step,
                        what: "a message out of place after a command",
                    });
                }
            }
        }
        failure.map_or(Ok(rows), Err)
    }

    /// Appends a Query message to the output.
    pub(super) fn send_query(&mut self, command: &str) {
        let mut body = Vec::with_capacity(command.len() + 1);
        body.extend_from_slice(command.as_bytes());
        body.push(0);
        frame::write(self.wire.output(), b'Q', &body);
    }

    /// Says goodbye and closes the socket.
    pub(super) async fn terminate(mut self, deadline: Instant) -> Result<(), Error> {
        let step = Step::OpenReplication;
        frame::write(self.wire.output(), b'X', &[]);
        let farewell = async {
            self.wire.flush().await?;
            self.wire.shutdown().await
        };
        within(deadline, step, async {
            farewell.await.map_err(|source| Error::Io { step, source })
        })
        .await
    }
}

/// Runs `future` until `deadline`.
pub(super) async fn within<T>(
    deadline: Instant,
    step: Step,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout_at(deadline, future)
        .await
        .unwrap_or(Err(Error::Deadline { step }))
}

/// A duration as whole milliseconds, at least one, as settings take it.
pub(super) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().clamp(1, 2_147_483_647).to_string()
}

/// Reads a DataRow: n16, each i32 length (-1: NULL) and text.
fn read_row(body: &[u8]) -> Option<Row> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut row = Row::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        match usize::try_from(i32::from_be_bytes(*length)) {
            Err(_) => row.push(None),
            Ok(length) => {
                let (value, after) = rest.split_at_checked(length)?;
                row.push(Some(String::from_utf8_lossy(value).into_owned()));
                rest = after;
            }
        }
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// What a session that trusts us answers, with or without BackendKeyData.
    async fn opened(key: Option<&[u8]>) -> Result<Walsender, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut bytes = Vec::new();
        frame::write(&mut bytes, b'R', &[0; 4]);
        frame::write(&mut bytes, b'S', b"server_version\x0015.4\0");
        if let Some(key) = key {
            frame::write(&mut bytes, b'K', key);
        }
        frame::write(&mut bytes, b'Z', b"I");
        let serve = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(&bytes).await.unwrap();
            // The client may leave before it has read everything.
            socket.read_to_end(&mut Vec::new()).await.ok();
        };
        let url = format!("postgres://u@127.0.0.1:{port}/d?sslmode=disable");
        let connector = Connector::new(url.parse().unwrap());
        tokio::select! {
            biased;
            opened = Walsender::open(&connector, "test", &[]) => opened,
            () = serve => unreachable!("the socket is open until the session is"),
        }
    }

    /// Neither dead letters nor rows to be backfilled could ever be dealt with: better said at once.
    #[tokio::test]
    async fn a_server_that_does_not_tell_its_process_id_is_refused() {
        let session = opened(Some(&[0, 0, 1, 2, 9, 9, 9, 9])).await.unwrap();
        assert_eq!(session.process_id, 258);
        let error = opened(None).await.unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
    }

    #[test]
    fn a_row_is_read_with_its_nulls() {
        let body = [0, 3, 0, 0, 0, 1, b'a', 255, 255, 255, 255, 0, 0, 0, 0];
        assert_eq!(
            read_row(&body),
            Some(vec![Some("a".to_owned()), None, Some(String::new())])
        );
        for end in 0..body.len() {
            assert_eq!(read_row(&body[..end]), None, "{end}");
        }
    }

    proptest! {
        #[test]
        fn no_row_makes_the_parser_panic(body in proptest::collection::vec(any::<u8>(), 0..40)) {
            drop(read_row(&body));
        }
    }
}
