//! What goes wrong with PostgreSQL, and which fault of the one table each error is.

use std::fmt;
use std::io;
use std::path::PathBuf;

use walrelay_engine::DecodeError;

use super::guard::Mismatch;
use super::identifier::SlotName;
use super::position::EventPosition;
use super::preflight::Unfit;
use super::rows::Unreadable;
use crate::fault::FaultKind;
use crate::net::ConnectError;
use crate::net::tls::TlsError;

/// A five-character error code.
/// <https://www.postgresql.org/docs/current/errcodes-appendix.html>
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// `unsupported_startup_parameter` of PgBouncer, and any `protocol_violation`.
    pub const PROTOCOL_VIOLATION: Self = Self(*b"08P01");
    /// `feature_not_supported`.
    pub const FEATURE_NOT_SUPPORTED: Self = Self(*b"0A000");
    /// `invalid_parameter_value`.
    pub const INVALID_PARAMETER_VALUE: Self = Self(*b"22023");
    /// `invalid_text_representation`: a text that is no value of the type it is cast to.
    pub const INVALID_TEXT: Self = Self(*b"22P02");
    /// `numeric_value_out_of_range`.
    pub const OUT_OF_RANGE: Self = Self(*b"22003");
    /// `invalid_authorization_specification`.
    pub const INVALID_AUTHORIZATION: Self = Self(*b"28000");
    /// `invalid_password`.
    pub const INVALID_PASSWORD: Self = Self(*b"28P01");
    /// `invalid_catalog_name`: no such database.
    pub const INVALID_CATALOG_NAME: Self = Self(*b"3D000");
    /// `insufficient_privilege`.
    pub const INSUFFICIENT_PRIVILEGE: Self = Self(*b"42501");
    /// `syntax_error`.
    pub const SYNTAX_ERROR: Self = Self(*b"42601");
    /// `undefined_object`: a slot or a publication, by context.
    pub const UNDEFINED_OBJECT: Self = Self(*b"42704");
    /// `duplicate_object`.
    pub const DUPLICATE_OBJECT: Self = Self(*b"42710");
    /// `invalid_schema_name`.
    pub const INVALID_SCHEMA_NAME: Self = Self(*b"3F000");
    /// `undefined_column`.
    pub const UNDEFINED_COLUMN: Self = Self(*b"42703");
    /// `undefined_table`.
    pub const UNDEFINED_TABLE: Self = Self(*b"42P01");
    /// `too_many_connections`.
    pub const TOO_MANY_CONNECTIONS: Self = Self(*b"53300");
    /// `configuration_limit_exceeded`: all replication slots are in use.
    pub const CONFIGURATION_LIMIT_EXCEEDED: Self = Self(*b"53400");
    /// `object_not_in_prerequisite_state`: a lost slot, `wal_level`, 18's missing publication.
    pub const NOT_IN_PREREQUISITE_STATE: Self = Self(*b"55000");
    /// `object_in_use`: another process streams from the slot.
    pub const OBJECT_IN_USE: Self = Self(*b"55006");
    /// `lock_not_available`: `lock_timeout` ran out.
    pub const LOCK_NOT_AVAILABLE: Self = Self(*b"55P03");
    /// `query_canceled`: `statement_timeout` ran out.
    pub const QUERY_CANCELED: Self = Self(*b"57014");
    /// `admin_shutdown`: a shutdown, an administrator's kill, or a slot that was just lost.
    pub const ADMIN_SHUTDOWN: Self = Self(*b"57P01");
    /// `crash_shutdown`.
    pub const CRASH_SHUTDOWN: Self = Self(*b"57P02");
    /// `cannot_connect_now`: starting up, shutting down or recovering.
    pub const CANNOT_CONNECT_NOW: Self = Self(*b"57P03");
    /// `internal_error`, and what stands for a code that is none.
    pub const INTERNAL_ERROR: Self = Self(*b"XX000");

    /// Reads a code; anything but five ASCII letters and digits becomes [`Self::INTERNAL_ERROR`].
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        match <[u8; 5]>::try_from(text.as_bytes()) {
            Ok(code) if code.iter().all(u8::is_ascii_alphanumeric) => Self(code),
            _ => Self::INTERNAL_ERROR,
        }
    }

    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }

    /// Whether the code is of class 08, connection exceptions.
    fn is_connection_exception(self) -> bool {
        self.0.starts_with(b"08")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An ErrorResponse or NoticeResponse of the server.
/// <https://www.postgresql.org/docs/current/protocol-error-fields.html>
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{severity} {sqlstate}: {message}{}", Suffix(.detail.as_deref(), .hint.as_deref()))]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `WARNING` …; not translated since PostgreSQL 9.6.
    pub severity: String,
    /// The error code.
    pub sqlstate: SqlState,
    /// The primary message, in the server's language.
    pub message: String,
    /// More about the problem.
    pub detail: Option<String>,
    /// What the server suggests.
    pub hint: Option<String>,
}

