//! The checks, one for each kind of thing; set-up and recovery judge by them too.

use walrelay_engine::event::{PayloadType, REQUIRED_COLUMNS};

use super::super::catalog::{PublicationFacts, ServerFacts, TableFacts, TableKind};
use super::super::identifier::{PublicationName, QualifiedTable, SlotName};
use super::super::slot::{PLUGIN, SlotState};
use super::super::startup::MIN_SERVER_MAJOR;
use super::super::synchronous;
use super::Unfit;

/// What of the server and our role streaming needs.
pub(in crate::postgres) fn check_server(server: &ServerFacts) -> Result<(), Unfit> {
    if server.version.major < MIN_SERVER_MAJOR {
        return Err(Unfit::ServerTooOld {
            version: server.version,
        });
    }
    if server.in_recovery {
        return Err(Unfit::Standby);
    }
    // A dead letter keeps its row as JSON, which such bytes would not survive (I4).
    if server.encoding == "SQL_ASCII" {
        return Err(Unfit::Encoding {
            database: server.database.clone(),
        });
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
pub(super) fn check_synchronous(setting: &str, stream_name: &str) -> Result<(), Unfit> {
    if synchronous::names_standby(setting, stream_name) {
        return Err(Unfit::SynchronousStandby {
            setting: setting.to_owned(),
            name: stream_name.to_owned(),
        });
    }
    Ok(())
}

/// A slot must be ours to read and still have its WAL.
pub(in crate::postgres) fn check_slot(
    state: Option<SlotState>,
    slot: &SlotName,
    ours: &str,
) -> Result<SlotState, Unfit> {
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
pub(in crate::postgres) fn check_publication(
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
pub(in crate::postgres) fn check_table(
    facts: Option<TableFacts>,
    table: &QualifiedTable,
) -> Result<TableFacts, Unfit> {
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
pub(in crate::postgres) fn check_membership(
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
