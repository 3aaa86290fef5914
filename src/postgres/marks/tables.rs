//! Whether and how the rows of each table can be marked.

use std::time::Duration;

use tokio_postgres::types::{Oid, ToSql};
use walrelay_engine::event::AfterPublish;

use super::owners::cell;
use crate::fault::FaultKind;
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::{Error, SqlState};
use crate::postgres::identifier::{QualifiedTable, quote_identifier};
use crate::postgres::marker::{self, MarkerUnfit};
use crate::postgres::outbox::{Marks, Outbox};
use crate::postgres::preflight::{Source, Unfit};
use crate::postgres::settled::STORE_PRIVILEGES;
use crate::postgres::shard::overlap;
use crate::postgres::table_use::{Grantor, Use};

/// How long a look at a marker waits for a lock on the table: hardly, since marks are to fail in time for it to be recorded
/// before a position is reported without them (R18).
const LOOK_TIMEOUT: Duration = Duration::from_millis(10);

/// How the rows of one table are marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePlan {
    /// The table.
    pub outbox: Outbox,
    /// What becomes of rows.
    pub after_publish: AfterPublish,
    /// Why that cannot be.
    pub refusal: Option<Refusal>,
    /// The type of `id`, as SQL names it.
    pub(super) id_type: String,
    /// How rows show that they are sent, if they can.
    pub(super) marks: Option<Marks>,
    /// The condition that a row `t` is of our shard, if there is one.
    pub(super) part: Option<String>,
    role: String,
}

/// The parts of a statement that marks or deletes rows `t`.
#[derive(Debug)]
pub(super) struct Change {
    /// Its beginning, up to the conditions.
    pub(super) change: String,
    /// The lock that a row is looked for with.
    pub(super) lock: &'static str,
    /// The condition that a row still is to be marked or deleted.
    pub(super) due: String,
}

/// Why the rows of a table cannot be marked. Delivery goes on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No index makes an id unique: the mark of one event could hit another's row.
    #[error("table {table} has no unique index on exactly ({id})")]
    NoUniqueIndex {
        /// The table.
        table: QualifiedTable,
        /// The column of the id.
        id: String,
    },
    /// Nothing to set.
    #[error("table {table} has no column {column} to set")]
    NoSentAt {
        /// The table.
        table: QualifiedTable,
        /// The column.
        column: String,
    },
    /// The configured SQL does not serve.
    #[error(transparent)]
    Marker(#[from] MarkerUnfit),
    /// Rows would be passed over in silence.
    #[error("row security hides rows of table {0} from our role")]
    RowSecurity(QualifiedTable),
    /// A right is missing.
    #[error("our role may not mark rows of table {table} ({grant})")]
    Forbidden {
        /// The table.
        table: QualifiedTable,
        /// The statement that grants it.
        grant: String,
    },
    /// Another slot marks them.
    #[error("the rows of table {table} are marked by slot `{owner}`")]
    Owned {
        /// The table.
        table: QualifiedTable,
        /// That slot.
        owner: String,
    },
    /// Nobody has said who marks them.
    #[error("set-up has not recorded which slot marks the rows of table {0}")]
    Unowned(QualifiedTable),
    /// The settled prefix cannot be stored.
    #[error("our role may not store the settled prefix ({grant})")]
    Prefix {
        /// The statement that grants it.
        grant: String,
    },
}

impl Refusal {
    /// Which fault this is.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Self::NoUniqueIndex { .. } => FaultKind::MarksIndex,
            Self::NoSentAt { .. } | Self::Marker(_) | Self::RowSecurity(_) => FaultKind::MarksUnfit,
            Self::Forbidden { .. } | Self::Prefix { .. } => FaultKind::MarksForbidden,
            Self::Owned { .. } | Self::Unowned(_) => FaultKind::MarksOwned,
        }
    }
}

impl TablePlan {
    /// An error of a statement that marks; a right may have been revoked since.
    pub(super) fn explain(&self, error: Error) -> Error {
        name_grant(error, || self.grant())
    }

