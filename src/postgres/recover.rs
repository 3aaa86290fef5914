//! `recover`: what is there now becomes the baseline, and a slot that is lost is made anew with what it may have missed.

mod report;

use std::time::SystemTime;

use walrelay_engine::event::AfterPublish;

use super::advisory;
use super::backfill::{self, Copied, Due, Order, Plan, SetUp};
use super::catalog::{PublicationFacts, ServerFacts, TableFacts};
use super::connect::Connector;
use super::control::ControlSession;
use super::dead_letters;
use super::error::Error;
use super::guard::{self, Mismatch};
use super::marks;
use super::preflight::{
    Source, Unfit, check_membership, check_publication, check_server, check_sharding, check_slot, check_table,
};
use super::report::{Outcome, SetupReport};
use super::setup;
use super::slot::{self, SlotState};
use super::state::{Author, Baseline, Loaded};

pub use report::{Anew, RecoverReport};

/// How to recover.
#[derive(Debug, Clone, Default)]
pub struct RecoverOptions {
    /// From when on rows are due that nothing marks: of a table without `sent_at`, or whose rows are kept.
    pub since: Option<SystemTime>,
    /// In which order.
    pub order: Order,
    /// Send what a slot that still streams may have missed, too.
    pub rescan: bool,
    /// Make a slot that still streams anew: it stands before something that can never be read.
    pub new_slot: bool,
    /// Nobody has looked: a slot that this database was never set up for is not made.
    pub is_unattended: bool,
}

/// Writes a new baseline, and asks again for the retries that are under way (rules 5 and 16). A slot that still streams
/// stays, and with it its position; unless it is to be made anew.
///
/// One that is missing or lost is made anew, and the publication with it where that is missing too. The rows that it may
/// have missed are noted for the relay, as in set-up (rule 23); those that a slot which stays may have missed, if that is
/// asked for.
///
/// # Errors
/// Publication or table do not fit, or nothing tells which rows were missed ([`Error::Unfit`]); nothing was written then.
/// Or a query fails.
pub async fn recover(
    connector: &Connector,
    source: &Source,
    options: &RecoverOptions,
) -> Result<RecoverReport, Error> {
    let mut session = ControlSession::open(connector, &source.slot).await?;
    let result = recover_locked(&mut session, source, options).await;
    session.close().await;
    result
}

/// Why the slot streams no more, if it does not.
///
/// # Errors
/// A query fails, or the slot is not ours.
pub async fn lost(session: &ControlSession, source: &Source) -> Result<Option<Unfit>, Error> {
    let server = ServerFacts::read(session).await?;
    check_server(&server)?;
    check_sharding(&server, source.shard)?;
    let slot = SlotState::read(session, &source.slot).await?;
    match check_slot(slot, &source.slot, &server.database) {
        Ok(_) => match backfill::set_up(session, &source.slot).await? {
            SetUp::Interrupted(unfit @ Unfit::RecoveryInterrupted { .. }) => Ok(Some(unfit)),
            SetUp::Interrupted(_) | SetUp::NotBegun | SetUp::Ended => Ok(None),
        },
        Err(lost @ (Unfit::SlotMissing { .. } | Unfit::SlotLost { .. })) => Ok(Some(lost)),
        Err(error) => Err(error.into()),
    }
}

async fn recover_locked(
    session: &mut ControlSession,
    source: &Source,
    options: &RecoverOptions,
) -> Result<RecoverReport, Error> {
    advisory::lock(session).await?;
    match lost(session, source).await? {
        None if !options.new_slot => keep(session, source, options).await,
        lost => anew(session, source, options, lost).await,
    }
}

/// The slot still streams, and goes on.
async fn keep(
    session: &mut ControlSession,
    source: &Source,
    options: &RecoverOptions,
) -> Result<RecoverReport, Error> {
    let server = ServerFacts::read(session).await?;
    let publication = PublicationFacts::read(session, &source.publication).await?;
    let publication = check_publication(publication, &source.publication)?;
    for outbox in &source.outboxes {
        let table = &outbox.table;
        let facts = TableFacts::read(session, outbox, Some(&publication), server.version).await?;
        let facts = check_table(facts, outbox)?;
        check_membership(&facts, table, &publication, &source.publication, source.shard)?;
    }
    // An interrupted set-up is made anew by another one.
    backfill::check_set_up(session, &source.slot).await?;
    let plans = match options.rescan {
        true => Some(plan(session, source, options).await?),
        false => None,
    };

    let (mismatch, observed) = mismatch(session, source).await?;
    observed
        .write(session, &source.slot, Author::Recover, false)
        .await?;
    marks::claim(session, source, &server).await?;
    // Rows that were written while something else was published never came, and must not get their mark.
    Baseline::write_sweep_start(session, &source.slot, mismatch.is_some()).await?;
    let copied = match plans {
        Some(plans) => Some(copy(session, source, &plans).await?),
        None => None,
    };
    let retries = dead_letters::request_again(session, &source.slot).await?;
    Ok(RecoverReport {
        mismatch,
        anew: None,
        copied,
        has_messages: source.messages.is_some(),
        retries,
    })
}

