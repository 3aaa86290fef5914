//! The look before streaming: is everything there, and does it fit? What does not is a typed error with a fault.

use walrelay_engine::event::{AfterPublish, PayloadType, REQUIRED_COLUMNS};

use super::catalog::{PublicationFacts, ServerFacts, TableFacts, TableKind};
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{PublicationName, QualifiedTable, SlotName};
use super::slot::{PLUGIN, SlotState};
use super::startup::{MIN_SERVER_MAJOR, ServerVersion};
use super::synchronous;
use crate::fault::FaultKind;

/// What the relay reads from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The slot.
    pub slot: SlotName,
    /// The publication.
    pub publication: PublicationName,
    /// The outbox tables.
    pub tables: Vec<QualifiedTable>,
    /// What becomes of their rows once published, in the same order, as far as it is configured.
    pub after_publish: Vec<Option<AfterPublish>>,
}

impl Source {
    /// The tables, each with what is configured to become of its rows.
    pub fn marks(&self) -> impl Iterator<Item = (&QualifiedTable, Option<AfterPublish>)> {
        let settings = self.after_publish.iter().copied().chain(std::iter::repeat(None));
        self.tables.iter().zip(settings)
    }
}

/// What was found, all of it fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preflight {
    /// The server.
    pub server: ServerFacts,
    /// The slot. It may be active: whether another relay holds it is seen when the stream starts.
    pub slot: SlotState,
    /// The publication.
    pub publication: PublicationFacts,
    /// The outbox tables, in the order of [`Source::tables`].
    pub tables: Vec<TableFacts>,
    /// Tables of the publication that are no outbox of ours: a row of theirs halts the relay.
    pub others: Vec<QualifiedTable>,
}

/// What is missing or does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The server is too old.
    #[error("the server is PostgreSQL {version}; walrelay needs {MIN_SERVER_MAJOR} or newer")]
    ServerTooOld {
        /// Its version.
        version: ServerVersion,
    },
    /// The server is a standby.
    #[error("the server is a standby (in recovery)")]
    Standby,
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
    /// A table without a column that an event needs.
    #[error("the table {table} has no column `{column}`")]
    ColumnMissing {
        /// The table.
        table: QualifiedTable,
        /// The column.
        column: &'static str,
    },
    /// A payload that no body can be made of.
    #[error(
        "the column `payload` of the table {table} is of the type {type_name}, not json, jsonb, text or bytea"
    )]
    PayloadType {
        /// The table.
        table: QualifiedTable,
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
            Self::ServerTooOld { .. } => FaultKind::DatabaseUnsupported,
            Self::Standby => FaultKind::DatabaseStandby,
            Self::WalLevel { .. } => FaultKind::WalLevel,
            Self::Role { .. } => FaultKind::ReplicationRole,
            Self::SynchronousStandby { .. } => FaultKind::SynchronousStandby,
            Self::SlotMissing { .. } => FaultKind::SlotMissing,
            Self::SlotPhysical { .. } | Self::SlotPlugin { .. } | Self::SlotDatabase { .. } => {
                FaultKind::SlotForeign
            }
            Self::SlotLost { .. } => FaultKind::SlotLost,
            Self::PublicationMissing { .. } => FaultKind::PublicationMissing,
            Self::WithoutInserts { .. }
            | Self::RowFilter { .. }
            | Self::ColumnList { .. }
            | Self::NotViaRoot { .. } => FaultKind::PublicationUnfit,
            Self::TableMissing { .. } | Self::NotATable { .. } => FaultKind::TableMissing,
            Self::Unlogged { .. } => FaultKind::TableUnlogged,
            Self::ColumnMissing { .. } => FaultKind::ColumnMissing,
            Self::PayloadType { .. } => FaultKind::PayloadType,
            Self::NotPublished { .. } => FaultKind::TableNotPublished,
            Self::MarksOwned { .. } => FaultKind::MarksOwned,
        }
    }
}

