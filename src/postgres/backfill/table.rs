//! What backfilling has to know of an outbox table.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Oid;

use crate::postgres::catalog::column;
use crate::postgres::control::bounded;
use crate::postgres::error::{Error, Step};
use crate::postgres::identifier::{QualifiedTable, quote_identifier};

/// `pg_type.dat` fixes these.
const BYTEA: Oid = 17;
const CHARACTER_TYPES: [Oid; 3] = [25, 1043, 114];

/// A fixed-size value's text is never longer.
const FIXED_SIZE: &str = "64::bigint";

/// An outbox table as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) oid: Oid,
    /// The columns that pgoutput would send, in order.
    pub(super) columns: Vec<TableColumn>,
    /// Whether an index begins with the id.
    pub(super) is_indexed: bool,
    /// Whether the id alone is unique.
    pub(super) is_unique: bool,
    /// Whether row security hides rows from our role.
    pub(super) has_row_security: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TableColumn {
    pub(super) name: String,
    pub(super) type_oid: Oid,
    /// The type as SQL names it.
    type_name: String,
    is_fixed_size: bool,
}

impl Table {
    /// Reads it; none if there is no such table. Any role may.
    pub(super) async fn read(
        client: &impl GenericClient,
        name: &QualifiedTable,
    ) -> Result<Option<Self>, Error> {
        const PURPOSE: &str = "look at the outbox table";
        const STEP: Step = Step::Query(PURPOSE);
        let sql = "select c.oid, pg_catalog.row_security_active(c.oid), \
                   coalesce(bool_or(i.is_first), false), coalesce(bool_or(i.is_first and i.is_alone), false) \
                   from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace \
                   left join lateral (select a.attname = 'id' as is_first, \
                   x.indisunique and x.indnkeyatts = 1 as is_alone from pg_catalog.pg_index x \
                   join pg_catalog.pg_attribute a on a.attrelid = x.indrelid and a.attnum = x.indkey[0] \
                   where x.indrelid = c.oid and x.indisvalid and x.indpred is null) i on true \
                   where n.nspname = $1 and c.relname = $2 group by c.oid";
        let row = bounded(STEP, client.query_opt(sql, &[&name.schema, &name.name])).await?;
        let Some(row) = row else { return Ok(None) };
        let oid: Oid = column(&row, 0, PURPOSE)?;
        let sql = "select a.attname::text, a.atttypid, pg_catalog.format_type(a.atttypid, null), t.typlen > 0 \
                   from pg_catalog.pg_attribute a join pg_catalog.pg_type t on t.oid = a.atttypid \
                   where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' \
                   order by a.attnum";
        let columns = bounded(STEP, client.query(sql, &[&oid])).await?;
        let columns = columns.iter().map(|row| {
            Ok(TableColumn {
                name: column(row, 0, PURPOSE)?,
                type_oid: column(row, 1, PURPOSE)?,
                type_name: column(row, 2, PURPOSE)?,
                is_fixed_size: column(row, 3, PURPOSE)?,
            })
        });
        Ok(Some(Self {
            oid,
            columns: columns.collect::<Result<_, Error>>()?,
            has_row_security: column(&row, 1, PURPOSE)?,
            is_indexed: column(&row, 2, PURPOSE)?,
            is_unique: column(&row, 3, PURPOSE)?,
        }))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.columns.iter().any(|column| column.name == name)
    }

    /// The type of the id, for a cast of the noted text; one that is no outbox any more has none.
    pub(super) fn id_type(&self) -> &str {
        let id = self.columns.iter().find(|column| column.name == "id");
        id.map_or("text", |id| id.type_name.as_str())
    }
}

impl TableColumn {
    pub(super) fn quoted(&self) -> String {
        quote_identifier(&self.name)
    }

    /// How many bytes the column of `t` takes on disk.
    pub(super) fn stored_size(&self) -> String {
        format!(
            "coalesce(pg_catalog.pg_column_size(t.{}), 0)::bigint",
            self.quoted()
        )
    }

    /// How many bytes the column of `t` has as text, at most or exactly.
    pub(super) fn text_size(&self) -> String {
        let name = self.quoted();
        if self.is_fixed_size {
            return FIXED_SIZE.to_owned();
        }
        let size = if self.type_oid == BYTEA {
            // Two digits a byte, after `\x`.
            format!("pg_catalog.octet_length(t.{name})::bigint * 2 + 2")
        } else if CHARACTER_TYPES.contains(&self.type_oid) {
            format!("pg_catalog.octet_length(t.{name}::text)::bigint")
        } else {
            // The type's own output function, as the stream uses it; a cast to text may be another.
            format!("pg_catalog.octet_length(pg_catalog.format('%s', t.{name}))::bigint")
        };
        format!("coalesce({size}, 0)")
    }
}
