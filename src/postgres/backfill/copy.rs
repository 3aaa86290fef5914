//! Noting the ids of the rows that are due.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_postgres::types::ToSql;
use walrelay_engine::Lsn;

use super::columns_of;
use crate::postgres::catalog::column;
use crate::postgres::control::{ControlSession, sql_error};
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, SlotName, quote_identifier};
use crate::postgres::outbox::{Marks, Outbox};
use crate::postgres::preflight::Unfit;
use crate::postgres::shard::Shard;
use crate::postgres::table_use::Use;
use crate::postgres::walsender::within;

/// How long the scan of one table may take. While it runs, the server cannot vacuum what is deleted meanwhile.
const COPY_TIMEOUT: Duration = Duration::from_secs(4 * 60 * 60);

/// Which rows of a table are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// None.
    None,
    /// Those without a mark.
    Unsent,
    /// All that are there.
    All,
    /// Those whose order column is not earlier.
    Since(SystemTime),
}

/// By which column due rows are ordered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Order {
    /// `created_at` where the table has it, else none.
    #[default]
    Default,
    /// This one.
    Column(String),
}

/// What is to be noted of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::postgres) struct Plan {
    pub(in crate::postgres) table: QualifiedTable,
    pub(in crate::postgres) due: Due,
    /// The column of the id, quoted.
    id: String,
    order: Option<String>,
    marks: Option<Marks>,
    /// The condition that a row `t` is of our shard, if there is one.
    part: Option<String>,
    is_unique: bool,
}

/// What was noted of one table. Printed, it goes into a line of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The table.
    pub table: QualifiedTable,
    /// Which rows.
    pub due: Due,
    /// How many.
    pub rows: u64,
    /// By which column they are ordered; none: in no particular order.
    pub order: Option<String>,
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { table, due, rows, .. } = self;
        let one = if *rows == 1 { "row" } else { "rows" };
        match due {
            Due::Unsent => write!(f, "{rows} unsent {one} of {table}")?,
            Due::None | Due::All => write!(f, "{rows} {one} of {table}")?,
            Due::Since(time) => {
                let since = humantime::format_rfc3339_seconds(*time);
                write!(f, "{rows} {one} of {table} since {since}")?;
            }
        }
        match &self.order {
            _ if *rows == 0 => Ok(()),
            Some(column) => write!(f, ", to be sent first, by {column}"),
            None => f.write_str(", to be sent first, in no particular order"),
        }
    }
}

/// What is to be noted of a table, once it is sure that it can be. `due` is none where nobody has said: then it is those
/// without a mark, if rows can have one. Only rows of the shard are, where there is one.
///
/// # Errors
/// The table cannot be backfilled ([`Unfit`]), or a query fails.
pub(in crate::postgres) async fn plan(
    session: &ControlSession,
    outbox: &Outbox,
    due: Option<Due>,
    order: &Order,
    shard: Option<Shard>,
) -> Result<Option<Plan>, Error> {
    let name = &outbox.table;
    let Some(columns) = columns_of(session, name).await? else {
        return Ok(None);
    };
    let has = |name: &str| columns.column(name).is_some();
    let marks = outbox.marks(has);
    let due = due.unwrap_or(match marks {
        Some(_) => Due::Unsent,
        None => Due::None,
    });
    if due == Due::None {
        return Ok(None);
    }
    let unfit = |why| Unfit::Backfill {
        table: name.clone(),
        why,
    };
    if due == Due::Unsent && marks.is_none() {
        let sent_at = outbox.sent_at().unwrap_or("sent_at");
        let why = format!("it has no column `{sent_at}` to tell which rows are unsent");
        return Err(unfit(why).into());
    }
    let created_at = outbox.created_at().unwrap_or("created_at");
    let order = match order {
        Order::Default => outbox.created_at().filter(|name| has(name)).map(str::to_owned),
        Order::Column(column) if has(column) => Some(column.clone()),
        Order::Column(column) => {
            return Err(unfit(format!("it has no column `{column}` to order its rows by")).into());
        }
    };
    if matches!(due, Due::Since(_)) && order.is_none() {
        let why = format!("it has no column `{created_at}` to tell when a row was written");
        return Err(unfit(why).into());
    }
    if columns.hides_rows() {
        let role = session.role();
        return Err(unfit(format!(
            "row security hides rows of it from the role `{role}` (give the role BYPASSRLS, or use the table's owner)"
        ))
        .into());
    }
    let index = IdIndex::read(session, outbox).await?;
    if index == IdIndex::Missing {
        return Err(unfit(format!(
            "no index of it begins with the column `{}`, so that each row would take a scan of the table",
            outbox.columns.id
        ))
        .into());
    }
    Ok(Some(Plan {
        table: name.clone(),
        due,
        id: outbox.id(),
        order,
        marks,
        part: shard.map(|shard| {
            let aggregate = columns.column(outbox.aggregate_id());
            shard.rows(outbox.aggregate_id(), aggregate.map(|column| column.type_oid))
        }),
        is_unique: index == IdIndex::Unique,
    }))
}