/// Checks everything that streaming needs and returns what it found.
///
/// # Errors
/// The first thing that is unfit, as [`Error::Unfit`], from the server outwards; or a query fails.
pub async fn preflight(session: &ControlSession, source: &Source) -> Result<Preflight, Error> {
    let server = ServerFacts::read(session).await?;
    check_server(&server)?;
    check_synchronous(&server.synchronous_standby_names, session.stream_name())?;

    let slot = SlotState::read(session, &source.slot).await?;
    let publication = PublicationFacts::read(session, &source.publication).await?;
    let slot = check_slot(slot, &source.slot, &server.database)?;
    let publication = check_publication(publication, &source.publication)?;

    let mut tables = Vec::with_capacity(source.tables.len());
    for table in &source.tables {
        let facts = TableFacts::read(session, table, Some(&publication), server.version).await?;
        let facts = check_table(facts, table)?;
        check_membership(&facts, table, &publication, &source.publication)?;
        tables.push(facts);
    }
    let others = publication
        .tables
        .iter()
        .filter(|table| !source.tables.contains(table))
        .cloned()
        .collect();
    Ok(Preflight {
        server,
        slot,
        publication,
        tables,
        others,
    })
}

/// What of the server and our role streaming needs.
pub(super) fn check_server(server: &ServerFacts) -> Result<(), Unfit> {
    if server.version.major < MIN_SERVER_MAJOR {
        return Err(Unfit::ServerTooOld {
            version: server.version,
        });
    }
    if server.in_recovery {
        return Err(Unfit::Standby);
    }
    if server.wal_level != "logical" {
        return Err(Unfit::WalLevel {
            wal_level: server.wal_level.clone(),
        });
    }
    if !server.may_replicate {
        return Err(Unfit::Role {
            role: server.role.clone(),
        });
    }
    Ok(())
}

/// Commits must not wait for our confirmation: a dead letter's would, while we confirm nothing before it is stored,
/// and with it every writer's (rule 17).
fn check_synchronous(setting: &str, stream_name: &str) -> Result<(), Unfit> {
    if synchronous::names_standby(setting, stream_name) {
        return Err(Unfit::SynchronousStandby {
            setting: setting.to_owned(),
            name: stream_name.to_owned(),
        });
    }
    Ok(())
}

/// A slot must be ours to read and still have its WAL.
pub(super) fn check_slot(state: Option<SlotState>, slot: &SlotName, ours: &str) -> Result<SlotState, Unfit> {
    let slot = slot.clone();
    let Some(state) = state else {
        return Err(Unfit::SlotMissing { slot });
    };
    if !state.logical {
        return Err(Unfit::SlotPhysical { slot });
    }
    if let Some(plugin) = state.plugin.as_ref().filter(|plugin| *plugin != PLUGIN) {
        return Err(Unfit::SlotPlugin {
            slot,
            plugin: plugin.clone(),
        });
    }
    if let Some(database) = state.database.as_ref().filter(|database| *database != ours) {
        return Err(Unfit::SlotDatabase {
            slot,
            database: database.clone(),
            ours: ours.to_owned(),
        });
    }
    if state.is_lost() {
        return Err(Unfit::SlotLost { slot });
    }
    Ok(state)
}

/// The publication must exist and publish inserts.
pub(super) fn check_publication(
    facts: Option<PublicationFacts>,
    publication: &PublicationName,
) -> Result<PublicationFacts, Unfit> {
    let publication = publication.clone();
    match facts {
        None => Err(Unfit::PublicationMissing { publication }),
        Some(facts) if !facts.inserts => Err(Unfit::WithoutInserts { publication }),
        Some(facts) => Ok(facts),
    }
}

