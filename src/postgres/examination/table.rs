//! An outbox table: its columns, how it is published, and what the relay may do with its rows.

use walrelay_engine::event::{AfterPublish, PayloadType, Source as FieldSource};

use super::super::catalog::{TableFacts, TableKind, column};
use super::super::error::Error;
use super::super::identifier::{QualifiedTable, quote_identifier};
use super::super::marker;
use super::super::marks::{self, Refusal};
use super::super::outbox::{FIELDS, Outbox};
use super::super::preflight::checks::{
    check_column_list, check_columns, check_listed, check_logged, check_named, check_payload, check_presence,
    check_root, check_rows,
};
use super::{Subject, error_finding, rights, unfit_finding};
use crate::caution::Caution;
use crate::finding::{Finding, Group};

/// The checks, in their order.
pub(super) const CHECKS: &[&str] = &[
    "table",
    "persistence",
    "columns",
    "payload",
    "nulls",
    "templates",
    "membership",
    "partitions",
    "row filter",
    "column list",
    "replica identity",
    "marks",
    "index on marks",
    "retention",
];

pub(super) fn group(table: &QualifiedTable) -> Group {
    Group::new(format!("table {table}"))
}

pub(super) async fn examine(subject: &Subject<'_>, outbox: &Outbox) -> Group {
    let mut group = group(&outbox.table);
    if let Err(error) = look(subject, outbox, &mut group).await {
        group.push(error_finding("table", &error));
    }
    group.complete(CHECKS, "there is no table or no publication to look at")
}

async fn look(subject: &Subject<'_>, outbox: &Outbox, group: &mut Group) -> Result<(), Error> {
    let table = &outbox.table;
    let version = subject.server.version;
    let facts = TableFacts::read(subject.session, outbox, subject.publication, version).await?;
    let facts = match check_presence(facts, table) {
        Ok(facts) => facts,
        Err(unfit) => {
            group.push(unfit_finding("table", &unfit));
            return Ok(());
        }
    };
    group.push(Finding::passed(
        "table",
        match facts.kind {
            TableKind::Partitioned => "partitioned",
            TableKind::Plain | TableKind::Other => "a plain table",
        },
    ));
    group.judge(
        "persistence",
        check_logged(&facts, table),
        "its rows reach the WAL",
    );
    columns(&facts, outbox, group);
    publication(subject, &facts, table, group);
    group.push(Finding::passed(
        "replica identity",
        "not needed: only inserts are relayed",
    ));
    keeping(subject, outbox, &facts, group).await
}

/// How each column is understood.
fn columns(facts: &TableFacts, outbox: &Outbox, group: &mut Group) {
    let is_whole = check_columns(facts, outbox);
    let has_all = is_whole.is_ok();
    group.judge("columns", is_whole, understood(facts, outbox));
    let payload = facts.column(&outbox.columns.payload);
    let media = payload.and_then(|payload| PayloadType::of(payload.type_oid));
    if let (Some(payload), Some(media)) = (payload, media) {
        let found = format!("{} is the body, as {}", payload.type_name, media.content_type());
        group.push(Finding::passed("payload", found));
    } else if payload.is_some() {
        group.judge("payload", check_payload(facts, outbox), "");
    } else {
        group.push(Finding::not_looked("payload", "there is no such column"));
    }
    if has_all {
        group.push(nulls(facts, outbox));
    } else {
        group.push(Finding::not_looked("nulls", "columns are missing"));
    }
    let named = match outbox.named.is_empty() {
        true => "exchange and routing key name no column",
        false => "exchange and routing key name columns that are there",
    };
    group.judge("templates", check_named(facts, outbox), named);
}

/// Each field of an event with where it comes from.
fn understood(facts: &TableFacts, outbox: &Outbox) -> String {
    let mut fields = Vec::new();
    let mut absent = Vec::new();
    for name in FIELDS {
        let source = outbox.field(name);
        if let FieldSource::Constant(text) = &source {
            fields.push(format!("{name} = the constant {text:?}"));
            continue;
        }
        match source.column().and_then(|column| facts.column(column)) {
            Some(column) => fields.push(format!(
                "{name} = {} ({})",
                quote_identifier(&column.name),
                column.type_name
            )),
            None => absent.push(name),
        }
    }
    if !absent.is_empty() {
        fields.push(format!("none for {}", absent.join(", ")));
    }
    fields.join(", ")
}

fn nulls(facts: &TableFacts, outbox: &Outbox) -> Finding {
    const CHECK: &str = "nulls";
    let required = outbox.columns.required().into_iter().map(|(_, name)| name);
    let nullable: Vec<_> = required
        .filter(|name| facts.column(name).is_some_and(|column| !column.not_null))
        .collect();
    if nullable.is_empty() {
        return Finding::passed(CHECK, "no column that a message needs may be null");
    }
    let changes: Vec<_> = nullable
        .iter()
        .map(|name| format!("alter column {} set not null", quote_identifier(name)))
        .collect();
    let found = format!("{} may be null", nullable.join(", "));
    Finding::caution(CHECK, Caution::ColumnNullable, found).with_fix(format!(
        "alter table {} {};",
        outbox.table.quoted(),
        changes.join(", ")
    ))
}

