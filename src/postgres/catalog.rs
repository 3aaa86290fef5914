//! Facts read from the catalogs; nothing here changes anything. Preflight, set-up and doctor judge by them.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Oid};
use walrelay_engine::Lsn;

use super::control::ControlSession;
use super::error::{Error, Step};
use super::identifier::{PublicationName, QualifiedTable};
use super::outbox::Outbox;
use super::shard::PublishedRows;
use super::startup::ServerVersion;

/// The server, and what our role may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The version.
    pub version: ServerVersion,
    /// `replica`, `logical` …
    pub wal_level: String,
    /// Whether it is a standby.
    pub in_recovery: bool,
    /// The current database.
    pub database: String,
    /// Its encoding, as `server_encoding` names it.
    pub encoding: String,
    /// Our role.
    pub role: String,
    /// Whether the role may replicate: REPLICATION, superuser, or a managed service's own way.
    pub may_replicate: bool,
    /// `synchronous_standby_names`.
    pub synchronous_standby_names: String,
    /// `synchronized_standby_slots`, which came with 17; empty before.
    pub synchronized_standby_slots: String,
    /// Whether a standby, or something like one, has a slot.
    pub has_physical_slot: bool,
}

/// A publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicationFacts {
    /// Its object id.
    pub oid: Oid,
    /// Whether inserts are published.
    pub inserts: bool,
    /// Whether updates, deletes or truncations are published too: of no use to us, and never relayed.
    pub more_than_inserts: bool,
    /// Whether it is `for all tables`.
    pub all_tables: bool,
    /// Whether rows of partitions come under the root's name.
    pub via_partition_root: bool,
    /// What it publishes in effect, as `pg_publication_tables` lists it: with partitions in place of a root
    /// unless [`via_partition_root`](Self::via_partition_root).
    pub tables: Vec<QualifiedTable>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableFacts {
    /// Its object id.
    pub oid: Oid,
    /// What kind of relation it is.
    pub kind: TableKind,
    /// Whether its rows reach the WAL: neither unlogged nor temporary, and no partition of it is.
    pub logged: bool,
    /// Its columns in their order.
    pub columns: Vec<Column>,
    /// Which of its rows the publication has, by its row filter on it, or on a table above or below it in a partition tree.
    pub published: PublishedRows,
    /// Whether the publication has a column list on it, or on a table above or below it in a partition tree.
    pub column_list: bool,
}

/// What kind of relation a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// A plain table, possibly a partition.
    Plain,
    /// The root of partitions.
    Partitioned,
    /// A view, a foreign table, an index …: it cannot be published.
    Other,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its type, which for a domain is the domain.
    pub type_oid: Oid,
    /// The type as SQL names it.
    pub type_name: String,
    /// Whether NULL is refused.
    pub not_null: bool,
}

impl ServerFacts {
    /// Reads them.
    ///
    /// # Errors
    /// The query fails.
    pub async fn read(session: &ControlSession) -> Result<Self, Error> {
        const PURPOSE: &str = "look at the server's settings";
        // Amazon RDS lets members of a role of its own replicate.
        let sql = "select current_setting('server_version_num')::int, current_setting('wal_level'), \
                   pg_catalog.pg_is_in_recovery(), current_database()::text, r.rolname::text, \
                   r.rolreplication or r.rolsuper or exists (select from pg_catalog.pg_roles m \
                   where m.rolname = 'rds_replication' and pg_catalog.pg_has_role(r.oid, m.oid, 'member')), \
                   current_setting('synchronous_standby_names'), \
                   coalesce(current_setting('synchronized_standby_slots', true), ''), \
                   exists (select from pg_catalog.pg_replication_slots where slot_type = 'physical'), \
                   current_setting('server_encoding') \
                   from pg_catalog.pg_roles r where r.rolname = current_user";
        let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
        let number: i32 = column(&row, 0, PURPOSE)?;
        Ok(Self {
            version: ServerVersion::from_number(u32::try_from(number).unwrap_or(0)),
            wal_level: column(&row, 1, PURPOSE)?,
            in_recovery: column(&row, 2, PURPOSE)?,
            database: column(&row, 3, PURPOSE)?,
            role: column(&row, 4, PURPOSE)?,
            may_replicate: column(&row, 5, PURPOSE)?,
            synchronous_standby_names: column(&row, 6, PURPOSE)?,
            synchronized_standby_slots: column(&row, 7, PURPOSE)?,
            has_physical_slot: column(&row, 8, PURPOSE)?,
            encoding: column(&row, 9, PURPOSE)?,
        })
    }
}

impl PublicationFacts {
    /// Reads them; `None` if there is no such publication.
    ///
    /// # Errors
    /// A query fails.
    pub async fn read(session: &ControlSession, name: &PublicationName) -> Result<Option<Self>, Error> {
        const PURPOSE: &str = "look at the publication";
        let sql = "select oid, pubinsert, pubupdate or pubdelete or pubtruncate, puballtables, pubviaroot \
                   from pg_catalog.pg_publication where pubname = $1";
        let key = name.as_str();
        let row = session
            .run(PURPOSE, session.client().query_opt(sql, &[&key]))
            .await?;
        let Some(row) = row else { return Ok(None) };

        let sql = "select schemaname::text, tablename::text from pg_catalog.pg_publication_tables \
                   where pubname = $1 order by 1, 2";
        let members = session.run(PURPOSE, session.client().query(sql, &[&key])).await?;
        let tables = members.iter().map(|row| {
            Ok(QualifiedTable {
                schema: column(row, 0, PURPOSE)?,
                name: column(row, 1, PURPOSE)?,
            })
        });
        Ok(Some(Self {
            oid: column(&row, 0, PURPOSE)?,
            inserts: column(&row, 1, PURPOSE)?,
            more_than_inserts: column(&row, 2, PURPOSE)?,
            all_tables: column(&row, 3, PURPOSE)?,
            via_partition_root: column(&row, 4, PURPOSE)?,
            tables: tables.collect::<Result<_, Error>>()?,
        }))
    }
}

