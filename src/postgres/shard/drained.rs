//! Whether a slot that is to go has brought everything that lies before those that take its place (rule 25).

use walrelay_engine::Lsn;

use super::{MIN_SHARD_MAJOR, is_same_cut, overlap, readers};
use crate::postgres::catalog::{ServerFacts, TableFacts, column, position};
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::preflight::{Source, Unfit};
use crate::postgres::table_use::Use;

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
    const LOOK: Use = Use::own(
        "look where the slots start that take this one's place",
        "select",
        &["mark_owners", "slots", "state"],
    );
    if server.version.major < MIN_SHARD_MAJOR {
        return Ok(());
    }
    let sql = "select s.slot, s.consistent_point::text from walrelay.slots s \
               where s.slot = any($1) and s.consistent_point > $2::text::pg_lsn \
               and exists (select from walrelay.mark_owners o where o.slot = $3 and o.outbox = $4) \
               order by s.consistent_point desc limit 1";
    for outbox in &source.outboxes {
        let Some(facts) = TableFacts::read(session, outbox, None, server.version).await? else {
            continue;
        };
        let readers = readers(session, facts.oid, server.version, outbox.aggregate_id()).await?;
        let heirs: Vec<_> = readers
            .into_iter()
            .filter(|reader| !is_same_cut(reader.shard, source.shard) && overlap(reader.shard, source.shard))
            .flat_map(|reader| reader.slots)
            .collect();
        let (slot, table) = (source.slot.as_str(), outbox.table.to_string());
        let found = LOOK
            .run(
                session.role(),
                session
                    .client()
                    .query_opt(sql, &[&heirs, &confirmed.to_string(), &slot, &table]),
            )
            .await?;
        if let Some(row) = found {
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
