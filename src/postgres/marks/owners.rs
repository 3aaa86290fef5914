//! Which slot marks the rows of a table: one only, since "unsent" is true for that one alone (rule 20).

use walrelay_engine::event::AfterPublish;

use crate::postgres::catalog::{ServerFacts, TableFacts, column};
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::identifier::QualifiedTable;
use crate::postgres::marker;
use crate::postgres::preflight::{Source, Unfit};
use crate::postgres::table_use::Use;

const OWNERS: Use = Use::own(
    "record which slot marks rows",
    "select, insert, update, delete",
    &["mark_owners"],
);

/// Records the slot as the one that marks the rows of its tables, but for those whose rows are kept. Returns the tables
/// that it took over from a slot that is gone.
///
/// # Errors
/// [`Unfit::Marker`], or [`Unfit::MarksOwned`] where another slot that exists marks them; or a statement fails.
pub(in crate::postgres) async fn claim(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
) -> Result<Vec<(QualifiedTable, String)>, Error> {
    let mut taken = Vec::new();
    for outbox in &source.outboxes {
        let table = &outbox.table;
        marker::check(session, outbox).await?;
        let facts = TableFacts::read(session, table, None, server.version).await?;
        let marks = facts.and_then(|facts| outbox.marks(|name| facts.has_column(name)));
        if AfterPublish::of(outbox.after_publish, marks.is_some()) == AfterPublish::Keep {
            let sql = "delete from walrelay.mark_owners where outbox = $1 and slot = $2";
            execute(session, sql, table, source).await?;
            continue;
        }
        if let Some((owner, exists)) = owner(session, table).await?
            && owner != source.slot.as_str()
        {
            if exists {
                let table = table.clone();
                return Err(Unfit::MarksOwned { table, owner }.into());
            }
            taken.push((table.clone(), owner));
        }
        let sql = "insert into walrelay.mark_owners (outbox, slot) values ($1, $2) \
                   on conflict (outbox) do update set slot = excluded.slot, since = now() \
                   where mark_owners.slot <> excluded.slot";
        execute(session, sql, table, source).await?;
    }
    Ok(taken)
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

/// The slot that marks the rows of a table, and whether it exists.
async fn owner(session: &ControlSession, table: &QualifiedTable) -> Result<Option<(String, bool)>, Error> {
    let sql = "select slot, exists (select from pg_catalog.pg_replication_slots where slot_name = slot) \
               from walrelay.mark_owners where outbox = $1 for update";
    let row = OWNERS
        .run(
            session.role(),
            session.client().query_opt(sql, &[&table.to_string()]),
        )
        .await?;
    row.map(|row| Ok((column(&row, 0, OWNERS.purpose)?, column(&row, 1, OWNERS.purpose)?)))
        .transpose()
}

async fn execute(
    session: &ControlSession,
    sql: &str,
    table: &QualifiedTable,
    source: &Source,
) -> Result<(), Error> {
    OWNERS
        .run(
            session.role(),
            session
                .client()
                .execute(sql, &[&table.to_string(), &source.slot.as_str()]),
        )
        .await
        .map(drop)
}
