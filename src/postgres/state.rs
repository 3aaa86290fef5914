//! The baseline: what publication, members and outbox tables were at set-up, in `walrelay.state` (rule 5).

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use tokio_postgres::types::Oid;
use walrelay_engine::Lsn;

use super::catalog::{column, position};
use super::control::ControlSession;
use super::error::{Error, Step};
use super::identifier::{QualifiedTable, SlotName};
use super::preflight::Source;
use super::slot::SlotState;
use super::table_use::Use;

/// What decides which rows are published, as it was at one moment.
///
/// Object ids alone do not tell: a publication set to `update` and back keeps its id, and the rows between are lost.
/// Its row's `xmin`, the transaction that wrote the row last, does change. Freezing keeps `xmin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    /// The cluster.
    pub system_id: String,
    /// Its timeline then; a promotion changes it and nothing else.
    pub timeline: i32,
    /// The publication's name.
    pub publication: String,
    /// Its row; `None` if there is no such publication.
    pub row: Option<PublicationRow>,
    /// Its members, by kind and object.
    pub members: Vec<Member>,
    /// The outbox tables, in the order of [`Source::tables`].
    pub tables: Vec<TableMark>,
}

/// The baseline of a slot, and what there is to compare with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// What set-up has written; none before.
    pub stored: Option<Baseline>,
    /// What is there now.
    pub observed: Baseline,
    /// The slot; none if there is no such slot.
    pub slot: Option<SlotState>,
    /// The end of the flushed log.
    pub log_end: Lsn,
}

/// A row of `pg_publication`.
/// <https://www.postgresql.org/docs/current/catalog-pg-publication.html>
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationRow {
    /// Its object id.
    pub oid: Oid,
    /// The transaction that wrote the row last, as text.
    pub xmin: String,
    /// What is published, for people: `xmin` covers it.
    pub options: PublicationOptions,
}

/// What a publication publishes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationOptions {
    /// `for all tables`.
    pub all_tables: bool,
    /// Inserts.
    pub insert: bool,
    /// Updates.
    pub update: bool,
    /// Deletes.
    pub delete: bool,
    /// Truncations.
    pub truncate: bool,
    /// `publish_via_partition_root`.
    pub via_partition_root: bool,
}

/// A row of `pg_publication_rel` or `pg_publication_namespace` (15 and newer).
/// <https://www.postgresql.org/docs/current/catalog-pg-publication-rel.html>
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Which of the two.
    pub kind: MemberKind,
    /// The table or schema.
    pub object: Oid,
    /// Its name when the row was looked at, for people.
    pub name: String,
    /// The row's own object id.
    pub oid: Oid,
    /// The transaction that wrote the row last, as text. A changed row filter or column list is a new row.
    pub xmin: String,
}

/// What kind of member a publication has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberKind {
    /// One table.
    Table,
    /// All tables of a schema.
    Schema,
}

/// A configured outbox table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableMark {
    /// Its schema as configured.
    pub schema: String,
    /// Its name as configured.
    pub name: String,
    /// The object of that name; `None` if there is none.
    pub oid: Option<Oid>,
}

impl TableMark {
    /// The configured name.
    #[must_use]
    pub fn qualified(&self) -> QualifiedTable {
        QualifiedTable {
            schema: self.schema.clone(),
            name: self.name.clone(),
        }
    }
}

/// Which command writes a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// `walrelay setup`
    Setup,
    /// `walrelay recover`
    Recover,
}

impl Author {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Setup => "setup",
            Self::Recover => "recover",
        }
    }
}

impl Baseline {
    /// Looks at what is there now, in one snapshot. Any role may.
    ///
    /// # Errors
    /// A query fails; on a standby it does (55000).
    pub async fn observe(session: &ControlSession, source: &Source) -> Result<Self, Error> {
        const PURPOSE: &str = "look at publication and outbox tables";
        let sql = format!("select {}", observed_columns(session).await?);
        let (schemas, names) = table_names(source);
        let row = session
            .run(
                PURPOSE,
                session
                    .client()
                    .query_one(&sql, &[&source.publication.as_str(), &schemas, &names]),
            )
            .await?;
        Self::from_observed(&row, source, PURPOSE)
    }

