//! What a look at one thing has found, for `walrelay doctor`. A leaf: each side makes its findings, the command prints
//! them.

use std::error::Error;

use serde::Serialize;

use crate::caution::Caution;
use crate::fault::{Class, Fault, FaultKind};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should be.
    Passed,
    /// Delivery goes on, but something could be lost, or go wrong later.
    Warning,
    /// Nothing is delivered like this.
    Failed,
    /// It could not be looked at.
    NotLooked,
}

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name.
    pub check: &'static str,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found, in one line.
    pub found: String,
    /// The fault's or caution's label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<&'static str>,
    /// What to do about it, in one sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<&'static str>,
    /// SQL or a command that does so, ready to paste.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    /// All is well.
    #[must_use]
    pub fn passed(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            outcome: Outcome::Passed,
            found: found.into(),
            cause: None,
            remedy: None,
            fix: None,
        }
    }

    /// It could not be looked at, and why.
    #[must_use]
    pub fn not_looked(check: &'static str, why: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::NotLooked,
            ..Self::passed(check, why)
        }
    }

    /// A fault of the one table. What delivery bears is a warning.
    #[must_use]
    pub fn fault(check: &'static str, fault: Fault) -> Self {
        let outcome = match fault.kind.class() {
            Class::Unavailable | Class::Halted | Class::Held => Outcome::Failed,
            Class::Risk | Class::Degraded => Outcome::Warning,
        };
        Self {
            outcome,
            cause: Some(fault.kind.label()),
            remedy: Some(fault.kind.remedy()),
            ..Self::passed(check, fault.message)
        }
    }

    /// As [`fault`](Self::fault), from an error of that kind.
    #[must_use]
    pub fn error(check: &'static str, kind: FaultKind, error: &dyn Error) -> Self {
        Self::fault(check, Fault::new(kind, error))
    }

    /// A fault that has not happened yet, and would.
    #[must_use]
    pub fn threat(check: &'static str, kind: FaultKind, found: impl Into<String>) -> Self {
        let fault = Fault {
            kind,
            message: found.into(),
        };
        Self {
            outcome: Outcome::Warning,
            ..Self::fault(check, fault)
        }
    }

    /// Something to mind.
    #[must_use]
    pub fn caution(check: &'static str, caution: Caution, found: impl Into<String>) -> Self {
        Self {
            outcome: Outcome::Warning,
            cause: Some(caution.label()),
            remedy: Some(caution.remedy()),
            ..Self::passed(check, found)
        }
    }

    /// With SQL or a command that mends it.
    #[must_use]
    pub fn with_fix(self, fix: impl Into<Option<String>>) -> Self {
        Self {
            fix: fix.into(),
            ..self
        }
    }
}

/// Findings about one thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// What it is about: `PostgreSQL db1:5432`.
    pub about: String,
    /// In the order of the checks.
    pub findings: Vec<Finding>,
}

impl Group {
    /// Without findings yet.
    #[must_use]
    pub fn new(about: impl Into<String>) -> Self {
        Self {
            about: about.into(),
            findings: Vec::new(),
        }
    }

    /// Adds a finding.
    pub fn push(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    /// Whether nothing is delivered like this.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let mut findings = self.findings.iter();
        findings.any(|finding| finding.outcome == Outcome::Failed)
    }

    /// Makes warnings of failures: another of its kind will do in its place.
    pub fn soften(&mut self) {
        for finding in &mut self.findings {
            if finding.outcome == Outcome::Failed {
                finding.outcome = Outcome::Warning;
            }
        }
    }

    /// Adds, for each of these checks that has no finding, that it could not be looked at, and sorts by their order.
    #[must_use]
    pub fn complete(mut self, checks: &[&'static str], why: &str) -> Self {
        for check in checks {
            if !self.findings.iter().any(|finding| finding.check == *check) {
                self.push(Finding::not_looked(check, why));
            }
        }
        let place = |finding: &Finding| checks.iter().position(|check| *check == finding.check);
        self.findings.sort_by_key(place);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_finding_could_not_be_looked_at() {
        let mut group = Group::new("x");
        group.push(Finding::passed("b", "well"));
        let group = group.complete(&["a", "b", "c"], "no session");
        let outcomes: Vec<_> = group
            .findings
            .iter()
            .map(|found| (found.check, found.outcome))
            .collect();
        assert_eq!(
            outcomes,
            [
                ("a", Outcome::NotLooked),
                ("b", Outcome::Passed),
                ("c", Outcome::NotLooked)
            ]
        );
    }

    #[test]
    fn what_delivery_bears_is_a_warning() {
        let of = |kind| {
            Finding::fault(
                "c",
                Fault {
                    kind,
                    message: String::new(),
                },
            )
            .outcome
        };
        assert_eq!(of(FaultKind::MarksIndex), Outcome::Warning);
        assert_eq!(of(FaultKind::StandbyBehind), Outcome::Warning);
        assert_eq!(of(FaultKind::SlotLost), Outcome::Failed);
        assert_eq!(of(FaultKind::BrokerUnreachable), Outcome::Failed);
    }
}
