//! What `recover` says.

use std::fmt;

use crate::postgres::backfill::{Copied, Due};
use crate::postgres::guard::Mismatch;
use crate::postgres::preflight::Unfit;
use crate::postgres::report::{Outcome, SetupStep};

/// What `recover` found and did. Printed, it is a few lines.
#[derive(Debug)]
pub struct RecoverReport {
    /// What had changed, or that there was no baseline; `None` if nothing had.
    pub mismatch: Option<Mismatch>,
    /// What was done about the slot; `None` if it was kept.
    pub anew: Option<Anew>,
    /// The rows that the slot may have missed; `None` if nobody asked for them.
    pub copied: Option<Vec<Copied>>,
    /// Whether logical messages are events too.
    pub has_messages: bool,
    /// How many dead letters that were being retried were asked for again.
    pub retries: u64,
}

/// A slot that was made anew.
#[derive(Debug)]
pub struct Anew {
    /// What was wrong with the old one; `None` if it still streamed.
    pub lost: Option<Unfit>,
    /// The things that were made.
    pub steps: Vec<SetupStep>,
}

impl fmt::Display for RecoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_found(f)?;
        let steps = self.anew.iter().flat_map(|anew| &anew.steps);
        for step in steps {
            writeln!(f, "{:8} {}", step.outcome, step.what)?;
        }
        writeln!(f, "written  baseline of publication and tables")?;
        for copied in self.copied.iter().flatten() {
            self.fmt_copied(copied, f)?;
        }
        if self.anew.is_some() {
            writeln!(
                f,
                "warning  rows that were inserted and deleted while no slot kept them cannot be recovered"
            )?;
            if self.has_messages {
                writeln!(
                    f,
                    "warning  events of logical messages that the old slot had not passed are lost: they are in no table"
                )?;
            }
        } else if self.mismatch.is_some() && self.copied.is_none() {
            writeln!(
                f,
                "warning  the stream may lack rows that were written meanwhile: `walrelay recover --rescan` sends those \
                 that are not marked as sent"
            )?;
        }
        if self.retries > 0 {
            writeln!(f, "again    retry of {} dead letters", self.retries)?;
        }
        Ok(())
    }
}

impl RecoverReport {
    fn fmt_found(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.anew.as_ref().map(|anew| &anew.lost);
        match lost {
            Some(Some(lost)) => writeln!(f, "found    {lost}")?,
            Some(None) => writeln!(f, "found    a slot that streams, to be made anew")?,
            None => {}
        }
        match &self.mismatch {
            None if lost.is_none() => writeln!(f, "found    nothing changed since set-up"),
            None => Ok(()),
            Some(Mismatch::NoBaseline { slot }) => writeln!(f, "found    no baseline of slot {slot}"),
            Some(Mismatch::Changed(differences)) => differences
                .iter()
                .try_for_each(|difference| writeln!(f, "found    {difference}")),
        }
    }

    fn fmt_copied(&self, copied: &Copied, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:8} {copied}", Outcome::Copied)?;
        let Copied { table, due, rows, .. } = copied;
        match due {
            _ if *rows == 0 => Ok(()),
            Due::Since(_) => writeln!(
                f,
                "warning  any of these {rows} may be a duplicate: nothing tells which rows of {table} were sent"
            ),
            Due::None | Due::Unsent | Due::All if self.anew.is_none() => writeln!(
                f,
                "warning  up to {rows} of these may be duplicates: the stream still brings them, or they were sent, but \
                 not yet marked or deleted"
            ),
            Due::None | Due::Unsent | Due::All => writeln!(
                f,
                "warning  up to {rows} of these may be duplicates: sent, but not yet marked or deleted; normally those of \
                 the last second"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::guard::Difference;

    #[test]
    fn a_report_says_in_words_what_had_changed() {
        let report = RecoverReport {
            mismatch: Some(Mismatch::Changed(vec![
                Difference::PublicationAltered("walrelay".to_owned()),
                Difference::TableDropped("outbox_events".parse().unwrap()),
            ])),
            anew: None,
            copied: None,
            has_messages: false,
            retries: 2,
        };
        assert_eq!(
            report.to_string(),
            "found    publication \"walrelay\" was altered since set-up (publish, another option, name or owner)\n\
             found    table public.outbox_events was dropped since set-up\n\
             written  baseline of publication and tables\n\
             warning  the stream may lack rows that were written meanwhile: `walrelay recover --rescan` sends those \
             that are not marked as sent\n\
             again    retry of 2 dead letters\n"
        );
    }
}
