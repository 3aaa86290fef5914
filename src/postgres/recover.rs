//! `recover`: what is there now becomes the baseline, and a slot that is lost is made anew with what it may have missed.

use std::fmt;
use std::time::SystemTime;

use walrelay_engine::Lsn;
use walrelay_engine::event::AfterPublish;

use super::advisory;
use super::backfill::{self, Copied, Due, Order};
use super::catalog::{PublicationFacts, ServerFacts, TableFacts};
use super::connect::Connector;
use super::control::ControlSession;
use super::dead_letters;
use super::error::Error;
use super::guard::{self, Mismatch};
use super::marks;
use super::preflight::{
    Source, Unfit, check_membership, check_publication, check_server, check_slot, check_table,
};
use super::report::{Outcome, SetupReport, SetupStep};
use super::setup;
use super::slot::{self, SlotState};
use super::state::{Author, Baseline, Loaded};

/// How a slot that is lost is to be recovered.
#[derive(Debug, Clone, Default)]
pub struct RecoverOptions {
    /// From when on rows are due that nothing marks: of a table without `sent_at`, or whose rows are kept.
    pub since: Option<SystemTime>,
    /// In which order.
    pub order: Order,
    /// Nobody has looked: a slot that this database was never set up for is not made.
    pub is_unattended: bool,
}

/// What `recover` found and did. Printed, it is a few lines.
#[derive(Debug)]
pub struct RecoverReport {
    /// What had changed, or that there was no baseline; `None` if nothing had.
    pub mismatch: Option<Mismatch>,
    /// What was done about a slot that was lost; `None` if it still streams.
    pub anew: Option<Anew>,
    /// How many dead letters that were being retried were asked for again.
    pub retries: u64,
}

/// A slot that was made anew.
#[derive(Debug)]
pub struct Anew {
    /// What was wrong with the old one.
    pub lost: Unfit,
    /// The things that were made.
    pub steps: Vec<SetupStep>,
    /// The rows that it may have missed.
    pub copied: Vec<Copied>,
}

impl fmt::Display for RecoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(anew) = &self.anew {
            writeln!(f, "found    {}", anew.lost)?;
        }
        match &self.mismatch {
            None if self.anew.is_none() => writeln!(f, "found    nothing changed since set-up")?,
            None => {}
            Some(Mismatch::NoBaseline { slot }) => writeln!(f, "found    no baseline of slot {slot}")?,
            Some(Mismatch::Changed(differences)) => differences
                .iter()
                .try_for_each(|difference| writeln!(f, "found    {difference}"))?,
        }
        if let Some(anew) = &self.anew {
            anew.steps
                .iter()
                .try_for_each(|step| writeln!(f, "{:8} {}", step.outcome, step.what))?;
        }
        writeln!(f, "written  baseline of publication and tables")?;
        if let Some(anew) = &self.anew {
            anew.fmt(f)?;
        }
        if self.retries > 0 {
            writeln!(f, "again    retry of {} dead letters", self.retries)?;
        }
        Ok(())
    }
}

impl fmt::Display for Anew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for copied in &self.copied {
            writeln!(f, "{:8} {copied}", Outcome::Copied)?;
            let table = &copied.table;
            match copied.due {
                _ if copied.rows == 0 => {}
                Due::Since(_) => writeln!(
                    f,
                    "warning  any of these {} may be a duplicate: nothing tells which rows of {table} were sent",
                    copied.rows
                )?,
                Due::None | Due::Unsent | Due::All => writeln!(
                    f,
                    "warning  up to {} of these may be duplicates: sent, but not yet marked or deleted; normally those of \
                     the last second",
                    copied.rows
                )?,
            }
        }
        writeln!(
            f,
            "warning  rows that were inserted and deleted while no slot kept them cannot be recovered"
        )
    }
}

/// Writes a new baseline, and asks again for the retries that are under way (rules 5 and 16). A slot that still streams
/// stays, and with it its position.
///
/// One that is missing or lost is made anew, and the publication with it where that is missing too; the rows that it may
/// have missed are noted for the relay, as in set-up (rule 23).
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
    let slot = SlotState::read(session, &source.slot).await?;
    match check_slot(slot, &source.slot, &server.database) {
        Ok(_) => Ok(None),
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
        None => keep(session, source).await,
        Some(lost) => anew(session, source, options, lost).await,
    }
}

