//! One stream type for every way to reach a server, and how to open it.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ProtocolVersion;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::client::TlsStream;

use super::tls;

/// Idle time before the first keepalive probe, then between probes, and how many may stay unanswered. The
/// servers are watched by their own protocols' heartbeats; this only clears sockets that those do not cover.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// A connected byte stream to a server.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A Unix-domain socket.
    Unix(UnixStream),
    /// TLS over TCP.
    Tls(Box<TlsStream<TcpStream>>),
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host name has no address, or the name service did not answer.
    #[error("cannot resolve the host name `{host}`")]
    Resolve {
        /// The name that was looked up.
        host: String,
        /// What the resolver said.
        #[source]
        source: io::Error,
    },
    /// No address of the host accepted; the source is the last address's error.
    #[error("cannot connect to {endpoint}")]
    Refused {
        /// `host:port`, or the path of the Unix socket.
        endpoint: String,
        /// The last error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The deadline passed first.
    #[error("no connection to {endpoint} within the time allowed")]
    Deadline {
        /// `host:port`, or the path of the Unix socket.
        endpoint: String,
    },
}

/// Opens a TCP connection to the first address of `host` that accepts, without Nagle's delay and with
/// keepalive. Each address gets an equal share of the time that is left, so that one that swallows packets
/// does not use up the time of the others.
///
/// Cancel safety: dropping the future closes what was opened.
///
/// # Errors
/// See [`ConnectError`]; the message names `host:port`.
pub async fn connect_tcp(host: &str, port: u16, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let endpoint = || endpoint_text(host, port);
    let addresses: Vec<SocketAddr> = timeout_at(deadline, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| ConnectError::Deadline { endpoint: endpoint() })?
        .map_err(|source| ConnectError::Resolve {
            host: host.to_owned(),
            source,
        })?
        .collect();
    if addresses.is_empty() {
        return Err(ConnectError::Resolve {
            host: host.to_owned(),
            source: io::Error::new(io::ErrorKind::NotFound, "the name has no address"),
        });
    }
    connect_first(&addresses, endpoint, deadline).await
}

/// As [`connect_tcp`], to an address that is known already.
///
/// Cancel safety: dropping the future closes what was opened.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect_address(address: SocketAddr, deadline: Instant) -> Result<TcpStream, ConnectError> {
    connect_first(&[address], || address.to_string(), deadline).await
}

/// Connects to the first address that accepts, of one at least.
async fn connect_first(
    addresses: &[SocketAddr],
    endpoint: impl Fn() -> String,
    deadline: Instant,
) -> Result<TcpStream, ConnectError> {
    let mut last = None;
    for (index, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let remaining = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = deadline.saturating_duration_since(now) / remaining;
        match timeout_at(now + share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => match tune(&stream) {
                Ok(()) => return Ok(stream),
                Err(error) => last = Some(error),
            },
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = last.or_else(|| Some(io::ErrorKind::TimedOut.into())),
        }
    }
    let source = last.unwrap_or_else(|| io::ErrorKind::TimedOut.into());
    if source.kind() == io::ErrorKind::TimedOut {
        return Err(ConnectError::Deadline { endpoint: endpoint() });
    }
    Err(ConnectError::Refused {
        endpoint: endpoint(),
        source,
    })
}

/// Opens a Unix-domain socket.
///
/// Cancel safety: dropping the future closes what was opened.
///
/// # Errors
/// See [`ConnectError`]; the message names the path.
pub async fn connect_unix(path: &Path, deadline: Instant) -> Result<UnixStream, ConnectError> {
    let endpoint = || PathBuf::from(path).display().to_string();
    timeout_at(deadline, UnixStream::connect(path))
        .await
        .map_err(|_| ConnectError::Deadline { endpoint: endpoint() })?
        .map_err(|source| ConnectError::Refused {
            endpoint: endpoint(),
            source,
        })
}

