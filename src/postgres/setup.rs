//! `setup`: what it creates, in which order, and what it reports.

mod publish;
mod rights;
mod succession;

use tokio_postgres::types::Oid;

use super::advisory;
use super::backfill::{self, Due, Order, Plan, SetUp};
use super::catalog::{ServerFacts, TableFacts, column};
use super::connect::Connector;
use super::control::{ControlSession, bounded};
use super::error::{Error, Step};
use super::grants;
use super::guard::{self, Difference, Mismatch};
use super::identifier::QualifiedTable;
use super::marks;
use super::migrations::{self, MIGRATIONS};
use super::outbox::Outbox;
use super::preflight::{Source, Unfit, check_server, check_sharding, check_slot, check_table};
use super::report::{Outcome, SetupReport};
use super::slot::{self, SlotState};
use super::state::{Author, Baseline, Loaded, MemberKind};

use publish::Published;
pub(super) use publish::publish_tables;
use succession::Heir;

/// How a report names the baseline.
const BASELINE: &str = "baseline of publication and tables";

/// What set-up is asked for beyond what the configuration says.
#[derive(Debug, Clone, Default)]
pub struct SetupOptions {
    /// Which rows of a new slot's or a new member's table are due; none: those without `sent_at`, if there is that column.
    pub due: Option<Due>,
    /// In which order.
    pub order: Order,
    /// A role that gets the rights that the relay needs.
    pub grant_to: Option<String>,
    /// Create a slot even where one was set up before and is gone: what it has missed is not sent.
    pub new_slot: bool,
}

/// Creates what is missing: walrelay's schema, the outbox tables, the publication, the baseline and, last, the slot.
/// What is there is checked and used as it is. It can be run again at any time; two at once
/// wait for each other, within limits.
///
/// For a slot that exists, the baseline takes in only what this very run has changed. Other changes stay a
/// [`Mismatch`] and become a warning.
///
/// Rows that are due and that the slot does not stream are noted for the relay (R22); so they are for a table that joins
/// the publication of a slot that exists (R7).
///
/// A slot that was set up before and is gone is made anew by [`recover`](super::recover::recover), which sends what was
/// missed, and here only with [`SetupOptions::new_slot`].
///
/// # Errors
/// What is there does not fit ([`Error::Unfit`]), the role may not create what is missing, or the server is not
/// as needed. Where a right is missing, [`Error::Forbidden`] has the statements that give it. Tables and publication are created together or not at all; without the slot the next run goes on from
/// there.
pub async fn setup_with(
    connector: &Connector,
    source: &Source,
    options: &SetupOptions,
) -> Result<SetupReport, Error> {
    let mut session = ControlSession::open(connector, &source.slot).await?;
    let mut result = setup_locked(&mut session, source, options).await;
    if let Err(error) = result {
        result = Err(rights::explain(&session, source, error).await);
    }
    session.close().await;
    result
}

/// As [`setup_with`] without options.
///
/// # Errors
/// As [`setup_with`].
pub async fn setup(connector: &Connector, source: &Source) -> Result<SetupReport, Error> {
    setup_with(connector, source, &SetupOptions::default()).await
}

