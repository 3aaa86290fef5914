//! Dead letters: events that were set aside, in `walrelay.dead_letters` (rules 1, 15 and 16).

mod columns;
mod commands;
pub mod message;
mod relay;

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use tokio_postgres::Row;
use walrelay_engine::event::Source as FieldSource;

use super::catalog::{column, position};
use super::error::{Error, Step};
use super::identifier::{SlotName, quote_literal};
use super::outbox::Outbox;
use super::position::EventPosition;

pub use columns::Columns;
pub use commands::{Filter, discard, list, request_again, request_retry, show};
pub(super) use relay::begin;
pub use relay::{
    Committed, Found, NewDeadLetter, RetryFate, load, payload_types, pending_count, pending_count_if_allowed,
    record_retries, store,
};

/// Declares a fixed set of words, as the table's checks name them.
macro_rules! words {
    ($(#[$type_doc:meta])+ $name:ident, $what:literal { $($(#[$doc:meta])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$type_doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])+ $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The word in database, commands and JSON.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<Self, UnknownWord> {
                let found = Self::ALL.iter().find(|word| word.as_str() == text);
                found.copied().ok_or_else(|| UnknownWord {
                    text: text.to_owned(),
                    what: $what,
                    known: Self::ALL.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

words! {
    /// Why an event was set aside.
    Reason, "reason" {
        /// Returned: the exchange has no queue for its routing key.
        Unroutable = "unroutable",
        /// A queue refused it.
        Nacked = "nacked",
        /// Never confirmed.
        Unanswered = "unanswered",
        /// The broker closed the channel because of it.
        Refused = "refused",
        /// The row cannot become a message.
        Invalid = "invalid",
    }
}

words! {
    /// What is to become of a dead letter.
    State, "state" {
        /// It waits for a person.
        Pending = "pending",
        /// A retry was asked for; the row goes once its message is confirmed.
        Retrying = "retrying",
        /// Nobody wants it any more.
        Discarded = "discarded",
    }
}

/// A text that is none of the fixed words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no {what}: use {known}")]
pub struct UnknownWord {
    text: String,
    what: &'static str,
    known: String,
}

/// A dead letter without its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its key within the slot.
    pub position: EventPosition,
    /// The outbox table, as [`QualifiedTable`](super::QualifiedTable) is printed.
    pub outbox: String,
    /// The transaction's id.
    pub xid: u32,
    /// When it committed.
    pub commit_time: SystemTime,
    /// The event's id, where the row has a usable one.
    pub event_id: Option<String>,
    /// The event's type, where the row has one.
    pub event_type: Option<String>,
    /// Why it was set aside, or why the last retry failed.
    pub reason: Reason,
    /// The same in words.
    pub detail: String,
    /// The exchange tried.
    pub exchange: Option<String>,
    /// The routing key tried.
    pub routing_key: Option<String>,
    /// When it failed first.
    pub first_failed_at: SystemTime,
    /// When it failed last.
    pub last_failed_at: SystemTime,
    /// How often it failed.
    pub attempts: u32,
    /// What is to become of it.
    pub state: State,
    /// The word on its discard.
    pub discard: Option<Discard>,
}

/// Who discarded a dead letter, when and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discard {
    /// Why.
    pub reason: String,
    /// When.
    pub at: SystemTime,
    /// By which role.
    pub by: String,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Everything but the columns.
    pub summary: Summary,
    /// The row.
    pub columns: Columns,
}

/// The columns of a [`Summary`], in the order in which [`Summary::read`] takes them; with the type of an event from where
/// the outbox tables have it.
fn summary(outboxes: &[Outbox]) -> String {
    format!(
        "commit_lsn::text, tx_seq, outbox, xid, commit_time, event_id, {}, reason, detail, exchange, routing_key, \
         first_failed_at, last_failed_at, attempts, state, discard_reason, discarded_at, discarded_by",
        event_type(outboxes)
    )
}

/// An SQL expression for the type of a dead letter's event. Rows of tables that are not among these are taken for such whose
/// columns are called as the fields are.
fn event_type(outboxes: &[Outbox]) -> String {
    let cases = outboxes.iter().map(|outbox| {
        let field = outbox.field("event_type");
        let value = match (&field, field.column()) {
            (FieldSource::Constant(text), _) => quote_literal(text),
            (_, column) => format!("columns ->> {}", quote_literal(column.unwrap_or("event_type"))),
        };
        format!("when {} then {value} ", quote_literal(&outbox.table.to_string()))
    });
    let cases: String = cases.collect();
    match cases.is_empty() {
        true => "columns ->> 'event_type'".to_owned(),
        false => format!("case outbox {cases}else columns ->> 'event_type' end"),
    }
}

/// How many they are.
const SUMMARY_COLUMNS: usize = 18;

impl Summary {
    /// Reads a row of [`summary`]; none, and a warning, where it has a word that this version does not know: it stands in no
    /// other one's way.
    fn read(row: &Row, slot: &SlotName, purpose: &'static str) -> Result<Option<Self>, Error> {
        let position = EventPosition {
            commit_lsn: position(row, 0, purpose)?.unwrap_or_default(),
            tx_seq: number::<i64, _>(row, 1, purpose)?,
        };
        let (reason, state) = match (word(row, 7, purpose)?, word(row, 14, purpose)?) {
            (Ok(reason), Ok(state)) => (reason, state),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(
                    slot = %slot,
                    commit_lsn = %position.commit_lsn,
                    tx_seq = position.tx_seq,
                    error = %error.to_string().escape_debug(),
                    remedy = "use the version of walrelay that stored it, or correct its row in walrelay.dead_letters",
                    "dead letter passed over"
                );
                return Ok(None);
            }
        };
        let discarded_at: Option<SystemTime> = column(row, 16, purpose)?;
        Ok(Some(Self {
            position,
            outbox: column(row, 2, purpose)?,
            xid: number::<i64, _>(row, 3, purpose)?,
            commit_time: column(row, 4, purpose)?,
            event_id: column(row, 5, purpose)?,
            event_type: column(row, 6, purpose)?,
            reason,
            detail: column(row, 8, purpose)?,
            exchange: column(row, 9, purpose)?,
            routing_key: column(row, 10, purpose)?,
            first_failed_at: column(row, 11, purpose)?,
            last_failed_at: column(row, 12, purpose)?,
            attempts: number::<i32, _>(row, 13, purpose)?,
            state,
            discard: match discarded_at {
                None => None,
                Some(at) => Some(Discard {
                    reason: column(row, 15, purpose)?,
                    at,
                    by: column(row, 17, purpose)?,
                }),
            },
        }))
    }
}

impl DeadLetter {
    /// Reads a row of [`summary`] and `columns::text`, as [`Summary::read`] does.
    fn read(row: &Row, slot: &SlotName, purpose: &'static str) -> Result<Option<Self>, Error> {
        let Some(summary) = Summary::read(row, slot, purpose)? else {
            return Ok(None);
        };
        let columns = read_columns(row, purpose)?.ok_or_else(|| unreadable(purpose))?;
        Ok(Some(Self { summary, columns }))
    }
}

/// The columns behind a summary; none where what is stored is no object of strings and nulls.
fn read_columns(row: &Row, purpose: &'static str) -> Result<Option<Columns>, Error> {
    let columns: &str = column(row, SUMMARY_COLUMNS, purpose)?;
    Ok(serde_json::from_str(columns).ok())
}

/// A number of the database as one without sign.
fn number<'a, F, T>(row: &'a Row, index: usize, purpose: &'static str) -> Result<T, Error>
where
    F: tokio_postgres::types::FromSql<'a>,
    T: TryFrom<F>,
{
    T::try_from(column(row, index, purpose)?).map_err(|_| unreadable(purpose))
}

fn word<T>(row: &Row, index: usize, purpose: &'static str) -> Result<Result<T, UnknownWord>, Error>
where
    T: FromStr<Err = UnknownWord>,
{
    let text: &str = column(row, index, purpose)?;
    Ok(text.parse())
}

fn unreadable(purpose: &'static str) -> Error {
    Error::Protocol {
        step: Step::Query(purpose),
        what: "a value that this version does not know",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_migration_allows_exactly_these_words() {
        let sql = include_str!("../../../migrations/0002_state.sql");
        let list = |words: Vec<&str>| format!("in ('{}')", words.join("', '"));
        let reasons = Reason::ALL.iter().map(|word| word.as_str()).collect();
        let states = State::ALL.iter().map(|word| word.as_str()).collect();
        assert!(sql.contains(&format!("check (reason {})", list(reasons))));
        assert!(sql.contains(&format!("check (state {})", list(states))));
    }

    #[test]
    fn an_unknown_word_is_answered_with_the_known_ones() {
        assert_eq!("nacked".parse(), Ok(Reason::Nacked));
        assert_eq!(
            "lost".parse::<State>().unwrap_err().to_string(),
            "`lost` is no state: use pending, retrying, discarded"
        );
    }
}
