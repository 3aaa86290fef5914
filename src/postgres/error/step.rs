//! What was being done when an error came, and which fault the server's codes are in each step.

use std::fmt;

use super::SqlState;
use crate::fault::FaultKind;

/// What was being done; printed in the present tense before the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reaching the server and agreeing on TLS.
    Connect,
    /// The TLS handshake, once the server has agreed to one.
    TlsHandshake,
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
            Self::TlsHandshake => "complete the TLS handshake",
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

/// The fault behind an error code: the one place where codes are told apart.
pub(super) fn server_kind(step: Step, code: SqlState) -> FaultKind {
    let walsender = !matches!(step, Step::OpenControl | Step::Query(_));
    match code {
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::CANNOT_CONNECT_NOW => {
            FaultKind::DatabaseRestarting
        }
        SqlState::TOO_MANY_CONNECTIONS => FaultKind::DatabaseConnectionsExhausted,
        SqlState::CONFIGURATION_LIMIT_EXCEEDED => FaultKind::SlotsExhausted,
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION => FaultKind::DatabaseAuthentication,
        SqlState::INVALID_CATALOG_NAME => FaultKind::DatabaseMissing,
        // walrelay's own schema is told apart before.
        SqlState::INVALID_SCHEMA_NAME => FaultKind::TableMissing,
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
