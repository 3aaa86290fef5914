//! walrelay's own tables: as this version needs them, and what they say of the set-up.

use super::super::backfill;
use super::super::catalog::column;
use super::super::error::Error;
use super::super::migrations::MIGRATIONS;
use super::super::table_use::Use;
use super::{Subject, error_finding, rights};
use crate::fault::{Fault, FaultKind};
use crate::finding::{Finding, Group};

/// The checks, in their order.
pub(super) const CHECKS: &[&str] = &[
    "migrations",
    "set-up",
    "rights to relay",
    "rights to backfill",
    "rights to dead letters",
    "rights to skips",
];

pub(super) fn group() -> Group {
    Group::new("schema walrelay")
}

pub(super) async fn examine(subject: &Subject<'_>) -> Group {
    let mut group = group();
    match applied(subject).await {
        Ok(applied) => {
            let migrations = migrations(&applied);
            let is_whole = migrations.cause.is_none();
            group.push(migrations);
            if is_whole {
                let left = set_up(subject, &mut group).await;
                rights::own_tables(subject, left, &mut group).await;
            }
        }
        Err(error) => group.push(error_finding("migrations", &error)),
    }
    group.complete(CHECKS, "the tables are not there, or may not be used")
}

async fn applied(subject: &Subject<'_>) -> Result<Vec<i32>, Error> {
    const LOOK: Use<'static> = Use::own(
        "look which migrations were applied",
        "select",
        &["schema_migrations"],
    );
    let sql = "select coalesce(array_agg(version order by version), '{}') from walrelay.schema_migrations";
    let session = subject.session;
    let row = LOOK
        .run(session.role(), session.client().query_one(sql, &[]))
        .await?;
    column(&row, 0, LOOK.purpose)
}

fn migrations(applied: &[i32]) -> Finding {
    const CHECK: &str = "migrations";
    let missing: Vec<_> = MIGRATIONS
        .iter()
        .filter(|migration| !applied.contains(&migration.version))
        .map(|migration| format!("{} ({})", migration.version, migration.name))
        .collect();
    if !missing.is_empty() {
        let (kind, message) = (FaultKind::OwnSchema, format!("missing: {}", missing.join(", ")));
        return Finding::fault(CHECK, Fault { kind, message }).with_fix("walrelay setup".to_owned());
    }
    let newer = applied.len().saturating_sub(MIGRATIONS.len());
    Finding::passed(
        CHECK,
        match newer {
            0 => format!("all {} are applied", MIGRATIONS.len()),
            _ => format!(
                "all {} are applied, and {newer} of a newer version",
                MIGRATIONS.len()
            ),
        },
    )
}

/// Whether set-up ended. Returns how many rows are left to be sent before the stream, where that is known.
async fn set_up(subject: &Subject<'_>, group: &mut Group) -> Option<u64> {
    const CHECK: &str = "set-up";
    let slot = &subject.examination.source.slot;
    let found = async {
        backfill::check_set_up(subject.session, slot).await?;
        backfill::rows_left(subject.session, slot).await
    };
    let found = found.await;
    group.push(match &found {
        Ok(0) => Finding::passed(
            CHECK,
            "it was not interrupted; no row is left to be sent before the stream",
        ),
        Ok(rows) => Finding::passed(
            CHECK,
            format!("{rows} rows are left to be sent before the stream"),
        ),
        Err(error) => error_finding(CHECK, error),
    });
    found.ok()
}
