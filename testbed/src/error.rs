//! The one error of the test bed: made for reading in a failed test's output.

use std::fmt;
use std::io;
use std::time::Duration;

/// What a test bed operation yields.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong around a test; its `Debug` is as readable as its `Display`, because `unwrap` prints it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program, folder or setting that the machine lacks.
    #[error("{0}")]
    Missing(String),
    /// The operating system refused something.
    #[error("{what}")]
    Io {
        /// What was attempted.
        what: String,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A condition did not come true in time.
    #[error("waited {waited:?} in vain for {what}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// The deadline, patience included.
        waited: Duration,
    },
    /// A process ended, or ended with a failure, where it should not have.
    #[error("{program}: {status}\n{output}")]
    Process {
        /// The program and its arguments.
        program: String,
        /// How it ended.
        status: String,
        /// The last lines that it wrote.
        output: String,
    },
    /// PostgreSQL refused something.
    #[error("{what}")]
    Postgres {
        /// What was attempted.
        what: String,
        /// The server's or the driver's reason.
        #[source]
        source: tokio_postgres::Error,
    },
    /// RabbitMQ refused something.
    #[error("{what}")]
    Amqp {
        /// What was attempted.
        what: String,
        /// The broker's or the driver's reason.
        #[source]
        source: lapin::Error,
    },
    /// Something came back in a shape that was not expected.
    #[error("{0}")]
    Unexpected(String),
    /// A certificate could not be made.
    #[error("make a certificate")]
    Certificate(#[from] rcgen::Error),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// Says what was attempted when a driver or the system refuses it.
pub(crate) trait Attempt<T> {
    /// Wraps the failure; `what` is in the present tense ("create database x").
    fn attempt(self, what: impl Into<String>) -> Result<T>;
}

impl<T> Attempt<T> for io::Result<T> {
    fn attempt(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Io {
            what: what.into(),
            source,
        })
    }
}

impl<T> Attempt<T> for std::result::Result<T, tokio_postgres::Error> {
    fn attempt(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Postgres {
            what: what.into(),
            source,
        })
    }
}

impl<T> Attempt<T> for std::result::Result<T, lapin::Error> {
    fn attempt(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| Error::Amqp {
            what: what.into(),
            source,
        })
    }
}