/// How a row is found by its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdIndex {
    /// By a scan of the table.
    Missing,
    /// By an index that begins with the id.
    Present,
    /// By an index that allows each id once.
    Unique,
}

impl IdIndex {
    async fn read(session: &ControlSession, outbox: &Outbox) -> Result<Self, Error> {
        const PURPOSE: &str = "look for an index of the outbox table";
        let sql = "select count(*) > 0, coalesce(bool_or(i.indisunique and i.indnkeyatts = 1), false) \
                   from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                   join pg_catalog.pg_index i on i.indrelid = c.oid \
                   join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = i.indkey[0] \
                   where n.nspname = $1 and c.relname = $2 and a.attname = $3 and i.indisvalid and i.indpred is null";
        let row = session
            .run(
                PURPOSE,
                session.client().query_one(
                    sql,
                    &[&outbox.table.schema, &outbox.table.name, &outbox.columns.id],
                ),
            )
            .await?;
        Ok(match (column(&row, 0, PURPOSE)?, column(&row, 1, PURPOSE)?) {
            (_, true) => Self::Unique,
            (true, false) => Self::Present,
            (false, false) => Self::Missing,
        })
    }
}

/// Notes the ids of the due rows in the open transaction, in whose snapshot they are looked for. Those that are noted
/// already, were skipped, or are dead letters, are left out (R23).
///
/// Grants: select on the table; usage on schema `walrelay`; select, insert and update on `walrelay.backfills`; select,
/// insert and delete on `walrelay.backfill`; select on `walrelay.dead_letters` and `walrelay.skips`.
///
/// # Errors
/// The statement fails, such as for a missing privilege.
pub(in crate::postgres) async fn copy(
    session: &ControlSession,
    slot: &SlotName,
    plan: &Plan,
    streams_from: Lsn,
) -> Result<Copied, Error> {
    const COPY: Use = Use::own(
        "note the rows that are due",
        "select, insert, update, delete",
        &["backfill", "backfills"],
    );
    let client = session.client();
    let settings = "set local statement_timeout = 0; set local row_security = off";
    COPY.run(session.role(), client.batch_execute(settings)).await?;

    // Records of the log start at multiples of eight, so no commit stands there; and it is before all that is streamed.
    let position = Lsn::new(streams_from.get().saturating_sub(1)).to_string();
    // Positions of a log that was replaced by an older one would lie ahead of the stream.
    let sql = "update walrelay.backfills set commit_lsn = $2::text::pg_lsn \
               where slot = $1 and commit_lsn > $2::text::pg_lsn";
    COPY.run(session.role(), client.execute(sql, &[&slot.as_str(), &position]))
        .await?;
    let outbox = plan.table.to_string();
    // Whether the row of such an id is the same one nothing tells: it is looked for as any other.
    let sql = "delete from walrelay.backfill b using walrelay.backfills c \
               where c.id = b.backfill and b.slot = $1 and c.outbox = $2 and b.is_settled";
    COPY.run(session.role(), client.execute(sql, &[&slot.as_str(), &outbox]))
        .await?;
    let sql = "insert into walrelay.backfills (slot, outbox, commit_lsn, copied_at) \
               values ($1, $2, $3::text::pg_lsn, pg_catalog.clock_timestamp()) returning id";
    let row = COPY
        .run(
            session.role(),
            client.query_one(sql, &[&slot.as_str(), &outbox, &position]),
        )
        .await?;
    let backfill: i64 = column(&row, 0, COPY.purpose)?;

    let since = match plan.due {
        Due::Since(time) => Some(time),
        Due::None | Due::Unsent | Due::All => None,
    };
    let sql = copy_statement(plan);
    let step = Step::Query(COPY.purpose);
    let rows = within(Instant::now() + COPY_TIMEOUT, step, async {
        let parameters: &[&(dyn ToSql + Sync)] = &[&slot.as_str(), &outbox, &backfill, &since];
        let copied = client.execute(&sql, parameters).await;
        copied.map_err(|error| sql_error(step, error))
    })
    .await?;
    let sql = "update walrelay.backfills set copied_rows = $2 where id = $1";
    let count = i64::try_from(rows).unwrap_or(i64::MAX);
    COPY.run(session.role(), client.execute(sql, &[&backfill, &count]))
        .await?;
    Ok(Copied {
        table: plan.table.clone(),
        due: plan.due,
        rows,
        order: plan.order.clone(),
    })
}

