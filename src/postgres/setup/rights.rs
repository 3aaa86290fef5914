//! What set-up lacks the right to do, said as statements to paste.

use crate::postgres::catalog::{ServerFacts, column};
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, SqlState};
use crate::postgres::preflight::{Source, Unfit};

/// Adds to a refusal what would make set-up go through. Ends the transaction that the refusal has broken.
pub(super) async fn explain(session: &ControlSession, source: &Source, refusal: Error) -> Error {
    let is_refusal = matches!(refusal.unfit(), Some(Unfit::Role { .. }))
        || refusal.sqlstate() == Some(SqlState::INSUFFICIENT_PRIVILEGE);
    if !is_refusal {
        return refusal;
    }
    match remedy(session, source).await {
        Ok(remedy) => Error::Forbidden {
            remedy,
            source: Box::new(refusal),
        },
        Err(error) => {
            tracing::debug!(error = %error, "missing rights not looked up");
            refusal
        }
    }
}

async fn remedy(session: &ControlSession, source: &Source) -> Result<String, Error> {
    const PURPOSE: &str = "look what the role may do";
    let client = session.client();
    session.run(PURPOSE, client.batch_execute("rollback")).await?;
    let server = ServerFacts::read(session).await?;
    let names = "select pg_catalog.quote_ident($1::text), pg_catalog.quote_ident($2::text)";
    let row = session
        .run(
            PURPOSE,
            client.query_one(names, &[&server.role, &server.database]),
        )
        .await?;
    let (role, database): (String, String) = (column(&row, 0, PURPOSE)?, column(&row, 1, PURPOSE)?);
    let mut statements = Vec::new();
    if !server.may_replicate {
        statements.push(format!("alter role {role} replication"));
    }
    let may_create = "select pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create')";
    let row = session.run(PURPOSE, client.query_one(may_create, &[])).await?;
    if !column::<bool>(&row, 0, PURPOSE)? {
        statements.push(format!("grant create on database {database} to {role}"));
    }
    let mut needs_owner = owns_no_part(session, PURPOSE, source).await?;
    let schema = "select c.oid is not null, coalesce(pg_catalog.pg_has_role(c.relowner, 'usage'), false), \
                  pg_catalog.has_schema_privilege(n.oid, 'create'), pg_catalog.quote_ident(n.nspname) from pg_catalog.pg_namespace n \
                  left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = $2 where n.nspname = $1";
    for table in source.tables() {
        let row = session
            .run(PURPOSE, client.query_opt(schema, &[&table.schema, &table.name]))
            .await?;
        let Some(row) = row else { continue };
        let (exists, owns): (bool, bool) = (column(&row, 0, PURPOSE)?, column(&row, 1, PURPOSE)?);
        needs_owner |= exists && !owns;
        if !exists && !column::<bool>(&row, 2, PURPOSE)? {
            let schema: String = column(&row, 3, PURPOSE)?;
            statements.push(format!("grant create on schema {schema} to {role}"));
        }
    }
    statements.dedup();
    Ok(if needs_owner || statements.is_empty() {
        format!(
            "run `walrelay setup --url ADMIN --grant-to {}` with the URL of an administrator",
            server.role
        )
    } else {
        format!(
            "as an administrator in database {}: {}",
            server.database,
            statements.join("; ")
        )
    })
}

/// Whether the publication or something in walrelay's schema is another role's.
async fn owns_no_part(
    session: &ControlSession,
    purpose: &'static str,
    source: &Source,
) -> Result<bool, Error> {
    let sql = "select exists (select from pg_catalog.pg_publication where pubname = $1 \
               and not pg_catalog.pg_has_role(pubowner, 'usage')) \
               or exists (select from pg_catalog.pg_namespace where nspname = 'walrelay' \
               and not pg_catalog.pg_has_role(nspowner, 'usage'))";
    let publication = source.publication.as_str();
    let row = session
        .run(purpose, session.client().query_one(sql, &[&publication]))
        .await?;
    column(&row, 0, purpose)
}
