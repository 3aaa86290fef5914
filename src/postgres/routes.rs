//! The distinct values, in an outbox table, of the columns that routing goes by.

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::identifier::{QualifiedTable, quote_identifier};
use super::rows::output_text;
use super::table_use::Use;

/// A longer value is left out: none that makes a routing key is so long, but for JSON with such a value inside.
const LONGEST: u32 = 64 * 1024;

/// How much of a table is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Rows, any.
    pub rows: u32,
    /// Combinations of values.
    pub combinations: u32,
}

/// Combinations of values in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Combinations {
    /// Each with the number of its rows, the most frequent first. A value may be NULL.
    pub found: Vec<(Vec<Option<String>>, u64)>,
    /// Whether there were more combinations.
    pub has_more: bool,
    /// Whether rows were left out.
    pub is_sampled: bool,
}

/// Looks at some rows of a table for combinations of the columns' values, as the stream would bring them.
///
/// Grants: usage on the schema, select on the table.
///
/// # Errors
/// A column or the table is missing, a right is, or it takes too long.
pub async fn combinations(
    session: &ControlSession,
    table: &QualifiedTable,
    columns: &[String],
    sample: Sample,
) -> Result<Combinations, Error> {
    let usage = Use::outbox("look for the values that routing goes by", "select", table, &[]);
    let names: Vec<_> = columns
        .iter()
        .map(|name| {
            let text = output_text(&format!("t.{}", quote_identifier(name)));
            format!("case when pg_catalog.octet_length({text}) <= {LONGEST} then {text} end")
        })
        .collect();
    let sql = format!(
        "select values, count(*), sum(count(*)) over ()::bigint from (select array[{}]::text[] as values \
         from {} t limit {}) rows group by values order by 2 desc, 1 limit {}",
        names.join(", "),
        table.quoted(),
        sample.rows,
        u64::from(sample.combinations) + 1
    );
    let rows = usage
        .run(session.role(), session.client().query(&sql, &[]))
        .await?;
    let number = |row, index| -> Result<u64, Error> {
        let number: i64 = column(row, index, usage.purpose)?;
        Ok(u64::try_from(number).unwrap_or_default())
    };
    let mut found = Vec::with_capacity(rows.len());
    let mut total = 0;
    for row in &rows {
        total = number(row, 2)?;
        found.push((column(row, 0, usage.purpose)?, number(row, 1)?));
    }
    let most = usize::try_from(sample.combinations).unwrap_or(usize::MAX);
    let has_more = found.len() > most;
    found.truncate(most);
    Ok(Combinations {
        found,
        has_more,
        is_sampled: total >= u64::from(sample.rows),
    })
}
