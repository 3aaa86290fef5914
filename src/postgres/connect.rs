//! One connector for walsender and SQL sessions: TCP or Unix socket, then TLS as `sslmode` says.

use std::net::SocketAddr;
use std::path::PathBuf;

use secrecy::{ExposeSecret, SecretString};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::error::{Error, Step};
use super::url::{ConnectTarget, Host, Server, SessionAttrs, SslMode, socket_path};
use crate::credential;
use crate::net::tls::{self, TlsError, TlsSettings};
use crate::net::{Stream, connect_address, connect_tcp, connect_unix};

/// SSLRequest: length 8, then the code 80877103.
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-SSLREQUEST>
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];

/// Opens connections to the servers of one target, or to the one that it is pinned to.
#[derive(Debug, Clone)]
pub struct Connector {
    target: ConnectTarget,
    password_file: Option<PathBuf>,
    pinned: Option<Place>,
}

/// Where a session is: a server, and the address that its name stood for.
#[derive(Debug, Clone)]
struct Place {
    server: Server,
    address: Option<SocketAddr>,
}

/// A try at one server of a connector's.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerTry<'a> {
    connector: &'a Connector,
    server: &'a Server,
    address: Option<SocketAddr>,
}

impl Connector {
    /// A connector that takes the password from the target, if it is needed.
    #[must_use]
    pub const fn new(target: ConnectTarget) -> Self {
        Self {
            target,
            password_file: None,
            pinned: None,
        }
    }

    /// Takes the password from a file instead, read anew for every session so that a rotated one is picked up.
    #[must_use]
    pub fn with_password_file(mut self, path: PathBuf) -> Self {
        self.password_file = Some(path);
        self
    }

    /// Where it connects to.
    #[must_use]
    pub const fn target(&self) -> &ConnectTarget {
        &self.target
    }

    /// How long one server may take from the connection to a session, from now: `connect_timeout`.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        Instant::now() + self.target.connect_timeout
    }

    /// The servers in the order in which they are to be tried; never none.
    pub(super) fn servers(&self) -> impl ExactSizeIterator<Item = ServerTry<'_>> {
        let (servers, address) = match &self.pinned {
            Some(place) => (std::slice::from_ref(&place.server), place.address),
            None => (self.target.servers.as_slice(), None),
        };
        servers.iter().map(move |server| ServerTry {
            connector: self,
            server,
            address,
        })
    }

    /// A connector for each server alone, whatever its role: for looking at it.
    pub(super) fn each(&self) -> impl Iterator<Item = Self> {
        self.target.servers.iter().map(|server| Self {
            target: ConnectTarget {
                servers: vec![server.clone()],
                session_attrs: SessionAttrs::Any,
                ..self.target.clone()
            },
            pinned: None,
            ..self.clone()
        })
    }

    /// Where it is pinned to, if there are several servers to choose from.
    pub(super) fn chosen_of_several(&self) -> Option<String> {
        let chosen = self.pinned.as_ref().filter(|_| self.target.servers.len() > 1);
        chosen.map(|place| place.server.endpoint())
    }

    /// The servers that it leads to, separated by commas: one if it is pinned.
    #[must_use]
    pub fn endpoints(&self) -> String {
        let endpoints: Vec<_> = self.servers().map(|server| server.endpoint()).collect();
        endpoints.join(",")
    }

    /// The password to use, if there is one.
    ///
    /// # Errors
    /// The password file cannot be read or is empty.
    pub fn password(&self) -> Result<Option<SecretString>, Error> {
        let Some(path) = &self.password_file else {
            return Ok(self.target.password.clone());
        };
        let text = credential::read_text(path)
            .map(SecretString::from)
            .map_err(|source| Error::PasswordFile {
                path: path.clone(),
                source,
            })?;
        // Editors and `echo` end a file with a line break that is not part of the password.
        let line = text.expose_secret();
        let line = line.strip_suffix('\n').unwrap_or(line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.is_empty() {
            return Err(Error::PasswordFileEmpty { path: path.clone() });
        }
        Ok(Some(SecretString::from(line)))
    }
}

