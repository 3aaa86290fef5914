//! Texts under names that are not ours, as in `[outbox.headers]`.

use toml::de::DeTable;

use super::wording::quoted;

/// Texts by their names, in the order of the names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamedTexts(Vec<(String, String)>);

impl NamedTexts {
    /// Reads an inline table, as in a file; nothing is an empty one.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        if text.trim().is_empty() {
            return Some(Self::default());
        }
        let document = format!("named = {text}");
        let document = DeTable::parse(&document).ok()?;
        let mut entries = document.get_ref().iter();
        match (entries.next(), entries.next()) {
            (Some((_, value)), None) => Self::from_table(value.get_ref().as_table()?),
            _ => None,
        }
    }

    /// Reads a table whose values are all texts.
    pub(super) fn from_table(table: &DeTable<'_>) -> Option<Self> {
        let texts = table.iter().map(|(name, text)| {
            let text = text.get_ref().as_str()?;
            Some((name.get_ref().to_string(), text.to_owned()))
        });
        texts.collect::<Option<_>>().map(Self)
    }

    /// Names and texts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// As an inline table.
    pub(super) fn to_toml(&self) -> String {
        let entries = self
            .iter()
            .map(|(name, text)| format!("{} = {}", quoted(name), quoted(text)));
        match entries.collect::<Vec<_>>().join(", ") {
            entries if entries.is_empty() => "{}".to_owned(),
            entries => format!("{{ {entries} }}"),
        }
    }
}
