//! A fresh connection that only asks whether the server is going down.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::time::Instant;

use super::connect::Connector;
use super::error::{Error, ServerError, SqlState, Step};
use super::frame;
use super::identifier::SlotName;
use super::replication::application_name;
use super::walsender::within;
use crate::net::{ConnectError, Stream, Wire};

/// A server that takes longer to answer says nothing about a shutdown.
const DEADLINE: Duration = Duration::from_secs(5);

/// AuthenticationOk: nothing more is asked of us.
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-AUTHENTICATIONOK>
const AUTHENTICATION_OK: &[u8] = &[0; 4];

/// Whether the server refuses new connections because it shuts down: SQLSTATE 57P03 in answer to a startup packet, before
/// any authentication, or nobody who listens. Of several servers only the first is asked: pin the connector. The connection is closed whatever the answer.
///
/// Each call costs the server a process that ends before or right after authentication, and a line of its log where
/// `log_connections` is on.
///
/// Cancel safety: dropping the future closes the connection.
///
/// # Errors
/// No answer within 5 s, or none that PostgreSQL would give: nothing is known then.
pub async fn is_shutting_down(connector: &Connector, slot: &SlotName) -> Result<bool, Error> {
    let deadline = Instant::now() + DEADLINE;
    let server = connector.servers().next();
    let server = server.ok_or(Error::Closed { step: Step::Connect })?;
    let stream = match server.open(deadline).await {
        Ok((stream, _)) => stream,
        Err(Error::Unreachable(ConnectError::Refused { source, .. })) if nobody_listens(&source) => {
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    let mut wire = Wire::new(stream);
    within(deadline, Step::OpenControl, ask(&mut wire, connector, slot)).await
}

/// Nobody at the port, or no Unix socket any more.
fn nobody_listens(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

async fn ask(wire: &mut Wire<Stream>, connector: &Connector, slot: &SlotName) -> Result<bool, Error> {
    const STEP: Step = Step::OpenControl;
    let failed = |source| Error::Io { step: STEP, source };
    let name = format!("{} watch", application_name(connector, slot));
    let parameters = [
        ("user", connector.target().user.as_str()),
        ("database", connector.target().dbname.as_str()),
        ("application_name", name.as_str()),
    ];
    let mut packet = BytesMut::new();
    frontend::startup_message(parameters, &mut packet).map_err(failed)?;
    wire.output().extend_from_slice(&packet);
    let (tag, body) = frame::read_reply(wire, STEP).await?;
    if tag == b'E' {
        return Ok(ServerError::parse(&body).sqlstate == SqlState::CANNOT_CONNECT_NOW);
    }
    // Anything else: it lets us in, or would. Leave so that its log stays quiet, which a reset would not.
    if tag == b'R' && body == AUTHENTICATION_OK {
        frame::write(wire.output(), b'X', &[]);
    }
    wire.flush().await.map_err(failed)?;
    wire.shutdown().await.map_err(failed)?;
    while wire.fill().await.map_err(failed)? > 0 {
        let read = wire.input().len();
        wire.consume(read);
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// What the probe makes of a server that gives this answer to the startup packet and then closes.
    async fn made_of(answer: &[u8]) -> Result<bool, Error> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connector = Connector::new(format!("postgres://u@127.0.0.1:{port}/d").parse().unwrap());
        let slot = "walrelay".parse().unwrap();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            // sslmode=prefer asks for TLS first.
            let mut request = [0; 8];
            socket.read_exact(&mut request).await.unwrap();
            socket.write_all(b"N").await.unwrap();
            let length = socket.read_u32().await.unwrap();
            socket
                .read_exact(&mut vec![0; length as usize - 4])
                .await
                .unwrap();
            socket.write_all(answer).await.unwrap();
            socket.shutdown().await.unwrap();
            let mut rest = Vec::new();
            socket.read_to_end(&mut rest).await.unwrap();
            rest
        };
        let (made_of, rest) = tokio::join!(is_shutting_down(&connector, &slot), server);
        assert!(rest.is_empty() || rest == [b'X', 0, 0, 0, 4], "{rest:?}");
        made_of
    }

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, tag, body);
        bytes
    }

    #[tokio::test]
    async fn only_a_server_that_cannot_be_connected_to_now_is_shutting_down() {
        let error = |code: &str| frame(b'E', format!("SFATAL\0VFATAL\0C{code}\0Mno\0\0").as_bytes());
        assert!(made_of(&error("57P03")).await.unwrap());
        for answer in [
            error("53300"),
            error("28000"),
            frame(b'R', AUTHENTICATION_OK),
            frame(b'R', &[0, 0, 0, 10, b'S', 0, 0]),
        ] {
            assert!(!made_of(&answer).await.unwrap(), "{answer:?}");
        }
        assert!(made_of(b"").await.is_err());
    }

    #[tokio::test]
    async fn a_port_at_which_nobody_listens_is_a_server_that_has_gone() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let connector = Connector::new(format!("postgres://u@127.0.0.1:{port}/d").parse().unwrap());
        assert!(
            is_shutting_down(&connector, &"walrelay".parse().unwrap())
                .await
                .unwrap()
        );
    }
}
