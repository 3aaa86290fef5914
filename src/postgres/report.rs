//! What `setup` and `teardown` report.

use std::fmt;

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
    /// It stays, since something else needs it.
    Kept,
    /// Rows were noted, to be sent before the stream.
    Copied,
    /// Rights were given.
    Granted,
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
            Self::Kept => "kept",
            Self::Copied => "copied",
            Self::Granted => "granted",
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

impl fmt::Display for SetupReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps.iter().try_for_each(|step| writeln!(f, "{step}"))?;
        self.warnings
            .iter()
            .try_for_each(|warning| writeln!(f, "{:8} {warning}", "warning"))
    }
}

impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:8} {}", self.outcome, self.what)
    }
}

impl SetupReport {
    pub(super) fn push(&mut self, what: String, outcome: Outcome) {
        self.steps.push(SetupStep { what, outcome });
    }
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
