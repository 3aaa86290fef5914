//! The checks, one function for each thing that can be wrong. Preflight, set-up and recovery stop at the first that fails;
//! doctor goes through all.

use walrelay_engine::event::PayloadType;

use super::super::catalog::{PublicationFacts, ServerFacts, TableFacts, TableKind};
use super::super::identifier::{PublicationName, QualifiedTable, SlotName};
use super::super::outbox::Outbox;
use super::super::shard::{MIN_SHARD_MAJOR, PublishedRows, Shard};
use super::super::slot::{PLUGIN, SlotState};
use super::super::startup::MIN_SERVER_MAJOR;
use super::super::synchronous;
use super::{MissingColumns, Unfit};

/// What of the server and our role streaming needs.
pub(in crate::postgres) fn check_server(server: &ServerFacts) -> Result<(), Unfit> {
    check_version(server)?;
    check_primary(server)?;
    check_encoding(server)?;
    check_wal_level(server)?;
    check_role(server)
}

pub(in crate::postgres) fn check_version(server: &ServerFacts) -> Result<(), Unfit> {
    if server.version.major < MIN_SERVER_MAJOR {
        return Err(Unfit::ServerTooOld {
            version: server.version,
        });
    }
    Ok(())
}

pub(in crate::postgres) fn check_primary(server: &ServerFacts) -> Result<(), Unfit> {
    if server.in_recovery {
        return Err(Unfit::Standby);
    }
    Ok(())
}

/// A dead letter keeps its row as JSON, which bytes of no encoding would not survive (I4).
pub(in crate::postgres) fn check_encoding(server: &ServerFacts) -> Result<(), Unfit> {
    if server.encoding == "SQL_ASCII" {
        return Err(Unfit::Encoding {
            database: server.database.clone(),
        });
    }
    Ok(())
}

pub(in crate::postgres) fn check_wal_level(server: &ServerFacts) -> Result<(), Unfit> {
    if server.wal_level != "logical" {
        return Err(Unfit::WalLevel {
            wal_level: server.wal_level.clone(),
        });
    }
    Ok(())
}

pub(in crate::postgres) fn check_role(server: &ServerFacts) -> Result<(), Unfit> {
    if !server.may_replicate {
        return Err(Unfit::Role {
            role: server.role.clone(),
        });
    }
    Ok(())
}

/// Commits must not wait for our confirmation: a dead letter's would, while we confirm nothing before it is stored,
/// and with it every writer's (rule 17).
pub(in crate::postgres) fn check_synchronous(setting: &str, stream_name: &str) -> Result<(), Unfit> {
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
    outbox: &Outbox,
) -> Result<TableFacts, Unfit> {
    let facts = check_presence(facts, &outbox.table)?;
    check_logged(&facts, &outbox.table)?;
    check_columns(&facts, outbox)?;
    check_named(&facts, outbox)?;
    check_payload(&facts, outbox)?;
    Ok(facts)
}

pub(in crate::postgres) fn check_presence(
    facts: Option<TableFacts>,
    table: &QualifiedTable,
) -> Result<TableFacts, Unfit> {
    let table = table.clone();
    match facts {
        None => Err(Unfit::TableMissing { table }),
        Some(facts) if facts.kind == TableKind::Other => Err(Unfit::NotATable { table }),
        Some(facts) => Ok(facts),
    }
}

pub(in crate::postgres) fn check_logged(facts: &TableFacts, table: &QualifiedTable) -> Result<(), Unfit> {
    if !facts.logged {
        return Err(Unfit::Unlogged { table: table.clone() });
    }
    Ok(())
}

pub(in crate::postgres) fn check_columns(facts: &TableFacts, outbox: &Outbox) -> Result<(), Unfit> {
    match MissingColumns::of(facts, outbox) {
        Some(missing) => Err(Unfit::ColumnsMissing(missing)),
        None => Ok(()),
    }
}

/// The columns that templates and rules name must be there too.
pub(in crate::postgres) fn check_named(facts: &TableFacts, outbox: &Outbox) -> Result<(), Unfit> {
    match outbox.named_missing(|column| facts.has_column(column)) {
        Some(missing) => Err(missing),
        None => Ok(()),
    }
}

pub(in crate::postgres) fn check_payload(facts: &TableFacts, outbox: &Outbox) -> Result<(), Unfit> {
    let payload = facts.column(&outbox.columns.payload);
    match payload.filter(|payload| PayloadType::of(payload.type_oid).is_none()) {
        Some(payload) => Err(Unfit::PayloadType {
            table: outbox.table.clone(),
            column: payload.name.clone(),
            type_name: payload.type_name.clone(),
        }),
        None => Ok(()),
    }
}

/// A table must be published whole, or but for the rows of other shards, and under its own name.
pub(in crate::postgres) fn check_membership(
    facts: &TableFacts,
    table: &QualifiedTable,
    publication: &PublicationFacts,
    name: &PublicationName,
    shard: Option<Shard>,
) -> Result<(), Unfit> {
    check_root(facts, table, publication, name)?;
    check_listed(table, publication, name)?;
    check_rows(facts, table, name, shard)?;
    check_column_list(facts, table, name)
}

pub(in crate::postgres) fn check_root(
    facts: &TableFacts,
    table: &QualifiedTable,
    publication: &PublicationFacts,
    name: &PublicationName,
) -> Result<(), Unfit> {
    if facts.kind == TableKind::Partitioned && !publication.via_partition_root {
        return Err(Unfit::NotViaRoot {
            publication: name.clone(),
            table: table.clone(),
        });
    }
    Ok(())
}

pub(in crate::postgres) fn check_listed(
    table: &QualifiedTable,
    publication: &PublicationFacts,
    name: &PublicationName,
) -> Result<(), Unfit> {
    if !publication.tables.contains(table) {
        return Err(Unfit::NotPublished {
            table: table.clone(),
            publication: name.clone(),
        });
    }
    Ok(())
}

/// The rows must be those of our shard: fewer would be missed, more are another relay's.
pub(in crate::postgres) fn check_rows(
    facts: &TableFacts,
    table: &QualifiedTable,
    name: &PublicationName,
    shard: Option<Shard>,
) -> Result<(), Unfit> {
    let (publication, table) = (name.clone(), table.clone());
    let published = match facts.published {
        PublishedRows::All => None,
        PublishedRows::Shard(shard) => Some(shard),
        PublishedRows::Filtered => return Err(Unfit::RowFilter { publication, table }),
    };
    if published != shard {
        return Err(Unfit::ShardMismatch {
            publication,
            table,
            published,
            configured: shard,
        });
    }
    Ok(())
}

/// Only a server with row filters has shards.
pub(in crate::postgres) fn check_sharding(server: &ServerFacts, shard: Option<Shard>) -> Result<(), Unfit> {
    match shard {
        Some(shard) if server.version.major < MIN_SHARD_MAJOR => Err(Unfit::ShardsTooOld {
            shard,
            version: server.version,
        }),
        Some(_) | None => Ok(()),
    }
}

pub(in crate::postgres) fn check_column_list(
    facts: &TableFacts,
    table: &QualifiedTable,
    name: &PublicationName,
) -> Result<(), Unfit> {
    if facts.column_list {
        return Err(Unfit::ColumnList {
            publication: name.clone(),
            table: table.clone(),
        });
    }
    Ok(())
}
