//! A connection to the broker with one channel, by the engine's own frames: as little as measuring takes.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use walrelay_engine::amqp::encode::{self, ClientProperties};
use walrelay_engine::amqp::{Frame, Method, PROTOCOL_HEADER};
use walrelay_engine::flow::CHANNEL;
use walrelay_testbed::Vhost;

/// The largest frame: RabbitMQ's default.
pub(crate) const FRAME_MAX: u32 = 131_072;

/// What the broker may take for any answer.
const DEADLINE: Duration = Duration::from_secs(10);

const READ_CHUNK: usize = 256 * 1024;

/// A connected socket and what has been read and not consumed.
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) input: Input,
}

/// Bytes read and not understood yet.
#[derive(Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    consumed: usize,
}

impl Input {
    /// What has been read and not taken.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.bytes[self.consumed..]
    }

    /// Takes so many bytes.
    pub(crate) fn take(&mut self, count: usize) -> &[u8] {
        self.consumed += count;
        &self.bytes[self.consumed - count..self.consumed]
    }

    /// The next whole frame.
    pub(crate) fn frame(&mut self) -> Result<Option<Frame<'_>>> {
        match Frame::decode(&self.bytes[self.consumed..], FRAME_MAX)? {
            Some((frame, size)) => {
                self.consumed += size;
                Ok(Some(frame))
            }
            None => Ok(None),
        }
    }

    /// Reads once by `read`, which is given the free room; how many bytes came.
    pub(crate) fn fill(
        &mut self,
        read: impl FnOnce(&mut [u8]) -> std::io::Result<usize>,
    ) -> std::io::Result<usize> {
        self.bytes.drain(..self.consumed);
        self.consumed = 0;
        let end = self.bytes.len();
        self.bytes.resize(end + READ_CHUNK, 0);
        let count = read(&mut self.bytes[end..]);
        self.bytes.truncate(end + count.as_ref().copied().unwrap_or(0));
        count
    }
}

impl Link {
    /// Connects, logs in, and opens the channel.
    pub(crate) fn open(vhost: &Vhost) -> Result<Link> {
        let stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, vhost.port())).context("connect to the broker")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut link = Link {
            stream,
            input: Input::default(),
        };
        link.stream.write_all(PROTOCOL_HEADER.as_slice())?;
        link.answered("connection.start", |method| {
            matches!(method, Method::ConnectionStart { .. })
        })?;
        let mut out = Vec::new();
        let client = ClientProperties {
            version: env!("CARGO_PKG_VERSION"),
            connection_name: "walrelay-bench",
        };
        encode::connection_start_ok(&mut out, "PLAIN", &encode::sasl_plain("guest", "guest"), &client)?;
        link.stream.write_all(&out)?;
        link.answered("connection.tune", |method| {
            matches!(method, Method::ConnectionTune { .. })
        })?;
        out.clear();
        // No heartbeats: what is idle for long is not measured by this.
        encode::connection_tune_ok(&mut out, 1, FRAME_MAX, 0);
        encode::connection_open(&mut out, vhost.name())?;
        encode::channel_open(&mut out, CHANNEL);
        link.stream.write_all(&out)?;
        link.answered("channel.open-ok", |method| {
            matches!(method, Method::ChannelOpenOk)
        })?;
        Ok(link)
    }

    /// Asks for confirms.
    pub(crate) fn confirm(&mut self) -> Result<()> {
        let mut out = Vec::new();
        encode::confirm_select(&mut out, CHANNEL);
        self.stream.write_all(&out)?;
        self.answered("confirm.select-ok", |method| {
            matches!(method, Method::ConfirmSelectOk)
        })
    }

    /// Reads until the expected answer comes. Others before it are passed over.
    pub(crate) fn answered(&mut self, name: &str, expected: impl Fn(&Method<'_>) -> bool) -> Result<()> {
        loop {
            while let Some(frame) = self.input.frame()? {
                #[expect(
                    clippy::wildcard_enum_match_arm,
                    reason = "whatever else comes is not waited for"
                )]
                match Method::decode(frame.payload)? {
                    method if expected(&method) => return Ok(()),
                    Method::ConnectionClose(close) | Method::ChannelClose(close) => {
                        bail!("the broker closed before {name}: {}", close.reply_text_lossy())
                    }
                    _ => {}
                }
            }
            let stream = &mut self.stream;
            let count = self.input.fill(|room| stream.read(room));
            if count.with_context(|| format!("wait for {name}"))? == 0 {
                bail!("the broker hung up before {name}");
            }
        }
    }
}

/// Appends a frame of a method that a publisher does not need and the engine does not know.
pub(crate) fn method_frame(out: &mut Vec<u8>, (class, method): (u16, u16), arguments: &[u8]) {
    // Type 1 is a method; the frame ends with 0xCE (specification, section 4.2.3).
    let length = u32::try_from(arguments.len() + 4).unwrap_or(u32::MAX);
    out.push(1);
    out.extend_from_slice(&CHANNEL.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&class.to_be_bytes());
    out.extend_from_slice(&method.to_be_bytes());
    out.extend_from_slice(arguments);
    out.push(0xce);
}
