//! Startup and authentication of a walsender session.
//!
//! <https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-START-UP>

use std::fmt;
use std::io;

use bytes::BytesMut;
use postgres_protocol::message::frontend;

use super::authentication::Exchange;
use super::connect::Connector;
use super::error::{Error, ServerError, SqlState, Step};
use super::frame;
use super::servers::ServerRole;
use crate::net::{Stream, Wire};

/// The oldest server with all that is needed.
pub const MIN_SERVER_MAJOR: u32 = 14;

/// The server's version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// 15 of `15.14`.
    pub major: u32,
    /// 14 of `15.14`; 0 for a development version.
    pub minor: u32,
}

impl ServerVersion {
    /// Reads `server_version`: `15.14 (Debian 15.14-0+deb12u1)`, `18beta1`.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let digits = |text: &str| -> Option<u32> {
            let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text.get(..end)?.parse().ok()
        };
        let minor = text
            .split_once('.')
            .and_then(|(_, rest)| digits(rest))
            .unwrap_or(0);
        Some(Self {
            major: digits(text)?,
            minor,
        })
    }

    /// Reads `server_version_num`: 150014.
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        Self {
            major: number / 10_000,
            minor: number % 10_000,
        }
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What the server said of itself at startup.
#[derive(Debug, Clone, Default)]
pub(super) struct Greeting {
    pub(super) server_version: Option<ServerVersion>,
    /// The server process's id, as the server's own views name it.
    pub(super) process_id: Option<i32>,
    /// Whether it takes writes.
    pub(super) role: ServerRole,
}

/// Opens a walsender session for logical replication on a fresh stream: startup, authentication, ready.
/// `options` are `(setting, value)` pairs for the session.
pub(super) async fn walsender(
    wire: &mut Wire<Stream>,
    connector: &Connector,
    application_name: &str,
    options: &[(&str, String)],
) -> Result<Greeting, Error> {
    const STEP: Step = Step::OpenReplication;
    let target = connector.target();
    let settings = render_options(options);
    let parameters = [
        ("user", target.user.as_str()),
        ("database", target.dbname.as_str()),
        ("replication", "database"),
        ("application_name", application_name),
        ("client_encoding", "UTF8"),
        ("options", settings.as_str()),
    ];
    send(wire, |buffer| frontend::startup_message(parameters, buffer))?;

    let mut exchange = Exchange::new(target, connector.password()?, wire.stream());
    let mut greeting = Greeting::default();
    let mut authenticated = false;
    loop {
        let (tag, body) = frame::read_reply(wire, STEP).await?;
        match tag {
            b'R' if !authenticated => authenticated = exchange.answer(wire, &body)?,
            b'E' => return Err(refused(ServerError::parse(&body))),
            // A notice, perhaps of a login trigger.
            b'N' => {}
            // BackendKeyData: process id, then the key for cancelling.
            b'K' => greeting.process_id = body.first_chunk().map(|id| i32::from_be_bytes(*id)),
            b'S' => {
                if let Some((name, rest)) = frame::split_text(&body)
                    && let Some((value, _)) = frame::split_text(rest)
                {
                    greeting.role.note(name, Some(value));
                    if name == "server_version" {
                        greeting.server_version = ServerVersion::from_text(value);
                    }
                }
            }
            b'Z' if authenticated => return Ok(greeting),
            _ => {
                return Err(Error::Protocol {
                    step: STEP,
                    what: "a message out of place during startup",
                });
            }
        }
    }
}

/// Renders `-c name=value` arguments; spaces and backslashes in a value are escaped.
/// <https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNECT-OPTIONS>
pub(super) fn render_options(options: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in options {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str("-c ");
        text.push_str(name);
        text.push('=');
        for character in value.chars() {
            if character == '\\' || character.is_ascii_whitespace() {
                text.push('\\');
            }
            text.push(character);
        }
    }
    text
}

/// PgBouncer before 1.23 does not know the startup parameter.
fn refused(error: ServerError) -> Error {
    let source = Box::new(error);
    if source.sqlstate == SqlState::PROTOCOL_VIOLATION || source.message.contains("startup parameter") {
        return Error::Pooler(source);
    }
    Error::Server {
        step: Step::OpenReplication,
        source,
    }
}

