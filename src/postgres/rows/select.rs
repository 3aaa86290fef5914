//! The statement that reads rows: sizes first, so that what is too large is neither made nor buffered.

use tokio_postgres::Row;
use tokio_postgres::types::Oid;
use walrelay_engine::pgoutput::{TextValue, insert_of};

use super::{TextColumn, TextColumns, output_text};
use crate::postgres::catalog::column;
use crate::postgres::error::Error;
use crate::postgres::identifier::quote_identifier;

/// `pg_type.dat` fixes these.
const BYTEA: Oid = 17;
const CHARACTER_TYPES: [Oid; 3] = [25, 1043, 114];

/// A fixed-size value's text is never longer.
const FIXED_SIZE: &str = "64";

impl TextColumns {
    /// A statement whose rows [`insert`](Self::insert) reads from column `keys.len()` on. `keys` are expressions that
    /// it yields before, `rest` is what follows the select list, with the table under the alias `t`: from, where, order
    /// by, and a limit. It ends early, though never before its first row, once the rows have `max_bytes` of text.
    ///
    /// As of a large row of the stream, no text is read of more bytes than the limit, nor one with which the row would
    /// have more than twice as many.
    #[must_use]
    pub fn select(&self, keys: &[String], rest: &str, max_bytes: u32) -> String {
        let all = || self.columns.iter().enumerate();
        let (limit, most) = (self.limit, u64::from(self.limit) * 2);
        let inner_keys = keys.iter().enumerate().map(|(at, key)| format!("{key} as k{at}"));
        let values = all().map(|(at, column)| format!("t.{} as c{at}", quote_identifier(&column.name)));
        let stored = all().map(|(at, _)| format!("coalesce(pg_catalog.pg_column_size(a.c{at}), 0)"));
        let lengths = all().map(|(at, column)| column.text_size(&format!("b.c{at}")));
        let outer_keys = (0..keys.len()).map(|at| format!("e.k{at}"));
        let texts = all().map(|(at, _)| {
            let text = output_text(&format!("e.c{at}"));
            format!(
                "case when e.kept is null or e.kept[{place}] then {text} end",
                place = at + 1
            )
        });
        // The size of a text costs making it, so it is asked only of as many rows as fill a batch with what they take on
        // disk; `offset 0` keeps it from being asked for anew wherever it is used.
        format!(
            "select {outer}, e.lengths from (select d.*, \
             pg_catalog.sum(d.bytes) over (rows between unbounded preceding and 1 preceding) as before \
             from (select c.*, least(s.total, {most}) as bytes, \
             case when s.longest > {limit} or s.total > {most} then ({kept}) end as kept \
             from (select b.*, array[{lengths}]::bigint[] as lengths from (select a.*, \
             pg_catalog.sum({stored}) over (rows between unbounded preceding and 1 preceding) as stored_before \
             from (select {inner} {rest}) a) b where coalesce(b.stored_before, 0) < {max_bytes} offset 0) c \
             cross join lateral (select coalesce(pg_catalog.sum(l), 0) as total, coalesce(pg_catalog.max(l), 0) as longest \
             from pg_catalog.unnest(c.lengths) l) s) d) e where coalesce(e.before, 0) < {max_bytes}",
            outer = list(outer_keys.chain(texts), ", "),
            kept = self.kept(),
            lengths = list(lengths, ", "),
            stored = list(stored, "::bigint + "),
            inner = list(inner_keys.chain(values), ", "),
        )
    }

    /// Which columns of `c` are read, one after the other, by its `lengths`.
    fn kept(&self) -> String {
        let (limit, most) = (self.limit, u64::from(self.limit) * 2);
        let count = self.columns.len();
        format!(
            "with recursive k(at, total, kept) as (select 1, 0::bigint, '{{}}'::boolean[] union all \
             select k.at + 1, k.total + case when f.fits then f.length else 0 end, k.kept || f.fits \
             from k cross join lateral (select l.length, \
             l.length <= {limit} and k.total + l.length <= {most} as fits \
             from (select coalesce(c.lengths[k.at], 0) as length) l) f where k.at <= {count}) \
             select k.kept from k where k.at = {count} + 1"
        )
    }

    /// The Insert message that would bring a row of [`select`](Self::select), whose columns begin at `first`; for
    /// [`read_insert`](walrelay_engine::pgoutput::read_insert).
    ///
    /// # Errors
    /// The row is not of that statement.
    pub fn insert(&self, row: &Row, first: usize, purpose: &'static str) -> Result<Vec<u8>, Error> {
        let lengths: Vec<Option<i64>> = column(row, first + self.columns.len(), purpose)?;
        let mut room = u64::from(self.limit) * 2;
        let mut values = Vec::with_capacity(self.columns.len());
        for (at, length) in lengths.into_iter().enumerate() {
            let text: Option<&str> = column(row, first + at, purpose)?;
            let length = length.map(i64::unsigned_abs);
            values.push(match (text, length) {
                (Some(text), _) => {
                    room = room.saturating_sub(u64::try_from(text.len()).unwrap_or(u64::MAX));
                    TextValue::Text(text)
                }
                (None, None) => TextValue::Null,
                (None, Some(length)) => TextValue::Oversized {
                    length: u32::try_from(length).unwrap_or(u32::MAX),
                    limit: u32::try_from(room).unwrap_or(u32::MAX).min(self.limit),
                },
            });
        }
        Ok(insert_of(values.into_iter()))
    }
}

impl TextColumn {
    /// How many bytes a value of the column has as text, at most or exactly; NULL for NULL.
    fn text_size(&self, value: &str) -> String {
        let size = match self.type_oid {
            _ if self.is_fixed_size => FIXED_SIZE.to_owned(),
            // Two digits a byte, after `\x`.
            BYTEA => format!("pg_catalog.octet_length({value})::bigint * 2 + 2"),
            character if CHARACTER_TYPES.contains(&character) => {
                format!("pg_catalog.octet_length({value}::text)")
            }
            _ => format!("pg_catalog.octet_length(pg_catalog.concat({value}))"),
        };
        format!("case when pg_catalog.num_nulls({value}) = 0 then {size} end")
    }
}

fn list(parts: impl Iterator<Item = String>, separator: &str) -> String {
    parts.collect::<Vec<_>>().join(separator)
}
