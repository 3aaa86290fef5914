//! What the server says in an ErrorResponse or a NoticeResponse.

use std::fmt;

use super::SqlState;

/// An ErrorResponse or NoticeResponse of the server.
/// <https://www.postgresql.org/docs/current/protocol-error-fields.html>
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{severity} {sqlstate}: {message}{}", Suffix(.detail.as_deref().filter(|_| !.sqlstate.is_of_a_row()), .hint.as_deref()))]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `WARNING` …; not translated since PostgreSQL 9.6.
    pub severity: String,
    /// The error code.
    pub sqlstate: SqlState,
    /// The primary message, in the server's language.
    pub message: String,
    /// More about the problem. Not printed where it may quote a row, which would bring payloads into logs.
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
    pub(in crate::postgres) fn parse(body: &[u8]) -> Self {
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