    /// An error of a sweep, which looks at more than the marks do.
    pub(super) fn explain_sweep(&self, error: Error) -> Error {
        name_grant(error, || {
            let (table, role) = (self.outbox.table.quoted(), quote_identifier(&self.role));
            format!("grant select on {table}, walrelay.dead_letters, walrelay.skips to {role}")
        })
    }

    /// Whether rows are marked or deleted.
    #[must_use]
    pub fn is_marked(&self) -> bool {
        self.refusal.is_none() && self.after_publish != AfterPublish::Keep
    }

    /// What marks or deletes rows; none where nothing can.
    pub(super) fn change(&self) -> Option<Change> {
        let table = self.outbox.table.quoted();
        match (self.after_publish, &self.marks) {
            (AfterPublish::Delete, _) => Some(Change {
                change: format!("delete from {table} t"),
                lock: "update",
                due: "true".to_owned(),
            }),
            (AfterPublish::Mark | AfterPublish::Keep, Some(marks)) => Some(Change {
                change: format!("update {table} t set {}", marks.set),
                lock: "no key update",
                due: marks.unsent.clone(),
            }),
            (AfterPublish::Mark | AfterPublish::Keep, None) => None,
        }
    }

    /// An expression of whether a row is unsent though it has just been marked: only SQL of an operator's can be so.
    pub(super) fn still_unsent(&self) -> String {
        match (&self.outbox.marker, &self.marks, self.after_publish) {
            (Some(_), Some(marks), AfterPublish::Mark | AfterPublish::Keep) => {
                format!("({} is true)", marks.unsent)
            }
            _ => "false".to_owned(),
        }
    }

    fn grant(&self) -> String {
        let (id, table) = (self.outbox.id(), self.outbox.table.quoted());
        let role = quote_identifier(&self.role);
        let privileges = match (self.after_publish, &self.marks) {
            (AfterPublish::Mark | AfterPublish::Keep, Some(marks)) => {
                // Which columns a condition of an operator's reads, nothing tells.
                if self.outbox.marker.is_some() {
                    return format!("grant select, {} on {table} to {role}", marks.update());
                }
                let read = marks.columns.iter().map(|column| quote_identifier(column));
                let read: Vec<_> = std::iter::once(id).chain(read).collect();
                format!("select ({}), {}", read.join(", "), marks.update())
            }
            (AfterPublish::Delete | AfterPublish::Mark | AfterPublish::Keep, _) => {
                format!("select ({id}), update, delete")
            }
        };
        format!("grant {privileges} on {table} to {role}")
    }
}

/// Says of a refusal which grant is missing.
fn name_grant(error: Error, grant: impl FnOnce() -> String) -> Error {
    let Error::Server { step, source } = error else {
        return error;
    };
    if source.sqlstate != SqlState::INSUFFICIENT_PRIVILEGE {
        return Error::Server { step, source };
    }
    Error::GrantMissing {
        step,
        grantor: Grantor::TableOwner,
        grant: grant(),
        source,
    }
}

/// Looks at each configured table: what becomes of its rows, and whether that can be (rule 20).
///
/// # Errors
/// A query fails; [`Error::OwnSchema`] before migration 3.
pub async fn plan(session: &ControlSession, source: &Source) -> Result<Vec<TablePlan>, Error> {
    let mut plans = Vec::with_capacity(source.outboxes.len());
    for outbox in &source.outboxes {
        plans.push(plan_table(session, source, outbox).await?);
    }
    Ok(plans)
}

