//! The findings as lines for people, and as JSON.

use serde::Serialize;

use super::super::table::visible;
use crate::finding::{Finding, Group, Outcome};

/// All findings, counted.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) failures: usize,
    pub(super) warnings: usize,
    pub(super) not_looked: usize,
    groups: Vec<Group>,
}

impl Report {
    pub(super) fn new(groups: Vec<Group>) -> Self {
        let count = |outcome| {
            let findings = groups.iter().flat_map(|group| &group.findings);
            findings.filter(|finding| finding.outcome == outcome).count()
        };
        Self {
            failures: count(Outcome::Failed),
            warnings: count(Outcome::Warning),
            not_looked: count(Outcome::NotLooked),
            groups,
        }
    }

    pub(super) fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for group in &self.groups {
            text.push_str(&visible(&group.about));
            text.push('\n');
            // What fails for one reason takes one line.
            for run in group.findings.chunk_by(is_same_gap) {
                match run {
                    [first, _, ..] => push_gap(&mut text, first, run),
                    _ => run.iter().for_each(|finding| push(&mut text, finding)),
                }
            }
        }
        text + &self.summary() + "\n"
    }

    fn summary(&self) -> String {
        let count = |number, what: &str| match number {
            1 => format!("1 {what}"),
            _ => format!("{number} {what}s"),
        };
        let mut parts = vec![count(self.failures, "failure"), count(self.warnings, "warning")];
        if self.not_looked > 0 {
            parts.push(format!("{} not looked at", self.not_looked));
        }
        parts.join(", ")
    }
}

/// Whether both could not be looked at, for one reason.
fn is_same_gap(a: &Finding, b: &Finding) -> bool {
    a.outcome == Outcome::NotLooked && b.outcome == Outcome::NotLooked && a.found == b.found
}

fn push_gap(text: &mut String, first: &Finding, run: &[Finding]) {
    let checks: Vec<_> = run.iter().map(|finding| finding.check).collect();
    text.push_str(&format!("  – {}: {}\n", checks.join(", "), visible(&first.found)));
}

fn push(text: &mut String, finding: &Finding) {
    let sign = match finding.outcome {
        Outcome::Passed => '✓',
        Outcome::Warning => '!',
        Outcome::Failed => '✗',
        Outcome::NotLooked => '–',
    };
    text.push_str(&format!(
        "  {sign} {}: {}\n",
        finding.check,
        visible(&finding.found)
    ));
    if let Some(remedy) = finding.remedy {
        text.push_str(&format!("      → {remedy}\n"));
    }
    if let Some(fix) = &finding.fix {
        text.push_str(&format!("        {}\n", visible(fix)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caution::Caution;

    #[test]
    fn the_remedy_stands_below_what_was_found() {
        let mut group = Group::new("PostgreSQL db:5432");
        group.push(Finding::passed("version", "PostgreSQL 15.1"));
        group.push(
            Finding::caution("max_slot_wal_keep_size", Caution::SlotUnbounded, "not\nset")
                .with_fix("alter system;".to_owned()),
        );
        group.push(Finding::not_looked("slot", "no session"));
        group.push(Finding::not_looked("stream", "no session"));
        group.push(Finding::not_looked("alarms", "--probe"));
        insta::assert_snapshot!(Report::new(vec![group]).text(), @r"
        PostgreSQL db:5432
          ✓ version: PostgreSQL 15.1
          ! max_slot_wal_keep_size: not\nset
              → set max_slot_wal_keep_size to what the disk bears: a relay that is down for long fills it otherwise
                alter system;
          – slot, stream: no session
          – alarms: --probe
        0 failures, 1 warning, 3 not looked at
        ");
    }
}
