//! Which slot marks the rows of a table, or of a shard of it: one only, since "unsent" is true for that one alone (rule 20).

use walrelay_engine::event::AfterPublish;

use crate::postgres::catalog::{ServerFacts, TableFacts, column};
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::identifier::QualifiedTable;
use crate::postgres::marker;
use crate::postgres::preflight::{Source, Unfit};
use crate::postgres::shard::{Shard, is_same_cut, overlap};
use crate::postgres::table_use::Use;

const OWNERS: Use = Use::own(
    "record which slot marks rows",
    "select, insert, update, delete",
    &["mark_owners"],
);

/// What came of claiming the marks.
#[derive(Debug, Default)]
pub(in crate::postgres) struct Claims {
    /// Tables taken over, each from a slot that is gone.
    pub(in crate::postgres) taken: Vec<(QualifiedTable, String)>,
    /// Tables whose rows are marked by a slot of another cut, which this one is to take the place of (rule 25): they are
    /// claimed once that is torn down.
    pub(in crate::postgres) left: Vec<(QualifiedTable, String)>,
}

/// A slot on record.
struct Owner {
    slot: String,
    shard: Option<Shard>,
    exists: bool,
}

/// Records the slot as the one that marks the rows of its tables, or those of its shard, but for those whose rows are kept.
///
/// # Errors
/// [`Unfit::Marker`], or [`Unfit::MarksOwned`] where another slot that exists marks them; or a statement fails.
pub(in crate::postgres) async fn claim(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
) -> Result<Claims, Error> {
    let mut claims = Claims::default();
    for outbox in &source.outboxes {
        let table = &outbox.table;
        marker::check(session, outbox).await?;
        marker::check_plan(session, outbox).await?;
        let facts = TableFacts::read(session, outbox, None, server.version).await?;
        let marks = facts.and_then(|facts| outbox.marks(|name| facts.has_column(name)));
        if AfterPublish::of(outbox.after_publish, marks.is_some()) == AfterPublish::Keep {
            disown(session, table, source.slot.as_str()).await?;
            continue;
        }
        claim_table(session, source, table, &mut claims).await?;
    }
    Ok(claims)
}

async fn claim_table(
    session: &ControlSession,
    source: &Source,
    table: &QualifiedTable,
    claims: &mut Claims,
) -> Result<(), Error> {
    let owners = owners(session, table).await?;
    let (own, others): (Vec<_>, Vec<_>) = owners
        .into_iter()
        .partition(|owner| owner.slot == source.slot.as_str());
    let others: Vec<_> = others
        .into_iter()
        .filter(|owner| overlap(owner.shard, source.shard))
        .collect();
    for Owner { slot, shard, exists } in &others {
        let (table, owner) = (table.clone(), slot.clone());
        match exists {
            true if is_same_cut(*shard, source.shard) => {
                return Err(Unfit::MarksOwned { table, owner }.into());
            }
            true => {
                claims.left.push((table, owner));
                return Ok(());
            }
            false => {}
        }
    }
    for gone in others {
        if gone.shard != source.shard {
            disown(session, table, &gone.slot).await?;
        }
        claims.taken.push((table.clone(), gone.slot));
    }
    if own.iter().any(|owner| owner.shard != source.shard) {
        disown(session, table, source.slot.as_str()).await?;
    }
    let sql = "insert into walrelay.mark_owners (outbox, slot, shard) values ($1, $2, $3) \
               on conflict (outbox, shard) do update set slot = excluded.slot, since = now() \
               where mark_owners.slot <> excluded.slot";
    let shard = source.shard.map_or_else(String::new, |shard| shard.to_string());
    OWNERS
        .run(
            session.role(),
            session
                .client()
                .execute(sql, &[&table.to_string(), &source.slot.as_str(), &shard]),
        )
        .await
        .map(drop)
}

/// Gives up what the slot marks, where there is such a table.
///
/// # Errors
/// A statement fails.
pub(in crate::postgres) async fn release(session: &ControlSession, source: &Source) -> Result<(), Error> {
    let sql = "select pg_catalog.to_regclass('walrelay.mark_owners') is not null";
    let row = session
        .run(OWNERS.purpose, session.client().query_one(sql, &[]))
        .await?;
    if column(&row, 0, OWNERS.purpose)? {
        let sql = "delete from walrelay.mark_owners where slot = $1";
        let slot = source.slot.as_str();
        OWNERS
            .run(session.role(), session.client().execute(sql, &[&slot]))
            .await?;
    }
    Ok(())
}

/// The shard that stands on record: none is all rows.
pub(super) fn cell(shard: &str) -> Option<Shard> {
    // Only claims write it. What they did not write is taken for all rows, so that nobody else marks any.
    shard.parse().ok()
}

/// The slots that mark rows of a table, and whether they exist.
async fn owners(session: &ControlSession, table: &QualifiedTable) -> Result<Vec<Owner>, Error> {
    let sql = "select slot, shard, exists (select from pg_catalog.pg_replication_slots where slot_name = slot) \
               from walrelay.mark_owners where outbox = $1 order by slot, shard for update";
    let rows = OWNERS
        .run(session.role(), session.client().query(sql, &[&table.to_string()]))
        .await?;
    let owner = |row| {
        Ok(Owner {
            slot: column(row, 0, OWNERS.purpose)?,
            shard: cell(column(row, 1, OWNERS.purpose)?),
            exists: column(row, 2, OWNERS.purpose)?,
        })
    };
    rows.iter().map(owner).collect()
}

/// Forgets that a slot marks rows of a table.
async fn disown(session: &ControlSession, table: &QualifiedTable, slot: &str) -> Result<(), Error> {
    let sql = "delete from walrelay.mark_owners where outbox = $1 and slot = $2";
    OWNERS
        .run(
            session.role(),
            session.client().execute(sql, &[&table.to_string(), &slot]),
        )
        .await
        .map(drop)
}
