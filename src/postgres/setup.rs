//! `setup` and `teardown`: what they create and drop, in which order, and what they report.

use std::fmt;

use tokio_postgres::types::Oid;

use super::advisory;
use super::catalog::{PublicationFacts, ServerFacts, TableFacts, TableKind, column};
use super::connect::Connector;
use super::control::{ControlSession, bounded};
use super::error::{Error, Step};
use super::guard::{self, Difference, Mismatch};
use super::identifier::{QualifiedTable, quote_identifier};
use super::marks;
use super::migrations::{self, MIGRATIONS};
use super::preflight::{
    Source, Unfit, check_membership, check_publication, check_server, check_slot, check_table,
};
use super::slot::{self, SlotState};
use super::state::{Author, Baseline, MemberKind};

/// How a report names the baseline.
const BASELINE: &str = "baseline of publication and tables";

/// What became of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was created.
    Created,
    /// It was there already and fits.
    Found,
    /// It was changed so that it fits.
    Changed,
    /// It was dropped.
    Dropped,
    /// There was none to drop.
    Absent,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad`, so that a width is honoured.
        f.pad(match self {
            Self::Created => "created",
            Self::Found => "found",
            Self::Changed => "changed",
            Self::Dropped => "dropped",
            Self::Absent => "absent",
        })
    }
}

/// One thing and what became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupStep {
    /// Which thing: `publication walrelay`.
    pub what: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// What `setup` did, in order. Printed, it is one line each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetupReport {
    /// The things.
    pub steps: Vec<SetupStep>,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// What `teardown` did, in order. Printed, it is one line each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TeardownReport {
    /// The things.
    pub steps: Vec<SetupStep>,
}

impl fmt::Display for SetupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_steps(f, &self.steps)?;
        self.warnings
            .iter()
            .try_for_each(|warning| writeln!(f, "{:8} {warning}", "warning"))
    }
}

impl fmt::Display for TeardownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print_steps(f, &self.steps)
    }
}

fn print_steps(f: &mut fmt::Formatter<'_>, steps: &[SetupStep]) -> fmt::Result {
    steps
        .iter()
        .try_for_each(|step| writeln!(f, "{:8} {}", step.outcome, step.what))
}

/// Creates what is missing: walrelay's schema, the outbox tables, the publication, the baseline and, last, the slot.
/// What is there is checked and used as it is. It can be run again at any time; two at once
/// wait for each other, within limits.
///
/// For a slot that exists, the baseline takes in only what this very run has changed. Other changes stay a
/// [`Mismatch`] and become a warning.
///
/// # Errors
/// What is there does not fit ([`Error::Unfit`]), the role may not create what is missing, or the server is not
/// as needed. Tables and publication are created together or not at all; without the slot the next run goes on from
/// there.
pub async fn setup(connector: &Connector, source: &Source) -> Result<SetupReport, Error> {
    let mut session = ControlSession::open(connector, &source.slot).await?;
    let result = setup_locked(&mut session, source).await;
    session.close().await;
    result
}

/// Drops the slot and the publication, so that no slot is left behind that fills the disk. The outbox tables
/// and walrelay's schema stay.
///
/// # Errors
/// A process streams from the slot (fault `slot_in_use`), or the role may not drop.
pub async fn teardown(connector: &Connector, source: &Source) -> Result<TeardownReport, Error> {
    let session = ControlSession::open(connector, &source.slot).await?;
    let result = teardown_locked(&session, source).await;
    session.close().await;
    result
}

async fn setup_locked(session: &mut ControlSession, source: &Source) -> Result<SetupReport, Error> {
    let mut report = SetupReport::default();
    let server = ServerFacts::read(session).await?;
    check_server(&server)?;
    advisory::lock(session).await?;

    let existing = SlotState::read(session, &source.slot).await?;
    let exists = existing.is_some();
    if exists {
        check_slot(existing, &source.slot, &server.database)?;
    }

    migrate(session, &mut report).await?;
    // In one transaction, so that a guard sees the publication and its baseline change together. An error ends the
    // session, and with it the transaction.
    let client = session.client();
    session.run("begin set-up", client.batch_execute("begin")).await?;
    create_tables(session, source, &server, &mut report).await?;
    let published = publish_tables(session, source, &server, &mut report).await?;
    for (table, owner) in marks::claim(session, source, &server).await? {
        report.warnings.push(format!(
            "the rows of table {table} were marked by slot {owner}, which is gone: they are slot {}'s now",
            source.slot
        ));
    }
    if exists {
        keep_baseline(session, source, &published.added, &mut report).await?;
    } else {
        // Before the slot, so that what changes while the slot is being created is noticed.
        let baseline = Baseline::observe(session, source).await?;
        baseline.write(session, &source.slot, Author::Setup, true).await?;
        report.push(BASELINE.to_owned(), Outcome::Created);
    }
    session
        .run("commit set-up", client.batch_execute("commit"))
        .await?;

    let what = format!("slot {}", source.slot);
    if exists {
        report.push(what, Outcome::Found);
        if published.late {
            report.warnings.push(format!(
                "slot {} is older than what the publication gained now: rows committed before are not relayed, and if \
                 streaming ends with publication_missing, run teardown and setup",
                source.slot
            ));
        }
    } else {
        let created = slot::create(session.connector(), &source.slot).await?;
        report.push(
            format!("{what} (streams from {})", created.consistent_point),
            Outcome::Created,
        );
    }
    Baseline::write_sweep_start(session, &source.slot).await?;
    for plan in marks::plan(session, source).await? {
        report.warnings.extend(
            plan.refusal
                .map(|refusal| format!("rows will not be marked: {refusal}; {}", refusal.kind().remedy())),
        );
    }
    Ok(report)
}

async fn teardown_locked(session: &ControlSession, source: &Source) -> Result<TeardownReport, Error> {
    advisory::lock(session).await?;
    let mut report = TeardownReport::default();
    // The slot first: without its publication it could not be streamed any more.
    let outcome = if SlotState::read(session, &source.slot).await?.is_some() {
        slot::drop(session, &source.slot).await?;
        Outcome::Dropped
    } else {
        Outcome::Absent
    };
    marks::release(session, source).await?;
    report.steps.push(SetupStep {
        what: format!("slot {}", source.slot),
        outcome,
    });

    let outcome = if PublicationFacts::read(session, &source.publication)
        .await?
        .is_some()
    {
        let sql = format!(
            "drop publication {}",
            quote_identifier(source.publication.as_str())
        );
        session
            .run("drop the publication", session.client().batch_execute(&sql))
            .await?;
        Outcome::Dropped
    } else {
        Outcome::Absent
    };
    report.steps.push(SetupStep {
        what: format!("publication {}", source.publication),
        outcome,
    });
    Ok(report)
}

impl SetupReport {
    fn push(&mut self, what: String, outcome: Outcome) {
        self.steps.push(SetupStep { what, outcome });
    }
}

/// Applies the numbered migrations that are missing, each in a transaction of its own.
async fn migrate(session: &mut ControlSession, report: &mut SetupReport) -> Result<(), Error> {
    const PURPOSE: &str = "create walrelay's schema";
    let sql = "select pg_catalog.to_regclass('walrelay.schema_migrations') is not null";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    let applied = if column(&row, 0, PURPOSE)? {
        let sql = "select coalesce(max(version), 0) from walrelay.schema_migrations";
        let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
        column(&row, 0, PURPOSE)?
    } else {
        0
    };
    for migration in MIGRATIONS {
        let what = format!("migration {} ({})", migration.version, migration.name);
        if migration.version <= applied {
            report.push(what, Outcome::Found);
            continue;
        }
        let transaction = async {
            let transaction = session.client_mut().transaction().await?;
            transaction.batch_execute(migration.sql).await?;
            let sql = "insert into walrelay.schema_migrations (version, name) values ($1, $2)";
            transaction
                .execute(sql, &[&migration.version, &migration.name])
                .await?;
            transaction.commit().await
        };
        bounded(Step::Query(PURPOSE), transaction).await?;
        report.push(what, Outcome::Created);
    }
    Ok(())
}

/// Creates the outbox tables that are missing; checks those that are there.
async fn create_tables(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    report: &mut SetupReport,
) -> Result<(), Error> {
    for table in &source.tables {
        let facts = TableFacts::read(session, table, None, server.version).await?;
        let outcome = if facts.is_some() {
            check_table(facts, table)?;
            Outcome::Found
        } else {
            let sql = migrations::create_table(table);
            session
                .run("create the outbox table", session.client().batch_execute(&sql))
                .await?;
            Outcome::Created
        };
        report.push(format!("table {table}"), outcome);
    }
    Ok(())
}

/// Takes what set-up itself changed into the baseline of a slot that exists. Whatever else has changed since is for
/// `recover` to take in, after somebody has looked for missed events (rule 5).
async fn keep_baseline(
    session: &ControlSession,
    source: &Source,
    added: &[QualifiedTable],
    report: &mut SetupReport,
) -> Result<(), Error> {
    let (baseline, observed) = Baseline::load(session, source).await?;
    let advice = "look for missed events, then run `walrelay recover`";
    let Some(baseline) = baseline else {
        let mismatch = Mismatch::NoBaseline {
            slot: source.slot.clone(),
        };
        report.warnings.push(format!("{mismatch}: {advice}"));
        return Ok(());
    };
    let mut differences = guard::compare(session, &baseline, &observed).await?;
    let any = !differences.is_empty();
    let added: Vec<_> = observed
        .tables
        .iter()
        .filter(|mark| added.contains(&mark.qualified()))
        .filter_map(|mark| mark.oid)
        .collect();
    differences.retain(|difference| !is_own(difference, &added));
    if !differences.is_empty() {
        let mismatch = Mismatch::Changed(differences);
        report.warnings.push(format!("{mismatch}: {advice}"));
    } else if any {
        observed
            .write(session, &source.slot, Author::Setup, false)
            .await?;
        report.push(BASELINE.to_owned(), Outcome::Changed);
    } else {
        report.push(BASELINE.to_owned(), Outcome::Found);
    }
    Ok(())
}

/// Whether set-up itself made this difference, or the configuration did, by adding the tables of these object ids.
fn is_own(difference: &Difference, added: &[Oid]) -> bool {
    if let Difference::MemberAdded(member) = difference {
        return member.kind == MemberKind::Table && added.contains(&member.object);
    }
    matches!(difference, Difference::TableNew(_))
}

/// What [`publish_tables`] did.
struct Published {
    /// Whether something became published that was not.
    late: bool,
    /// The tables added to a publication that existed.
    added: Vec<QualifiedTable>,
}

/// Creates the publication, or adds the tables that it lacks.
async fn publish_tables(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    report: &mut SetupReport,
) -> Result<Published, Error> {
    let what = format!("publication {}", source.publication);
    let mut facts = PublicationFacts::read(session, &source.publication).await?;
    let mut changed = false;
    if facts.is_none() {
        let mut via_root = false;
        for table in &source.tables {
            let facts = TableFacts::read(session, table, None, server.version).await?;
            via_root |= facts.is_some_and(|facts| facts.kind == TableKind::Partitioned);
        }
        let sql = migrations::create_publication(&source.publication, &source.tables, via_root);
        session
            .run("create the publication", session.client().batch_execute(&sql))
            .await?;
        facts = PublicationFacts::read(session, &source.publication).await?;
        changed = true;
        report.push(what.clone(), Outcome::Created);
    }
    let mut publication = check_publication(facts, &source.publication)?;

    let mut added = Vec::new();
    for table in &source.tables {
        let facts = TableFacts::read(session, table, Some(&publication), server.version).await?;
        let facts = check_table(facts, table)?;
        match check_membership(&facts, table, &publication, &source.publication) {
            Err(Unfit::NotPublished { .. }) => {
                let name = quote_identifier(source.publication.as_str());
                let sql = format!("alter publication {name} add table {}", table.quoted());
                let purpose = "add the table to the publication";
                session.run(purpose, session.client().batch_execute(&sql)).await?;
                let again = PublicationFacts::read(session, &source.publication).await?;
                publication = check_publication(again, &source.publication)?;
                check_membership(&facts, table, &publication, &source.publication)?;
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
    let others = publication
        .tables
        .iter()
        .filter(|table| !source.tables.contains(table));
    report.warnings.extend(others.map(|table| {
        format!(
            "the publication also lists {table}, which is no configured outbox: a row of it halts the relay"
        )
    }));
    Ok(Published {
        late: changed || !added.is_empty(),
        added,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line_a_thing() {
        let mut report = SetupReport::default();
        report.push("table public.outbox_events".to_owned(), Outcome::Found);
        report.push("slot walrelay".to_owned(), Outcome::Created);
        report.warnings.push("look".to_owned());
        assert_eq!(
            report.to_string(),
            "found    table public.outbox_events\ncreated  slot walrelay\nwarning  look\n"
        );
    }
}
