//! What is missing or does not fit, and which fault each is.

use walrelay_engine::Lsn;

use super::super::identifier::{PublicationName, QualifiedTable, SlotName};
use super::super::marker::MarkerUnfit;
use super::super::shard::{MIN_SHARD_MAJOR, Part, Shard};
use super::super::slot::PLUGIN;
use super::super::startup::{MIN_SERVER_MAJOR, ServerVersion};
use super::missing::MissingColumns;
use crate::fault::FaultKind;

/// What is missing or does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The server is too old.
    #[error("the server is PostgreSQL {version}; walrelay needs {MIN_SERVER_MAJOR} or newer")]
    ServerTooOld {
        /// Its version.
        version: ServerVersion,
    },
    /// The database's texts have no known encoding.
    #[error(
        "the database `{database}` has the encoding SQL_ASCII, which lets bytes pass that are no text in any encoding"
    )]
    Encoding {
        /// The database.
        database: String,
    },
    /// The server is a standby.
    #[error("the server is a standby (in recovery)")]
    Standby,
    /// The server's sessions may not write.
    #[error("the server lets sessions of this role read only (default_transaction_read_only = on)")]
    ReadOnly,
    /// No logical decoding.
    #[error("wal_level is `{wal_level}`, not `logical`")]
    WalLevel {
        /// The setting.
        wal_level: String,
    },
    /// The role may not replicate.
    #[error("the role `{role}` lacks the attribute REPLICATION")]
    Role {
        /// The role.
        role: String,
    },
    /// The stream would be a synchronous standby.
    #[error("synchronous_standby_names ({setting}) takes our stream, `{name}`, for a synchronous standby")]
    SynchronousStandby {
        /// The setting.
        setting: String,
        /// Our stream's `application_name`.
        name: String,
    },
    /// No slot.
    #[error("the replication slot `{slot}` does not exist")]
    SlotMissing {
        /// Its name.
        slot: SlotName,
    },
    /// No slot, nor was there ever one.
    #[error("the replication slot `{slot}` does not exist, and was never set up in this database")]
    NotSetUp {
        /// Its name.
        slot: SlotName,
    },
    /// No slot, though one was set up: a new one would begin behind the events that it has missed.
    #[error("slot `{slot}` was set up before and is gone")]
    SlotGone {
        /// Its name.
        slot: SlotName,
    },
    /// A physical slot.
    #[error("the replication slot `{slot}` is a physical one")]
    SlotPhysical {
        /// Its name.
        slot: SlotName,
    },
    /// A slot of another plugin.
    #[error("the replication slot `{slot}` uses the plugin `{plugin}`, not `{PLUGIN}`")]
    SlotPlugin {
        /// Its name.
        slot: SlotName,
        /// Its plugin.
        plugin: String,
    },
    /// A slot of another database.
    #[error("the replication slot `{slot}` belongs to the database `{database}`, not to `{ours}`")]
    SlotDatabase {
        /// Its name.
        slot: SlotName,
        /// Its database.
        database: String,
        /// The database of the URL.
        ours: String,
    },
    /// A slot whose WAL is gone.
    #[error("the replication slot `{slot}` is lost: the server removed WAL that it needed")]
    SlotLost {
        /// Its name.
        slot: SlotName,
    },
    /// A set-up that did not end.
    #[error("the set-up of the slot `{slot}` was interrupted")]
    SetupInterrupted {
        /// Its name.
        slot: SlotName,
    },
    /// A recovery that did not end.
    #[error("the replication slot `{slot}` was being recovered, which was interrupted")]
    RecoveryInterrupted {
        /// Its name.
        slot: SlotName,
    },
    /// Rows that cannot be looked for.
    #[error("the rows of {table} that are there cannot be looked for: {why}")]
    Backfill {
        /// The table.
        table: QualifiedTable,
        /// Why, in words.
        why: String,
    },
    /// Rows of a lost slot that nothing tells apart from those that were sent.
    #[error("nothing tells which rows of {table} the slot `{slot}` has missed: it has no marks")]
    NothingTells {
        /// The table.
        table: QualifiedTable,
        /// The slot.
        slot: SlotName,
    },
    /// No publication.
    #[error("the publication `{publication}` does not exist")]
    PublicationMissing {
        /// Its name.
        publication: PublicationName,
    },
    /// A publication without inserts.
    #[error("the publication `{publication}` does not publish inserts")]
    WithoutInserts {
        /// Its name.
        publication: PublicationName,
    },
    /// A row filter.
    #[error("the publication `{publication}` has a row filter on {table}: rows would be missed silently")]
    RowFilter {
        /// Its name.
        publication: PublicationName,
        /// The table.
        table: QualifiedTable,
    },
    /// Another shard than the one configured.
    #[error(
        "the publication `{publication}` publishes {} of {table}, the configuration says {}",
        Part(*.published),
        Part(*.configured)
    )]
    ShardMismatch {
        /// Its name.
        publication: PublicationName,
        /// The table.
        table: QualifiedTable,
        /// What it publishes.
        published: Option<Shard>,
        /// What is configured.
        configured: Option<Shard>,
    },
    /// A slot of another publication, and so of other rows.
    #[error(
        "the slot `{slot}` was set up for the publication `{publication}`, so it is not free for shard {shard}"
    )]
    ShardSlotTaken {
        /// The slot.
        slot: SlotName,
        /// The publication that it was set up for.
        publication: String,
        /// The shard that it should be for.
        shard: Shard,
    },
    /// An aggregate without a hash that a row filter may use.
    #[error(
        "the column `{column}` of {table} is of the type {type_name}, which no row filter can hash: shards need bigint, \
         integer, smallint, numeric, text, varchar, char or uuid"
    )]
    ShardType {
        /// The table.
        table: QualifiedTable,
        /// The column.
        column: String,
        /// The type as SQL names it.
        type_name: String,
    },
    /// A filter that the server does not take.
    #[error("the server takes no row filter on the column `{column}`: {why}")]
    ShardRefused {
        /// The column.
        column: String,
        /// What the server says.
        why: String,
    },
    /// A server without row filters.
    #[error(
        "shard {shard} needs row filters, which came with PostgreSQL {MIN_SHARD_MAJOR}; the server is {version}"
    )]
    ShardsTooOld {
        /// What is configured.
        shard: Shard,
        /// Its version.
        version: ServerVersion,
    },
    /// Another slot brings the rows of a table that a new one could send as well.
    #[error(
        "the slot `{reader}` brings {} of {table} too, so the rows that are there may be its own: say `--backfill none` where \
         `{slot}` takes its place, `--backfill unsent` where each of them delivers on its own",
        Part(*.part)
    )]
    ShardSuccession {
        /// The table.
        table: QualifiedTable,
        /// The new slot.
        slot: SlotName,
        /// The other one.
        reader: String,
        /// Which rows that one brings.
        part: Option<Shard>,
    },
    /// A slot that starts before the one whose place it takes has come to its start.
    #[error(
        "the slot `{slot}` starts at {start}, and the slot `{predecessor}`, whose place it takes, has confirmed up to {confirmed} \
         only: its events come first"
    )]
    BeforeItsTurn {
        /// The slot.
        slot: SlotName,
        /// Where it starts.
        start: Lsn,
        /// The other one.
        predecessor: String,
        /// How far that one has come.
        confirmed: Lsn,
    },
    /// A slot that goes before it has brought what lies before those that take its place.
    #[error(
        "the slot `{slot}` has confirmed up to {confirmed} only, and the slot `{heir}`, which brings the same rows, starts at \
         {start}: nobody would deliver what lies between"
    )]
    NotDrained {
        /// The slot.
        slot: SlotName,
        /// How far it has come.
        confirmed: Lsn,
        /// The one that takes its place.
        heir: String,
        /// Where that one starts.
        start: Lsn,
    },
    /// A column list.
    #[error("the publication `{publication}` has a column list on {table}: columns would be missed silently")]
    ColumnList {
        /// Its name.
        publication: PublicationName,
        /// The table.
        table: QualifiedTable,
    },
    /// Rows of partitions would come under the partitions' names.
    #[error("{table} is partitioned, and the publication `{publication}` lacks publish_via_partition_root")]
    NotViaRoot {
        /// Its name.
        publication: PublicationName,
        /// The table.
        table: QualifiedTable,
    },
    /// No table.
    #[error("the table {table} does not exist")]
    TableMissing {
        /// The table.
        table: QualifiedTable,
    },
    /// Something else of that name.
    #[error("{table} is not a table, so it cannot be published")]
    NotATable {
        /// The name.
        table: QualifiedTable,
    },
    /// A table outside the WAL.
    #[error("the table {table}, or a partition of it, is unlogged: its rows never reach the WAL")]
    Unlogged {
        /// The table.
        table: QualifiedTable,
    },
    /// A table without columns that an event needs.
    #[error("{0}")]
    ColumnsMissing(MissingColumns),
    /// A table without columns that templates or rules name.
    #[error("the table {table} has no column {columns}")]
    NamedColumnsMissing {
        /// The table.
        table: QualifiedTable,
        /// The columns, each with the setting.
        columns: String,
    },
    /// A payload that no body can be made of.
    #[error(
        "the column `{column}` of the table {table} is of the type {type_name}, not json, jsonb, text or bytea"
    )]
    PayloadType {
        /// The table.
        table: QualifiedTable,
        /// The column.
        column: String,
        /// The type as SQL names it.
        type_name: String,
    },
    /// A table that is not published.
    #[error("the table {table} is not in the publication `{publication}`")]
    NotPublished {
        /// The table.
        table: QualifiedTable,
        /// The publication.
        publication: PublicationName,
    },
    /// The configured SQL about marks does not serve.
    #[error(transparent)]
    Marker(#[from] MarkerUnfit),
    /// A table that is missing and whose columns are not those that set-up creates.
    #[error(
        "the table {table} does not exist, and `walrelay setup` creates none with other columns than its own"
    )]
    NotCreated {
        /// The table.
        table: QualifiedTable,
    },
    /// No role that could get rights.
    #[error("role `{role}` does not exist")]
    RoleMissing {
        /// Its name.
        role: String,
    },
    /// The role may not do all of a teardown.
    #[error(
        "the role `{role}` may not tear down, and nothing was dropped: it lacks {}", lacks.join(", ")
    )]
    MayNotTearDown {
        /// The role.
        role: String,
        /// What it lacks.
        lacks: Vec<String>,
    },
    /// A table whose rows another slot marks (rule 20).
    #[error("the rows of table {table} are marked by slot `{owner}`")]
    MarksOwned {
        /// The table.
        table: QualifiedTable,
        /// That slot.
        owner: String,
    },
}

