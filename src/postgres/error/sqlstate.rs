//! SQLSTATEs: the error codes of the server.

use std::fmt;

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
    /// `query_canceled`: `statement_timeout` ran out.
    pub const QUERY_CANCELED: Self = Self(*b"57014");
    /// `lock_not_available`: `lock_timeout` ran out.
    pub const LOCK_NOT_AVAILABLE: Self = Self(*b"55P03");
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

    /// Whether one row may be the reason: classes 22 (data exceptions), 23 (constraints) and P0 (raised by a trigger).
    #[must_use]
    pub fn is_of_a_row(self) -> bool {
        [b"22", b"23", b"P0"]
            .iter()
            .any(|class| self.0.starts_with(*class))
    }

    /// Whether the code is of class 08, connection exceptions.
    pub(super) fn is_connection_exception(self) -> bool {
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