/// Builds a message with the library's writer and appends it.
pub(super) fn send(
    wire: &mut Wire<Stream>,
    build: impl FnOnce(&mut BytesMut) -> io::Result<()>,
) -> Result<(), Error> {
    let mut buffer = BytesMut::new();
    build(&mut buffer).map_err(|source| Error::Io {
        step: Step::OpenReplication,
        source,
    })?;
    wire.output().extend_from_slice(&buffer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_are_read_in_every_form() {
        for (text, major, minor) in [
            ("15.14 (Debian 15.14-0+deb12u1)", 15, 14),
            ("14.0", 14, 0),
            ("18beta1", 18, 0),
            ("9.6.24", 9, 6),
        ] {
            assert_eq!(
                ServerVersion::from_text(text),
                Some(ServerVersion { major, minor }),
                "{text}"
            );
        }
        assert_eq!(ServerVersion::from_text("devel"), None);
        assert_eq!(ServerVersion::from_number(150_014).to_string(), "15.14");
    }

    #[test]
    fn option_values_are_escaped() {
        let options = [("a", "1".to_owned()), ("DateStyle", "ISO, MDY\\".to_owned())];
        assert_eq!(render_options(&options), "-c a=1 -c DateStyle=ISO,\\ MDY\\\\");
    }

    #[test]
    fn a_pooler_that_refuses_replication_is_recognised() {
        let error = refused(ServerError::parse(
            b"SERROR\0C08P01\0Munsupported startup parameter: replication\0\0",
        ));
        assert!(matches!(error, Error::Pooler(_)));
        let error = refused(ServerError::parse(b"SFATAL\0C57P03\0Mstarting up\0\0"));
        assert!(matches!(error, Error::Server { .. }));
    }

    /// Startup against a server that sends `script` and listens to nothing.
    async fn against(script: &[u8]) -> Result<Greeting, Error> {
        against_as("postgres://u:secret@h/d", script).await
    }

    async fn against_as(url: &str, script: &[u8]) -> Result<Greeting, Error> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (ours, mut server) = tokio::net::UnixStream::pair().unwrap();
        let connector = Connector::new(url.parse().unwrap());
        let mut wire = Wire::new(Stream::Unix(ours));
        let talk = async {
            server.write_all(script).await.unwrap();
            server.shutdown().await.unwrap();
            let mut heard = Vec::new();
            // The client may leave before it has sent everything.
            server.read_to_end(&mut heard).await.ok();
        };
        let opening = async {
            let result = walsender(&mut wire, &connector, "test", &[]).await;
            drop(wire);
            result
        };
        tokio::join!(opening, talk).0
    }

    fn script(list: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (tag, body) in list {
            frame::write(&mut bytes, *tag, body);
        }
        bytes
    }

    #[tokio::test]
    async fn a_trusting_server_is_ready_at_once() {
        let version: &[u8] = b"server_version\x0015.4\0";
        let bytes = script(&[
            (b'R', &[0; 4]),
            (b'S', version),
            (b'K', &[0, 0, 1, 2, 9, 9, 9, 9]),
            (b'Z', b"I"),
        ]);
        let greeting = against(&bytes).await.unwrap();
        assert_eq!(greeting.process_id, Some(258));
        assert_eq!(greeting.server_version, ServerVersion::from_text("15.4"));
    }

    #[tokio::test]
    async fn a_server_that_skips_its_own_scram_proof_is_refused() {
        let offer = [b"\0\0\0\x0a".as_slice(), b"SCRAM-SHA-256\0\0"].concat();
        let bytes = script(&[(b'R', &offer), (b'R', &[0; 4]), (b'Z', b"I")]);
        assert!(matches!(against(&bytes).await, Err(Error::Protocol { .. })));
    }

    #[tokio::test]
    async fn a_server_that_asks_for_less_than_a_bound_login_is_refused_where_that_is_required() {
        let url = "postgres://u:secret@h/d?channel_binding=require";
        for asked in [&[0, 0, 0, 0][..], &[0, 0, 0, 3], &[0, 0, 0, 5, 1, 2, 3, 4]] {
            let error = against_as(url, &script(&[(b'R', asked)])).await.unwrap_err();
            assert!(matches!(error, Error::NotBound { .. }), "{asked:?}: {error}");
        }
    }

    #[tokio::test]
    async fn too_many_scram_iterations_are_named() {
        let offer = [b"\0\0\0\x0a".as_slice(), b"SCRAM-SHA-256\0\0"].concat();
        let first = [b"\0\0\0\x0b".as_slice(), b"r=x,s=c2FsdA==,i=100001"].concat();
        let bytes = script(&[(b'R', &offer), (b'R', &first)]);
        assert!(matches!(against(&bytes).await, Err(Error::ScramIterations)));
    }

    #[tokio::test]
    async fn an_unknown_method_is_named_and_nothing_is_sent_for_it() {
        let error = against(&script(&[(b'R', &[0, 0, 0, 7])])).await.unwrap_err();
        assert!(error.to_string().contains("GSSAPI"), "{error}");
        let error = against(&script(&[(b'R', b"\0\0\0\x0aSCRAM-SHA-512\0\0")]))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::AuthenticationMethod { .. }), "{error}");
    }

    #[tokio::test]
    async fn being_ready_before_authentication_is_an_error() {
        assert!(matches!(
            against(&script(&[(b'Z', b"I")])).await,
            Err(Error::Protocol { .. })
        ));
        assert!(matches!(against(b"").await, Err(Error::Closed { .. })));
        assert!(matches!(
            against(b"HTTP/1.1 400 Bad Request\r\n\r\n").await,
            Err(Error::Protocol { .. })
        ));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_authentication_message_makes_startup_panic(
            bodies in proptest::collection::vec(
                (prop_oneof![Just(0u8), Just(3), Just(5), Just(10), Just(11), Just(12), any::<u8>()],
                 proptest::collection::vec(any::<u8>(), 0..24)), 1..5))
        {
            let frames: Vec<_> = bodies.iter().map(|(code, data)| [&[0, 0, 0, *code], &data[..]].concat()).collect();
            let list: Vec<(u8, &[u8])> = frames.iter().map(|body| (b'R', body.as_slice())).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
            runtime.block_on(async { drop(against(&script(&list)).await) });
        }
    }
}