/// Notes rows for a slot that goes on. What is being written now may have been written while the stream did not bring it,
/// so it is waited for, as for a table that joins (rule 7).
async fn copy(session: &ControlSession, source: &Source, plans: &[Plan]) -> Result<Vec<Copied>, Error> {
    // An error ends the session, and with it the transaction.
    let client = session.client();
    session
        .run("begin recovery", client.batch_execute("begin"))
        .await?;
    for plan in plans {
        let lock = format!("lock table {} in share mode", plan.table.quoted());
        let purpose = "wait for writers of the table to end";
        session.run(purpose, client.batch_execute(&lock)).await?;
    }
    let slot = SlotState::read(session, &source.slot).await?;
    let position = slot.and_then(|slot| slot.confirmed_flush_lsn).unwrap_or_default();
    let mut copied = Vec::with_capacity(plans.len());
    for plan in plans {
        copied.push(backfill::copy(session, &source.slot, plan, position).await?);
    }
    session
        .run("commit recovery", client.batch_execute("commit"))
        .await?;
    Ok(copied)
}

/// The slot is missing or lost, or is to be made anew.
async fn anew(
    session: &mut ControlSession,
    source: &Source,
    options: &RecoverOptions,
    lost: Option<Unfit>,
) -> Result<RecoverReport, Error> {
    let server = ServerFacts::read(session).await?;
    if options.is_unattended && matches!(backfill::set_up(session, &source.slot).await?, SetUp::NotBegun) {
        let unknown = || Unfit::SlotMissing {
            slot: source.slot.clone(),
        };
        return Err(lost.unwrap_or_else(unknown).into());
    }
    let mut report = SetupReport::default();
    setup::migrate(session, &mut report).await?;
    report.steps.retain(|step| step.outcome != Outcome::Found);

    // An error ends the session, and with it the transaction.
    let client = session.client();
    session
        .run("begin recovery", client.batch_execute("begin"))
        .await?;
    let (mismatch, _) = mismatch(session, source).await?;
    setup::publish_tables(session, source, &server, &mut report).await?;
    marks::claim(session, source, &server).await?;
    let plans = plan(session, source, options).await?;
    setup::begin_slot(session, source, Author::Recover).await?;
    session
        .run("commit recovery", client.batch_execute("commit"))
        .await?;

    if !matches!(lost, Some(Unfit::SlotMissing { .. })) {
        slot::drop(session, &source.slot).await?;
        report.push(format!("slot {}", source.slot), Outcome::Dropped);
    }
    let (streams_from, copied) = backfill::create_slot(session, &source.slot, &plans).await?;
    let what = format!("slot {} (streams from {streams_from})", source.slot);
    report.push(what, Outcome::Created);
    Baseline::write_sweep_start(session, &source.slot, false).await?;
    let retries = dead_letters::request_again(session, &source.slot).await?;
    Ok(RecoverReport {
        mismatch,
        anew: Some(Anew {
            lost,
            steps: report.steps,
        }),
        copied: Some(copied),
        has_messages: source.messages.is_some(),
        retries,
    })
}

/// Which rows the slot may have missed.
async fn plan(
    session: &ControlSession,
    source: &Source,
    options: &RecoverOptions,
) -> Result<Vec<Plan>, Error> {
    let mut plans = Vec::new();
    for outbox in &source.outboxes {
        let after_publish = outbox.after_publish;
        let has_marks = match after_publish {
            Some(AfterPublish::Delete | AfterPublish::Keep) => false,
            Some(AfterPublish::Mark) | None => backfill::marks(session, outbox).await?.is_some(),
        };
        let due = match after_publish {
            // What is there was not published, or its deletion was lost.
            Some(AfterPublish::Delete) => Due::All,
            Some(AfterPublish::Mark | AfterPublish::Keep) | None if has_marks => Due::Unsent,
            Some(AfterPublish::Mark | AfterPublish::Keep) | None => {
                Due::Since(options.since.ok_or_else(|| Unfit::NothingTells {
                    table: outbox.table.clone(),
                    slot: source.slot.clone(),
                })?)
            }
        };
        plans.extend(backfill::plan(session, outbox, Some(due), &options.order, source.shard).await?);
    }
    Ok(plans)
}

/// What has changed since set-up, and what is there now.
async fn mismatch(session: &ControlSession, source: &Source) -> Result<(Option<Mismatch>, Baseline), Error> {
    let Loaded {
        stored: baseline,
        observed,
        ..
    } = Baseline::load(session, source).await?;
    let Some(baseline) = baseline else {
        let slot = source.slot.clone();
        return Ok((Some(Mismatch::NoBaseline { slot }), observed));
    };
    let differences = guard::compare(session, &baseline, &observed).await?;
    let mismatch = (!differences.is_empty()).then_some(Mismatch::Changed(differences));
    Ok((mismatch, observed))
}