/// As [`plan`], of one table.
///
/// # Errors
/// As [`plan`].
pub(in crate::postgres) async fn plan_table(
    session: &ControlSession,
    source: &Source,
    outbox: &Outbox,
) -> Result<TablePlan, Error> {
    const FACTS: Use = Use::own("look whether rows can be marked", "select", &["mark_owners"]);
    let sql = "select pg_catalog.format_type(i.atttypid, i.atttypmod), s.are_there, \
               exists (select from pg_catalog.pg_index x where x.indrelid = c.oid and x.indisunique and x.indisvalid \
               and x.indpred is null and x.indnkeyatts = 1 and x.indkey[0] = i.attnum), \
               pg_catalog.row_security_active(c.oid), \
               pg_catalog.has_column_privilege(c.oid, $4, 'select') and s.are_there and s.may_be_set, \
               pg_catalog.has_column_privilege(c.oid, $4, 'select') \
               and pg_catalog.has_any_column_privilege(c.oid, 'update') and pg_catalog.has_table_privilege(c.oid, 'delete'), \
               array(select slot from walrelay.mark_owners where outbox = $3 order by slot, shard), \
               array(select shard from walrelay.mark_owners where outbox = $3 order by slot, shard), \
               (select g.atttypid from pg_catalog.pg_attribute g where g.attrelid = c.oid and g.attname = $6 \
               and not g.attisdropped) \
               from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
               join pg_catalog.pg_attribute i on i.attrelid = c.oid and i.attname = $4 and not i.attisdropped \
               cross join lateral (select count(*) = pg_catalog.cardinality($5::text[]) as are_there, \
               coalesce(bool_and(pg_catalog.has_column_privilege(c.oid, a.attnum, 'select') \
               and pg_catalog.has_column_privilege(c.oid, a.attnum, 'update')), false) as may_be_set \
               from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attname = any ($5) and not a.attisdropped) s \
               where n.nspname = $1 and c.relname = $2";
    let (table, name) = (&outbox.table, outbox.table.to_string());
    let set = outbox.marks(|_| true).map(|marks| marks.columns);
    let set = set.unwrap_or_default();
    let parameters: [&(dyn ToSql + Sync); 6] = [
        &table.schema,
        &table.name,
        &name,
        &outbox.columns.id,
        &set,
        &outbox.aggregate_id(),
    ];
    let row = FACTS
        .run(session.role(), session.client().query_opt(sql, &parameters))
        .await?;
    let mut plan = TablePlan {
        outbox: outbox.clone(),
        after_publish: AfterPublish::of(outbox.after_publish, false),
        refusal: None,
        id_type: String::new(),
        marks: None,
        part: None,
        role: session.role().to_owned(),
    };
    // The guard says what is wrong with a table that is gone.
    let Some(row) = row else {
        plan.after_publish = AfterPublish::Keep;
        return Ok(plan);
    };
    let flag = |index| column::<bool>(&row, index, FACTS.purpose);
    let has_sent_at = flag(1)? && !set.is_empty();
    plan.id_type = column(&row, 0, FACTS.purpose)?;
    plan.marks = outbox.marks(|_| has_sent_at);
    plan.after_publish = AfterPublish::of(outbox.after_publish, plan.marks.is_some());
    let aggregate: Option<Oid> = column(&row, 8, FACTS.purpose)?;
    plan.part = source
        .shard
        .map(|shard| shard.rows(outbox.aggregate_id(), aggregate));
    let is_allowed = match plan.after_publish {
        AfterPublish::Keep => return Ok(plan),
        // Without the column no right to it can be missing.
        // What a marker needs is seen by its statement.
        AfterPublish::Mark => plan.marks.is_none() || outbox.marker.is_some() || flag(4)?,
        AfterPublish::Delete => flag(5)?,
    };
    let owner = owner(
        source,
        column(&row, 6, FACTS.purpose)?,
        column(&row, 7, FACTS.purpose)?,
    );
    let marker = look_at_marker(session, &plan).await?;
    let table = || table.clone();
    plan.refusal = if plan.after_publish == AfterPublish::Mark && plan.marks.is_none() {
        Some(Refusal::NoSentAt {
            table: table(),
            column: outbox.sent_at().unwrap_or("sent_at").to_owned(),
        })
    } else if let Some(Refusal::Marker(unfit)) = marker {
        Some(Refusal::Marker(unfit))
    } else if !flag(2)? {
        Some(Refusal::NoUniqueIndex {
            table: table(),
            id: outbox.columns.id.clone(),
        })
    } else if let Some(owner) = owner.clone().filter(|owner| owner != source.slot.as_str()) {
        Some(Refusal::Owned {
            table: table(),
            owner,
        })
    } else if owner.is_none() {
        Some(Refusal::Unowned(table()))
    } else if !is_allowed {
        Some(Refusal::Forbidden {
            table: table(),
            grant: plan.grant(),
        })
    } else if flag(3)? {
        Some(Refusal::RowSecurity(table()))
    } else {
        marker
    };
    Ok(plan)
}

