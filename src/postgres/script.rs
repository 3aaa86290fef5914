//! What `walrelay setup` would do to tables and rights, as SQL for those who run their own migrations.

use super::grants;
use super::migrations::{self, MIGRATIONS};
use super::preflight::Source;

/// All statements, for an administrator to run before `walrelay setup` creates the slot; with the rights of `role`, if that
/// is given.
#[must_use]
pub fn script(source: &Source, role: Option<&str>) -> String {
    let mut sql = "-- To be run once by an administrator. Then `walrelay setup` creates what SQL cannot: the slot, with a \
                   note of the\n-- rows that are there already.\n"
        .to_owned();
    for migration in MIGRATIONS {
        sql.push_str(&format!(
            "\n-- migration {} ({})\n{}\ninsert into walrelay.schema_migrations (version, name) values ({}, '{}');\n",
            migration.version, migration.name, migration.sql, migration.version, migration.name
        ));
    }
    for outbox in &source.outboxes {
        let table = &outbox.table;
        sql.push_str(&match outbox.is_ours() {
            true => format!(
                "\n-- table {table}: leave out where it exists\n{}",
                migrations::create_table(table)
            ),
            false => {
                format!("\n-- table {table}: must be there, with the columns that the configuration names\n")
            }
        });
    }
    let note = match &source.shard {
        Some(_) => {
            ": the filter is for an aggregate_id of bigint; of integer it takes hashint4, of text or varchar hashtext, of \
             uuid uuid_hash"
        }
        None => "",
    };
    let members = source.outboxes.iter().map(|outbox| {
        let filter = source.shard.map(|shard| shard.filter_of_bigint(outbox));
        migrations::member(&outbox.table, filter.as_deref())
    });
    let members: Vec<_> = members.collect();
    // For tables that are not partitioned the option makes no difference.
    sql.push_str(&format!(
        "\n-- publication {}{note}\n{}",
        source.publication,
        migrations::create_publication(&source.publication, &members, true)
    ));
    if let Some(role) = role {
        sql.push_str(&format!(
            "\n-- rights of the relay's role\ndo $$ begin {} end $$;\n{}",
            grants::replication(role),
            grants::own_schema(role)
        ));
        for outbox in &source.outboxes {
            let marks = outbox.marks(|_| true);
            sql.push_str(&grants::outbox(role, outbox, marks.as_ref()));
        }
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::QualifiedTable;

    #[test]
    fn the_script_is_as_reviewed() {
        let source = Source {
            slot: "walrelay".parse().unwrap(),
            publication: "walrelay".parse().unwrap(),
            outboxes: vec!["shop.\"Out box\"".parse::<QualifiedTable>().unwrap().into()],
            messages: None,
            shard: None,
        };
        let script = script(&source, Some("relay"));
        // The migrations are files of their own.
        let (_, rest) = script.split_once("\n-- table ").unwrap();
        insta::assert_snapshot!("setup_print", rest);
        assert!(script.contains("create table walrelay.backfill ("), "{script}");
    }

    #[test]
    fn the_script_has_the_row_filter_of_a_shard() {
        let source = Source {
            slot: "walrelay".parse().unwrap(),
            publication: "walrelay".parse().unwrap(),
            outboxes: vec!["outbox".parse::<QualifiedTable>().unwrap().into()],
            messages: None,
            shard: "0/2".parse().ok(),
        };
        let script = script(&source, None);
        let filter = "where (pg_catalog.mod(pg_catalog.hashint8(\"aggregate_id\") & 2147483647, 2) = 0 or \"aggregate_id\" is null)";
        assert!(script.contains(filter), "{script}");
        assert!(script.contains("-- publication walrelay: the filter is for an aggregate_id of bigint"));
    }
}
