//! The columns that a table lacks, all in one line: each that were named alone would cost a run of its own.

use std::fmt;

use walrelay_engine::event::Columns;

use super::super::catalog::TableFacts;
use super::super::identifier::QualifiedTable;
use super::super::outbox::Outbox;

/// The columns of an event that a table lacks; at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingColumns {
    table: QualifiedTable,
    columns: Vec<Missing>,
    /// Its columns are called as Debezium calls them, which may be all that is wrong.
    are_debezium: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Missing {
    column: String,
    /// The field of the event that it was to be.
    field: &'static str,
    /// The column that may have been meant.
    nearest: Option<String>,
}

impl MissingColumns {
    /// What a table lacks of the columns that its events need, if it lacks any.
    pub(in crate::postgres) fn of(facts: &TableFacts, outbox: &Outbox) -> Option<Self> {
        let missing = outbox.needed().filter(|(_, column)| !facts.has_column(column));
        let mut columns: Vec<_> = missing
            .map(|(field, column)| Missing {
                nearest: nearest(facts, &column),
                column,
                field,
            })
            .collect();
        if columns.is_empty() {
            return None;
        }
        let of_debezium = Columns::debezium();
        let mut of_debezium = of_debezium.required().into_iter();
        let are_debezium = columns.iter().any(|missing| missing.column == missing.field)
            && of_debezium.all(|(_, name)| facts.has_column(name));
        if are_debezium {
            columns.iter_mut().for_each(|missing| missing.nearest = None);
        }
        Some(Self {
            table: outbox.table.clone(),
            columns,
            are_debezium,
        })
    }

    /// One column, which is to be this field of the event.
    pub(in crate::postgres) fn one(table: &QualifiedTable, column: &str, field: &'static str) -> Self {
        Self {
            table: table.clone(),
            columns: vec![Missing {
                column: column.to_owned(),
                field,
                nearest: None,
            }],
            are_debezium: false,
        }
    }
}

/// The column whose name is most like this one's, if any is.
fn nearest(facts: &TableFacts, column: &str) -> Option<String> {
    let distances = facts.columns.iter().map(|candidate| {
        let distance = strsim::damerau_levenshtein(&candidate.name.to_lowercase(), &column.to_lowercase());
        (distance, &candidate.name)
    });
    let (_, nearest) = distances
        .filter(|(distance, _)| *distance <= column.len() / 3)
        .min_by_key(|(distance, _)| *distance)?;
    Some(nearest.clone())
}

impl fmt::Display for MissingColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the table {} has no ", self.table)?;
        match self.columns.as_slice() {
            [only] => {
                write!(f, "column `{}`", only.column)?;
                // What a configured name was to be, where that is not plain.
                if only.column != only.field {
                    let field = only.field;
                    write!(f, ", which is to be the event's {field} (outbox.columns.{field})")?;
                }
                if let Some(nearest) = &only.nearest {
                    write!(f, "; is it `{nearest}`?")?;
                }
            }
            several => {
                let listed: Vec<_> = several.iter().map(Missing::listed).collect();
                write!(f, "columns {}", listed.join(", "))?;
            }
        }
        match self.are_debezium {
            true => f.write_str("; its columns are those of outbox.preset = \"debezium\""),
            false => Ok(()),
        }
    }
}

impl Missing {
    /// As one among others.
    fn listed(&self) -> String {
        let mut notes = Vec::new();
        if self.column != self.field {
            notes.push(format!("outbox.columns.{}", self.field));
        }
        if let Some(nearest) = &self.nearest {
            notes.push(format!("is it `{nearest}`?"));
        }
        match notes.is_empty() {
            true => format!("`{}`", self.column),
            false => format!("`{}` ({})", self.column, notes.join("; ")),
        }
    }
}
