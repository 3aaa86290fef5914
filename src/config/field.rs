//! Where the fields of an event come from, as it is written.

use toml::de::DeTable;

use super::wording::quoted;

/// Where a field of an event comes from, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// The column of this name, as PostgreSQL stores it.
    Column(String),
    /// This text, for every event.
    Constant(String),
    /// Nowhere.
    Absent,
}

impl FieldValue {
    /// Reads a column's name, nothing, or an inline table as in a file.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Absent);
        }
        if !text.trim_start().starts_with('{') {
            return Some(Self::Column(text.to_owned()));
        }
        let document = format!("field = {text}");
        let document = DeTable::parse(&document).ok()?;
        let (_, field) = document.get_ref().iter().next()?;
        let table = field.get_ref().as_table()?;
        (document.get_ref().len() == 1)
            .then(|| Self::from_table(table))
            .flatten()
    }

    /// Reads `{ value = "..." }`.
    pub(super) fn from_table(table: &DeTable<'_>) -> Option<Self> {
        let mut entries = table.iter();
        match (entries.next(), entries.next()) {
            (Some((name, value)), None) if name.get_ref() == "value" => {
                Some(Self::Constant(value.get_ref().as_str()?.to_owned()))
            }
            _ => None,
        }
    }

    /// The field as it would be written in a file.
    pub(super) fn to_toml(&self) -> String {
        match self {
            Self::Column(name) => quoted(name),
            Self::Constant(text) => format!("{{ value = {} }}", quoted(text)),
            Self::Absent => quoted(""),
        }
    }
}
