//! The publication: what it publishes, and whether it is still what it was at set-up.

use super::super::catalog::{PublicationFacts, column};
use super::super::error::Error;
use super::super::guard;
use super::super::identifier::{QualifiedTable, quote_identifier};
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
        group.push(match others(subject, found).await {
            Ok(others) => other_tables(subject, found, &others),
            Err(error) => error_finding("other tables", &error),
        });
    } else if let Err(unfit) = fits {
        group.push(unfit_finding("publication", &unfit));
    }
    if facts.is_some() {
        group.push(match guard::check(subject.session, source).await {
            Ok(_) => Finding::passed("baseline", "publication and tables are those of the set-up"),
            Err(error) if error.kind() == FaultKind::PublicationChanged => {
                error_finding("baseline", &error).with_fix("walrelay recover".to_owned())
            }
            Err(error) => error_finding("baseline", &error),
        });
    }
    (group.complete(CHECKS, "there is no publication"), facts)
}

fn describe(subject: &Subject<'_>, facts: &PublicationFacts, unfit: Option<&Unfit>, group: &mut Group) {
    let name = quote_identifier(subject.examination.source.publication.as_str());
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
}

/// Tables of the publication whose rows nobody expects. Where partitions are published in place of their root, they are
/// none of these.
async fn others(subject: &Subject<'_>, facts: &PublicationFacts) -> Result<Vec<QualifiedTable>, Error> {
    const PURPOSE: &str = "look for partitions of the outbox tables";
    let Examination {
        source,
        ignore_tables,
        ..
    } = subject.examination;
    let mut others: Vec<_> = facts
        .tables
        .iter()
        .filter(|table| !source.has_table(table) && !ignore_tables.contains(table))
        .cloned()
        .collect();
    if facts.via_partition_root || others.is_empty() {
        return Ok(others);
    }
    let roots: Vec<_> = source.tables().map(QualifiedTable::quoted).collect();
    let sql = "select n.nspname::text, c.relname::text from unnest($1::text[]) root \
               cross join lateral pg_catalog.pg_partition_tree(pg_catalog.to_regclass(root)) t \
               join pg_catalog.pg_class c on c.oid = t.relid join pg_catalog.pg_namespace n on n.oid = c.relnamespace";
    let session = subject.session;
    let rows = session
        .run(PURPOSE, session.client().query(sql, &[&roots]))
        .await?;
    for row in &rows {
        let partition = QualifiedTable {
            schema: column(row, 0, PURPOSE)?,
            name: column(row, 1, PURPOSE)?,
        };
        others.retain(|table| *table != partition);
    }
    Ok(others)
}

fn other_tables(subject: &Subject<'_>, facts: &PublicationFacts, others: &[QualifiedTable]) -> Finding {
    const CHECK: &str = "other tables";
    // Of a publication for all tables that is said already.
    if facts.all_tables || others.is_empty() {
        return Finding::passed(CHECK, "none whose rows would halt delivery");
    }
    let name = quote_identifier(subject.examination.source.publication.as_str());
    let names: Vec<_> = others.iter().map(ToString::to_string).collect();
    let quoted: Vec<_> = others.iter().map(QualifiedTable::quoted).collect();
    let found = format!(
        "it has {}, not configured: a row halts delivery",
        names.join(", ")
    );
    Finding::threat(CHECK, FaultKind::TableUnknown, found).with_fix(format!(
        "alter publication {name} drop table {};",
        quoted.join(", ")
    ))
}