/// The slot that marks the rows of our shard, or one that marks some of them.
fn owner(source: &Source, slots: Vec<String>, shards: Vec<String>) -> Option<String> {
    let mut owners: Vec<_> = slots
        .into_iter()
        .zip(shards.iter().map(|shard| cell(shard)))
        .filter(|(_, shard)| overlap(*shard, source.shard))
        .collect();
    // Where another cut is on record as well, only the one of ours tells.
    owners.sort_by_key(|(_, shard)| *shard != source.shard);
    owners.into_iter().next().map(|(slot, _)| slot)
}

/// What is wrong with the table's marker, or with our rights to what it uses.
async fn look_at_marker(session: &ControlSession, plan: &TablePlan) -> Result<Option<Refusal>, Error> {
    const PURPOSE: &str = "look whether rows can be marked";
    let outbox = &plan.outbox;
    if outbox.marker.is_none() {
        return Ok(None);
    }
    // A lock on the table must not hold up the work that waits for this look; what is read only changes nothing.
    let begin = format!(
        "begin read only; set local lock_timeout = {}",
        LOOK_TIMEOUT.as_millis()
    );
    session
        .run(PURPOSE, session.client().batch_execute(&begin))
        .await?;
    let looked = async {
        marker::check(session, outbox).await?;
        let (Some(Change { change, lock, due }), table) = (plan.change(), outbox.table.quoted()) else {
            return Ok(());
        };
        // The server looks at all rights before it tells how it would go about it.
        let id = outbox.id();
        let sql = format!(
            "explain {change} where {due} and t.{id} = any(array(select t.{id} from {table} t where {due} for {lock}))"
        );
        session.run(PURPOSE, session.client().batch_execute(&sql)).await?;
        marker::check_end(session, outbox).await
    };
    let looked = looked.await;
    session
        .run(PURPOSE, session.client().batch_execute("rollback"))
        .await?;
    let Err(error) = looked else {
        return Ok(None);
    };
    if let Some(Unfit::Marker(unfit)) = error.unfit() {
        return Ok(Some(Refusal::Marker(unfit.clone())));
    }
    if let Some(unfit) = marker::refused_plan(&error, outbox) {
        return Ok(Some(Refusal::Marker(unfit)));
    }
    match error.sqlstate() {
        Some(SqlState::INSUFFICIENT_PRIVILEGE) => Ok(Some(Refusal::Forbidden {
            table: outbox.table.clone(),
            grant: plan.grant(),
        })),
        // The mark itself will tell.
        Some(SqlState::LOCK_NOT_AVAILABLE) => Ok(None),
        _ => Err(error),
    }
}

/// Whether the settled prefix cannot be stored.
///
/// # Errors
/// The query fails.
pub async fn prefix_refusal(session: &ControlSession) -> Result<Option<Refusal>, Error> {
    const PURPOSE: &str = "look whether the settled prefix can be stored";
    let sql = "select pg_catalog.bool_and(pg_catalog.has_column_privilege('walrelay.state', c, 'update')) \
               from unnest(array['settled_commit_lsn', 'settled_tx_seq', 'settled_complete', 'unswept_xid']) c";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    if column(&row, 0, PURPOSE)? {
        return Ok(None);
    }
    let role = quote_identifier(session.role());
    let grant =
        format!("as the owner of schema walrelay: grant {STORE_PRIVILEGES} on walrelay.state to {role}");
    Ok(Some(Refusal::Prefix { grant }))
}
