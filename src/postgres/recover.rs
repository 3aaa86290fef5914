//! `recover` for a slot that still streams: what is there now becomes the baseline.

use std::fmt;

use super::advisory;
use super::catalog::{PublicationFacts, ServerFacts, TableFacts};
use super::connect::Connector;
use super::control::ControlSession;
use super::dead_letters;
use super::error::Error;
use super::guard::{self, Mismatch};
use super::marks;
use super::preflight::{Source, check_membership, check_publication, check_server, check_slot, check_table};
use super::slot::SlotState;
use super::state::{Author, Baseline};

/// What `recover` found and did. Printed, it is a few lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoverReport {
    /// What had changed, or that there was no baseline; `None` if nothing had.
    pub mismatch: Option<Mismatch>,
    /// How many dead letters that were being retried were asked for again.
    pub retries: u64,
}

impl fmt::Display for RecoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mismatch {
            None => writeln!(f, "found    nothing changed since set-up")?,
            Some(Mismatch::NoBaseline { slot }) => writeln!(f, "found    no baseline of slot {slot}")?,
            Some(Mismatch::Changed(differences)) => differences
                .iter()
                .try_for_each(|difference| writeln!(f, "found    {difference}"))?,
        }
        writeln!(f, "written  baseline of publication and tables")?;
        if self.retries > 0 {
            writeln!(f, "again    retry of {} dead letters", self.retries)?;
        }
        Ok(())
    }
}

/// Checks that the slot still streams and that publication and tables fit, then writes a new baseline, and asks
/// again for the retries that are under way (rules 5 and 16). The slot stays, and with it its position.
///
/// # Errors
/// The slot is missing or lost, or publication or table do not fit ([`Error::Unfit`]); nothing was written then. Or
/// a query fails.
pub async fn recover(connector: &Connector, source: &Source) -> Result<RecoverReport, Error> {
    let mut session = ControlSession::open(connector, &source.slot).await?;
    let result = recover_locked(&mut session, source).await;
    session.close().await;
    result
}

async fn recover_locked(session: &mut ControlSession, source: &Source) -> Result<RecoverReport, Error> {
    let server = ServerFacts::read(session).await?;
    check_server(&server)?;
    advisory::lock(session).await?;
    let slot = SlotState::read(session, &source.slot).await?;
    check_slot(slot, &source.slot, &server.database)?;
    let publication = PublicationFacts::read(session, &source.publication).await?;
    let publication = check_publication(publication, &source.publication)?;
    for table in &source.tables {
        let facts = TableFacts::read(session, table, Some(&publication), server.version).await?;
        let facts = check_table(facts, table)?;
        check_membership(&facts, table, &publication, &source.publication)?;
    }

    let (baseline, observed) = Baseline::load(session, source).await?;
    let mismatch = match &baseline {
        None => Some(Mismatch::NoBaseline {
            slot: source.slot.clone(),
        }),
        Some(baseline) => {
            let differences = guard::compare(session, baseline, &observed).await?;
            (!differences.is_empty()).then_some(Mismatch::Changed(differences))
        }
    };
    observed
        .write(session, &source.slot, Author::Recover, false)
        .await?;
    marks::claim(session, source, &server).await?;
    Baseline::write_sweep_start(session, &source.slot).await?;
    let retries = dead_letters::request_again(session, &source.slot).await?;
    Ok(RecoverReport { mismatch, retries })
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