async fn setup_locked(
    session: &mut ControlSession,
    source: &Source,
    options: &SetupOptions,
) -> Result<SetupReport, Error> {
    let mut report = SetupReport::default();
    let server = ServerFacts::read(session).await?;
    check_server(&server)?;
    check_sharding(&server, source.shard)?;
    if let Some(role) = &options.grant_to {
        grants::check_role(session, role).await?;
    }
    advisory::lock(session).await?;

    let existing = SlotState::read(session, &source.slot).await?;
    let mut exists = existing.is_some();
    let streams_from = existing.as_ref().and_then(|slot| slot.confirmed_flush_lsn);
    if exists {
        check_slot(existing, &source.slot, &server.database)?;
    } else if !options.new_slot && slot::is_known(session, &source.slot).await? {
        let slot = source.slot.clone();
        return Err(Unfit::SlotGone { slot }.into());
    }

    migrate(session, &mut report).await?;
    if exists {
        succession::check_slot_is_free(session, source).await?;
    }
    if exists && let SetUp::Interrupted(unfit) = backfill::set_up(session, &source.slot).await? {
        if matches!(unfit, Unfit::RecoveryInterrupted { .. }) {
            return Err(unfit.into());
        }
        // Nobody has streamed from it, and what it should have been given cannot be had any more.
        slot::drop(session, &source.slot).await?;
        let what = format!("slot {} of an interrupted set-up", source.slot);
        report.push(what, Outcome::Dropped);
        exists = false;
    }
    // In one transaction, so that a guard sees the publication and its baseline change together. An error ends the
    // session, and with it the transaction.
    let client = session.client();
    session.run("begin set-up", client.batch_execute("begin")).await?;
    let made = create_tables(session, source, &server, &mut report).await?;
    let published = publish_tables(session, source, &server, &mut report).await?;
    let is_old = |table: &QualifiedTable| !made.contains(table);
    let claims = marks::claim(session, source, &server).await?;
    for (table, owner) in &claims.taken {
        report.warnings.push(format!(
            "the rows of table {table} were marked by slot {owner}, which is gone: they are slot {}'s now",
            source.slot
        ));
    }
    if exists {
        report.warnings.extend(misspelt(&made, &published));
        let is_added = |table| published.added.contains(table) && is_old(table);
        let added: Vec<_> = source
            .outboxes
            .iter()
            .filter(|outbox| is_added(&outbox.table))
            .collect();
        let heir = Heir::new(session, source, &server, &claims);
        let plans = plan_all(&heir, &added, options, &mut report).await?;
        for plan in &plans {
            let position = streams_from.unwrap_or_default();
            let copied = backfill::copy(session, &source.slot, plan, position).await?;
            report.push(copied.to_string(), Outcome::Copied);
        }
        keep_baseline(session, source, &published.added, &mut report).await?;
        if !added.is_empty() {
            // Their rows are older than their part in the stream.
            Baseline::write_sweep_start(session, &source.slot, true).await?;
        }
        grant(session, source, options, &mut report).await?;
        session
            .run("commit set-up", client.batch_execute("commit"))
            .await?;
        report.push(format!("slot {}", source.slot), Outcome::Found);
        report
            .warnings
            .extend(cautions(source, options, &published, plans.len() < added.len()));
        report.warnings.extend(ignored_order(options, &plans));
        return finish(session, source, report).await;
    }
    report.warnings.extend(misspelt(&made, &published));
    let old: Vec<_> = source
        .outboxes
        .iter()
        .filter(|outbox| is_old(&outbox.table))
        .collect();
    let heir = Heir::new(session, source, &server, &claims);
    let plans = plan_all(&heir, &old, options, &mut report).await?;
    begin_slot(session, source, Author::Setup).await?;
    report.push(BASELINE.to_owned(), Outcome::Created);
    grant(session, source, options, &mut report).await?;
    session
        .run("commit set-up", client.batch_execute("commit"))
        .await?;
    let (streams_from, copied) = backfill::create_slot(session, &source.slot, &plans).await?;
    report.push(
        format!("slot {} (streams from {streams_from})", source.slot),
        Outcome::Created,
    );
    for copied in copied {
        report.push(copied.to_string(), Outcome::Copied);
    }
    report.warnings.extend(ignored_order(options, &plans));
    finish(session, source, report).await
}

/// What marks need beyond that, and why they may be refused.
async fn finish(
    session: &ControlSession,
    source: &Source,
    mut report: SetupReport,
) -> Result<SetupReport, Error> {
    Baseline::write_sweep_start(session, &source.slot, false).await?;
    report.warnings.extend(source.messages.iter().map(|prefix| {
        format!(
            "events of messages with prefix {prefix} are in the log alone: no replay, no marks, and none comes back after a \
             lost slot (docs/table-less.md)"
        )
    }));
    for plan in marks::plan(session, source).await? {
        report.warnings.extend(
            plan.refusal
                .map(|refusal| format!("rows will not be marked: {refusal}; {}", refusal.kind().remedy())),
        );
    }
    Ok(report)
}

/// Writes the baseline before the slot is created, so that what changes meanwhile is noticed; and that the slot is to
/// come. To be committed.
pub(super) async fn begin_slot(
    session: &ControlSession,
    source: &Source,
    author: Author,
) -> Result<(), Error> {
    let baseline = Baseline::observe(session, source).await?;
    baseline.write(session, &source.slot, author, true).await?;
    backfill::begin_setup(session, &source.slot).await
}

/// What is to be noted of each of the tables.
async fn plan_all(
    heir: &Heir<'_>,
    outboxes: &[&Outbox],
    options: &SetupOptions,
    report: &mut SetupReport,
) -> Result<Vec<Plan>, Error> {
    let mut plans = Vec::new();
    for outbox in outboxes {
        let due = heir.due(outbox, options.due, report).await?;
        let shard = heir.source.shard;
        plans.extend(backfill::plan(heir.session, outbox, due, &options.order, shard).await?);
    }
    Ok(plans)
}

