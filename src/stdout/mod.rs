//! Standard output in RabbitMQ's place: one JSON object a line for each message, confirmed when the operating system has
//! taken it.

mod line;
mod link;
mod writer;

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::timeout;
use walrelay_engine::amqp::AmqpError;
use walrelay_engine::flow::DeliveryError;

use crate::fault::{Fault, FaultKind};

pub use link::Link;

/// How long the predecessor of a link may take over its last write.
const TURN: Duration = Duration::from_secs(1);

/// This process's standard output. Whoever clones it shares it.
#[derive(Debug, Clone, Default)]
pub struct Stdout {
    /// The link whose turn it is holds this: two would tear each other's lines apart. Within is what is left of a line
    /// that a failed write has torn; the next link begins with it.
    turn: Arc<Mutex<Vec<u8>>>,
}

/// Why nothing can be written, or not for now.
#[derive(Debug, thiserror::Error)]
pub enum StdoutError {
    /// The reader of the pipe, the socket's peer or the terminal is gone.
    #[error("standard output is closed: nobody reads it any more")]
    Closed,
    /// The last link's write is still under way.
    #[error("standard output takes nothing: a write has been under way for long")]
    Stuck,
    /// It cannot be opened or written for another reason.
    #[error("cannot write to standard output")]
    Failed(#[from] io::Error),
    /// Frames that are none of our own making.
    #[error("a message cannot be made a line")]
    Frames(#[from] AmqpError),
    /// A confirm that the flow does not take.
    #[error("a line was confirmed that was not under way")]
    Delivery(#[from] DeliveryError),
}

impl Stdout {
    /// Opens a link. Waits for the write of its predecessor, for a second at most.
    ///
    /// Cancel safety: dropping the future leaves everything as it was.
    ///
    /// # Errors
    /// See [`StdoutError`].
    pub async fn open(&self) -> Result<Link, StdoutError> {
        let turn = timeout(TURN, Arc::clone(&self.turn).lock_owned());
        let turn = turn.await.map_err(|_| StdoutError::Stuck)?;
        // A descriptor of our own: io::Stdout would keep the end of what it could not write, and write it at some time.
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Link::new(file, turn)?)
    }
}

impl StdoutError {
    /// Which fault this is.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Self::Closed => FaultKind::StdoutClosed,
            Self::Stuck => FaultKind::StdoutBlocked,
            Self::Failed(_) | Self::Frames(_) | Self::Delivery(_) => FaultKind::StdoutFailed,
        }
    }

    /// The same as a fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        Fault::new(self.kind(), self)
    }

    /// From an error of a write: a reader that is gone is a case of its own.
    fn of_write(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::Failed(error)
    }
}
