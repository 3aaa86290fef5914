//! One slot takes another one's place (rule 25): the new one waits until the old one has come to where it starts, and the old
//! one does not go before.

use tokio_postgres::types::ToSql;
use walrelay_engine::Lsn;

use super::{MIN_SHARD_MAJOR, is_same_cut, overlap, readers};
use crate::postgres::catalog::{ServerFacts, TableFacts, column, position};
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::outbox::Outbox;
use crate::postgres::preflight::{Source, Unfit};
use crate::postgres::slot::SlotState;
use crate::postgres::table_use::Use;

const LOOK: Use = Use::own(
    "look which slot comes after which",
    "select",
    &["mark_owners", "slots", "state"],
);

/// Looks whether a slot of another cut starts behind what this one has confirmed: nobody would deliver what lies between. Only
/// a slot that marks rows is asked; one that keeps them delivers on its own.
///
/// # Errors
/// [`Unfit::NotDrained`], or a query fails.
pub(in crate::postgres) async fn check_drained(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    confirmed: Lsn,
) -> Result<(), Error> {
    let sql = "select s.slot, s.consistent_point::text from walrelay.slots s \
               where s.slot = any($1) and s.consistent_point > $2::text::pg_lsn \
               and exists (select from walrelay.mark_owners o where o.slot = $3 and o.outbox = $4) \
               order by s.consistent_point desc limit 1";
    for outbox in &source.outboxes {
        let heirs = of_other_cuts(session, source, server, outbox).await?;
        if heirs.is_empty() {
            continue;
        }
        let (slot, table) = (source.slot.as_str(), outbox.table.to_string());
        let confirmed_text = confirmed.to_string();
        let parameters: &[&(dyn ToSql + Sync)] = &[&heirs, &confirmed_text, &slot, &table];
        let query = session.client().query_opt(sql, parameters);
        if let Some(row) = LOOK.run(session.role(), query).await? {
            return Err(Unfit::NotDrained {
                slot: source.slot.clone(),
                confirmed,
                heir: column(&row, 0, LOOK.purpose)?,
                start: position(&row, 1, LOOK.purpose)?.unwrap_or_default(),
            }
            .into());
        }
    }
    Ok(())
}

/// Looks, before a slot is streamed from for the first time, whether a slot of another cut that marks its rows has not come to
/// its start yet: an event that is still to come by that one would come after later ones of its aggregate.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.slots`; on the first start also on `walrelay.state`, and on
/// `walrelay.mark_owners` where the table is divided.
///
/// # Errors
/// [`Unfit::BeforeItsTurn`], or a query fails.
pub async fn check_turn(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    state: &SlotState,
) -> Result<(), Error> {
    const STARTS: Use = Use::own("look where the slot starts", "select", &["slots"]);
    let Some(confirmed) = state.confirmed_flush_lsn.filter(|_| has_cuts(server)) else {
        return Ok(());
    };
    let sql = "select consistent_point::text from walrelay.slots where slot = $1 \
               and consistent_point >= $2::text::pg_lsn";
    let (slot, confirmed) = (source.slot.as_str(), confirmed.to_string());
    let parameters: &[&(dyn ToSql + Sync)] = &[&slot, &confirmed];
    let query = session.client().query_opt(sql, parameters);
    let Some(row) = STARTS.run(session.role(), query).await? else {
        return Ok(());
    };
    let start = position(&row, 0, STARTS.purpose)?.unwrap_or_default();
    let sql = "select r.slot_name::text, r.confirmed_flush_lsn::text from pg_catalog.pg_replication_slots r \
               join walrelay.mark_owners o on o.slot = r.slot_name and o.outbox = $2 \
               where r.slot_name = any($1) and r.confirmed_flush_lsn < $3::text::pg_lsn \
               order by r.confirmed_flush_lsn limit 1";
    for outbox in &source.outboxes {
        let predecessors = of_other_cuts(session, source, server, outbox).await?;
        if predecessors.is_empty() {
            continue;
        }
        let (table, start_text) = (outbox.table.to_string(), start.to_string());
        let parameters: &[&(dyn ToSql + Sync)] = &[&predecessors, &table, &start_text];
        let query = session.client().query_opt(sql, parameters);
        if let Some(row) = LOOK.run(session.role(), query).await? {
            return Err(Unfit::BeforeItsTurn {
                slot: source.slot.clone(),
                start,
                predecessor: column(&row, 0, LOOK.purpose)?,
                confirmed: position(&row, 1, LOOK.purpose)?.unwrap_or_default(),
            }
            .into());
        }
    }
    Ok(())
}

/// Without row filters there is one cut only.
const fn has_cuts(server: &ServerFacts) -> bool {
    server.version.major >= MIN_SHARD_MAJOR
}

/// The slots that bring rows of ours by another cut.
async fn of_other_cuts(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    outbox: &Outbox,
) -> Result<Vec<String>, Error> {
    if !has_cuts(server) {
        return Ok(Vec::new());
    }
    let Some(facts) = TableFacts::read(session, outbox, None, server.version).await? else {
        return Ok(Vec::new());
    };
    let readers = readers(session, facts.oid, server.version, outbox.aggregate_id()).await?;
    Ok(readers
        .into_iter()
        .filter(|reader| !is_same_cut(reader.shard, source.shard) && overlap(reader.shard, source.shard))
        .flat_map(|reader| reader.slots)
        .collect())
}
