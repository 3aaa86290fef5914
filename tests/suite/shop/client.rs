//! A client of the order service, which can hang up at any moment: it does when its future is dropped.

use std::io::{Error, ErrorKind, Result};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What the service answered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    /// A field of the body; null where it has none.
    pub(super) fn field(&self, name: &str) -> Value {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        body[name].clone()
    }

    pub(super) fn order_id(&self) -> Option<i64> {
        self.field("order_id").as_i64()
    }
}

/// Sends one request on a connection of its own.
pub(super) async fn send(port: u16, method: &str, path: &str, head: &str, body: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    let cut = || Error::new(ErrorKind::UnexpectedEof, "the answer was cut off");
    let text = String::from_utf8(response).map_err(|_| ErrorKind::InvalidData)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let announced = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok());
    if announced != Some(body.len()) {
        return Err(cut());
    }
    Ok(Answer {
        status: status.ok_or_else(cut)?,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

pub(super) async fn post(port: u16, path: &str, body: &Value) -> Result<Answer> {
    send(port, "POST", path, "", &body.to_string()).await
}
