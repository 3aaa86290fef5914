//! Who else reads a table: the slots of this database that walrelay has set up, each by what its publication publishes.

use tokio_postgres::types::Oid;

use super::{PublishedRows, Shard};
use crate::postgres::catalog::column;
use crate::postgres::control::ControlSession;
use crate::postgres::error::Error;
use crate::postgres::startup::ServerVersion;
use crate::postgres::table_use::Use;

/// A publication that has a table, with those who read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::postgres) struct Reader {
    /// The publication.
    pub(in crate::postgres) publication: String,
    /// Which rows of the table it has; `None`: all of them.
    pub(in crate::postgres) shard: Option<Shard>,
    /// The slots that were set up for it and are there.
    pub(in crate::postgres) slots: Vec<String>,
}

/// The publications that have the table, all of its rows or a shard of them, by shard and name. One with another filter is none
/// of ours. That a publication is read by which slot is what set-up has recorded with the slot's baseline.
///
/// Grants: usage on schema `walrelay`, select on `walrelay.state`.
///
/// # Errors
/// A query fails.
pub(in crate::postgres) async fn readers(
    session: &ControlSession,
    table: Oid,
    version: ServerVersion,
    name: &str,
) -> Result<Vec<Reader>, Error> {
    const LOOK: Use = Use::own("look who else reads the table", "select", &["state"]);
    let filter = match version.major {
        ..super::MIN_SHARD_MAJOR => "null::text",
        _ => "pg_catalog.pg_get_expr(r.prqual, r.prrelid)",
    };
    let sql = format!(
        "select p.pubname::text, {filter}, (select a.atttypid from pg_catalog.pg_attribute a \
         where a.attrelid = $1 and a.attname = $2 and not a.attisdropped), \
         array(select s.slot_name::text from walrelay.state w join pg_catalog.pg_replication_slots s \
         on s.slot_name = w.slot and s.database = pg_catalog.current_database() \
         where w.publication = p.pubname order by 1) \
         from pg_catalog.pg_publication_rel r join pg_catalog.pg_publication p on p.oid = r.prpubid \
         where r.prrelid = $1 and p.pubinsert order by p.pubname"
    );
    let rows = LOOK
        .run(session.role(), session.client().query(&sql, &[&table, &name]))
        .await?;
    let mut found = Vec::new();
    for row in &rows {
        let filter: Option<&str> = column(row, 1, LOOK.purpose)?;
        let type_oid: Option<Oid> = column(row, 2, LOOK.purpose)?;
        let shard = match PublishedRows::of_filter(filter, name, type_oid) {
            PublishedRows::All => None,
            PublishedRows::Shard(shard) => Some(shard),
            PublishedRows::Filtered => continue,
        };
        found.push(Reader {
            publication: column(row, 0, LOOK.purpose)?,
            shard,
            slots: column(row, 3, LOOK.purpose)?,
        });
    }
    found.sort_by(|one, other| (one.shard, &one.publication).cmp(&(other.shard, &other.publication)));
    Ok(found)
}