    /// Reads the slot's baseline, together with what is there now, in one snapshot, so that a change and the
    /// baseline that takes it in are seen together or not at all; and how the slot stands.
    ///
    /// Grants: usage on schema `walrelay`, select on `walrelay.state`.
    ///
    /// # Errors
    /// A query fails; [`Error::GrantMissing`], [`Error::OwnSchema`] before migration 2.
    pub async fn load(session: &ControlSession, source: &Source) -> Result<Loaded, Error> {
        const STATE: Use = Use::own("read the baseline", "select", &["state"]);
        let sql = format!(
            "select {}, s.system_id, s.timeline, s.publication, s.publication_oid, s.publication_xmin, \
             s.publication_options::text, s.members::text, s.tables::text, \
             pg_catalog.pg_current_wal_flush_lsn()::text, {} from (values (1)) one \
             left join walrelay.state s on s.slot = $4 \
             left join pg_catalog.pg_replication_slots r on r.slot_name = $4",
            observed_columns(session).await?,
            SlotState::SELECTED
        );
        let (schemas, names) = table_names(source);
        let row = STATE
            .run(
                session.role(),
                session.client().query_one(
                    &sql,
                    &[
                        &source.publication.as_str(),
                        &schemas,
                        &names,
                        &source.slot.as_str(),
                    ],
                ),
            )
            .await?;
        let observed = Self::from_observed(&row, source, STATE.purpose)?;
        let system_id: Option<String> = column(&row, OBSERVED, STATE.purpose)?;
        let stored = system_id.map(|system_id| Self::from_stored(&row, system_id, STATE.purpose));
        Ok(Loaded {
            stored: stored.transpose()?,
            observed,
            log_end: position(&row, OBSERVED + STORED, STATE.purpose)?.unwrap_or_default(),
            slot: SlotState::of(&row, OBSERVED + STORED + 1, STATE.purpose)?,
        })
    }

    fn from_stored(row: &Row, system_id: String, purpose: &'static str) -> Result<Self, Error> {
        Ok(Self {
            system_id,
            timeline: column(row, OBSERVED + 1, purpose)?,
            publication: column(row, OBSERVED + 2, purpose)?,
            row: Some(PublicationRow {
                oid: column(row, OBSERVED + 3, purpose)?,
                xmin: column(row, OBSERVED + 4, purpose)?,
                options: json(row, OBSERVED + 5, purpose)?,
            }),
            members: json(row, OBSERVED + 6, purpose)?,
            tables: json(row, OBSERVED + 7, purpose)?,
        })
    }

    /// From here on the slot brings every row that is written: a sweep may touch no older one (rule 21). What is known
    /// already stays, unless it is to be said `anew`: after a time in which rows were written that the slot does not bring.
    ///
    /// # Errors
    /// The statement fails.
    pub(super) async fn write_sweep_start(
        session: &ControlSession,
        slot: &SlotName,
        anew: bool,
    ) -> Result<(), Error> {
        const STATE: Use = Use::own("record where sweeps begin", "select, update", &["state"]);
        let sql = "update walrelay.state set unswept_xid = pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()), \
                   unswept_since = now() where slot = $1 and (unswept_xid is null or $2)";
        STATE
            .run(
                session.role(),
                session.client().execute(sql, &[&slot.as_str(), &anew]),
            )
            .await
            .map(drop)
    }

    /// Writes this as the slot's baseline. For `setup` and `recover` only: whoever else writes it makes the relay
    /// forget that rows may be missing. The settled prefix (rule 19) stays only where the slot is the same and the
    /// cluster too.
    ///
    /// Grants: usage on schema `walrelay`, select, insert and update on `walrelay.state`.
    ///
    /// # Errors
    /// A query fails, or there is no publication to write down.
    pub(super) async fn write(
        &self,
        session: &ControlSession,
        slot: &SlotName,
        author: Author,
        new_slot: bool,
    ) -> Result<(), Error> {
        const STATE: Use = Use::own("write the baseline", "select, insert, update", &["state"]);
        let invalid = |what| Error::Protocol {
            step: Step::Query(STATE.purpose),
            what,
        };
        let row = self.row.as_ref().ok_or(invalid("no publication"))?;
        let text = |value: Result<String, serde_json::Error>| value.map_err(|_| invalid("no JSON"));
        let options = text(serde_json::to_string(&row.options))?;
        let members = text(serde_json::to_string(&self.members))?;
        let tables = text(serde_json::to_string(&self.tables))?;
        let sql = "insert into walrelay.state as s (slot, system_id, timeline, publication, publication_oid, \
                   publication_xmin, publication_options, members, tables, baseline_by) \
                   values ($1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, $9::text::json, $10) \
                   on conflict (slot) do update set system_id = excluded.system_id, timeline = excluded.timeline, \
                   publication = excluded.publication, publication_oid = excluded.publication_oid, \
                   publication_xmin = excluded.publication_xmin, \
                   publication_options = excluded.publication_options, members = excluded.members, \
                   tables = excluded.tables, baseline_by = excluded.baseline_by, baseline_at = now(), \
                   (settled_commit_lsn, settled_tx_seq, settled_complete, unswept_xid, unswept_since) = \
                   (select o.settled_commit_lsn, o.settled_tx_seq, coalesce(o.settled_complete, true), o.unswept_xid, \
                   o.unswept_since from (values (1)) one left join walrelay.state o on o.slot = excluded.slot \
                   and o.system_id = excluded.system_id and not $11)";
        STATE
            .run(
                session.role(),
                session.client().execute(
                    sql,
                    &[
                        &slot.as_str(),
                        &self.system_id,
                        &self.timeline,
                        &self.publication,
                        &row.oid,
                        &row.xmin,
                        &options,
                        &members,
                        &tables,
                        &author.as_str(),
                        &new_slot,
                    ],
                ),
            )
            .await
            .map(drop)
    }

