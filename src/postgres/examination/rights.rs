//! Rights of our role for each feature that is configured, and the grants that lack.

use std::time::Duration;

use super::super::catalog::column;
use super::super::error::Error;
use super::super::identifier::{QualifiedTable, quote_identifier};
use super::super::marks;
use super::super::outbox::{Marks, Outbox};
use super::super::purge::Purge;
use super::{Subject, error_finding, right_missing};
use crate::fault::FaultKind;
use crate::finding::{Finding, Group, Outcome};

/// What a feature needs of walrelay's own tables.
const RELAY: &[Needed] = &[
    needed("state", "select"),
    needed("slots", "select"),
    needed("backfill", "select"),
];
const BACKFILL: &[Needed] = &[
    needed("backfills", "select"),
    needed("backfill", "delete, update (is_settled)"),
];
const DEAD_LETTERS: &[Needed] = &[needed("dead_letters", "select, insert, update, delete")];
const SKIPS: &[Needed] = &[needed("skips", "select, insert, update")];

/// Privileges on one of the tables.
struct Needed {
    table: &'static str,
    privileges: &'static str,
}

const fn needed(table: &'static str, privileges: &'static str) -> Needed {
    Needed { table, privileges }
}

/// Rights to walrelay's own tables; so many rows are left to be sent before the stream.
pub(super) async fn own_tables(subject: &Subject<'_>, left: Option<u64>, group: &mut Group) {
    group.push(to_relay(subject).await);
    let found = feature(subject, "rights to backfill", BACKFILL).await;
    group.push(if left == Some(0) {
        optional(found, "no row is left that needs them")
    } else {
        found
    });
    let found = feature(subject, "rights to dead letters", DEAD_LETTERS).await;
    // Who neither stores dead letters nor looks at them need not have the right.
    group.push(if subject.examination.has_dead_letters {
        found
    } else {
        optional(found, "no policy needs them")
    });
    group.push(optional(
        feature(subject, "rights to skips", SKIPS).await,
        "only `walrelay skip` needs them",
    ));
}

async fn to_relay(subject: &Subject<'_>) -> Finding {
    const CHECK: &str = "rights to relay";
    let found = feature(subject, CHECK, RELAY).await;
    if found.cause.is_some() {
        return found;
    }
    match marks::prefix_refusal(subject.session).await {
        Ok(None) => found,
        Ok(Some(refusal)) => {
            let fix = if let marks::Refusal::Prefix { grant } = &refusal {
                grant.split_once(": ").map(|(_, grant)| format!("{grant};"))
            } else {
                None
            };
            Finding::error(CHECK, refusal.kind(), &refusal).with_fix(fix)
        }
        Err(error) => error_finding(CHECK, &error),
    }
}

/// The finding, where a right that lacks is no harm.
fn optional(finding: Finding, why: &str) -> Finding {
    if finding.cause.is_none() {
        return finding;
    }
    let found = format!("{}, and {why}", finding.found);
    Finding::passed(finding.check, found)
}

async fn feature(subject: &Subject<'_>, check: &'static str, uses: &[Needed]) -> Finding {
    let role = quote_identifier(subject.session.role());
    let mut lacking = Vec::new();
    for needed in uses {
        match lacks(subject, &format!("walrelay.{}", needed.table), needed.privileges).await {
            Ok(false) => {}
            Ok(true) => lacking.push(needed),
            Err(error) => return error_finding(check, &error),
        }
    }
    if lacking.is_empty() {
        return Finding::passed(check, "all there");
    }
    let names: Vec<_> = lacking
        .iter()
        .map(|needed| format!("walrelay.{}", needed.table))
        .collect();
    let grants: Vec<_> = lacking
        .iter()
        .map(|needed| {
            format!(
                "grant {} on walrelay.{} to {role};",
                needed.privileges, needed.table
            )
        })
        .collect();
    right_missing(
        check,
        format!("missing on {}", names.join(", ")),
        format!("grant usage on schema walrelay to {role}; {}", grants.join(" ")),
    )
}

/// Whether one of the privileges is missing on a table, named as SQL does. `update (c)` is a right to one column.
async fn lacks(subject: &Subject<'_>, table: &str, privileges: &str) -> Result<bool, Error> {
    const PURPOSE: &str = "look at the rights";
    let sql = "select not pg_catalog.bool_and(case when p like '% (%)' then pg_catalog.has_column_privilege( \
               $1::text::regclass, pg_catalog.rtrim(pg_catalog.split_part(p, ' (', 2), ')'), \
               pg_catalog.split_part(p, ' (', 1)) else pg_catalog.has_table_privilege($1::text::regclass, p) end) \
               from unnest(pg_catalog.string_to_array($2, ', ')) p";
    let session = subject.session;
    let row = session
        .run(PURPOSE, session.client().query_one(sql, &[&table, &privileges]))
        .await?;
    column(&row, 0, PURPOSE)
}

/// Whether old rows of a table can be deleted, where they are to be. Delivery does not depend on it.
pub(super) async fn retention(subject: &Subject<'_>, outbox: &Outbox) -> Result<Finding, Error> {
    const CHECK: &str = "retention";
    let (session, table) = (subject.session, &outbox.table);
    if !subject.examination.retention.contains(table) {
        return Ok(Finding::passed(CHECK, "not configured"));
    }
    // Only looks how the rows would be found.
    if let Err(error) = Purge::prepare(session, outbox, Duration::ZERO).await {
        return Ok(Finding {
            outcome: Outcome::Warning,
            ..error_finding(CHECK, &error)
        });
    }
    // Rows are locked before they are deleted, which takes the right to update a column.
    let columns = "select, delete";
    if lacks(subject, &table.quoted(), columns).await? || !may_lock(subject, table).await? {
        let role = quote_identifier(session.role());
        let update = outbox.marks(|_| true).as_ref().map(Marks::update);
        let grant = format!(
            "grant select, {}, delete on {} to {role};",
            update.as_deref().unwrap_or("update"),
            table.quoted()
        );
        let found = format!("our role may not delete rows of {table}");
        return Ok(Finding::threat(CHECK, FaultKind::DatabaseForbidden, found).with_fix(grant));
    }
    Ok(Finding::passed(CHECK, "rows may be deleted"))
}

async fn may_lock(subject: &Subject<'_>, table: &QualifiedTable) -> Result<bool, Error> {
    const PURPOSE: &str = "look whether rows can be locked";
    let sql = "select pg_catalog.has_any_column_privilege($1::text::regclass, 'update')";
    let session = subject.session;
    let name = table.quoted();
    let row = session
        .run(PURPOSE, session.client().query_one(sql, &[&name]))
        .await?;
    column(&row, 0, PURPOSE)
}
