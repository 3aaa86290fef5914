//! The publication: what it publishes, and whether it is still what it was at set-up.

use super::super::catalog::PublicationFacts;
use super::super::guard;
use super::super::identifier::quote_identifier;
use super::super::preflight::Unfit;
use super::super::preflight::checks::check_publication;
use super::{Examination, Subject, error_finding, unfit_finding};
use crate::caution::Caution;
use crate::fault::FaultKind;
use crate::finding::{Finding, Group};

/// The checks, in their order.
pub(super) const CHECKS: &[&str] = &["publication", "operations", "other tables", "baseline"];

pub(super) fn group(examination: &Examination) -> Group {
    Group::new(format!("publication {}", examination.source.publication))
}

/// Looks at it. Returns its facts, unless there is none.
pub(super) async fn examine(subject: &Subject<'_>) -> (Group, Option<PublicationFacts>) {
    let source = &subject.examination.source;
    let mut group = group(subject.examination);
    let facts = match PublicationFacts::read(subject.session, &source.publication).await {
        Ok(facts) => facts,
        Err(error) => {
            group.push(error_finding("publication", &error));
            None
        }
    };
    let fits = check_publication(facts.clone(), &source.publication);
    if let Some(found) = &facts {
        describe(subject, found, fits.err().as_ref(), &mut group);
    } else if let Err(unfit) = fits {
        group.push(unfit_finding("publication", &unfit));
    }
    if facts.is_some() {
        group.push(match guard::check(subject.session, source).await {
            Ok(()) => Finding::passed("baseline", "publication and tables are those of the set-up"),
            Err(error) => error_finding("baseline", &error).with_fix(match error.kind() {
                FaultKind::PublicationChanged => Some("walrelay recover".to_owned()),
                #[expect(clippy::wildcard_enum_match_arm, reason = "the error has its own")]
                _ => error_finding("baseline", &error).fix,
            }),
        });
    }
    (group.complete(CHECKS, "there is no publication"), facts)
}

fn describe(subject: &Subject<'_>, facts: &PublicationFacts, unfit: Option<&Unfit>, group: &mut Group) {
    let source = &subject.examination.source;
    let name = quote_identifier(source.publication.as_str());
    group.push(if facts.all_tables {
        Finding::caution("publication", Caution::AllTables, "it is for all tables")
    } else {
        let tables: Vec<_> = facts.tables.iter().map(ToString::to_string).collect();
        let tables = if tables.is_empty() {
            "no table".to_owned()
        } else {
            tables.join(", ")
        };
        Finding::passed("publication", format!("it has {tables}"))
    });
    group.push(if let Some(unfit) = unfit {
        unfit_finding("operations", unfit)
    } else if facts.more_than_inserts {
        Finding::caution(
            "operations",
            Caution::PublishesMore,
            "updates, deletes or truncations too, which are never relayed",
        )
        .with_fix(format!("alter publication {name} set (publish = 'insert');"))
    } else {
        Finding::passed("operations", "inserts alone")
    });
    let others = facts
        .tables
        .iter()
        .filter(|table| !source.tables.contains(table) && !subject.examination.ignore_tables.contains(table));
    let others: Vec<_> = others.collect();
    group.push(if facts.all_tables || others.is_empty() {
        Finding::passed("other tables", "none whose rows would halt delivery")
    } else {
        let names: Vec<_> = others.iter().map(ToString::to_string).collect();
        let quoted: Vec<_> = others.iter().map(|table| table.quoted()).collect();
        let found = format!(
            "it has {}, not configured: a row halts delivery",
            names.join(", ")
        );
        Finding::threat("other tables", FaultKind::TableUnknown, found).with_fix(format!(
            "alter publication {name} drop table {};",
            quoted.join(", ")
        ))
    });
}
