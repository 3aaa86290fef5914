//! A question to a running relay's own endpoint, for commands on the same machine.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// More than any of the relay's answers, so that a stranger on the port cannot fill the memory.
const MAX_ANSWER: u64 = 4 * 1024 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No connection.
    #[error("connect to {address}")]
    Connect {
        /// Where to.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The connection broke, or stayed silent for too long.
    #[error("ask {address}")]
    Exchange {
        /// Where.
        address: SocketAddr,
        /// What happened.
        source: io::Error,
    },
    /// Something else listens there.
    #[error("what listens on {0} does not speak HTTP")]
    NotHttp(SocketAddr),
}

/// An answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

/// Asks for a path; `listen` is the relay's `admin.listen`, `token` that of `admin.token_file`, and each step may take
/// `patience`. Blocks.
///
/// # Errors
/// Nothing listens there, or not a relay, or it does not answer in time.
pub fn ask(
    listen: SocketAddr,
    path: &str,
    token: Option<&str>,
    patience: Duration,
) -> Result<Answer, AskError> {
    let address = reachable(listen);
    let mut stream = TcpStream::connect_timeout(&address, patience)
        .map_err(|source| AskError::Connect { address, source })?;
    let text = exchange(&mut stream, path, token, patience)
        .map_err(|source| AskError::Exchange { address, source })?;
    parse(&text).ok_or(AskError::NotHttp(address))
}

/// A relay that listens on all addresses is reached by the loopback one.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

fn exchange(
    stream: &mut TcpStream,
    path: &str,
    token: Option<&str>,
    patience: Duration,
) -> io::Result<String> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    // HTTP/1.0: the answer ends with the connection, and comes in one piece.
    let authorization = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn parse(answer: &str) -> Option<Answer> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = parse("HTTP/1.0 503 Service Unavailable\r\ncontent-length: 3\r\n\r\nno\n").unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "no\n"));
        assert_eq!(parse("220 mail.example.org ESMTP"), None);
        assert_eq!(parse("HTTP/1.1 OK\r\n\r\n"), None);
    }

    #[test]
    fn a_relay_on_all_addresses_is_asked_by_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("10.0.0.7:1", "10.0.0.7:1"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
