//! A broker that does what a test says: answers that a real one cannot be made to give.
//!
//! It speaks AMQP 0-9-1 by a script. Each [`ScriptedConnection`] is driven by the test itself, step by step; nothing
//! is answered unasked. What it sends is built by [`answer`]. Numbers: <https://www.rabbitmq.com/amqp-0-9-1-reference>.

pub mod answer;

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::error::{Attempt as _, Error, Result};
use crate::wait::patience;

/// How long a connection or a frame may be waited for.
const DEADLINE: Duration = Duration::from_secs(20);

/// Class and method of what a client sends.
pub mod method {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const START_OK: (u16, u16) = (10, 11);
    pub const TUNE_OK: (u16, u16) = (10, 31);
    pub const OPEN: (u16, u16) = (10, 40);
    pub const CONNECTION_CLOSE: (u16, u16) = (10, 50);
    pub const CONNECTION_CLOSE_OK: (u16, u16) = (10, 51);
    pub const CHANNEL_OPEN: (u16, u16) = (20, 10);
    pub const CHANNEL_CLOSE_OK: (u16, u16) = (20, 41);
    pub const EXCHANGE_DECLARE: (u16, u16) = (40, 10);
    pub const CONFIRM_SELECT: (u16, u16) = (85, 10);
    pub const PUBLISH: (u16, u16) = (60, 40);
}

/// Frame types.
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;

/// A listener on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct ScriptedBroker {
    listener: TcpListener,
    port: u16,
}

/// One connection of a client.
#[derive(Debug)]
pub struct ScriptedConnection {
    stream: TcpStream,
    /// The largest frame that the client has sent, in bytes.
    largest: usize,
}

/// What the broker offers while a client connects.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// The largest frame in bytes.
    pub frame_max: u32,
    /// The heartbeat time-out in seconds; 0 for none.
    pub heartbeat: u16,
}

/// A frame of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFrame {
    kind: u8,
    payload: Vec<u8>,
}

/// A message of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The payload of its content header, to be returned as it is.
    pub header: Vec<u8>,
    /// The body, put together.
    pub body: Vec<u8>,
    /// In how many frames the body came.
    pub body_frames: usize,
}

impl Default for Offer {
    /// What RabbitMQ offers.
    fn default() -> Self {
        Self {
            frame_max: 131_072,
            heartbeat: 60,
        }
    }
}

impl ScriptedBroker {
    /// Begins to listen.
    ///
    /// # Errors
    /// When no port can be bound.
    pub async fn start() -> Result<ScriptedBroker> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .attempt("bind a scripted broker")?;
        let port = listener.local_addr().attempt("ask for the port")?.port();
        Ok(ScriptedBroker { listener, port })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URI of the broker, with `guest`'s password.
    pub fn uri(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// Waits for the next client and its protocol header.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Unexpected`] for another header.
    pub async fn accept(&self) -> Result<ScriptedConnection> {
        let mut connection = self.accept_silent().await?;
        let mut header = [0; 8];
        connection.read_exact("the protocol header", &mut header).await?;
        if header != *b"AMQP\0\0\x09\x01" {
            return Err(Error::Unexpected(format!("a protocol header {header:?}")));
        }
        Ok(connection)
    }

    /// Waits for the next client and reads nothing.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub async fn accept_silent(&self) -> Result<ScriptedConnection> {
        let (stream, _) = within("a client", self.listener.accept())
            .await?
            .attempt("accept")?;
        stream.set_nodelay(true).attempt("set TCP_NODELAY")?;
        Ok(ScriptedConnection { stream, largest: 0 })
    }

    /// The usual: accepts, and lets the client through to where it publishes.
    ///
    /// # Errors
    /// As [`accept`](Self::accept) and [`ScriptedConnection::welcome`].
    pub async fn open(&self, offer: Offer) -> Result<ScriptedConnection> {
        let mut connection = self.accept().await?;
        connection.welcome(offer).await?;
        Ok(connection)
    }
}

impl ScriptedConnection {
    /// Plays the whole handshake behind the protocol header, with one exchange that is asked for.
    ///
    /// # Errors
    /// When the client does something else.
    pub async fn welcome(&mut self, offer: Offer) -> Result<()> {
        self.send(&answer::start("PLAIN AMQPLAIN")).await?;
        self.expect(method::START_OK).await?;
        self.send(&answer::tune(offer.frame_max, offer.heartbeat)).await?;
        self.expect(method::TUNE_OK).await?;
        self.expect(method::OPEN).await?;
        self.send(&answer::open_ok()).await?;
        self.expect(method::CHANNEL_OPEN).await?;
        self.send(&answer::channel_open_ok()).await?;
        self.expect(method::EXCHANGE_DECLARE).await?;
        self.send(&answer::declare_ok()).await?;
        self.expect(method::CONFIRM_SELECT).await?;
        self.send(&answer::select_ok()).await
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// When the client has closed.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream
            .write_all(bytes)
            .await
            .attempt("send to the client of a scripted broker")
    }

