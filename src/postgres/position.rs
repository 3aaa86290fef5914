//! Where an event stands, as commands write it, and how far the server's log is flushed.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use walrelay_engine::key::EventKey;
use walrelay_engine::{Lsn, PgTimestamp};

use super::catalog::position;
use super::control::ControlSession;
use super::error::{Error, Step};

/// The prefix of the message by which [`commit_marker`] writes to the log; the relay ignores it.
const MARKER_PREFIX: &str = "walrelay.marker";

/// An event's place within one slot: its transaction's commit LSN, and its number there from 0 (rule 1). Printed
/// and parsed as `LSN:SEQ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPosition {
    /// Begin's final LSN: where the commit record stands.
    pub commit_lsn: Lsn,
    /// The event's place among all inserts and logical messages of its transaction.
    pub tx_seq: u64,
}

impl From<&EventKey> for EventPosition {
    fn from(key: &EventKey) -> Self {
        let (commit_lsn, tx_seq) = key.position();
        Self { commit_lsn, tx_seq }
    }
}

impl fmt::Display for EventPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit_lsn, self.tx_seq)
    }
}

/// A text that is no `LSN:SEQ`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the key of an event: expected LSN:SEQ such as 16/B374D848:0")]
pub struct EventPositionError(String);

impl FromStr for EventPosition {
    type Err = EventPositionError;

    fn from_str(text: &str) -> Result<Self, EventPositionError> {
        let parse = || {
            let (lsn, sequence) = text.split_once(':')?;
            // `u64::from_str` takes a sign; `bigint` takes no more than 63 bits.
            if !sequence.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            Some(Self {
                commit_lsn: lsn.parse().ok()?,
                tx_seq: sequence.parse().ok().filter(|n| i64::try_from(*n).is_ok())?,
            })
        };
        parse().ok_or_else(|| EventPositionError(text.to_owned()))
    }
}

impl EventPosition {
    /// The commit LSN for a parameter `$n::text::pg_lsn`.
    pub(super) fn lsn_text(&self) -> String {
        self.commit_lsn.to_string()
    }

    /// The number for a `bigint`. A transaction cannot have more inserts than that.
    pub(super) fn sequence(&self) -> i64 {
        i64::try_from(self.tx_seq).unwrap_or(i64::MAX)
    }
}

/// The end of what the server has flushed of its log. After a synchronous commit it is at or beyond that commit.
///
/// Not the insert position: at the border of a page that one stands behind the page's header, where no record ends,
/// so on a silent server a stream never reaches it.
/// <https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-BACKUP>
///
/// # Errors
/// The query fails; on a standby it does (55000).
pub async fn flushed_position(session: &ControlSession) -> Result<Lsn, Error> {
    const PURPOSE: &str = "read the position of the log";
    let sql = "select pg_catalog.pg_current_wal_flush_lsn()::text";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    position(&row, 0, PURPOSE)?.ok_or(Error::Protocol {
        step: Step::Query(PURPOSE),
        what: "no position",
    })
}

/// The end of what has been written to the log, flushed or not: no position beyond it has a meaning yet.
///
/// # Errors
/// The query fails; on a standby it does (55000).
pub async fn written_position(session: &ControlSession) -> Result<Lsn, Error> {
    const PURPOSE: &str = "read the end of the log";
    let sql = "select pg_catalog.pg_current_wal_insert_lsn()::text";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    position(&row, 0, PURPOSE)?.ok_or(Error::Protocol {
        step: Step::Query(PURPOSE),
        what: "no position",
    })
}

/// Commits a write of its own synchronously and returns a position at or beyond it: everything whose commit was
/// visible before stands before it, asynchronous commits too, which may lie beyond the flushed position until then
/// (rule 24).
///
/// Any role may do this; it writes a logical message, which changes nothing and which the relay ignores.
///
/// # Errors
/// A statement fails; on a standby it does (25006).
pub async fn commit_marker(session: &ControlSession) -> Result<Lsn, Error> {
    const PURPOSE: &str = "commit a write of our own";
    // A transaction that has an id but wrote nothing is not flushed at its commit, so an id alone would not do; and
    // a message that is not transactional takes no id.
    let sql = format!(
        "begin; set local synchronous_commit = on; \
         select pg_catalog.pg_logical_emit_message(true, '{MARKER_PREFIX}', ''); commit"
    );
    session.run(PURPOSE, session.client().batch_execute(&sql)).await?;
    flushed_position(session).await
}

/// A time as PostgreSQL counts it.
#[must_use]
pub fn timestamp(time: SystemTime) -> PgTimestamp {
    let micros = |distance: Duration| i64::try_from(distance.as_micros()).unwrap_or(i64::MAX);
    PgTimestamp::from_unix_micros(match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => micros(after),
        Err(before) => -micros(before.duration()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_printed_as_it_is_read() {
        let key: EventPosition = "16/B374D848:12".parse().unwrap();
        assert_eq!((key.commit_lsn, key.tx_seq), (Lsn::new(0x16_B374_D848), 12));
        assert_eq!(key.to_string(), "16/B374D848:12");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for text in [
            "",
            "16/B374D848",
            "16/B374D848:",
            "16/B374D848:-1",
            "16/B374D848:+1",
            "B374D848:0",
            "0/1:9223372036854775808",
            "0/1:1:1",
            "7b7f5c1e-0000-4000-8000-000000000000",
        ] {
            assert!(text.parse::<EventPosition>().is_err(), "{text:?}");
        }
    }
}
