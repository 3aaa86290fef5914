//! An outbox table as SQL statements see it: what its columns are called, and how its rows show that they are sent.
//!
//! Every statement has the table under the alias `t`, and where a condition about marks stands, nothing else is in scope:
//! its names cannot be ambiguous.

use walrelay_engine::event::{AfterPublish, Columns, Source as FieldSource};

use super::identifier::{QualifiedTable, quote_identifier, quote_literal};
use super::rows::output_text;

/// The fields of an event, in the order in which faults are reported and columns are listed.
pub(super) const FIELDS: [&str; 14] = [
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "headers",
    "created_at",
    "sent_at",
    "routing_key",
    "exchange",
    "content_type",
    "expiration",
    "priority",
    "correlation_id",
];

/// An outbox table, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outbox {
    /// The table.
    pub table: QualifiedTable,
    /// What becomes of its rows once published, as far as it is configured.
    pub after_publish: Option<AfterPublish>,
    /// Where the fields of its events come from.
    pub columns: Columns,
}

/// How rows show that they are sent: SQL about a row `t`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Marks {
    /// The condition that it is not sent.
    pub unsent: String,
    /// The condition that it is sent.
    pub sent: String,
    /// What marks it, for `update … set`.
    pub set: String,
    /// The columns that this sets.
    pub columns: Vec<String>,
}

impl Marks {
    /// The privilege that marking takes.
    pub(super) fn update(&self) -> String {
        let columns: Vec<_> = self.columns.iter().map(|name| quote_identifier(name)).collect();
        format!("update ({})", columns.join(", "))
    }
}

/// A table whose columns are called as the fields are.
impl From<QualifiedTable> for Outbox {
    fn from(table: QualifiedTable) -> Self {
        Self {
            table,
            after_publish: None,
            columns: Columns::default(),
        }
    }
}

impl Outbox {
    /// The column of the id, quoted.
    pub(super) fn id(&self) -> String {
        quote_identifier(&self.columns.id)
    }

    /// The column whose hash tells the shard.
    pub(super) fn aggregate_id(&self) -> &str {
        self.columns.aggregate_id.column().unwrap_or("aggregate_id")
    }

    /// The column of the time at which a row was written, if the events are to have one.
    pub(super) fn created_at(&self) -> Option<&str> {
        self.columns.created_at.column()
    }

    /// The column of the time at which a row was sent, if the table is to have one.
    pub(super) fn sent_at(&self) -> Option<&str> {
        self.columns.sent_at.column()
    }

    /// How the rows of the table show that they are sent, if they can. `has` says whether there is a column.
    pub(super) fn marks(&self, has: impl Fn(&str) -> bool) -> Option<Marks> {
        let column = self.sent_at().filter(|column| has(column))?;
        let quoted = quote_identifier(column);
        Some(Marks {
            unsent: format!("t.{quoted} is null"),
            sent: format!("t.{quoted} is not null"),
            set: format!("{quoted} = pg_catalog.now()"),
            columns: vec![column.to_owned()],
        })
    }

    /// The columns that must be there, each with the field that it is.
    pub(super) fn needed(&self) -> impl Iterator<Item = (&'static str, String)> {
        FIELDS.into_iter().filter_map(|field| match self.field(field) {
            FieldSource::Column(column) => Some((field, column)),
            FieldSource::ColumnIfThere(_) | FieldSource::Constant(_) | FieldSource::Absent => None,
        })
    }

    /// Where a field comes from.
    pub(super) fn field(&self, name: &str) -> FieldSource {
        self.columns.field(name).unwrap_or_default()
    }

    /// The column that a name in a template means: that of the field of this name, else the one that is called so. None for
    /// a field that is a constant.
    pub(super) fn column_of<'a>(&'a self, name: &'a str) -> Option<String> {
        match self.field(name) {
            FieldSource::Column(column) | FieldSource::ColumnIfThere(column) => Some(column),
            FieldSource::Constant(_) => None,
            FieldSource::Absent => Some(name.to_owned()),
        }
    }

    /// An SQL expression for the text of what a name in a template means, of a row `t`.
    pub(super) fn text_of(&self, name: &str) -> String {
        match (self.column_of(name), self.field(name)) {
            (None, FieldSource::Constant(text)) => quote_literal(&text),
            (column, _) => output_text(&format!(
                "t.{}",
                quote_identifier(column.as_deref().unwrap_or(name))
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_source() {
        let columns = Columns::default();
        for field in FIELDS {
            assert!(columns.field(field).is_some(), "{field}");
        }
    }

    #[test]
    fn names_of_columns_are_quoted_wherever_they_stand() {
        let mut outbox = Outbox::from("outbox".parse::<QualifiedTable>().unwrap());
        outbox.columns.id = "Event Id".to_owned();
        outbox.columns.sent_at = FieldSource::Column("sent \"at\"".to_owned());
        outbox.columns.event_type = FieldSource::Constant("it's".to_owned());
        assert_eq!(outbox.id(), "\"Event Id\"");
        let marks = outbox.marks(|name| name == "sent \"at\"").unwrap();
        assert_eq!(marks.unsent, "t.\"sent \"\"at\"\"\" is null");
        assert_eq!(marks.set, "\"sent \"\"at\"\"\" = pg_catalog.now()");
        assert_eq!(outbox.marks(|_| false), None);
        assert_eq!(outbox.text_of("event_type"), "'it''s'");
        assert_eq!(
            outbox.text_of("id"),
            "case when pg_catalog.num_nulls(t.\"Event Id\") = 0 then pg_catalog.concat(t.\"Event Id\") end"
        );
    }
}