fn copy_statement(plan: &Plan) -> String {
    let table = plan.table.quoted();
    let id = &plan.id;
    let marks = plan.marks.as_ref();
    let was_sent = marks.map_or("false", |marks| &marks.sent);
    let place = match plan.is_unique {
        true => "1".to_owned(),
        false => format!(
            "(pg_catalog.row_number() over (partition by t.{id} order by t.tableoid, t.ctid))::integer"
        ),
    };
    let order = plan.order.as_deref().map(quote_identifier);
    let condition = match plan.due {
        Due::None => "false".to_owned(),
        Due::Unsent => marks.map_or_else(|| "false".to_owned(), |marks| marks.unsent.clone()),
        Due::All => "true".to_owned(),
        Due::Since(_) => match &order {
            Some(order) => format!("t.{order} >= $4"),
            None => "false".to_owned(),
        },
    };
    let part = plan
        .part
        .as_ref()
        .map_or_else(String::new, |part| format!("and {part} "));
    let ordering = order.map_or_else(|| "null".to_owned(), |order| format!("t.{order}"));
    format!(
        "insert into walrelay.backfill (slot, backfill, id, place, was_sent) \
         select $1, $3, due.id, due.place, due.was_sent from (\
         select pg_catalog.format('%s', t.{id}) as id, {place} as place, {was_sent} as was_sent, \
         {ordering} as ordering from {table} t where t.{id} is not null and {condition} {part}\
         and ($4::timestamptz is null or true)) due \
         where not exists (select from walrelay.dead_letters l where l.slot = $1 and l.outbox = $2 \
         and l.event_id = due.id) \
         and not exists (select from walrelay.skips s where s.slot = $1 and s.settled_at is not null \
         and due.id in (s.event_id, s.settled_event_id) and coalesce(s.settled_outbox, $2) = $2) \
         and not exists (select from walrelay.backfill b join walrelay.backfills c on c.id = b.backfill \
         where b.slot = $1 and c.outbox = $2 and b.id = due.id) \
         order by due.ordering, due.id, due.place"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_says_how_many_and_in_which_order() {
        let copied = |due, rows, order: Option<&str>| {
            let order = order.map(str::to_owned);
            let table = "outbox_events".parse().unwrap();
            Copied {
                table,
                due,
                rows,
                order,
            }
            .to_string()
        };
        let since = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        assert_eq!(
            [
                copied(Due::Unsent, 2, Some("created_at")),
                copied(Due::All, 1, None),
                copied(Due::Since(since), 0, Some("created_at")),
            ],
            [
                "2 unsent rows of public.outbox_events, to be sent first, by created_at",
                "1 row of public.outbox_events, to be sent first, in no particular order",
                "0 rows of public.outbox_events since 2027-01-15T08:00:00Z",
            ]
        );
    }
}
