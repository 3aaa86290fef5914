//! An outbox table as SQL statements see it: what its columns are called, and how its rows show that they are sent.
//!
//! Every statement has the table under the alias `t`, and where a condition about marks stands, nothing else is in scope:
//! its names cannot be ambiguous.

use walrelay_engine::event::{AfterPublish, Columns, Source as FieldSource};

use super::identifier::{QualifiedTable, quote_identifier};
use super::marker::Marker;
use super::preflight::Unfit;

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

/// The columns of the table that set-up creates (`migrations/outbox_table.sql`).
const OWN_COLUMNS: [&str; 8] = [
    "id",
    "aggregate_type",
    "aggregate_id",
    "event_type",
    "payload",
    "sent_at",
    "created_at",
    "headers",
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
    /// What tells and sets marks; none where the time of sending does.
    pub marker: Option<Marker>,
    /// Columns that its templates and rules name, each behind its setting.
    pub named: Vec<(String, String)>,
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
            marker: None,
            named: Vec::new(),
        }
    }
}

impl Outbox {
    /// Whether the table that set-up creates has the columns that are needed.
    pub(super) fn is_ours(&self) -> bool {
        self.needed()
            .all(|(_, column)| OWN_COLUMNS.contains(&column.as_str()))
    }

    /// The columns that templates and rules name and the table that set-up creates does not have.
    pub(super) fn named_beyond_ours(&self) -> Option<Unfit> {
        self.named_missing(|column| OWN_COLUMNS.contains(&column))
    }

    /// The columns that templates and rules name and that are not there, as `has` says.
    pub(super) fn named_missing(&self, has: impl Fn(&str) -> bool) -> Option<Unfit> {
        let missing = self.named.iter().filter(|(_, column)| !has(column));
        let columns: Vec<_> = missing
            .map(|(setting, column)| format!("`{column}`, which {setting} names"))
            .collect();
        (!columns.is_empty()).then(|| Unfit::NamedColumnsMissing {
            table: self.table.clone(),
            columns: columns.join(", nor "),
        })
    }

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

    /// How the rows of the table show that they are sent, if they can. `has` says whether there is a column,
    /// which of a [`Marker`] is not asked.
    pub(super) fn marks(&self, has: impl Fn(&str) -> bool) -> Option<Marks> {
        if let Some(marker) = &self.marker {
            let unsent = marker.unsent.condition();
            return Some(Marks {
                // A row whose condition is NULL is not looked for, and so not marked.
                sent: format!("({unsent} is not true)"),
                unsent,
                set: marker.set.list(),
                columns: marker.set.columns().map(str::to_owned).collect(),
            });
        }
        let column = self.sent_at().filter(|column| has(column))?;
        let quoted = quote_identifier(column);
        Some(Marks {
            unsent: format!("t.{quoted} is null"),
            sent: format!("t.{quoted} is not null"),
            set: format!("{quoted} = pg_catalog.now()"),
            columns: vec![column.to_owned()],
        })
    }

    /// The condition that a row was sent before a time, as far as `sent_at` and marks tell.
    pub(super) fn sent_before(&self, time: &str) -> String {
        let sent_at = quote_identifier(self.sent_at().unwrap_or("sent_at"));
        let marks = self.marker.as_ref().and_then(|_| self.marks(|_| true));
        match marks {
            Some(marks) => format!("t.{sent_at} < {time} and {}", marks.sent),
            None => format!("t.{sent_at} < {time}"),
        }
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
    fn set_up_creates_a_table_for_those_that_need_no_other_columns() {
        let mut outbox = Outbox::from("outbox".parse::<QualifiedTable>().unwrap());
        outbox.columns.content_type = FieldSource::Constant("application/json".to_owned());
        outbox.columns.event_type = FieldSource::Constant("Created".to_owned());
        assert!(outbox.is_ours());
        outbox.columns = Columns::debezium();
        assert!(!outbox.is_ours());
    }

    #[test]
    fn names_of_columns_are_quoted_wherever_they_stand() {
        let mut outbox = Outbox::from("outbox".parse::<QualifiedTable>().unwrap());
        outbox.columns.id = "Event Id".to_owned();
        outbox.columns.sent_at = FieldSource::Column("sent \"at\"".to_owned());
        assert_eq!(outbox.id(), "\"Event Id\"");
        let marks = outbox.marks(|name| name == "sent \"at\"").unwrap();
        assert_eq!(marks.unsent, "t.\"sent \"\"at\"\"\" is null");
        assert_eq!(marks.set, "\"sent \"\"at\"\"\" = pg_catalog.now()");
        assert_eq!(outbox.marks(|_| false), None);
    }
}
