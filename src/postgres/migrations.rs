//! The SQL of `migrations/`, embedded, and what is put in place of its default names.

use super::identifier::{PublicationName, QualifiedTable, quote_identifier};

/// A numbered file that is applied once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    /// Its number, rising from 1.
    pub version: i32,
    /// Its name, the file's without number.
    pub name: &'static str,
    /// Its statements.
    pub sql: &'static str,
}

/// All migrations of walrelay's own schema, in order.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "schema",
        sql: include_str!("../../migrations/0001_schema.sql"),
    },
    Migration {
        version: 2,
        name: "state",
        sql: include_str!("../../migrations/0002_state.sql"),
    },
    Migration {
        version: 3,
        name: "marks",
        sql: include_str!("../../migrations/0003_marks.sql"),
    },
    Migration {
        version: 4,
        name: "backfill",
        sql: include_str!("../../migrations/0004_backfill.sql"),
    },
    Migration {
        version: 5,
        name: "skips",
        sql: include_str!("../../migrations/0005_skips.sql"),
    },
    Migration {
        version: 6,
        name: "settled_notes",
        sql: include_str!("../../migrations/0006_settled_notes.sql"),
    },
    Migration {
        version: 7,
        name: "emit",
        sql: include_str!("../../migrations/0007_emit.sql"),
    },
    Migration {
        version: 8,
        name: "shards",
        sql: include_str!("../../migrations/0008_shards.sql"),
    },
];

const OUTBOX_TABLE: &str = include_str!("../../migrations/outbox_table.sql");
const PUBLICATION: &str = include_str!("../../migrations/publication.sql");

/// The names in the files that the configured ones replace.
const DEFAULT_TABLE: &str = "public.outbox_events";
/// What stands before the tables of the publication.
const FOR_TABLE: &str = "for table ";
const DEFAULT_PUBLICATION: &str = "publication walrelay ";
const DEFAULT_OPTIONS: &str = "publish = 'insert'";

/// The statement that creates an outbox table.
#[must_use]
pub fn create_table(table: &QualifiedTable) -> String {
    OUTBOX_TABLE.replace(DEFAULT_TABLE, &table.quoted())
}

/// A table as it stands in a publication, with the row filter of a shard.
#[must_use]
pub fn member(table: &QualifiedTable, filter: Option<&str>) -> String {
    let filter = filter.map_or_else(String::new, |filter| format!(" where {filter}"));
    format!("{}{filter}", table.quoted())
}

/// The statement that creates the publication of these [members](member), of which there may be none.
#[must_use]
pub fn create_publication(
    publication: &PublicationName,
    members: &[String],
    via_partition_root: bool,
) -> String {
    let members = match members.is_empty() {
        true => String::new(),
        false => format!("{FOR_TABLE}{} ", members.join(", ")),
    };
    let options = format!("{DEFAULT_OPTIONS}, publish_via_partition_root = {via_partition_root}");
    // The options first: they hold no name that a later replacement could find.
    PUBLICATION
        .replace(DEFAULT_OPTIONS, &options)
        .replace(&format!("{FOR_TABLE}{DEFAULT_TABLE} "), &members)
        .replacen(
            DEFAULT_PUBLICATION,
            &format!("publication {} ", quote_identifier(publication.as_str())),
            1,
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_names_stand_once_in_each_file() {
        for (file, name) in [
            (OUTBOX_TABLE, DEFAULT_TABLE),
            (PUBLICATION, DEFAULT_TABLE),
            (PUBLICATION, DEFAULT_PUBLICATION),
            (PUBLICATION, DEFAULT_OPTIONS),
        ] {
            assert_eq!(file.matches(name).count(), 1, "{name}");
        }
    }

    #[test]
    fn configured_names_are_put_in_quoted() {
        let table: QualifiedTable = "shop.\"Out\"\"box\"".parse().unwrap();
        assert!(create_table(&table).contains("create table \"shop\".\"Out\"\"box\" ("));
        let members = [member(&table, Some("(x)")), member(&"b".parse().unwrap(), None)];
        let sql = create_publication(&"My pub".parse().unwrap(), &members, true);
        assert!(
            sql.ends_with(
                "create publication \"My pub\" for table \"shop\".\"Out\"\"box\" where (x), \"public\".\"b\" \
                 with (publish = 'insert', publish_via_partition_root = true);\n"
            ),
            "{sql}"
        );
        let sql = create_publication(&"p".parse().unwrap(), &[], false);
        let alone =
            "create publication \"p\" with (publish = 'insert', publish_via_partition_root = false);\n";
        assert!(sql.ends_with(alone), "{sql}");
    }

    #[test]
    fn versions_rise() {
        let versions: Vec<_> = MIGRATIONS.iter().map(|migration| migration.version).collect();
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    }
}