/// The slot still streams.
async fn keep(session: &mut ControlSession, source: &Source) -> Result<RecoverReport, Error> {
    let server = ServerFacts::read(session).await?;
    let publication = PublicationFacts::read(session, &source.publication).await?;
    let publication = check_publication(publication, &source.publication)?;
    for table in &source.tables {
        let facts = TableFacts::read(session, table, Some(&publication), server.version).await?;
        let facts = check_table(facts, table)?;
        check_membership(&facts, table, &publication, &source.publication)?;
    }
    // An interrupted set-up is made anew by another one.
    backfill::waits(session, &source.slot).await?;

    let (mismatch, observed) = mismatch(session, source).await?;
    observed
        .write(session, &source.slot, Author::Recover, false)
        .await?;
    marks::claim(session, source, &server).await?;
    // Rows that were written while something else was published never came, and must not get their mark.
    Baseline::write_sweep_start(session, &source.slot, mismatch.is_some()).await?;
    let retries = dead_letters::request_again(session, &source.slot).await?;
    Ok(RecoverReport {
        mismatch,
        anew: None,
        retries,
    })
}

/// The slot is missing or lost.
async fn anew(
    session: &mut ControlSession,
    source: &Source,
    options: &RecoverOptions,
    lost: Unfit,
) -> Result<RecoverReport, Error> {
    let server = ServerFacts::read(session).await?;
    if options.is_unattended && backfill::was_interrupted(session, &source.slot).await?.is_none() {
        return Err(lost.into());
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
    let mut plans = Vec::new();
    for (table, after_publish) in source.marks() {
        let has_marks = match after_publish {
            Some(AfterPublish::Delete | AfterPublish::Keep) => false,
            Some(AfterPublish::Mark) | None => backfill::has_marks(session, table).await?,
        };
        let due = match after_publish {
            // What is there was not published, or its deletion was lost.
            Some(AfterPublish::Delete) => Due::All,
            Some(AfterPublish::Mark | AfterPublish::Keep) | None if has_marks => Due::Unsent,
            Some(AfterPublish::Mark | AfterPublish::Keep) | None => {
                Due::Since(options.since.ok_or_else(|| Unfit::NothingTells {
                    table: table.clone(),
                    slot: source.slot.clone(),
                })?)
            }
        };
        plans.extend(backfill::plan(session, table, Some(due), &options.order).await?);
    }
    setup::begin_slot(session, source, Author::Recover).await?;
    session
        .run("commit recovery", client.batch_execute("commit"))
        .await?;

    if matches!(lost, Unfit::SlotLost { .. }) {
        slot::drop(session, &source.slot).await?;
        report.push(format!("slot {}", source.slot), Outcome::Dropped);
    }
    let (streams_from, copied): (Lsn, _) = backfill::create_slot(session, &source.slot, &plans).await?;
    let what = format!("slot {} (streams from {streams_from})", source.slot);
    report.push(what, Outcome::Created);
    Baseline::write_sweep_start(session, &source.slot, false).await?;
    let retries = dead_letters::request_again(session, &source.slot).await?;
    Ok(RecoverReport {
        mismatch,
        anew: Some(Anew {
            lost,
            steps: report.steps,
            copied,
        }),
        retries,
    })
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

#[cfg(test)]
mod tests {
    use super::super::guard::Difference;
    use super::*;

    #[test]
    fn a_report_says_in_words_what_had_changed() {
        let report = RecoverReport {
            mismatch: Some(Mismatch::Changed(vec![
                Difference::PublicationAltered("walrelay".to_owned()),
                Difference::TableDropped("outbox_events".parse().unwrap()),
            ])),
            anew: None,
            retries: 2,
        };
        assert_eq!(
            report.to_string(),
            "found    publication \"walrelay\" was altered since set-up (publish, another option, name or owner)\n\
             found    table public.outbox_events was dropped since set-up\n\
             written  baseline of publication and tables\n\
             again    retry of 2 dead letters\n"
        );
    }
}
