//! Where messages go: to RabbitMQ, or to standard output in its place.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use walrelay_engine::dedup::Resume;
use walrelay_engine::flow::{DeliveryError, ProducerLog};

use super::faults;
use crate::fault::{Fault, FaultKind};
use crate::rabbitmq::{AnyLink, BrokerError, Brokers, Connector, LinkEvent, OpenedLink};
use crate::stdout::{self, Stdout, StdoutError};

/// Where messages go.
#[derive(Debug, Clone)]
pub enum Sink {
    /// To one of these brokers.
    RabbitMq(Box<Brokers>),
    /// To standard output, a line each.
    Stdout(Stdout),
}

/// The kind of a sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkKind {
    /// RabbitMQ.
    RabbitMq,
    /// Standard output.
    Stdout,
}

impl SinkKind {
    /// The word for it in the configuration, in JSON and metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Stdout => "stdout",
        }
    }
}

impl Sink {
    /// Which of them it is.
    #[must_use]
    pub const fn kind(&self) -> SinkKind {
        match self {
            Self::RabbitMq(_) => SinkKind::RabbitMq,
            Self::Stdout(_) => SinkKind::Stdout,
        }
    }

    /// How many places there are that a try can be made to reach.
    pub(super) fn count(&self) -> usize {
        match self {
            Self::RabbitMq(brokers) => brokers.count(),
            Self::Stdout(_) => 1,
        }
    }

    /// What the log calls it.
    pub(super) const fn side(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => "broker",
            Self::Stdout(_) => "stdout",
        }
    }

    /// Whether messages go to a stream, whose end has to be read back for each session.
    pub(super) const fn is_stream(&self) -> bool {
        match self {
            Self::RabbitMq(brokers) => brokers.current().stream.is_some(),
            Self::Stdout(_) => false,
        }
    }

    /// Opens a link; one to a stream for the events of this log.
    pub(super) fn open(
        &self,
        log: Option<ProducerLog>,
    ) -> impl Future<Output = Result<OpenedSink, Fault>> + Send + 'static {
        let sink = self.clone();
        async move {
            match sink {
                Self::RabbitMq(brokers) => open(brokers.current(), log).await,
                Self::Stdout(stdout) => match stdout.open().await {
                    Ok(link) => Ok(OpenedSink {
                        link: SinkLink::Stdout(link),
                        resume: None,
                    }),
                    Err(error) => Err(error.fault()),
                },
            }
        }
    }

    /// A link is up, and nothing speaks against it.
    pub(super) const fn connected(&mut self) {
        match self {
            Self::RabbitMq(brokers) => brokers.connected(),
            Self::Stdout(_) => {}
        }
    }

    /// A try to open a link failed. Returns whether a person is needed, as [`Brokers::failed`] does.
    pub(super) fn failed(&mut self, kind: FaultKind) -> bool {
        match self {
            Self::RabbitMq(brokers) => brokers.failed(kind),
            Self::Stdout(_) => kind == FaultKind::StdoutClosed,
        }
    }

    /// A link that was up is lost. Returns as [`failed`](Self::failed) does.
    pub(super) fn struck(&mut self, kind: FaultKind) -> bool {
        match self {
            Self::RabbitMq(brokers) => brokers.struck(kind),
            Self::Stdout(_) => kind == FaultKind::StdoutClosed,
        }
    }

    /// A message about it, with the broker's host and port.
    pub(super) fn named(&self, message: String) -> String {
        match self {
            Self::RabbitMq(brokers) => brokers.current().named(message),
            Self::Stdout(_) => message,
        }
    }

    /// An error of its link as a fault; and reply code and words where a message was refused.
    pub(super) fn judge<'a>(&self, error: &'a SinkError) -> (Fault, Option<(u16, &'a str)>) {
        match (self, error) {
            (Self::RabbitMq(brokers), SinkError::RabbitMq(error)) => {
                let connector = brokers.current();
                (connector.fault(error), faults::refusal(error, connector))
            }
            (_, SinkError::RabbitMq(error)) => (Fault::new(error.kind(), error), None),
            (_, SinkError::Stdout(error)) => (error.fault(), None),
        }
    }

    /// An answer that the publisher cannot take.
    pub(super) fn misled(&self, error: DeliveryError) -> SinkError {
        match self {
            Self::RabbitMq(_) => BrokerError::from(error).into(),
            Self::Stdout(_) => StdoutError::from(error).into(),
        }
    }

    /// What it means that it takes nothing for now.
    pub(super) const fn blocked_kind(&self) -> FaultKind {
        match self {
            Self::RabbitMq(_) => FaultKind::BrokerBlocked,
            Self::Stdout(_) => FaultKind::StdoutBlocked,
        }
    }

    /// Says that it takes messages again.
    pub(super) fn tell_unblocked(&self) {
        match self {
            Self::RabbitMq(_) => tracing::info!("broker takes messages again"),
            Self::Stdout(_) => tracing::info!("standard output is read again"),
        }
    }

    /// Says that a link is up.
    pub(super) fn tell_up(&self, link: &SinkLink) {
        match (self, link) {
            (Self::RabbitMq(brokers), SinkLink::RabbitMq(link)) => tracing::info!(
                broker = brokers.current().uri.endpoint(),
                server_version = link.server_version(),
                frame_max = link.frame_max(),
                "broker link up"
            ),
            _ => tracing::info!("messages go to standard output"),
        }
    }
}

