//! The distinct values, in an outbox table, of the columns that routing goes by.

use super::catalog::column;
use super::control::ControlSession;
use super::error::Error;
use super::outbox::Outbox;
use super::table_use::Use;

/// How many rows are looked at.
const ROWS: u64 = 100_000;

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

/// Looks at up to 100,000 rows of a table, for up to `limit` combinations of the values that names in templates mean,
/// as the stream would bring them.
///
/// Grants: usage on the schema, select on the table.
///
/// # Errors
/// A column or the table is missing, a right is, or it takes too long.
pub async fn combinations(
    session: &ControlSession,
    outbox: &Outbox,
    names: &[String],
    limit: u32,
) -> Result<Combinations, Error> {
    let usage = Use::outbox(
        "look for the values that routing goes by",
        "select",
        &outbox.table,
        &[],
    );
    let texts: Vec<_> = names.iter().map(|name| outbox.text_of(name)).collect();
    let sql = format!(
        "select values, count(*), sum(count(*)) over ()::bigint from (select array[{}]::text[] as values \
         from {} t limit {ROWS}) rows group by values order by 2 desc, 1 limit {}",
        texts.join(", "),
        outbox.table.quoted(),
        u64::from(limit) + 1
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
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    let has_more = found.len() > most;
    found.truncate(most);
    Ok(Combinations {
        found,
        has_more,
        is_sampled: total >= ROWS,
    })
}