    /// Sends bytes one at a time, each in a packet of its own as far as the system does so.
    ///
    /// # Errors
    /// When the client has closed.
    pub async fn trickle(&mut self, bytes: &[u8]) -> Result<()> {
        for byte in bytes {
            self.send(&[*byte]).await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Waits for this method and returns its arguments; heartbeats may come before it.
    ///
    /// # Errors
    /// [`Error::Unexpected`] for anything else.
    pub async fn expect(&mut self, wanted: (u16, u16)) -> Result<Vec<u8>> {
        let frame = self.next().await?;
        match frame.method() {
            Some(method) if method == wanted => Ok(frame.payload.get(4..).unwrap_or_default().to_vec()),
            _ => Err(Error::Unexpected(format!(
                "{frame:?} instead of the method {wanted:?}"
            ))),
        }
    }

    /// Waits for the next message; heartbeats may come before it.
    ///
    /// # Errors
    /// [`Error::Unexpected`] for anything else.
    pub async fn published(&mut self) -> Result<Published> {
        self.expect(method::PUBLISH).await?;
        let header = self.next().await?;
        let size = header.payload.get(4..12).and_then(|size| size.try_into().ok());
        let (HEADER, Some(size)) = (header.kind, size.map(u64::from_be_bytes)) else {
            return Err(Error::Unexpected(format!(
                "{header:?} instead of a content header"
            )));
        };
        let (mut body, mut body_frames) = (Vec::new(), 0);
        while (body.len() as u64) < size {
            let frame = self.next().await?;
            if frame.kind != BODY {
                return Err(Error::Unexpected(format!("{frame:?} instead of a body")));
            }
            body.extend_from_slice(&frame.payload);
            body_frames += 1;
        }
        Ok(Published {
            header: header.payload,
            body,
            body_frames,
        })
    }

    /// Waits for so many heartbeats in a row, which is a time in which the client had nothing else to send, and answers
    /// each with one.
    ///
    /// # Errors
    /// As [`heartbeats`](Self::heartbeats).
    pub async fn idle(&mut self, heartbeats: usize) -> Result<()> {
        for _ in 0..heartbeats {
            self.heartbeats(1).await?;
            self.send(&answer::heartbeat()).await?;
        }
        Ok(())
    }

    /// Waits for so many heartbeats in a row and answers none.
    ///
    /// # Errors
    /// [`Error::Unexpected`] for any other frame.
    pub async fn heartbeats(&mut self, count: usize) -> Result<()> {
        for _ in 0..count {
            match self.frame().await? {
                Some(frame) if frame.kind == HEARTBEAT => {}
                frame => return Err(Error::Unexpected(format!("{frame:?} instead of a heartbeat"))),
            }
        }
        Ok(())
    }

    /// Waits until the client has closed, whatever else it sends.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub async fn closed(&mut self) -> Result<()> {
        let reading = async {
            let mut buffer = [0; 4096];
            // A reset is an end too.
            while self.stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        };
        within("the client to close", reading).await
    }

    /// Waits until the client has sent something, or has closed, and reads at most 64 KiB of it.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub async fn read_some(&mut self) -> Result<()> {
        let mut buffer = vec![0; 64 * 1024];
        within("the client to say something", self.stream.read(&mut buffer))
            .await?
            .attempt("read from the client of a scripted broker")
            .map(drop)
    }

    /// The largest frame of the client so far, in bytes with its overhead.
    pub fn largest_frame(&self) -> usize {
        self.largest
    }

    /// The next frame, heartbeats passed over.
    async fn next(&mut self) -> Result<ClientFrame> {
        loop {
            match self.frame().await? {
                Some(frame) if frame.kind == HEARTBEAT => {}
                Some(frame) => return Ok(frame),
                None => return Err(Error::Unexpected("the client closed".to_owned())),
            }
        }
    }

    /// The next frame, none at the end.
    async fn frame(&mut self) -> Result<Option<ClientFrame>> {
        let mut head = [0; 7];
        let first = within("a frame", self.stream.read(&mut head[..1]))
            .await?
            .attempt("read a frame")?;
        if first == 0 {
            return Ok(None);
        }
        self.read_exact("a frame's head", &mut head[1..]).await?;
        let [kind, _, _, size @ ..] = head;
        let size = u32::from_be_bytes(size) as usize;
        let mut payload = vec![0; size + 1];
        self.read_exact("a frame's payload", &mut payload).await?;
        self.largest = self.largest.max(size + 8);
        match payload.pop() {
            Some(0xCE) => Ok(Some(ClientFrame { kind, payload })),
            end => Err(Error::Unexpected(format!("a frame that ends in {end:?}"))),
        }
    }

    async fn read_exact(&mut self, what: &str, buffer: &mut [u8]) -> Result<()> {
        within(what, self.stream.read_exact(buffer))
            .await?
            .attempt(format!("read {what}"))
            .map(drop)
    }
}

impl ClientFrame {
    fn method(&self) -> Option<(u16, u16)> {
        match (self.kind, self.payload.as_slice()) {
            (METHOD, &[c1, c0, m1, m0, ..]) => {
                Some((u16::from_be_bytes([c1, c0]), u16::from_be_bytes([m1, m0])))
            }
            _ => None,
        }
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    let waited = patience(DEADLINE);
    tokio::time::timeout(waited, future)
        .await
        .map_err(|_elapsed| Error::Timeout {
            what: what.to_owned(),
            waited,
        })
}