    fn from_observed(row: &Row, source: &Source, purpose: &'static str) -> Result<Self, Error> {
        let publication: Option<String> = column(row, 2, purpose)?;
        Ok(Self {
            system_id: column(row, 0, purpose)?,
            timeline: column(row, 1, purpose)?,
            publication: source.publication.to_string(),
            row: publication
                .as_deref()
                .map(|text| parse(text, purpose))
                .transpose()?,
            members: json(row, 3, purpose)?,
            tables: json(row, 4, purpose)?,
        })
    }
}

/// How many columns [`observed_columns`] selects, and how many a stored baseline has.
const OBSERVED: usize = 5;
const STORED: usize = 8;

/// What to select for an observation, from the publication's name as `$1` and the tables' schemas and names as
/// `$2` and `$3`.
async fn observed_columns(session: &ControlSession) -> Result<String, Error> {
    const PURPOSE: &str = "look for publications of schemas";
    let sql = "select pg_catalog.to_regclass('pg_catalog.pg_publication_namespace') is not null";
    let row = session.run(PURPOSE, session.client().query_one(sql, &[])).await?;
    let schemas = if column(&row, 0, PURPOSE)? {
        "union all select 'schema', m.pnnspid::bigint, pg_catalog.quote_ident(n.nspname), m.oid::bigint, \
         m.xmin::text from pg_catalog.pg_publication_namespace m \
         join pg_catalog.pg_publication p on p.oid = m.pnpubid \
         join pg_catalog.pg_namespace n on n.oid = m.pnnspid where p.pubname = $1"
    } else {
        ""
    };
    // The timeline from the name of the file that is written, since the control file lags behind a promotion.
    Ok(format!(
        "(select system_identifier::text from pg_catalog.pg_control_system()), \
         ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int, \
         (select pg_catalog.json_build_object('oid', oid::bigint, 'xmin', xmin::text, 'options', \
         pg_catalog.json_build_object('all_tables', puballtables, 'insert', pubinsert, 'update', pubupdate, \
         'delete', pubdelete, 'truncate', pubtruncate, 'via_partition_root', pubviaroot))::text \
         from pg_catalog.pg_publication where pubname = $1), \
         (select coalesce(pg_catalog.json_agg(m order by m.kind, m.object), '[]')::text from (\
         select 'table' as kind, m.prrelid::bigint as object, pg_catalog.format('%I.%I', n.nspname, c.relname) as name, \
         m.oid::bigint as oid, m.xmin::text as xmin from pg_catalog.pg_publication_rel m \
         join pg_catalog.pg_publication p on p.oid = m.prpubid \
         join pg_catalog.pg_class c on c.oid = m.prrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
         where p.pubname = $1 {schemas}) m), \
         (select coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('schema', t.s, 'name', t.n, 'oid', \
         c.oid::bigint) order by t.place), '[]')::text from unnest($2::text[], $3::text[]) \
         with ordinality t (s, n, place) left join pg_catalog.pg_namespace ns on ns.nspname = t.s \
         left join pg_catalog.pg_class c on c.relnamespace = ns.oid and c.relname = t.n)"
    ))
}

fn table_names(source: &Source) -> (Vec<&str>, Vec<&str>) {
    source
        .tables()
        .map(|table| (table.schema.as_str(), table.name.as_str()))
        .unzip()
}

fn json<T: DeserializeOwned>(row: &Row, index: usize, purpose: &'static str) -> Result<T, Error> {
    parse(column(row, index, purpose)?, purpose)
}

fn parse<T: DeserializeOwned>(text: &str, purpose: &'static str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|_| Error::Protocol {
        step: Step::Query(purpose),
        what: "JSON of another form",
    })
}