/// Prints detail and hint behind the message, each where there is one.
struct Suffix<'a>(Option<&'a str>, Option<&'a str>);

impl fmt::Display for Suffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for text in [self.0, self.1].into_iter().flatten() {
            write!(f, " ({})", text.replace('\n', " "))?;
        }
        Ok(())
    }
}

impl ServerError {
    /// Reads the body of an ErrorResponse or NoticeResponse. A body cut short keeps the fields read so far:
    /// whatever the server managed to say is worth more than the complaint that it said it badly.
    pub(super) fn parse(body: &[u8]) -> Self {
        let mut error = Self {
            severity: "ERROR".to_owned(),
            sqlstate: SqlState::INTERNAL_ERROR,
            message: String::new(),
            detail: None,
            hint: None,
        };
        // Each field is a type byte and a text ended by a zero; a zero in place of the type ends the list.
        for field in body.split(|byte| *byte == 0) {
            let Some((kind, value)) = field.split_first() else {
                break;
            };
            let value = String::from_utf8_lossy(value).into_owned();
            match kind {
                b'V' => error.severity = value,
                b'C' => error.sqlstate = SqlState::from_text(&value),
                b'M' => error.message = value,
                b'D' => error.detail = Some(value),
                b'H' => error.hint = Some(value),
                _ => {}
            }
        }
        error
    }
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        Self {
            severity: error.severity().to_owned(),
            sqlstate: SqlState::from_text(error.code().code()),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
            hint: error.hint().map(str::to_owned),
        }
    }
}