impl ServerTry<'_> {
    /// Names our certificate where that is what the server has closed an encrypted session over.
    pub(super) fn explained(&self, error: Error) -> Error {
        let Error::Io { step, source } = error else {
            return error;
        };
        match TlsError::of_session(&self.endpoint(), source) {
            Ok(refusal) => refusal.into(),
            Err(source) => Error::Io { step, source },
        }
    }

    /// Where it is, as error texts name it.
    pub(super) fn endpoint(&self) -> String {
        self.server.endpoint()
    }

    /// Opens a byte stream to the server, with TLS agreed on; nothing of the session has been said yet. The name is looked
    /// up at each try. Returns a connector that is pinned to the address reached: whoever must talk to the same server
    /// uses that, since a name or a list may lead to another one a moment later (R15).
    ///
    /// Cancel safety: dropping the future closes what was opened.
    ///
    /// # Errors
    /// The server is unreachable, has no TLS where it is demanded, or the handshake fails.
    pub(super) async fn open(&self, deadline: Instant) -> Result<(Stream, Connector), Error> {
        let (stream, address) = timeout_at(deadline, self.open_stream(deadline))
            .await
            .unwrap_or(Err(Error::Deadline { step: Step::Connect }))?;
        let pinned = Connector {
            pinned: Some(Place {
                server: self.server.clone(),
                address,
            }),
            ..self.connector.clone()
        };
        Ok((stream, pinned))
    }

    async fn open_stream(&self, deadline: Instant) -> Result<(Stream, Option<SocketAddr>), Error> {
        let port = self.server.port;
        let (host, socket) = match (&self.server.host, self.address) {
            (Host::Unix(folder), _) => {
                let path = socket_path(folder, port);
                return Ok((Stream::Unix(connect_unix(&path, deadline).await?), None));
            }
            (Host::Tcp(host), Some(address)) => (host, connect_address(address, deadline).await?),
            (Host::Tcp(host), None) => (host, connect_tcp(host, port, deadline).await?),
        };
        let broke = |source| Error::Io {
            step: Step::Connect,
            source,
        };
        let address = Some(socket.peer_addr().map_err(broke)?);
        let stream = match self.connector.target.tls() {
            None => Stream::Tcp(socket),
            Some(settings) => self.negotiate(host, socket, &settings, deadline).await?,
        };
        Ok((stream, address))
    }

    async fn negotiate(
        &self,
        host: &str,
        mut socket: TcpStream,
        settings: &TlsSettings,
        deadline: Instant,
    ) -> Result<Stream, Error> {
        let broke = |source| Error::Io {
            step: Step::Connect,
            source,
        };
        socket.write_all(&SSL_REQUEST).await.map_err(broke)?;
        // Exactly one byte is read before the handshake, so nothing that a man in the middle puts behind it
        // can be taken for a part of the encrypted session (CVE-2021-23222).
        let mut answer = [0];
        if socket.read(&mut answer).await.map_err(broke)? == 0 {
            return Err(Error::Closed { step: Step::Connect });
        }
        match answer {
            [b'S'] => {
                let shaken = timeout_at(deadline, tls::handshake(settings, host, socket)).await;
                let silent = Err(Error::Deadline {
                    step: Step::TlsHandshake,
                });
                shaken.map_or(silent, |shaken| Ok(shaken?))
            }
            [b'N'] if self.connector.target.sslmode == SslMode::Prefer => Ok(Stream::Tcp(socket)),
            [b'N'] => Err(Error::TlsRefused {
                endpoint: self.endpoint(),
            }),
            // An error text at this point is not from an authenticated server: it is not shown (CVE-2024-10977).
            [b'E'] => Err(Error::Closed { step: Step::Connect }),
            _ => Err(Error::Protocol {
                step: Step::Connect,
                what: "an answer to SSLRequest that is neither S nor N",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::net::TcpListener;

    /// A stream to the connector's only server.
    async fn open(connector: &Connector, deadline: Instant) -> Result<Stream, Error> {
        let server = connector.servers().next().unwrap();
        server.open(deadline).await.map(|(stream, _)| stream)
    }

    /// A server that answers SSLRequest with `answer`, and a connector to it.
    async fn against(answer: &'static [u8], sslmode: &str) -> Result<Stream, Error> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = format!("postgres://u@127.0.0.1:{port}/d?sslmode={sslmode}")
            .parse()
            .unwrap();
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 8];
            socket.read_exact(&mut request).await.unwrap();
            assert_eq!(request, SSL_REQUEST);
            socket.write_all(answer).await.unwrap();
        };
        let connector = Connector::new(target);
        let (opened, ()) = tokio::join!(open(&connector, connector.deadline()), server);
        opened
    }

    #[tokio::test]
    async fn prefer_falls_back_where_require_refuses() {
        assert!(matches!(against(b"N", "prefer").await, Ok(Stream::Tcp(_))));
        for sslmode in ["require", "verify-ca", "verify-full"] {
            let error = against(b"N", sslmode).await.unwrap_err();
            assert!(matches!(error, Error::TlsRefused { .. }), "{sslmode}: {error}");
        }
    }

    #[tokio::test]
    async fn an_unclear_answer_to_the_ssl_request_is_an_error() {
        assert!(matches!(
            against(b"H", "prefer").await,
            Err(Error::Protocol { .. })
        ));
        assert!(matches!(against(b"E", "prefer").await, Err(Error::Closed { .. })));
        assert!(matches!(against(b"", "prefer").await, Err(Error::Closed { .. })));
    }

    #[tokio::test]
    async fn a_silent_server_is_left_at_the_deadline() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connector = Connector::new(format!("postgres://u@127.0.0.1:{port}/d").parse().unwrap());
        let error = open(&connector, Instant::now() + Duration::from_millis(50))
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::Deadline { step: Step::Connect }),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_pinned_connector_leads_to_the_address_that_was_reached_and_to_no_other() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let url = format!(
            "postgres://u@localhost:{},other/d?sslmode=disable",
            address.port()
        );
        let connector = Connector::new(url.parse().unwrap());
        assert_eq!(connector.servers().len(), 2);
        let first = connector.servers().next().unwrap();
        assert_eq!(first.address, None, "the name is looked up at each try");
        let (_stream, pinned) = first.open(connector.deadline()).await.unwrap();
        let servers: Vec<_> = pinned.servers().collect();
        assert_eq!(servers.len(), 1);
        assert_eq!(servers[0].address, Some(address));
        assert_eq!(pinned.endpoints(), format!("localhost:{}", address.port()));
    }

    #[test]
    fn the_password_file_wins_and_loses_its_line_break() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let connector = Connector::new("postgres://u:url@h".parse().unwrap());
        assert_eq!(connector.password().unwrap().unwrap().expose_secret(), "url");
        let connector = connector.with_password_file(path.clone());
        assert!(matches!(connector.password(), Err(Error::PasswordFile { .. })));
        for (content, password) in [
            ("s3cret\n", "s3cret"),
            ("s3cret\r\n", "s3cret"),
            (" a b ", " a b "),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(connector.password().unwrap().unwrap().expose_secret(), password);
        }
        std::fs::write(&path, "\n").unwrap();
        assert!(matches!(
            connector.password(),
            Err(Error::PasswordFileEmpty { .. })
        ));
    }
}
