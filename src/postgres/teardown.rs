//! `teardown`: drops slot and publication, or nothing.

use super::advisory;
use super::backfill::{self, SetUp};
use super::catalog::{PublicationFacts, ServerFacts, column};
use super::connect::Connector;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::quote_identifier;
use super::marks;
use super::preflight::{Source, Unfit};
use super::report::{Outcome, SetupStep};
use super::shard;
use super::slot::{self, SlotState};

/// Drops the slot and, unless another slot reads it, the publication, so that no slot is left behind that fills the disk. The outbox tables
/// and walrelay's schema stay; what it has noted of the slot is forgotten, so that no relay makes it anew.
///
/// `tell` is told each step once it is done for good.
///
/// # Errors
/// The role may not do all of it ([`Unfit::MayNotTearDown`]), slots that take this one's place start behind what it has brought
/// ([`Unfit::NotDrained`]), or a process streams from the slot (fault `slot_in_use`):
/// nothing has changed then.
pub async fn teardown(
    connector: &Connector,
    source: &Source,
    tell: impl FnMut(SetupStep),
) -> Result<(), Error> {
    let session = ControlSession::open(connector, &source.slot).await?;
    let result = teardown_locked(&session, source, tell).await;
    session.close().await;
    result
}

async fn teardown_locked(
    session: &ControlSession,
    source: &Source,
    mut tell: impl FnMut(SetupStep),
) -> Result<(), Error> {
    advisory::lock(session).await?;
    let server = ServerFacts::read(session).await?;
    check_rights(session, source, &server).await?;
    let slot = SlotState::read(session, &source.slot).await?;
    let has_slot = slot.is_some();
    if let Some(confirmed) = slot.and_then(|slot| slot.confirmed_flush_lsn)
        && matches!(backfill::set_up(session, &source.slot).await?, SetUp::Ended)
    {
        shard::check_drained(session, source, &server, confirmed).await?;
    }
    let has_publication = PublicationFacts::read(session, &source.publication)
        .await?
        .is_some();
    let readers = match has_publication {
        true => other_readers(session, source).await?,
        false => Vec::new(),
    };

    // A slot is dropped at once, whatever becomes of the transaction: so it comes last, and what fails before it or with
    // it is undone.
    let client = session.client();
    session
        .run("begin teardown", client.batch_execute("begin"))
        .await?;
    backfill::forget(session, &source.slot).await?;
    marks::release(session, source).await?;
    if has_publication && readers.is_empty() {
        let sql = format!(
            "drop publication {}",
            quote_identifier(source.publication.as_str())
        );
        session
            .run("drop the publication", client.batch_execute(&sql))
            .await?;
    }
    let outcome = |existed| {
        if existed {
            Outcome::Dropped
        } else {
            Outcome::Absent
        }
    };
    if has_slot {
        slot::drop(session, &source.slot).await?;
    }
    tell(SetupStep {
        what: format!("slot {}", source.slot),
        outcome: outcome(has_slot),
    });
    session
        .run("commit teardown", client.batch_execute("commit"))
        .await?;
    let what = format!("publication {}", source.publication);
    tell(match readers.as_slice() {
        [] => SetupStep {
            what,
            outcome: outcome(has_publication),
        },
        readers => SetupStep {
            what: format!("{what}: read by slot {}", readers.join(", ")),
            outcome: Outcome::Kept,
        },
    });
    Ok(())
}

/// The slots of this database that were set up for the publication and are there, but for ours: without it their relays would
/// halt for good. The name of ours may be misspelt. Who may not look is told of none.
async fn other_readers(session: &ControlSession, source: &Source) -> Result<Vec<String>, Error> {
    const PURPOSE: &str = "look who else reads the publication";
    let sql = "select coalesce(pg_catalog.has_table_privilege(pg_catalog.to_regclass('walrelay.state')::oid, 'select'), false)";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    if !column::<bool>(&row, 0, PURPOSE)? {
        return Ok(Vec::new());
    }
    let sql = "select s.slot from walrelay.state s join pg_catalog.pg_replication_slots r on r.slot_name = s.slot \
               and r.database = pg_catalog.current_database() where s.publication = $1 and s.slot <> $2 order by s.slot";
    let (publication, slot) = (source.publication.as_str(), source.slot.as_str());
    let rows = session
        .run(PURPOSE, session.client().query(sql, &[&publication, &slot]))
        .await?;
    rows.iter().map(|row| column(row, 0, PURPOSE)).collect()
}

/// Whether the role may do all of it: half of it would leave things behind that hurt.
async fn check_rights(session: &ControlSession, source: &Source, server: &ServerFacts) -> Result<(), Error> {
    const PURPOSE: &str = "look what the role may do";
    let mut lacks = Vec::new();
    if !server.may_replicate {
        lacks.push("the attribute REPLICATION".to_owned());
    }
    let sql =
        "select pg_catalog.pg_has_role(pubowner, 'usage') from pg_catalog.pg_publication where pubname = $1";
    let publication = source.publication.as_str();
    let row = session
        .run(PURPOSE, session.client().query_opt(sql, &[&publication]))
        .await?;
    let owns = row.map(|row| column::<bool>(&row, 0, PURPOSE)).transpose()?;
    if owns == Some(false) {
        lacks.push(format!("ownership of publication {publication}"));
    }
    let sql = "select 'delete on walrelay.' || c.relname from pg_catalog.pg_class c \
               join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = 'walrelay' and c.relname in ('slots', 'backfills', 'backfill', 'mark_owners') \
               and not (pg_catalog.has_schema_privilege(n.oid, 'usage') \
               and pg_catalog.has_table_privilege(c.oid, 'select') \
               and pg_catalog.has_table_privilege(c.oid, 'delete')) order by c.relname";
    let rows = session.run(PURPOSE, session.client().query(sql, &[])).await?;
    for row in rows {
        lacks.push(column(&row, 0, PURPOSE)?);
    }
    if lacks.is_empty() {
        return Ok(());
    }
    let role = server.role.clone();
    Err(Unfit::MayNotTearDown { role, lacks }.into())
}
