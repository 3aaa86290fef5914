//! The publication of set-up and recovery.

use std::collections::BTreeSet;

use crate::postgres::catalog::{PublicationFacts, ServerFacts, TableFacts, TableKind};
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, SqlState};
use crate::postgres::identifier::{QualifiedTable, quote_identifier};
use crate::postgres::migrations;
use crate::postgres::outbox::Outbox;
use crate::postgres::preflight::checks::check_presence;
use crate::postgres::preflight::{Source, Unfit, check_membership, check_publication, check_table};
use crate::postgres::report::{Outcome, SetupReport};

/// What [`publish_tables`] did.
pub(in crate::postgres) struct Published {
    /// Whether the publication is new.
    pub(super) is_new: bool,
    /// The tables added to a publication that existed.
    pub(super) added: Vec<QualifiedTable>,
    /// Those in it that are not configured.
    pub(super) others: Vec<QualifiedTable>,
}

/// Creates the publication, or adds the tables that it lacks; each with the row filter of our shard, if there is one.
pub(in crate::postgres) async fn publish_tables(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    report: &mut SetupReport,
) -> Result<Published, Error> {
    let shard = source
        .shard
        .map_or_else(String::new, |shard| format!(" of shard {shard}"));
    let what = format!("publication {}{shard}", source.publication);
    let mut facts = PublicationFacts::read(session, &source.publication).await?;
    let mut changed = false;
    if facts.is_none() {
        let mut via_root = false;
        let mut members = Vec::with_capacity(source.outboxes.len());
        let aggregates: BTreeSet<_> = source.outboxes.iter().map(Outbox::aggregate_id).collect();
        let aggregates: Vec<_> = aggregates.into_iter().collect();
        for outbox in &source.outboxes {
            let facts = TableFacts::read(session, outbox, None, server.version).await?;
            let facts = check_table(facts, outbox)?;
            via_root |= facts.kind == TableKind::Partitioned;
            members.push(member(source, &facts, outbox)?);
        }
        let sql = migrations::create_publication(&source.publication, &members, via_root);
        let creating = session.run("create the publication", session.client().batch_execute(&sql));
        creating
            .await
            .map_err(|error| refused(source, &aggregates.join(", "), error))?;
        facts = PublicationFacts::read(session, &source.publication).await?;
        changed = true;
        report.push(what.clone(), Outcome::Created);
    }
    let mut publication = check_publication(facts, &source.publication)?;

    let mut added = Vec::new();
    for outbox in &source.outboxes {
        let table = &outbox.table;
        let facts = TableFacts::read(session, outbox, Some(&publication), server.version).await?;
        let facts = check_table(facts, outbox)?;
        match check_membership(&facts, table, &publication, &source.publication, source.shard) {
            Err(Unfit::NotPublished { .. }) => {
                // A row that is being written now would be in neither scan nor stream (R7).
                let lock = format!("lock table {} in share mode", table.quoted());
                let purpose = "wait for writers of the table to end";
                session
                    .run(purpose, session.client().batch_execute(&lock))
                    .await?;
                let name = quote_identifier(source.publication.as_str());
                let sql = format!(
                    "alter publication {name} add table {}",
                    member(source, &facts, outbox)?
                );
                let purpose = "add the table to the publication";
                let adding = session.run(purpose, session.client().batch_execute(&sql));
                adding
                    .await
                    .map_err(|error| refused(source, outbox.aggregate_id(), error))?;
                let again = PublicationFacts::read(session, &source.publication).await?;
                publication = check_publication(again, &source.publication)?;
                let facts = TableFacts::read(session, outbox, Some(&publication), server.version).await?;
                let facts = check_presence(facts, table)?;
                check_membership(&facts, table, &publication, &source.publication, source.shard)?;
                added.push(table.clone());
            }
            other => other?,
        }
    }
    if !added.is_empty() {
        report.push(what, Outcome::Changed);
    } else if !changed {
        report.push(what, Outcome::Found);
    }
    let others: Vec<_> = publication
        .tables
        .into_iter()
        .filter(|table| !source.has_table(table))
        .collect();
    report.warnings.extend(others.iter().map(|table| {
        format!(
            "the publication also lists {table}, which is no configured outbox: a row of it halts the relay"
        )
    }));
    Ok(Published {
        is_new: changed,
        added,
        others,
    })
}

/// A table as it stands in our publication.
fn member(source: &Source, facts: &TableFacts, outbox: &Outbox) -> Result<String, Unfit> {
    let filter = source
        .shard
        .map(|shard| shard.filter(facts, outbox))
        .transpose()?;
    Ok(migrations::member(&outbox.table, filter.as_deref()))
}

/// Says of a row filter that the server does not take what it has against it: a collation of the user's, such as one that
/// takes different texts for equal.
fn refused(source: &Source, column: &str, error: Error) -> Error {
    if let Error::Server { source: said, .. } = &error
        && source.shard.is_some()
        && said.sqlstate == SqlState::FEATURE_NOT_SUPPORTED
    {
        let why = said.detail.as_ref().unwrap_or(&said.message);
        let why = why.trim_end_matches('.').to_owned();
        let column = column.to_owned();
        return Unfit::ShardRefused { column, why }.into();
    }
    error
}