async fn grant(
    session: &ControlSession,
    source: &Source,
    options: &SetupOptions,
    report: &mut SetupReport,
) -> Result<(), Error> {
    let Some(role) = &options.grant_to else {
        return Ok(());
    };
    grants::grant(session, role, source).await?;
    report.push(format!("rights of the relay to role {role}"), Outcome::Granted);
    Ok(())
}

/// A table that was created although its publication is there and lists others may be a typing error.
fn misspelt(made: &[QualifiedTable], published: &Published) -> Vec<String> {
    let others: Vec<_> = published.others.iter().map(QualifiedTable::to_string).collect();
    if others.is_empty() || published.is_new {
        return Vec::new();
    }
    let warning = |table| {
        format!(
            "created table {table}, while the publication lists {}: is outbox.table spelled right?",
            others.join(", ")
        )
    };
    made.iter().map(warning).collect()
}

/// An order is of no use without rows.
fn ignored_order(options: &SetupOptions, plans: &[Plan]) -> Option<String> {
    let is_ignored = plans.is_empty() && options.order != Order::Default;
    is_ignored.then(|| "--backfill-order was ignored: no rows were to be noted (--backfill)".to_owned())
}

/// What a person should know of a slot that existed before.
fn cautions(
    source: &Source,
    options: &SetupOptions,
    published: &Published,
    is_passed_over: bool,
) -> Vec<String> {
    let slot = &source.slot;
    let mut cautions = Vec::new();
    if published.is_new {
        cautions.push(format!(
            "slot {slot} is older than the publication: if streaming ends with publication_missing, run teardown and setup"
        ));
    }
    if options.new_slot {
        cautions.push(format!("slot {slot} is there, so --new-slot changed nothing"));
    }
    if is_passed_over {
        cautions.push("rows that were in a table before it joined the publication are not sent".to_owned());
    }
    if options.due.is_some_and(|due| due != Due::None) && published.added.is_empty() {
        cautions.push(format!(
            "slot {slot} was there already, so no rows were noted to be sent first"
        ));
    }
    cautions
}

/// Applies the numbered migrations that are missing, each in a transaction of its own.
pub(super) async fn migrate(session: &mut ControlSession, report: &mut SetupReport) -> Result<(), Error> {
    const PURPOSE: &str = "create walrelay's schema";
    let sql = "select pg_catalog.to_regclass('walrelay.schema_migrations') is not null";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    let applied: Vec<i32> = if column(&row, 0, PURPOSE)? {
        let sql = "select coalesce(array_agg(version), '{}') from walrelay.schema_migrations";
        let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
        column(&row, 0, PURPOSE)?
    } else {
        Vec::new()
    };
    for migration in MIGRATIONS {
        let what = format!("migration {} ({})", migration.version, migration.name);
        if applied.contains(&migration.version) {
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

/// Creates the outbox tables that are missing, which it returns; checks those that are there.
async fn create_tables(
    session: &ControlSession,
    source: &Source,
    server: &ServerFacts,
    report: &mut SetupReport,
) -> Result<Vec<QualifiedTable>, Error> {
    let mut made = Vec::new();
    for outbox in &source.outboxes {
        let table = &outbox.table;
        let facts = TableFacts::read(session, outbox, None, server.version).await?;
        let outcome = if facts.is_some() {
            check_table(facts, outbox)?;
            Outcome::Found
        } else if !outbox.is_ours() {
            let table = table.clone();
            return Err(Unfit::NotCreated { table }.into());
        } else if let Some(missing) = outbox.named_beyond_ours() {
            return Err(missing.into());
        } else {
            let sql = migrations::create_table(table);
            session
                .run("create the outbox table", session.client().batch_execute(&sql))
                .await?;
            made.push(table.clone());
            Outcome::Created
        };
        report.push(format!("table {table}"), outcome);
    }
    Ok(made)
}

/// Takes what set-up itself changed into the baseline of a slot that exists. Whatever else has changed since is for
/// `recover` to take in, after somebody has looked for missed events (rule 5).
async fn keep_baseline(
    session: &ControlSession,
    source: &Source,
    added: &[QualifiedTable],
    report: &mut SetupReport,
) -> Result<(), Error> {
    let Loaded {
        stored: baseline,
        observed,
        ..
    } = Baseline::load(session, source).await?;
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