/// A table must exist, be logged and have the columns of an event.
pub(super) fn check_table(facts: Option<TableFacts>, table: &QualifiedTable) -> Result<TableFacts, Unfit> {
    let table = table.clone();
    let Some(facts) = facts else {
        return Err(Unfit::TableMissing { table });
    };
    if facts.kind == TableKind::Other {
        return Err(Unfit::NotATable { table });
    }
    if !facts.logged {
        return Err(Unfit::Unlogged { table });
    }
    if let Some(column) = REQUIRED_COLUMNS.into_iter().find(|name| !facts.has_column(name)) {
        return Err(Unfit::ColumnMissing { table, column });
    }
    let payload = facts.columns.iter().find(|column| column.name == "payload");
    match payload.filter(|payload| PayloadType::of(payload.type_oid).is_none()) {
        Some(payload) => Err(Unfit::PayloadType {
            table,
            type_name: payload.type_name.clone(),
        }),
        None => Ok(facts),
    }
}

/// A table must be published whole and under its own name.
pub(super) fn check_membership(
    facts: &TableFacts,
    table: &QualifiedTable,
    publication: &PublicationFacts,
    name: &PublicationName,
) -> Result<(), Unfit> {
    let (table, publication_name) = (table.clone(), name.clone());
    if facts.kind == TableKind::Partitioned && !publication.via_partition_root {
        return Err(Unfit::NotViaRoot {
            publication: publication_name,
            table,
        });
    }
    if !publication.tables.contains(&table) {
        return Err(Unfit::NotPublished {
            table,
            publication: publication_name,
        });
    }
    if facts.row_filter {
        return Err(Unfit::RowFilter {
            publication: publication_name,
            table,
        });
    }
    if facts.column_list {
        return Err(Unfit::ColumnList {
            publication: publication_name,
            table,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Column;
    use super::super::slot::WalStatus;
    use super::*;

    fn server() -> ServerFacts {
        ServerFacts {
            version: ServerVersion { major: 15, minor: 1 },
            wal_level: "logical".to_owned(),
            in_recovery: false,
            database: "shop".to_owned(),
            role: "walrelay".to_owned(),
            may_replicate: true,
            synchronous_standby_names: String::new(),
        }
    }

    fn slot() -> SlotState {
        SlotState {
            plugin: Some("pgoutput".to_owned()),
            logical: true,
            database: Some("shop".to_owned()),
            active_pid: None,
            wal_status: Some(WalStatus::Reserved),
            safe_wal_size: None,
            restart_lsn: None,
            confirmed_flush_lsn: None,
        }
    }

    fn table() -> TableFacts {
        let column = |name: &str| Column {
            name: name.to_owned(),
            type_oid: 25,
            type_name: "text".to_owned(),
            not_null: true,
        };
        TableFacts {
            oid: 1,
            kind: TableKind::Plain,
            logged: true,
            columns: REQUIRED_COLUMNS.map(column).to_vec(),
            row_filter: false,
            column_list: false,
        }
    }

    fn publication() -> PublicationFacts {
        PublicationFacts {
            oid: 2,
            inserts: true,
            more_than_inserts: false,
            all_tables: false,
            via_partition_root: false,
            tables: vec!["outbox".parse().unwrap()],
        }
    }

    /// The fault after one fact has been changed.
    fn server_fault(change: impl FnOnce(&mut ServerFacts)) -> Option<FaultKind> {
        let mut facts = server();
        change(&mut facts);
        check_server(&facts).err().map(|unfit| unfit.kind())
    }

    fn slot_fault(change: impl FnOnce(&mut SlotState)) -> Option<FaultKind> {
        let mut state = slot();
        change(&mut state);
        let name = "walrelay".parse().unwrap();
        check_slot(Some(state), &name, "shop")
            .err()
            .map(|unfit| unfit.kind())
    }

    fn table_fault(change: impl FnOnce(&mut TableFacts, &mut PublicationFacts)) -> Option<FaultKind> {
        let (mut facts, mut published) = (table(), publication());
        change(&mut facts, &mut published);
        let (table, name) = ("outbox".parse().unwrap(), "walrelay".parse().unwrap());
        let checked = check_publication(Some(published), &name).and_then(|published| {
            let facts = check_table(Some(facts), &table)?;
            check_membership(&facts, &table, &published, &name)
        });
        checked.err().map(|unfit| unfit.kind())
    }

    #[test]
    fn each_unfit_fact_of_the_server_is_a_fault() {
        assert_eq!(server_fault(|_| {}), None);
        assert_eq!(
            server_fault(|s| s.version.major = 13),
            Some(FaultKind::DatabaseUnsupported)
        );
        assert_eq!(
            server_fault(|s| s.in_recovery = true),
            Some(FaultKind::DatabaseStandby)
        );
        assert_eq!(
            server_fault(|s| s.wal_level = "replica".to_owned()),
            Some(FaultKind::WalLevel)
        );
        assert_eq!(
            server_fault(|s| s.may_replicate = false),
            Some(FaultKind::ReplicationRole)
        );
    }

    #[test]
    fn a_stream_that_commits_would_wait_for_is_refused() {
        assert_eq!(check_synchronous("", "walrelay shop"), Ok(()));
        let unfit = check_synchronous("ANY 1 (*)", "walrelay shop").unwrap_err();
        assert_eq!(unfit.kind(), FaultKind::SynchronousStandby);
        assert_eq!(
            unfit.to_string(),
            "synchronous_standby_names (ANY 1 (*)) takes our stream, `walrelay shop`, for a synchronous standby"
        );
    }

    #[test]
    fn each_unfit_fact_of_the_slot_is_a_fault() {
        assert_eq!(slot_fault(|_| {}), None);
        assert_eq!(slot_fault(|s| s.active_pid = Some(1)), None);
        assert_eq!(slot_fault(|s| s.logical = false), Some(FaultKind::SlotForeign));
        assert_eq!(
            slot_fault(|s| s.plugin = Some("wal2json".to_owned())),
            Some(FaultKind::SlotForeign)
        );
        assert_eq!(
            slot_fault(|s| s.database = Some("other".to_owned())),
            Some(FaultKind::SlotForeign)
        );
        assert_eq!(
            slot_fault(|s| s.wal_status = Some(WalStatus::Lost)),
            Some(FaultKind::SlotLost)
        );
        let missing = check_slot(None, &"walrelay".parse().unwrap(), "shop").unwrap_err();
        assert_eq!(missing.kind(), FaultKind::SlotMissing);
    }

    #[test]
    fn each_unfit_fact_of_table_and_publication_is_a_fault() {
        assert_eq!(table_fault(|_, _| {}), None);
        assert_eq!(
            table_fault(|t, _| t.kind = TableKind::Other),
            Some(FaultKind::TableMissing)
        );
        assert_eq!(
            table_fault(|t, _| t.logged = false),
            Some(FaultKind::TableUnlogged)
        );
        assert_eq!(
            table_fault(|t, _| drop(t.columns.pop())),
            Some(FaultKind::ColumnMissing)
        );
        let to_integers = |t: &mut TableFacts, _: &mut PublicationFacts| {
            t.columns.iter_mut().for_each(|column| column.type_oid = 23);
        };
        assert_eq!(table_fault(to_integers), Some(FaultKind::PayloadType));
        assert_eq!(
            table_fault(|_, p| p.tables.clear()),
            Some(FaultKind::TableNotPublished)
        );
        assert_eq!(
            table_fault(|_, p| p.inserts = false),
            Some(FaultKind::PublicationUnfit)
        );
        assert_eq!(
            table_fault(|t, _| t.row_filter = true),
            Some(FaultKind::PublicationUnfit)
        );
        assert_eq!(
            table_fault(|t, _| t.column_list = true),
            Some(FaultKind::PublicationUnfit)
        );
        assert_eq!(
            table_fault(|t, _| t.kind = TableKind::Partitioned),
            Some(FaultKind::PublicationUnfit)
        );
        let via_root = |t: &mut TableFacts, p: &mut PublicationFacts| {
            t.kind = TableKind::Partitioned;
            p.via_partition_root = true;
        };
        assert_eq!(table_fault(via_root), None);
        let name = "walrelay".parse().unwrap();
        let missing = check_publication(None, &name).unwrap_err();
        assert_eq!(missing.kind(), FaultKind::PublicationMissing);
    }
}
