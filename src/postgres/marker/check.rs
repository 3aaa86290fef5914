//! Asking PostgreSQL what it makes of a marker, before a row depends on it.

use walrelay_engine::event::AfterPublish;

use super::{Assignment, Marker};
use crate::fault::FaultKind;
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, SqlState};
use crate::postgres::identifier::{QualifiedTable, quote_identifier};
use crate::postgres::outbox::Outbox;
use crate::postgres::preflight::Unfit;

/// What a consumer, or a row's next reader, goes by.
const FIELDS_OF_THE_EVENT: [&str; 5] = ["id", "aggregate_type", "aggregate_id", "event_type", "payload"];

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
    /// A mark must leave the event as it is.
    #[error(
        "outbox.mark_set sets the column {column} of the table {table}, which is the {field} of its events"
    )]
    OfTheEvent {
        /// The table.
        table: QualifiedTable,
        /// The column.
        column: String,
        /// The field that it is.
        field: &'static str,
    },
    /// The condition asks for nothing that a mark changes.
    #[error(
        "outbox.unsent asks for no column that outbox.mark_set sets ({columns}): rows of the table {table} would stay unsent for ever"
    )]
    Unrelated {
        /// The table.
        table: QualifiedTable,
        /// What is set.
        columns: String,
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
    check_fields(marker, outbox)?;
    let (table, unsent) = (outbox.table.quoted(), marker.unsent.condition());
    let scan = format!("select from {table} t where {unsent}");
    prepare(session, outbox, "outbox.unsent", &scan).await?;
    let mark = format!("update {table} t set {} where {unsent}", marker.set.list());
    prepare(session, outbox, "outbox.mark_set", &mark).await?;
    check_use(session, marker, outbox).await
}

/// Looks whether an event stays what it was written as.
fn check_fields(marker: &Marker, outbox: &Outbox) -> Result<(), Unfit> {
    for field in FIELDS_OF_THE_EVENT {
        let source = outbox.field(field);
        let column = source.column();
        if let Some(column) = marker.set.columns().find(|set| column == Some(*set)) {
            return Err(Unfit::Marker(MarkerUnfit::OfTheEvent {
                table: outbox.table.clone(),
                column: column.to_owned(),
                field,
            }));
        }
    }
    Ok(())
}

/// Looks whether a mark can make the condition false at all. A generated column or a trigger may do what the text does not
/// say; then the first mark tells.
async fn check_use(session: &ControlSession, marker: &Marker, outbox: &Outbox) -> Result<(), Error> {
    let is_marked = AfterPublish::of(outbox.after_publish, true) == AfterPublish::Mark;
    if !is_marked || marker.may_ask_for_what_it_sets() {
        return Ok(());
    }
    // 18: before (2) an update (16).
    let sql = "select exists (select from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attgenerated <> '' \
               and not a.attisdropped) or exists (select from pg_catalog.pg_trigger g where g.tgrelid = c.oid \
               and not g.tgisinternal and (g.tgtype & 18) = 18) \
               from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               where n.nspname = $1 and c.relname = $2";
    let QualifiedTable { schema, name } = &outbox.table;
    let row = session
        .run(PURPOSE, session.client().query_opt(sql, &[schema, name]))
        .await?;
    match row.map(|row| column(&row, 0, PURPOSE)).transpose()? {
        Some(false) => Err(Unfit::Marker(MarkerUnfit::Unrelated {
            table: outbox.table.clone(),
            columns: marker.set.columns().collect::<Vec<_>>().join(", "),
        })
        .into()),
        Some(true) | None => Ok(()),
    }
}

/// What the server said while it planned the marks, if that is the text's own fault, as a division by a zero is.
pub(in crate::postgres) fn refused_plan(error: &Error, outbox: &Outbox) -> Option<MarkerUnfit> {
    let said = error.server_error()?;
    said.sqlstate
        .to_string()
        .starts_with("22")
        .then(|| MarkerUnfit::Refused {
            setting: "outbox.mark_set",
            table: outbox.table.clone(),
            message: said.message.clone(),
        })
}

/// Has the server plan the marks, which it does only for who has the rights to them; others it is not asked for.
///
/// # Errors
/// [`Unfit::Marker`], or the look fails.
pub(in crate::postgres) async fn check_plan(session: &ControlSession, outbox: &Outbox) -> Result<(), Error> {
    let Some(marker) = &outbox.marker else {
        return Ok(());
    };
    let (table, unsent) = (outbox.table.quoted(), marker.unsent.condition());
    let client = session.client();
    let rights = "select pg_catalog.has_table_privilege($1::text, 'select') and pg_catalog.has_table_privilege($1::text, 'update')";
    let row = session.run(PURPOSE, client.query_one(rights, &[&table])).await?;
    if !column::<bool>(&row, 0, PURPOSE)? {
        return Ok(());
    }
    let sql = format!(
        "explain update {table} t set {} where {unsent}",
        marker.set.list()
    );
    let planned = session.run(PURPOSE, client.batch_execute(&sql)).await;
    planned.map_err(|error| match refused_plan(&error, outbox) {
        Some(unfit) => Unfit::Marker(unfit).into(),
        None => error,
    })
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
