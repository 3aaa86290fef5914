//! Asking PostgreSQL what it makes of a marker, before a row depends on it.

use super::{Assignment, Marker};
use crate::fault::FaultKind;
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, SqlState};
use crate::postgres::identifier::{QualifiedTable, quote_identifier};
use crate::postgres::outbox::Outbox;
use crate::postgres::preflight::Unfit;

const PURPOSE: &str = "look whether outbox.unsent and outbox.mark_set fit the table";

/// Why a marker does not serve for a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MarkerUnfit {
    /// The server does not take it.
    #[error("{setting} does not fit the table {table}: {message}")]
    Refused {
        /// The setting at fault.
        setting: &'static str,
        /// The table.
        table: QualifiedTable,
        /// What the server said.
        message: String,
    },
    /// A mark would change nothing, and be set for ever.
    #[error("a row of the table {table} that outbox.mark_set has marked is still unsent by outbox.unsent")]
    Endless {
        /// The table.
        table: QualifiedTable,
    },
}

impl MarkerUnfit {
    /// Which fault this is.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        FaultKind::MarksUnfit
    }
}

/// Looks whether the server takes the table's marker, if it has one. Nothing is changed, and no right is needed.
///
/// # Errors
/// [`Unfit::Marker`], or the look fails.
pub(in crate::postgres) async fn check(session: &ControlSession, outbox: &Outbox) -> Result<(), Error> {
    let Some(marker) = &outbox.marker else {
        return Ok(());
    };
    let (table, unsent) = (outbox.table.quoted(), marker.unsent.condition());
    let scan = format!("select from {table} t where {unsent}");
    prepare(session, outbox, "outbox.unsent", &scan).await?;
    let mark = format!("update {table} t set {} where {unsent}", marker.set.list());
    prepare(session, outbox, "outbox.mark_set", &mark).await
}

async fn prepare(
    session: &ControlSession,
    outbox: &Outbox,
    setting: &'static str,
    sql: &str,
) -> Result<(), Error> {
    let prepared = session.run(PURPOSE, session.client().prepare(sql)).await;
    let error = match prepared {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    match error.server_error() {
        Some(said) if is_about_the_text(said.sqlstate) => Err(Unfit::Marker(MarkerUnfit::Refused {
            setting,
            table: outbox.table.clone(),
            message: said.message.clone(),
        })
        .into()),
        _ => Err(error),
    }
}

/// Whether it is the statement's own fault: a name or type that does not fit, a value that is none, what cannot be there.
fn is_about_the_text(state: SqlState) -> bool {
    let state = state.to_string();
    state != SqlState::INSUFFICIENT_PRIVILEGE.to_string()
        && ["42", "22", "0A"].iter().any(|class| state.starts_with(class))
}

/// Looks whether a marked row is no longer unsent, as far as that can be told of a row of NULLs. In a transaction that is read
/// only, so that no function of an operator's changes anything; it may be broken afterwards.
///
/// # Errors
/// [`Unfit::Marker`], or the session is gone.
pub(in crate::postgres) async fn check_end(session: &ControlSession, outbox: &Outbox) -> Result<(), Error> {
    let Some(marker) = &outbox.marker else {
        return Ok(());
    };
    let client = session.client();
    let sql = "select a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod) from pg_catalog.pg_attribute a \
               join pg_catalog.pg_class c on c.oid = a.attrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = $2 and a.attnum > 0 and not a.attisdropped";
    let QualifiedTable { schema, name } = &outbox.table;
    let rows = session.run(PURPOSE, client.query(sql, &[schema, name])).await?;
    let mut columns = Vec::with_capacity(rows.len());
    for row in &rows {
        columns.push((column(row, 0, PURPOSE)?, column(row, 1, PURPOSE)?));
    }
    let asked = session
        .run(PURPOSE, client.query_one(&still_unsent(marker, &columns), &[]))
        .await;
    // What cannot be told of such a row is no fault.
    let is_still_unsent = asked.is_ok_and(|row| column(&row, 0, PURPOSE).unwrap_or(false));
    match is_still_unsent {
        true => Err(Unfit::Marker(MarkerUnfit::Endless {
            table: outbox.table.clone(),
        })
        .into()),
        false => Ok(()),
    }
}

/// A query whether a row of NULLs is unsent once it is marked. `columns` are names and types.
fn still_unsent(marker: &Marker, columns: &[(String, String)]) -> String {
    let nulls = columns
        .iter()
        .map(|(name, of_type)| format!("null::{of_type} as {}", quote_identifier(name)));
    let marked = columns.iter().map(|(name, of_type)| {
        let quoted = quote_identifier(name);
        let is_set = |assignment: &&Assignment| assignment.column == *name;
        match marker.set.assignments().iter().find(is_set) {
            Some(Assignment { value, .. }) => format!("({value})::{of_type} as {quoted}"),
            None => format!("t.{quoted}"),
        }
    });
    // What is made of a NULL says nothing of other rows.
    let set: Vec<_> = marker.set.columns().map(quote_identifier).collect();
    format!(
        "select {} is true and pg_catalog.num_nulls({}) = 0 from (select {} from (select {}) t) t",
        marker.unsent.condition(),
        set.join(", "),
        marked.collect::<Vec<_>>().join(", "),
        nulls.collect::<Vec<_>>().join(", ")
    )
}