async fn open(connector: &Connector, log: Option<ProducerLog>) -> Result<OpenedSink, Fault> {
    match connector.connect_any(log).await {
        Ok(OpenedLink { link, resume }) => Ok(OpenedSink {
            link: SinkLink::RabbitMq(link),
            resume,
        }),
        Err(error) => Err(connector.fault(&error)),
    }
}

/// Why a link must be given up.
#[derive(Debug, thiserror::Error)]
pub(super) enum SinkError {
    #[error(transparent)]
    RabbitMq(#[from] BrokerError),
    #[error(transparent)]
    Stdout(#[from] StdoutError),
}

/// A link, and what is known of a stream.
#[derive(Debug)]
pub(super) struct OpenedSink {
    pub(super) link: SinkLink,
    /// What the stream has of us; none with any other sink.
    pub(super) resume: Option<Resume>,
}

/// What takes frames of messages, and answers.
#[derive(Debug)]
pub(super) enum SinkLink {
    RabbitMq(AnyLink),
    Stdout(stdout::Link),
}

impl SinkLink {
    /// The largest frame in bytes.
    pub(super) const fn frame_max(&self) -> u32 {
        match self {
            Self::RabbitMq(link) => link.frame_max(),
            Self::Stdout(link) => link.frame_max(),
        }
    }

    /// The largest body in bytes.
    pub(super) const fn max_message_bytes(&self) -> usize {
        match self {
            Self::RabbitMq(link) => link.max_message_bytes(),
            Self::Stdout(link) => link.max_message_bytes(),
        }
    }

    /// The output buffer, for the frames of whole messages.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        match self {
            Self::RabbitMq(link) => link.output(),
            Self::Stdout(link) => link.output(),
        }
    }

    /// Reads and writes whatever is possible. Pending while nothing is.
    pub(super) fn poll_io(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<(), SinkError>> {
        match self {
            Self::RabbitMq(link) => link.poll_io(cx, now.into()).map_err(SinkError::from),
            Self::Stdout(link) => link.poll_io(cx, now.into()).map_err(SinkError::from),
        }
    }

    /// The next thing that it says; where it says nothing more, what is due is done.
    pub(super) fn next_event(&mut self, now: Instant) -> Result<Option<LinkEvent>, SinkError> {
        match self {
            Self::RabbitMq(link) => {
                if let Some(event) = link.next_event()? {
                    return Ok(Some(event));
                }
                link.handle_timeout(now.into())?;
                Ok(None)
            }
            Self::Stdout(link) => {
                if let Some(event) = link.next_event() {
                    return Ok(Some(event));
                }
                Ok(link.handle_timeout(now.into())?)
            }
        }
    }

    /// When something is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadline = match self {
            Self::RabbitMq(link) => link.deadline(),
            Self::Stdout(link) => link.deadline(),
        };
        deadline.map(tokio::time::Instant::into_std)
    }

    /// Says good-bye and waits for the answer for at most `limit`.
    pub(super) async fn close(self, limit: Duration) -> Result<(), SinkError> {
        match self {
            Self::RabbitMq(link) => Ok(link.close(limit).await?),
            Self::Stdout(link) => Ok(link.close(limit).await?),
        }
    }

    /// Lets go of it; a broker gets its answer where it has closed.
    pub(super) async fn dismiss(self, deadline: Instant) {
        match self {
            Self::RabbitMq(link) => link.dismiss(deadline.into()).await,
            // What it writes now is written to its end, and the next link waits for that.
            Self::Stdout(_) => {}
        }
    }
}
