//! What mends each thing that does not fit, ready to paste. The table of faults has the sentence, this has the names.

use super::super::identifier::{PublicationName, QualifiedTable, quote_identifier};
use super::Unfit;

impl Unfit {
    /// SQL or a command that mends it, where one does.
    #[must_use]
    pub fn fix(&self) -> Option<String> {
        let again = |publication: &PublicationName, table: &QualifiedTable| {
            let (publication, table) = (quote_identifier(publication.as_str()), table.quoted());
            format!(
                "begin; alter publication {publication} drop table {table}; \
                 alter publication {publication} add table {table}; commit;"
            )
        };
        let set = |publication: &PublicationName, options: &str| {
            let publication = quote_identifier(publication.as_str());
            format!("alter publication {publication} set ({options});")
        };
        Some(match self {
            Self::WalLevel { .. } => "alter system set wal_level = 'logical';".to_owned(),
            Self::Role { role } => format!("alter role {} replication;", quote_identifier(role)),
            Self::NotSetUp { .. }
            | Self::SetupInterrupted { .. }
            | Self::PublicationMissing { .. }
            | Self::TableMissing { .. }
            | Self::NotPublished { .. } => "walrelay setup".to_owned(),
            Self::SlotMissing { .. }
            | Self::SlotGone { .. }
            | Self::SlotLost { .. }
            | Self::RecoveryInterrupted { .. } => "walrelay recover".to_owned(),
            Self::WithoutInserts { publication } => set(publication, "publish = 'insert'"),
            Self::NotViaRoot { publication, .. } => set(publication, "publish_via_partition_root = true"),
            Self::RowFilter { publication, table } | Self::ColumnList { publication, table } => {
                again(publication, table)
            }
            Self::Unlogged { table } => format!("alter table {} set logged;", table.quoted()),
            Self::PayloadType { table, column, .. } => {
                let column = quote_identifier(column);
                format!(
                    "alter table {} alter column {column} type text using {column}::text;",
                    table.quoted()
                )
            }
            Self::ShardMismatch { .. }
            | Self::ShardSlotTaken { .. }
            | Self::ShardType { .. }
            | Self::ShardRefused { .. }
            | Self::ShardsTooOld { .. }
            | Self::ShardSuccession { .. }
            | Self::NotDrained { .. }
            | Self::BeforeItsTurn { .. }
            | Self::ServerTooOld { .. }
            | Self::Standby
            | Self::ReadOnly
            | Self::Encoding { .. }
            | Self::SynchronousStandby { .. }
            | Self::SlotPhysical { .. }
            | Self::SlotPlugin { .. }
            | Self::SlotDatabase { .. }
            | Self::Backfill { .. }
            | Self::NothingTells { .. }
            | Self::NotATable { .. }
            | Self::ColumnsMissing(_)
            | Self::NamedColumnsMissing { .. }
            | Self::Marker(_)
            | Self::NotCreated { .. }
            | Self::RoleMissing { .. }
            | Self::MayNotTearDown { .. }
            | Self::MarksOwned { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted() {
        let role = "The Relay".to_owned();
        assert_eq!(
            Unfit::Role { role }.fix().as_deref(),
            Some("alter role \"The Relay\" replication;")
        );
        let filtered = Unfit::RowFilter {
            publication: "p".parse().unwrap(),
            table: "shop.\"Outbox\"".parse().unwrap(),
        };
        assert_eq!(
            filtered.fix().as_deref(),
            Some(
                "begin; alter publication \"p\" drop table \"shop\".\"Outbox\"; \
                 alter publication \"p\" add table \"shop\".\"Outbox\"; commit;"
            )
        );
    }
}
