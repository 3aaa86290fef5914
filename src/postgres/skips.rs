//! Requests to settle one held event without delivering it, in `walrelay.skips` (rule 9).
//!
//! They do not travel through the stream, which stands behind the held event.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use walrelay_engine::key::EventKey;

use super::catalog::column;
use super::control::{ControlSession, bounded};
use super::error::{Error, Step};
use super::identifier::SlotName;
use super::own_schema::commit_synchronously;
use super::position::EventPosition;
use super::table_use::Use;

/// Which event to skip. Parsed from `LSN:SEQ`, or else it is an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    /// The event of this id.
    EventId(String),
    /// The event at this place: for a row without a usable id.
    Position(EventPosition),
}

impl FromStr for Selector {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.parse() {
            Ok(position) => Self::Position(position),
            Err(_) => Self::EventId(text.to_owned()),
        })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EventId(id) => f.write_str(id),
            Self::Position(position) => position.fmt(f),
        }
    }
}

/// A request that takes a held event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skip {
    /// Its number, for [`settled`].
    pub id: i64,
    /// Why the event is not wanted.
    pub reason: String,
    /// Which role asked.
    pub requested_by: String,
    /// The id of the event that it takes, where that has a usable one.
    pub event_id: Option<String>,
    /// That event's table, for whoever [`settled`] is called for; [`take`] does not know it.
    pub outbox: Option<String>,
}

/// Records that an event is to be skipped. An open request for the same event is replaced; true if there was none.
///
/// Grants: usage on schema `walrelay`, select, insert and update on `walrelay.skips`.
///
/// # Errors
/// The statement fails.
pub async fn request(
    session: &ControlSession,
    slot: &SlotName,
    selector: &Selector,
    reason: &str,
) -> Result<bool, Error> {
    const REQUEST: Use = Use::own("record a skip", "select, insert, update", &["skips"]);
    let (event_id, position) = match selector {
        Selector::EventId(id) => (Some(id.as_str()), None),
        Selector::Position(position) => (None, Some(*position)),
    };
    let conflict = match selector {
        Selector::EventId(_) => "(slot, event_id)",
        Selector::Position(_) => "(slot, commit_lsn, tx_seq)",
    };
    // A row that was updated has an `xmax`.
    let sql = format!(
        "insert into walrelay.skips (slot, event_id, commit_lsn, tx_seq, reason) \
         values ($1, $2, $3::text::pg_lsn, $4, $5) \
         on conflict {conflict} where settled_at is null do update set reason = excluded.reason, \
         requested_at = now(), requested_by = excluded.requested_by returning xmax = 0"
    );
    let lsn = position.map(|position| position.lsn_text());
    let sequence = position.map(|position| position.sequence());
    let row = REQUEST
        .run(
            session.role(),
            session
                .client()
                .query_one(&sql, &[&slot.as_str(), &event_id, &lsn, &sequence, &reason]),
        )
        .await?;
    column(&row, 0, REQUEST.purpose)
}

/// Looks for a request that takes exactly this held event: an open one by its id or its place, or one that was
/// settled by this very event before, since the event comes again if the slot had not passed it.
///
/// Nothing is changed: after the event has been settled call [`settled`].
///
/// Grants: usage on schema `walrelay`, select on `walrelay.skips`.
///
/// # Errors
/// The query fails.
pub async fn take(
    session: &ControlSession,
    slot: &SlotName,
    key: &EventKey,
    event_id: Option<&str>,
) -> Result<Option<Skip>, Error> {
    const TAKE: Use = Use::own("look for a skip", "select", &["skips"]);
    let sql = "select id, reason, requested_by from walrelay.skips where slot = $1 and \
               ((settled_at is null and (event_id = $2 or (commit_lsn = $3::text::pg_lsn and tx_seq = $4))) \
               or (settled_commit_lsn = $3::text::pg_lsn and settled_tx_seq = $4 and settled_xid = $5)) \
               order by settled_at nulls last, id limit 1";
    let position = EventPosition::from(key);
    let (lsn, sequence) = (position.lsn_text(), position.sequence());
    let row = TAKE
        .run(
            session.role(),
            session.client().query_opt(
                sql,
                &[
                    &slot.as_str(),
                    &event_id,
                    &lsn,
                    &sequence,
                    &i64::from(key.transaction.xid),
                ],
            ),
        )
        .await?;
    row.map(|row| {
        Ok(Skip {
            id: column(&row, 0, TAKE.purpose)?,
            reason: column(&row, 1, TAKE.purpose)?,
            requested_by: column(&row, 2, TAKE.purpose)?,
            event_id: event_id.map(str::to_owned),
            outbox: None,
        })
    })
    .transpose()
}

/// Records which event a request has settled, so that it takes no other. A request that was settled before stays
/// as it is. Commits synchronously: an event of the same id that comes later must not find the request open.
///
/// Grants: usage on schema `walrelay`, select and update on `walrelay.skips`.
///
/// Cancel safety: a dropped future may or may not have committed; call it again.
///
/// # Errors
/// A statement fails.
pub async fn settled(session: &mut ControlSession, skip: &Skip, key: &EventKey) -> Result<(), Error> {
    const SETTLED: Use = Use::own("record a settled skip", "select, update", &["skips"]);
    let role = session.role().to_owned();
    let step = Step::Query(SETTLED.purpose);
    let transaction = bounded(step, session.client_mut().transaction()).await?;
    commit_synchronously(&transaction, SETTLED.purpose).await?;
    let sql = "update walrelay.skips set settled_at = now(), settled_commit_lsn = $2::text::pg_lsn, \
               settled_tx_seq = $3, settled_xid = $4, settled_event_id = $5, settled_outbox = $6 where id = $1 and settled_at is null";
    let position = EventPosition::from(key);
    let (lsn, sequence) = (position.lsn_text(), position.sequence());
    SETTLED
        .run(
            &role,
            transaction.execute(
                sql,
                &[
                    &skip.id,
                    &lsn,
                    &sequence,
                    &i64::from(key.transaction.xid),
                    &skip.event_id,
                    &skip.outbox,
                ],
            ),
        )
        .await?;
    bounded(step, transaction.commit()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_an_id_are_told_apart() {
        for (text, is_key) in [
            ("16/B374D848:0", true),
            ("7b7f5c1e-0000-4000-8000-000000000000", false),
            ("16/B374D848", false),
            ("42", false),
        ] {
            let Ok(selector) = text.parse::<Selector>();
            assert_eq!(matches!(selector, Selector::Position(_)), is_key, "{text}");
            assert_eq!(selector.to_string(), text);
        }
    }
}
