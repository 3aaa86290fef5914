//! What goes wrong with PostgreSQL, and which fault of the one table each error is.

mod server;
mod sqlstate;
mod step;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_engine::DecodeError;

use super::connect::Connector;
use super::guard::Mismatch;
use super::identifier::SlotName;
use super::joined::Joined;
use super::position::EventPosition;
use super::preflight::Unfit;
use super::rows::Unreadable;
use super::servers::{self, FailedTry};
use super::table_use::Grantor;
use crate::fault::FaultKind;
use crate::net::ConnectError;
use crate::net::tls::TlsError;

pub use server::ServerError;
pub use sqlstate::SqlState;
pub use step::Step;
use step::server_kind;

/// An error of the PostgreSQL side. Print the whole chain of sources: the outer text names the step, the inner
/// the cause.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No TCP or Unix connection.
    #[error(transparent)]
    Unreachable(#[from] ConnectError),
    /// No TLS although the connection was made.
    #[error(transparent)]
    Tls(Box<TlsError>),
    /// `sslmode` demands TLS, the server has none.
    #[error("the server at {endpoint} offers no TLS, but sslmode demands it (ssl = on in postgresql.conf)")]
    TlsRefused {
        /// `host:port`.
        endpoint: String,
    },
    /// No answer in time.
    #[error("{step}: no answer within the time allowed")]
    Deadline {
        /// What was being done.
        step: Step,
    },
    /// The socket broke.
    #[error("{step}: the connection broke")]
    Io {
        /// What was being done.
        step: Step,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The server closed the connection without a word.
    #[error("{step}: the server closed the connection")]
    Closed {
        /// What was being done.
        step: Step,
    },
    /// The server reported an error.
    #[error("{step}")]
    Server {
        /// What was being done.
        step: Step,
        /// What the server said.
        #[source]
        source: Box<ServerError>,
    },
    /// The server ended the stream in good order, which it does only when it shuts down.
    #[error("the server ended the replication stream: it is shutting down")]
    ServerShutdown,
    /// The peer said what the protocol does not allow.
    #[error("{step}: not PostgreSQL's protocol: {what}")]
    Protocol {
        /// What was being done.
        step: Step,
        /// What is wrong.
        what: &'static str,
    },
    /// A row of the stream is not what the protocol says.
    #[error("the replication stream cannot be understood")]
    Decode(#[source] DecodeError),
    /// A pooler refused the startup parameter `replication`.
    #[error("the server at this address is a pooler that cannot carry replication: use a direct connection")]
    Pooler(#[source] Box<ServerError>),
    /// A frame above the cap, which is no row; it was not read.
    #[error("the server announces a frame of {size} bytes; the cap is {cap}")]
    FrameTooLarge {
        /// The announced size in bytes.
        size: u64,
        /// The cap in bytes.
        cap: u64,
    },
    /// The server asks for a password and there is none.
    #[error("the server asks for the password of `{user}`, and none is configured")]
    PasswordMissing {
        /// The role.
        user: String,
    },
    /// The password file cannot be read.
    #[error("cannot read the password file {}", path.display())]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// The password file is empty.
    #[error("the password file {} is empty", path.display())]
    PasswordFileEmpty {
        /// The file.
        path: PathBuf,
    },
    /// An authentication method that is not implemented.
    #[error("the server demands {method} authentication; use scram-sha-256, md5 or password in pg_hba.conf")]
    AuthenticationMethod {
        /// Its name.
        method: &'static str,
    },
    /// SCRAM with more iterations than the client library computes.
    #[error(
        "the server demands more than 100000 SCRAM iterations for this role: lower scram_iterations and set \
         the password anew"
    )]
    ScramIterations,
    /// The server failed to prove that it knows the password, or SCRAM broke down otherwise.
    #[error("SCRAM authentication broke down")]
    Scram(#[source] io::Error),
    /// `channel_binding=require`, and the session is not bound to its TLS channel.
    #[error("channel_binding=require, but the session cannot be bound to its channel: {reason}")]
    NotBound {
        /// Why not.
        reason: &'static str,
    },
    /// The server speaks of binding to a channel that is none, as somebody in between may make it.
    #[error("the server offers SCRAM-SHA-256-PLUS on a connection without TLS")]
    BindingWithoutTls,
    /// A client-side error of an SQL session.
    #[error("{step}")]
    Sql {
        /// What was being done.
        step: Step,
        /// What tokio-postgres said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// None of several servers could be used.
    #[error("none of the servers will do: {}", Joined(.tries))]
    NoServer {
        /// Those that were tried, in order; never empty.
        tries: Vec<FailedTry>,
    },
    /// What went wrong at one of several servers.
    #[error("at {endpoint}")]
    At {
        /// Where it is.
        endpoint: String,
        /// What went wrong.
        #[source]
        source: Box<Error>,
    },
    /// What was found in the database cannot be relayed from.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Publication or table are no longer what they were at set-up.
    #[error(transparent)]
    Changed(#[from] Mismatch),
    /// The role may not do with a table what was asked for.
    #[error("{step}: a privilege is missing (as {grantor}: {grant})")]
    GrantMissing {
        /// What was being done.
        step: Step,
        /// Who can grant it.
        grantor: Grantor,
        /// The statements that grant it.
        grant: String,
        /// What the server said.
        #[source]
        source: Box<ServerError>,
    },
    /// Set-up lacks a right.
    #[error("{source}")]
    Forbidden {
        /// What would give it, its statements last.
        remedy: String,
        /// The refusal.
        source: Box<Error>,
    },
    /// A table's rows cannot be read or deleted whole.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// walrelay's own tables are missing, or of an older version.
    #[error("{step}: walrelay's own tables are missing or of an older version")]
    OwnSchema {
        /// What was being done.
        step: Step,
        /// What the server said.
        #[source]
        source: Box<ServerError>,
    },
    /// The SQL session's server does not stream to us (rule 15).
    #[error("the slot `{slot}` is not streamed by our server process {ours} but by {}", Process(*.found))]
    NotOurStream {
        /// The slot.
        slot: SlotName,
        /// Our walsender's process id.
        ours: i32,
        /// The process that the SQL session's server names.
        found: Option<i32>,
    },
    /// Another session holds the lock of set-up, teardown and recover.
    #[error(
        "another setup, teardown or recover runs in this database: {holder} did not end within {waited:?}"
    )]
    SetUpUnderWay {
        /// Which session.
        holder: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// A dead letter of another transaction has the key already.
    #[error("the key {position} of slot `{slot}` belongs to a dead letter of another transaction already")]
    DeadLetterTaken {
        /// The slot.
        slot: SlotName,
        /// The key.
        position: EventPosition,
    },
}

/// A server process, if there is one.
struct Process(Option<i32>);

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("none"),
        }
    }
}

impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Tls(Box::new(error))
    }
}

impl Error {
    /// The error code, where the server reported one.
    #[must_use]
    pub fn sqlstate(&self) -> Option<SqlState> {
        self.server_error().map(|error| error.sqlstate)
    }

    /// Names the server at which this went wrong, where several are configured.
    #[must_use]
    pub fn at(self, connector: &Connector) -> Self {
        match connector.chosen_of_several() {
            Some(endpoint) => Self::At {
                endpoint,
                source: Box::new(self),
            },
            None => self,
        }
    }

    /// What is missing or does not fit, where that is it.
    #[must_use]
    pub fn unfit(&self) -> Option<&Unfit> {
        if let Self::At { source, .. } | Self::Forbidden { source, .. } = self {
            source.unfit()
        } else if let Self::Unfit(unfit) = self {
            Some(unfit)
        } else {
            None
        }
    }

    /// What the server reported, where it did.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        if let Self::At { source, .. } | Self::Forbidden { source, .. } = self {
            source.server_error()
        } else if let Self::Server { source, .. }
        | Self::Pooler(source)
        | Self::GrantMissing { source, .. }
        | Self::OwnSchema { source, .. } = self
        {
            Some(source)
        } else {
            None
        }
    }

    /// Which fault this is.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Unreachable(_) | Self::Io { .. } | Self::Closed { .. } => FaultKind::DatabaseUnreachable,
            Self::Tls(error) if error.is_about_us() => FaultKind::DatabaseClientCertificate,
            Self::Tls(_) | Self::TlsRefused { .. } | Self::BindingWithoutTls => FaultKind::DatabaseTls,
            Self::Deadline { .. } => FaultKind::DatabaseSilent,
            Self::Server { step, source } => server_kind(*step, source.sqlstate),
            Self::ServerShutdown => FaultKind::DatabaseRestarting,
            Self::Protocol { .. } | Self::Decode(_) | Self::Pooler(_) => FaultKind::DatabaseProtocol,
            Self::FrameTooLarge { .. } => FaultKind::FrameTooLarge,
            Self::PasswordMissing { .. }
            | Self::PasswordFile { .. }
            | Self::PasswordFileEmpty { .. }
            | Self::AuthenticationMethod { .. }
            | Self::ScramIterations
            | Self::NotBound { .. }
            | Self::Scram(_) => FaultKind::DatabaseAuthentication,
            Self::Sql { .. } => FaultKind::DatabaseError,
            Self::NoServer { tries } => servers::kind(tries),
            Self::At { source, .. } | Self::Forbidden { source, .. } => source.kind(),
            Self::Unfit(unfit) => unfit.kind(),
            Self::Changed(_) => FaultKind::PublicationChanged,
            Self::GrantMissing { .. } => FaultKind::DatabaseForbidden,
            Self::Unreadable(unreadable) => unreadable.kind(),
            Self::OwnSchema { .. } => FaultKind::OwnSchema,
            Self::NotOurStream { .. } => FaultKind::StreamElsewhere,
            Self::SetUpUnderWay { .. } => FaultKind::DatabaseLocked,
            Self::DeadLetterTaken { .. } => FaultKind::DeadLetterTaken,
        }
    }

    /// What to do about it: the sentence of its fault, or one that fits this error better.
    #[must_use]
    pub fn remedy(&self) -> &str {
        if let Self::Forbidden { remedy, .. } = self {
            remedy
        } else if let Self::At { source, .. } = self {
            source.remedy()
        } else if matches!(self, Self::Unreadable(Unreadable::NotByTime { .. })) {
            "leave --partitions out, and its rows are looked through"
        } else if matches!(self, Self::Server { source, .. } if source.sqlstate == SqlState::INVALID_SCHEMA_NAME)
        {
            "create the schema, or correct outbox.table"
        } else {
            self.kind().remedy()
        }
    }

    /// Whether the error alone does not tell what happened, so that the slot should be looked at before acting on
    /// [`kind`](Self::kind): 57P01 ends a stream at a shutdown, at an administrator's kill and when the slot is
    /// lost; 55000 at the start may be a lost slot, `wal_level` or a slot of another database.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        let Self::Server { step, source } = self else {
            return false;
        };
        (*step == Step::Stream && source.sqlstate == SqlState::ADMIN_SHUTDOWN)
            || (*step == Step::StartStreaming && source.sqlstate == SqlState::NOT_IN_PREREQUISITE_STATE)
    }
}

#[cfg(test)]
mod tests;