impl Unfit {
    /// Which fault this is.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Self::ServerTooOld { .. } | Self::Encoding { .. } => FaultKind::DatabaseUnsupported,
            Self::Standby | Self::ReadOnly => FaultKind::DatabaseStandby,
            Self::WalLevel { .. } => FaultKind::WalLevel,
            Self::Role { .. } => FaultKind::ReplicationRole,
            Self::SynchronousStandby { .. } => FaultKind::SynchronousStandby,
            Self::SlotMissing { .. } | Self::SlotGone { .. } => FaultKind::SlotMissing,
            Self::NotSetUp { .. } => FaultKind::NotSetUp,
            Self::SlotPhysical { .. } | Self::SlotPlugin { .. } | Self::SlotDatabase { .. } => {
                FaultKind::SlotForeign
            }
            Self::SlotLost { .. } => FaultKind::SlotLost,
            Self::SetupInterrupted { .. } => FaultKind::SetupInterrupted,
            Self::RecoveryInterrupted { .. } => FaultKind::RecoveryInterrupted,
            Self::Backfill { .. } => FaultKind::BackfillUnfit,
            Self::NothingTells { .. } => FaultKind::NothingTells,
            Self::PublicationMissing { .. } => FaultKind::PublicationMissing,
            Self::WithoutInserts { .. }
            | Self::RowFilter { .. }
            | Self::ColumnList { .. }
            | Self::NotViaRoot { .. } => FaultKind::PublicationUnfit,
            Self::TableMissing { .. } | Self::NotATable { .. } | Self::NotCreated { .. } => {
                FaultKind::TableMissing
            }
            Self::Unlogged { .. } => FaultKind::TableUnlogged,
            Self::ColumnsMissing(_) => FaultKind::ColumnMissing,
            Self::NamedColumnsMissing { .. } => FaultKind::TemplateColumnMissing,
            Self::PayloadType { .. } => FaultKind::PayloadType,
            Self::NotPublished { .. } => FaultKind::TableNotPublished,
            Self::Marker(unfit) => unfit.kind(),
            Self::RoleMissing { .. } => FaultKind::RoleMissing,
            Self::MayNotTearDown { .. } => FaultKind::TeardownForbidden,
            Self::MarksOwned { .. } => FaultKind::MarksOwned,
            Self::ShardMismatch { .. } | Self::ShardSlotTaken { .. } => FaultKind::ShardMismatch,
            Self::ShardType { .. } | Self::ShardRefused { .. } | Self::ShardsTooOld { .. } => {
                FaultKind::ShardUnfit
            }
            Self::ShardSuccession { .. } => FaultKind::ShardSuccession,
            Self::NotDrained { .. } => FaultKind::NotDrained,
            Self::BeforeItsTurn { .. } => FaultKind::BeforeItsTurn,
        }
    }
}
