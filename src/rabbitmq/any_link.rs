//! A link of either protocol.

use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use walrelay_engine::dedup::Resume;
use walrelay_engine::flow::ProducerLog;

#[cfg(feature = "stream")]
use super::StreamLink;
use super::{BrokerError, Connector, Link, LinkEvent};

/// A link to an exchange, or to a stream.
#[derive(Debug)]
pub enum AnyLink {
    /// By AMQP 0-9-1.
    Amqp(Link),
    /// By the stream protocol.
    #[cfg(feature = "stream")]
    Stream(StreamLink),
}

/// A link, and what is known of a stream.
#[derive(Debug)]
pub struct OpenedLink {
    /// The link.
    pub link: AnyLink,
    /// What the stream has of us; none with AMQP 0-9-1.
    pub resume: Option<Resume>,
}

impl Connector {
    /// Opens a link to the stream of the settings, or to exchanges where there is none.
    ///
    /// Cancel safety: dropping the future closes the socket.
    ///
    /// # Errors
    /// Why there is none. Everything is under a deadline.
    #[cfg_attr(
        not(feature = "stream"),
        expect(unused_variables, reason = "without the feature no stream can be set")
    )]
    pub async fn connect_any(&self, log: Option<ProducerLog>) -> Result<OpenedLink, BrokerError> {
        #[cfg(feature = "stream")]
        if let (Some(target), Some(log)) = (&self.stream, log) {
            let opening = self.connect_stream(target, &log);
            let (link, resume) = Box::pin(opening).await?;
            return Ok(OpenedLink {
                link: AnyLink::Stream(link),
                resume: Some(resume),
            });
        }
        Ok(OpenedLink {
            link: AnyLink::Amqp(self.connect().await?),
            resume: None,
        })
    }
}

/// Calls the same method of whichever it is.
macro_rules! either {
    ($link:expr, $it:ident => $call:expr) => {
        match $link {
            AnyLink::Amqp($it) => $call,
            #[cfg(feature = "stream")]
            AnyLink::Stream($it) => $call,
        }
    };
}

impl AnyLink {
    /// The largest frame in bytes.
    #[must_use]
    pub const fn frame_max(&self) -> u32 {
        either!(self, link => link.frame_max())
    }

    /// The largest body in bytes that a broker of this version takes by default.
    #[must_use]
    pub const fn max_message_bytes(&self) -> usize {
        match self {
            Self::Amqp(link) => link.max_message_bytes(),
            #[cfg(feature = "stream")]
            Self::Stream(_) => usize::MAX,
        }
    }

    /// The broker's version, if it told.
    #[must_use]
    pub fn server_version(&self) -> Option<&str> {
        either!(self, link => link.server_version())
    }

    /// The output buffer, for frames that publish.
    pub fn output(&mut self) -> &mut Vec<u8> {
        either!(self, link => link.output())
    }

    /// Reads and writes whatever is possible. Pending while neither makes progress.
    ///
    /// # Errors
    /// The socket failed, or the broker hung up.
    pub fn poll_io(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), BrokerError>> {
        either!(self, link => link.poll_io(cx, now))
    }

    /// The next thing that the broker said, out of what has been read.
    ///
    /// # Errors
    /// The link is of no further use.
    pub fn next_event(&mut self) -> Result<Option<LinkEvent>, BrokerError> {
        either!(self, link => link.next_event())
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        either!(self, link => link.deadline())
    }

    /// Sends a heartbeat when one is due, and finds out that the broker is silent.
    ///
    /// # Errors
    /// The broker is silent.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), BrokerError> {
        either!(self, link => link.handle_timeout(now))
    }

    /// Says good-bye and waits for the answer for at most `limit`, then drops the socket either way.
    ///
    /// # Errors
    /// The good-bye was not answered; nothing depends on it.
    pub async fn close(self, limit: Duration) -> Result<(), BrokerError> {
        either!(self, link => link.close(limit).await)
    }

    /// Drops the socket, after answering a close of the broker's where there was one.
    ///
    /// Cancel safety: dropping the future drops the socket.
    pub async fn dismiss(self, deadline: Instant) {
        either!(self, link => link.dismiss(deadline).await);
    }
}
