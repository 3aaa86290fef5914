//! What the relay's own role may do, where an administrator sets up for it.

use walrelay_engine::event::AfterPublish;

use super::backfill;
use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{quote_identifier, quote_literal};
use super::outbox::{Marks, Outbox};
use super::preflight::{Source, Unfit};

/// What `run` and the commands about single events need of walrelay's own tables. Not the right to write a baseline, nor to
/// note rows: a relay that lacks it cannot adopt a changed publication by mistake (rule 5).
const OWN_TABLES: &[(&str, &str)] = &[
    ("schema_migrations", "select"),
    (
        "state",
        "select, update (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid)",
    ),
    ("mark_owners", "select"),
    ("slots", "select"),
    ("backfills", "select"),
    ("backfill", "select, delete, update (is_settled)"),
    ("dead_letters", "select, insert, update, delete"),
    ("skips", "select, insert, update, delete"),
];

/// Gives a role what the relay needs: to replicate, to use walrelay's own tables, to read the outbox tables and to mark
/// their rows.
///
/// # Errors
/// There is no such role, or ours may not give that away.
pub(super) async fn grant(session: &ControlSession, role: &str, source: &Source) -> Result<(), Error> {
    const PURPOSE: &str = "give the role its rights";
    let mut sql = own_schema(role);
    for of in &source.outboxes {
        let marks = backfill::marks(session, of).await?;
        sql.push_str(&outbox(role, of, marks.as_ref()));
    }
    let statements = session.client().batch_execute(&sql);
    session.run(PURPOSE, statements).await?;
    let attribute = format!("do $$ begin {} end $$", replication(role));
    let statement = session.client().batch_execute(&attribute);
    session
        .run("give the role the attribute REPLICATION", statement)
        .await
}

/// Looks whether there is such a role.
///
/// # Errors
/// [`Unfit::RoleMissing`], or the query fails.
pub(super) async fn check_role(session: &ControlSession, role: &str) -> Result<(), Error> {
    const PURPOSE: &str = "look for the role that gets rights";
    let sql = "select exists (select from pg_catalog.pg_roles where rolname = $1)";
    let row = session
        .run(PURPOSE, session.client().query_one(sql, &[&role]))
        .await?;
    if column(&row, 0, PURPOSE)? {
        return Ok(());
    }
    let role = role.to_owned();
    Err(Unfit::RoleMissing { role }.into())
}

/// The statements about walrelay's own schema.
pub(super) fn own_schema(role: &str) -> String {
    let role = quote_identifier(role);
    let mut sql = format!("grant usage on schema walrelay to {role};\n");
    for (table, privileges) in OWN_TABLES {
        sql.push_str(&format!("grant {privileges} on walrelay.{table} to {role};\n"));
    }
    sql
}

/// The statements about an outbox table.
pub(super) fn outbox(role: &str, outbox: &Outbox, marks: Option<&Marks>) -> String {
    let (role, table) = (quote_identifier(role), &outbox.table);
    let mut sql = format!(
        "grant usage on schema {} to {role};\ngrant select on {} to {role};\n",
        quote_identifier(&table.schema),
        table.quoted()
    );
    let privilege = match outbox.after_publish {
        Some(AfterPublish::Keep) => None,
        Some(AfterPublish::Delete) => Some("delete".to_owned()),
        Some(AfterPublish::Mark) | None => marks.map(Marks::update),
    };
    if let Some(privilege) = privilege {
        sql.push_str(&format!("grant {privilege} on {} to {role};\n", table.quoted()));
    }
    sql
}

/// PL/pgSQL that lets a role replicate, unless it may: where there is `rds_replication`, by membership in that, as Amazon
/// RDS wants it.
pub(super) fn replication(role: &str) -> String {
    let (name, text) = (quote_identifier(role), quote_literal(role));
    format!(
        "if not (select rolreplication or rolsuper from pg_catalog.pg_roles where rolname = {text}) then \
         if not exists (select from pg_catalog.pg_roles where rolname = 'rds_replication') then \
         alter role {name} replication; \
         elsif not pg_catalog.pg_has_role({text}, 'rds_replication', 'member') then \
         grant rds_replication to {name}; \
         end if; end if;"
    )
}