/// What was being done; printed in the present tense before the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reaching the server and agreeing on TLS.
    Connect,
    /// Startup and authentication of a walsender session.
    OpenReplication,
    /// `IDENTIFY_SYSTEM`.
    IdentifySystem,
    /// `START_REPLICATION`.
    StartStreaming,
    /// Reading the stream.
    Stream,
    /// `CREATE_REPLICATION_SLOT`.
    CreateSlot,
    /// Dropping the slot.
    DropSlot,
    /// Startup and authentication of an SQL session.
    OpenControl,
    /// A statement of an SQL session, named by what it is for.
    Query(&'static str),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect to PostgreSQL",
            Self::OpenReplication => "open a replication session",
            Self::IdentifySystem => "identify the system",
            Self::StartStreaming => "start streaming from the slot",
            Self::Stream => "read the replication stream",
            Self::CreateSlot => "create the replication slot",
            Self::DropSlot => "drop the replication slot",
            Self::OpenControl => "open an SQL session",
            Self::Query(purpose) => purpose,
        })
    }
}

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
    /// A client-side error of an SQL session.
    #[error("{step}")]
    Sql {
        /// What was being done.
        step: Step,
        /// What tokio-postgres said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// What was found in the database cannot be relayed from.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Publication or table are no longer what they were at set-up.
    #[error(transparent)]
    Changed(#[from] Mismatch),
    /// The role may not use one of walrelay's own tables.
    #[error("{step}: a privilege is missing (as the owner of schema walrelay: {grant})")]
    GrantMissing {
        /// What was being done.
        step: Step,
        /// The statements that grant it.
        grant: String,
        /// What the server said.
        #[source]
        source: Box<ServerError>,
    },
    /// The role may not do with an outbox table what was asked for.
    #[error("{step}: a privilege is missing (as the table's owner: {grant})")]
    TableGrantMissing {
        /// What was being done.
        step: Step,
        /// The statements that grant it.
        grant: String,
        /// What the server said.
        #[source]
        source: Box<ServerError>,
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

    /// What the server reported, where it did.
    #[must_use]
    pub fn server_error(&self) -> Option<&ServerError> {
        if let Self::Server { source, .. }
        | Self::Pooler(source)
        | Self::GrantMissing { source, .. }
        | Self::TableGrantMissing { source, .. }
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
            Self::Tls(_) | Self::TlsRefused { .. } => FaultKind::DatabaseTls,
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
            | Self::Scram(_) => FaultKind::DatabaseAuthentication,
            Self::Sql { .. } => FaultKind::DatabaseError,
            Self::Unfit(unfit) => unfit.kind(),
            Self::Changed(_) => FaultKind::PublicationChanged,
            Self::GrantMissing { .. } | Self::TableGrantMissing { .. } => FaultKind::DatabaseForbidden,
            Self::Unreadable(unreadable) => unreadable.kind(),
            Self::OwnSchema { .. } => FaultKind::OwnSchema,
            Self::NotOurStream { .. } => FaultKind::StreamElsewhere,
            Self::DeadLetterTaken { .. } => FaultKind::DeadLetterTaken,
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

/// The fault behind an error code: the one place where codes are told apart.
fn server_kind(step: Step, code: SqlState) -> FaultKind {
    let walsender = !matches!(step, Step::OpenControl | Step::Query(_));
    match code {
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::CANNOT_CONNECT_NOW => {
            FaultKind::DatabaseRestarting
        }
        SqlState::TOO_MANY_CONNECTIONS => FaultKind::DatabaseConnectionsExhausted,
        SqlState::CONFIGURATION_LIMIT_EXCEEDED => FaultKind::SlotsExhausted,
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION => FaultKind::DatabaseAuthentication,
        SqlState::INVALID_CATALOG_NAME => FaultKind::DatabaseMissing,
        SqlState::INSUFFICIENT_PRIVILEGE if walsender => FaultKind::ReplicationRole,
        SqlState::INSUFFICIENT_PRIVILEGE => FaultKind::DatabaseForbidden,
        SqlState::OBJECT_IN_USE if walsender => FaultKind::SlotInUse,
        SqlState::LOCK_NOT_AVAILABLE if step == Step::CreateSlot => FaultKind::SlotBlocked,
        SqlState::LOCK_NOT_AVAILABLE => FaultKind::DatabaseLocked,
        // The publication is looked up at the first change, not at the start.
        SqlState::UNDEFINED_OBJECT if step == Step::Stream => FaultKind::PublicationMissing,
        SqlState::UNDEFINED_OBJECT if walsender => FaultKind::SlotMissing,
        SqlState::FEATURE_NOT_SUPPORTED if step == Step::StartStreaming => FaultKind::DatabaseUnsupported,
        // Another plugin knows none of pgoutput's options.
        SqlState::INVALID_PARAMETER_VALUE if step == Step::StartStreaming => FaultKind::SlotForeign,
        SqlState::NOT_IN_PREREQUISITE_STATE if step == Step::CreateSlot => FaultKind::WalLevel,
        SqlState::PROTOCOL_VIOLATION => FaultKind::DatabaseProtocol,
        // A pooler that took the replication command for SQL.
        SqlState::SYNTAX_ERROR if walsender => FaultKind::DatabaseProtocol,
        code if code.is_connection_exception() => FaultKind::DatabaseUnreachable,
        _ => FaultKind::DatabaseError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn server(step: Step, code: &str) -> Error {
        let mut source = ServerError::parse(b"");
        source.sqlstate = SqlState::from_text(code);
        Error::Server {
            step,
            source: Box::new(source),
        }
    }

    #[test]
    fn an_error_body_keeps_code_message_detail_and_hint() {
        let body = b"SFEHLER\0VERROR\0C55006\0Mslot is active\0Dby PID 7\0Hwait\nor stop it\0Fslot.c\0\0";
        let error = ServerError::parse(body);
        assert_eq!(error.sqlstate, SqlState::OBJECT_IN_USE);
        assert_eq!(
            error.to_string(),
            "ERROR 55006: slot is active (by PID 7) (wait or stop it)"
        );
    }

    #[test]
    fn a_truncated_error_body_keeps_what_was_said() {
        let error = ServerError::parse(b"VFATAL\0C57P03\0Mthe database sys");
        assert_eq!(
            (error.severity.as_str(), error.sqlstate),
            ("FATAL", SqlState::CANNOT_CONNECT_NOW)
        );
    }

    #[test]
    fn the_same_code_is_another_fault_in_another_step() {
        for (step, code, kind) in [
            (Step::StartStreaming, "42704", FaultKind::SlotMissing),
            (Step::Stream, "42704", FaultKind::PublicationMissing),
            (Step::Query("read the catalog"), "42704", FaultKind::DatabaseError),
            (Step::OpenReplication, "42501", FaultKind::ReplicationRole),
            (Step::CreateSlot, "42501", FaultKind::ReplicationRole),
            (
                Step::Query("create the publication"),
                "42501",
                FaultKind::DatabaseForbidden,
            ),
            (Step::StartStreaming, "55006", FaultKind::SlotInUse),
            (Step::DropSlot, "55006", FaultKind::SlotInUse),
            (Step::CreateSlot, "55000", FaultKind::WalLevel),
            (Step::CreateSlot, "55P03", FaultKind::SlotBlocked),
            (
                Step::Query("create the publication"),
                "55P03",
                FaultKind::DatabaseLocked,
            ),
            (Step::CreateSlot, "53400", FaultKind::SlotsExhausted),
            (
                Step::OpenControl,
                "53300",
                FaultKind::DatabaseConnectionsExhausted,
            ),
            (Step::OpenControl, "28P01", FaultKind::DatabaseAuthentication),
            (Step::OpenReplication, "28000", FaultKind::DatabaseAuthentication),
            (Step::OpenReplication, "3D000", FaultKind::DatabaseMissing),
            (Step::OpenReplication, "57P03", FaultKind::DatabaseRestarting),
            (Step::Stream, "57P01", FaultKind::DatabaseRestarting),
            (Step::Stream, "XX000", FaultKind::DatabaseError),
            (Step::Stream, "08006", FaultKind::DatabaseUnreachable),
            (Step::OpenReplication, "08P01", FaultKind::DatabaseProtocol),
        ] {
            assert_eq!(server(step, code).kind(), kind, "{step} {code}");
        }
    }

    #[test]
    fn a_stream_ended_by_57p01_asks_for_a_look_at_the_slot() {
        assert!(server(Step::Stream, "57P01").is_ambiguous());
        assert!(server(Step::StartStreaming, "55000").is_ambiguous());
        assert!(!server(Step::OpenControl, "57P01").is_ambiguous());
        assert!(!server(Step::Stream, "42704").is_ambiguous());
    }

    #[test]
    fn a_code_that_is_none_reads_as_an_internal_error() {
        for text in ["", "57P0", "57P011", "57P\u{e9}", "57 01"] {
            assert_eq!(SqlState::from_text(text), SqlState::INTERNAL_ERROR, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_error_body_makes_the_parser_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            ServerError::parse(&body).to_string();
        }
    }
}