/// `host:port`, an IPv6 address in brackets.
#[must_use]
pub fn endpoint_text(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

impl Stream {
    /// Gives the connection up once bytes of ours have stayed without TCP's acknowledgement for so long; the system's own
    /// patience is a quarter of an hour. Of no effect on a Unix socket.
    /// <https://man7.org/linux/man-pages/man7/tcp.7.html> (`TCP_USER_TIMEOUT`)
    ///
    /// Not for a peer that may refuse to read for long: before Linux 5.11 a full window counts as silence.
    ///
    /// # Errors
    /// The system refuses.
    pub fn limit_unacknowledged(&self, limit: Duration) -> io::Result<()> {
        let socket = match self {
            Self::Tcp(socket) => socket,
            Self::Tls(session) => session.get_ref().0,
            Self::Unix(_) => return Ok(()),
        };
        SockRef::from(socket).set_tcp_user_timeout(Some(limit))
    }

    /// What a login can be bound to: the channel binding `tls-server-end-point` (RFC 5929) of the server's certificate.
    /// `None` without TLS, and where the RFC defines none for such a certificate.
    #[must_use]
    pub fn server_end_point(&self) -> Option<Vec<u8>> {
        let Self::Tls(session) = self else {
            return None;
        };
        let certificate = session.get_ref().1.peer_certificates()?.first()?;
        tls::server_end_point(certificate)
    }

    /// The version of TLS that was agreed on; none without TLS.
    #[must_use]
    pub fn tls_version(&self) -> Option<&'static str> {
        let Self::Tls(session) = self else {
            return None;
        };
        let version = session.get_ref().1.protocol_version()?;
        Some(if version == ProtocolVersion::TLSv1_3 {
            "TLS 1.3"
        } else if version == ProtocolVersion::TLSv1_2 {
            "TLS 1.2"
        } else {
            "TLS"
        })
    }

    /// Whether what is sent is encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_))
    }
}

/// Calls the same method on whichever stream it is.
macro_rules! delegate {
    ($self:expr, $stream:ident => $call:expr) => {
        match $self {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
            Stream::Tls($stream) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self.get_mut(), stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self.get_mut(), stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        delegate!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.get_mut(), stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[tokio::test]
    async fn a_tcp_stream_carries_bytes_both_ways() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (client, server) = tokio::join!(connect_tcp("localhost", port, soon()), async {
            listener.accept().await
        });
        let (mut client, mut server) = (Stream::Tcp(client.unwrap()), server.unwrap().0);
        client.write_all(b"ping").await.unwrap();
        let mut four = [0; 4];
        server.read_exact(&mut four).await.unwrap();
        server.write_all(&four).await.unwrap();
        client.read_exact(&mut four).await.unwrap();
        assert_eq!(&four, b"ping");
        client.limit_unacknowledged(Duration::from_secs(7)).unwrap();
        let Stream::Tcp(socket) = &client else {
            panic!("not TCP")
        };
        let limit = SockRef::from(socket).tcp_user_timeout().unwrap();
        assert_eq!(limit, Some(Duration::from_secs(7)));
        assert!(!client.is_encrypted());
    }

    #[tokio::test]
    async fn a_refused_connection_names_host_and_port() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = connect_tcp("127.0.0.1", port, soon()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("cannot connect to 127.0.0.1:{port}"));
        assert!(
            matches!(error, ConnectError::Refused { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
        );
    }

    #[tokio::test]
    async fn a_deadline_in_the_past_ends_the_attempt() {
        let error = connect_tcp("127.0.0.1", 9, Instant::now()).await.unwrap_err();
        assert!(
            matches!(
                error,
                ConnectError::Deadline { .. } | ConnectError::Refused { .. }
            ),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_missing_unix_socket_is_named_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".s.PGSQL.5432");
        let error = connect_unix(&path, soon()).await.unwrap_err();
        assert!(error.to_string().ends_with(".s.PGSQL.5432"), "{error}");
    }

    #[test]
    fn an_ipv6_address_is_printed_in_brackets() {
        assert_eq!(endpoint_text("::1", 5432), "[::1]:5432");
        assert_eq!(endpoint_text("db.example", 5432), "db.example:5432");
    }
}
