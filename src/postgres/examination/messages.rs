//! Events without a table: who may emit them, and what there is not.

use super::super::catalog::column;
use super::super::error::Error;
use super::super::identifier::quote_identifier;
use super::super::message_prefix::MessagePrefix;
use super::{Subject, error_finding};
use crate::caution::Caution;
use crate::finding::{Finding, Group};

/// The checks, in their order.
pub(super) const CHECKS: &[&str] = &["given up", "who may emit"];

pub(super) fn group(prefix: &MessagePrefix) -> Group {
    Group::new(format!("logical messages {prefix}"))
}

pub(super) async fn examine(subject: &Subject<'_>, prefix: &MessagePrefix) -> Group {
    let mut group = group(prefix);
    group.push(Finding::passed(
        "given up",
        "they are in the log alone: no replay, no marks or retention, no backfill, and none comes back after a lost slot",
    ));
    group.push(match open_to_all(subject).await {
        Ok(open) if open.is_empty() => {
            Finding::passed("who may emit", "roles that were given pg_logical_emit_message")
        }
        Ok(open) => Finding::caution(
            "who may emit",
            Caution::MessagesOpen,
            "every role of this database: pg_logical_emit_message is open to public",
        )
        .with_fix(format!(
            "begin; grant usage on schema walrelay to WRITERS; grant execute on function {functions} to WRITERS, {role}; \
             revoke execute on function {functions} from public; commit;",
            functions = open.join(", "),
            role = quote_identifier(subject.session.role())
        )),
        Err(error) => error_finding("who may emit", &error),
    });
    group.complete(CHECKS, "it could not be looked at")
}

/// The forms of `pg_logical_emit_message` that every role may call. Their arguments differ with the version.
async fn open_to_all(subject: &Subject<'_>) -> Result<Vec<String>, Error> {
    const PURPOSE: &str = "look who may emit logical messages";
    let sql = "select coalesce(array_agg(oid::regprocedure::text order by oid), '{}') from pg_catalog.pg_proc \
               where proname = 'pg_logical_emit_message' and pronamespace = 'pg_catalog'::regnamespace \
               and pg_catalog.has_function_privilege('public', oid, 'execute')";
    let session = subject.session;
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    column(&row, 0, PURPOSE)
}
