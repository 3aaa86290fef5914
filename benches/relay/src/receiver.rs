//! The walsender's stream as bytes: as much of the protocol as finding the rows in it takes.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::net::TcpStream;

use crate::link::Input;

/// What the server may take for any answer.
const DEADLINE: Duration = Duration::from_secs(30);

/// Version 3.0 of the protocol (PostgreSQL's documentation, "Message Formats", `StartupMessage`).
const PROTOCOL: i32 = 196_608;

/// Type and length in front of every message of the server.
const HEADER: usize = 5;

/// Where the first byte of a message of pgoutput stands within an `XLogData`: behind its type and three 64-bit numbers.
const CONTENT: usize = 1 + 3 * 8;

/// A connection that streams from a slot.
pub(crate) struct Receiver {
    stream: TcpStream,
    input: Input,
    /// The walsender.
    pub(crate) process: u32,
}

impl Receiver {
    /// Connects to a server that trusts everybody, and starts to stream. Within a runtime.
    pub(crate) fn open(port: u16, database: &str, slot: &str) -> Result<Self> {
        let mut stream =
            std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("connect to the server")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut startup = PROTOCOL.to_be_bytes().to_vec();
        for text in [
            "user",
            "postgres",
            "database",
            database,
            "replication",
            "database",
            "",
        ] {
            startup.extend_from_slice(text.as_bytes());
            startup.push(0);
        }
        stream.write_all(&with_length(&startup)?)?;
        let mut input = Input::default();
        let mut process = 0;
        answered(&mut stream, &mut input, |kind, content| {
            // BackendKeyData, then ReadyForQuery.
            if kind == b'K' {
                process = number(content);
            }
            kind == b'Z'
        })?;
        let query = format!(
            "START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 (proto_version '1', publication_names 'walrelay')\0"
        );
        stream.write_all(&[b"Q", with_length(query.as_bytes())?.as_slice()].concat())?;
        // CopyBothResponse.
        answered(&mut stream, &mut input, |kind, _| kind == b'W')?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: TcpStream::from_std(stream)?,
            input,
            process,
        })
    }

    /// Reads once, if there is anything; how many inserted rows it completes.
    pub(crate) fn read(&mut self) -> Result<Option<usize>> {
        match self.input.fill(|room| self.stream.try_read(room)) {
            Ok(0) => bail!("the server hung up"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("read from the server"),
        }
        let mut rows = 0;
        while let Some((kind, content)) = message(&mut self.input)? {
            // CopyData with XLogData with an Insert in it.
            let is_row = content.first() == Some(&b'w') && content.get(CONTENT) == Some(&b'I');
            rows += usize::from(kind == b'd' && is_row);
        }
        Ok(Some(rows))
    }

    /// Waits until the server may have said something.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.stream.readable().await.context("wait for the server")
    }
}

/// Reads until the expected message comes.
fn answered(
    stream: &mut std::net::TcpStream,
    input: &mut Input,
    mut expected: impl FnMut(u8, &[u8]) -> bool,
) -> Result<()> {
    loop {
        while let Some((kind, content)) = message(input)? {
            if expected(kind, content) {
                return Ok(());
            }
        }
        if input
            .fill(|room| stream.read(room))
            .context("wait for the server")?
            == 0
        {
            bail!("the server hung up");
        }
    }
}

/// The next whole message: its type and content.
fn message(input: &mut Input) -> Result<Option<(u8, &[u8])>> {
    let rest = input.rest();
    let Some(header) = rest.get(..HEADER) else {
        return Ok(None);
    };
    let (kind, end) = (header[0], 1 + usize::try_from(number(&header[1..]))?);
    if rest.len() < end {
        return Ok(None);
    }
    let content = &input.take(end)[HEADER..];
    if kind == b'E' {
        bail!("the server said {}", String::from_utf8_lossy(content));
    }
    Ok(Some((kind, content)))
}

/// The 32-bit number in front.
fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().copied().map_or(0, u32::from_be_bytes)
}

/// A message behind its length, which counts itself.
fn with_length(content: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(content.len() + 4)?;
    Ok([&length.to_be_bytes(), content].concat())
}
