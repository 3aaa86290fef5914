//! The little HTTP that reading `/readyz` and `/metrics` takes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::{Attempt as _, Error, Result};

/// How long connecting, and each read, may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// An answer of an HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The header lines, as sent.
    pub head: String,
    /// The body.
    pub body: String,
}

/// GETs a path from a port of 127.0.0.1, by HTTP/1.0, so that the body ends with the connection and is never
/// chunked.
///
/// # Errors
/// When nobody listens, or the answer does not come or is not HTTP.
pub async fn http_get(port: u16, path: &str) -> Result<HttpResponse> {
    let path = path.to_owned();
    let asking = tokio::task::spawn_blocking(move || get(port, &path));
    asking
        .await
        .map_err(std::io::Error::from)
        .attempt("ask over HTTP")?
}

fn get(port: u16, path: &str) -> Result<HttpResponse> {
    let what = || format!("GET {path} from port {port}");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).attempt(what())?;
    stream.set_read_timeout(Some(PATIENCE)).attempt(what())?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).attempt(what())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).attempt(what())?;
    let answer = String::from_utf8_lossy(&answer);
    parse(&answer).ok_or_else(|| Error::Unexpected(format!("{}: not an HTTP answer: {answer:.80}", what())))
}

fn parse(answer: &str) -> Option<HttpResponse> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let (status_line, head) = head.split_once("\r\n").unwrap_or((head, ""));
    let status = status_line
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    Some(HttpResponse {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