fn publication(subject: &Subject<'_>, facts: &TableFacts, table: &QualifiedTable, group: &mut Group) {
    let name = &subject.examination.source.publication;
    let Some(publication) = subject.publication else {
        return;
    };
    let root = check_root(facts, table, publication, name);
    // Where partitions stand in for their root, that is what is wrong.
    let is_rooted = root.is_ok();
    let rooted = match facts.kind {
        TableKind::Partitioned => "their rows come under the root's name",
        TableKind::Plain | TableKind::Other => "there are none",
    };
    group.judge("partitions", root, rooted);
    if is_rooted {
        group.judge(
            "membership",
            check_listed(table, publication, name),
            "it is published",
        );
    } else {
        group.push(Finding::not_looked(
            "membership",
            "its partitions are listed in its place",
        ));
    }
    let shard = subject.examination.source.shard;
    let filter = shard.map_or_else(|| "none".to_owned(), |shard| format!("that of shard {shard}"));
    group.judge("row filter", check_rows(facts, table, name, shard), filter);
    group.judge("column list", check_column_list(facts, table, name), "none");
}

/// What becomes of rows once they are published.
async fn keeping(
    subject: &Subject<'_>,
    outbox: &Outbox,
    facts: &TableFacts,
    group: &mut Group,
) -> Result<(), Error> {
    let marks = outbox.marks(|name| facts.has_column(name));
    let set = marks.map_or_else(Vec::new, |marks| marks.columns);
    let mut after = None;
    if outbox.after_publish == Some(AfterPublish::Keep) {
        // Nobody is on record for such a table, nor need there be a record yet.
        after = Some(AfterPublish::Keep);
        group.push(Finding::passed("marks", "rows stay as they are"));
    } else {
        match marks::plan_table(subject.session, &subject.examination.source, outbox).await {
            Err(error) => group.push(error_finding("marks", &error)),
            Ok(plan) => {
                after = Some(plan.after_publish);
                group.push(match (&plan.refusal, plan.after_publish) {
                    (Some(refusal), _) => refused(refusal, &outbox.table),
                    (None, AfterPublish::Mark) => {
                        let verb = if set.len() == 1 { "is" } else { "are" };
                        let id = match outbox.columns.id.as_str() {
                            "id" => "the unique id".to_owned(),
                            other => format!("the unique {other}"),
                        };
                        Finding::passed("marks", format!("{} {verb} set, by {id}", set.join(", ")))
                    }
                    (None, AfterPublish::Delete) => Finding::passed("marks", "rows are deleted"),
                    (None, AfterPublish::Keep) => Finding::passed("marks", "rows stay as they are"),
                });
            }
        }
    }
    if after == Some(AfterPublish::Keep)
        && let Err(error) = marker::check(subject.session, outbox).await
    {
        group.push(error_finding("marks", &error));
    }
    group.push(match after {
        Some(AfterPublish::Mark) if !set.is_empty() => indexed(subject, facts, &set).await?,
        Some(_) => Finding::passed("index on marks", "of no matter: rows are not marked"),
        None => Finding::not_looked("index on marks", "whether rows are marked is unknown"),
    });
    group.push(rights::retention(subject, outbox).await?);
    Ok(())
}

fn refused(refusal: &Refusal, table: &QualifiedTable) -> Finding {
    let fix = match refusal {
        Refusal::NoUniqueIndex { id, .. } => Some(format!(
            "create unique index concurrently on {} ({});",
            table.quoted(),
            quote_identifier(id)
        )),
        Refusal::NoSentAt { column, .. } => Some(format!(
            "alter table {} add column {} timestamptz;",
            table.quoted(),
            quote_identifier(column)
        )),
        Refusal::Forbidden { grant, .. } | Refusal::Prefix { grant } => Some(format!("{grant};")),
        Refusal::Unowned(_) => Some("walrelay setup".to_owned()),
        Refusal::RowSecurity(_) | Refusal::Marker(_) | Refusal::Owned { .. } => None,
    };
    Finding::error("marks", refusal.kind(), refusal).with_fix(fix)
}

/// An index that holds or asks for what marks set makes each mark write to every index of the table
/// (<https://www.postgresql.org/docs/current/storage-hot.html>).
async fn indexed(subject: &Subject<'_>, facts: &TableFacts, set: &[String]) -> Result<Finding, Error> {
    const CHECK: &str = "index on marks";
    const PURPOSE: &str = "look for indexes on what marks set";
    // What expressions and predicates of an index use is noted as what it depends on.
    let sql = "select coalesce(string_agg(x.indexrelid::regclass::text, ', ') filter (where not x.indisunique), ''), \
               coalesce(string_agg(x.indexrelid::regclass::text, ', ') filter (where x.indisunique), '') \
               from pg_catalog.pg_index x where x.indrelid = $1 and exists (select from pg_catalog.pg_attribute a \
               where a.attrelid = x.indrelid and a.attname = any ($2) and (a.attnum = any (x.indkey::int2[]) \
               or exists (select from pg_catalog.pg_depend d where d.classid = 'pg_catalog.pg_class'::regclass \
               and d.objid = x.indexrelid and d.refclassid = 'pg_catalog.pg_class'::regclass \
               and d.refobjid = a.attrelid and d.refobjsubid = a.attnum)))";
    let session = subject.session;
    let row = session
        .run(PURPOSE, session.client().query_one(sql, &[&facts.oid, &set]))
        .await?;
    let (indexes, unique): (String, String) = (column(&row, 0, PURPOSE)?, column(&row, 1, PURPOSE)?);
    // What keeps rows unique is not to be dropped.
    if !unique.is_empty() {
        let others = if indexes.is_empty() {
            String::new()
        } else {
            format!(", and {indexes}")
        };
        let found = format!("{unique}, which is unique{others}");
        return Ok(Finding::caution(CHECK, Caution::MarkIndexed, found));
    }
    if indexes.is_empty() {
        return Ok(Finding::passed(CHECK, "none, so marks stay within their page"));
    }
    let fix = format!("drop index concurrently {indexes};");
    Ok(Finding::caution(CHECK, Caution::MarkIndexed, indexes).with_fix(fix))
}