impl TableFacts {
    /// Reads them, with what `publication` (where it exists) filters of the table; `None` if there is no
    /// such table.
    ///
    /// # Errors
    /// A query fails.
    pub async fn read(
        session: &ControlSession,
        outbox: &Outbox,
        publication: Option<&PublicationFacts>,
        version: ServerVersion,
    ) -> Result<Option<Self>, Error> {
        let (table, aggregate_id) = (&outbox.table, outbox.aggregate_id());
        const PURPOSE: &str = "look at the outbox table";
        // All of a partition tree counts: the rows are stored in its leaves.
        let sql = "select c.oid, c.relkind::text, c.relpersistence = 'p' and not exists (select \
                   from pg_catalog.pg_partition_tree(c.oid) t join pg_catalog.pg_class p on p.oid = t.relid \
                   where p.relpersistence <> 'p') \
                   from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                   where n.nspname = $1 and c.relname = $2";
        let row = session
            .run(
                PURPOSE,
                session.client().query_opt(sql, &[&table.schema, &table.name]),
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let oid: Oid = column(&row, 0, PURPOSE)?;
        let kind: String = column(&row, 1, PURPOSE)?;

        let sql = "select attname::text, atttypid, pg_catalog.format_type(atttypid, atttypmod), attnotnull from pg_catalog.pg_attribute \
                   where attrelid = $1 and attnum > 0 and not attisdropped order by attnum";
        let columns = session.run(PURPOSE, session.client().query(sql, &[&oid])).await?;
        let columns = columns.iter().map(|row| {
            Ok(Column {
                name: column(row, 0, PURPOSE)?,
                type_oid: column(row, 1, PURPOSE)?,
                type_name: column(row, 2, PURPOSE)?,
                not_null: column(row, 3, PURPOSE)?,
            })
        });
        let columns: Vec<Column> = columns.collect::<Result<_, Error>>()?;
        let aggregate = columns.iter().find(|column| column.name == aggregate_id);
        let (published, column_list) = match publication {
            Some(publication) if version.major >= 15 => {
                let type_oid = aggregate.map(|column| column.type_oid);
                filters(session, oid, publication.oid, (aggregate_id, type_oid)).await?
            }
            _ => (PublishedRows::All, false),
        };
        Ok(Some(Self {
            oid,
            kind: match kind.as_str() {
                "r" => TableKind::Plain,
                "p" => TableKind::Partitioned,
                _ => TableKind::Other,
            },
            logged: column(&row, 2, PURPOSE)?,
            columns,
            published,
            column_list,
        }))
    }

    /// Whether there is a column of this name.
    #[must_use]
    pub fn has_column(&self, name: &str) -> bool {
        self.column(name).is_some()
    }

    /// The column of this name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// Row filters and column lists came with 15; both drop data without a word. A filter is ours only where it alone holds.
async fn filters(
    session: &ControlSession,
    table: Oid,
    publication: Oid,
    (aggregate_id, type_oid): (&str, Option<Oid>),
) -> Result<(PublishedRows, bool), Error> {
    const PURPOSE: &str = "look for row filters and column lists";
    let sql = "select pg_catalog.max(pg_catalog.pg_get_expr(prqual, prrelid)) filter (where prrelid = $1), \
               coalesce(bool_or(prqual is not null and prrelid <> $1), false), \
               coalesce(bool_or(prattrs is not null), false) \
               from pg_catalog.pg_publication_rel where prpubid = $2 and (prrelid = $1 \
               or prrelid in (select relid from pg_catalog.pg_partition_ancestors($1)) \
               or prrelid in (select relid from pg_catalog.pg_partition_tree($1)))";
    let row = session
        .run(PURPOSE, session.client().query_one(sql, &[&table, &publication]))
        .await?;
    let filter: Option<&str> = column(&row, 0, PURPOSE)?;
    let published = match column(&row, 1, PURPOSE)? {
        true => PublishedRows::Filtered,
        false => PublishedRows::of_filter(filter, aggregate_id, type_oid),
    };
    Ok((published, column(&row, 2, PURPOSE)?))
}

/// Reads one column of a row as the type that the query gives it.
pub(super) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    index: usize,
    purpose: &'static str,
) -> Result<T, Error> {
    row.try_get(index).map_err(|source| Error::Sql {
        step: Step::Query(purpose),
        source,
    })
}

/// Reads a `pg_lsn` that the query cast to text.
pub(super) fn position(row: &Row, index: usize, purpose: &'static str) -> Result<Option<Lsn>, Error> {
    let text: Option<&str> = column(row, index, purpose)?;
    text.map(str::parse).transpose().map_err(|_| Error::Protocol {
        step: Step::Query(purpose),
        what: "a position that is no number",
    })
}
