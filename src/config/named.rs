//! Texts under names that are not ours, as in `[outbox.headers]`.

use toml::de::DeTable;

use super::wording::{described, quoted};

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
            (Some((_, value)), None) => Self::from_table(value.get_ref().as_table()?).ok(),
            _ => None,
        }
    }

    /// Reads a table whose values are all texts.
    ///
    /// # Errors
    /// What stands there instead.
    pub(super) fn from_table(table: &DeTable<'_>) -> Result<Self, String> {
        let texts = table.iter().map(|(name, value)| {
            let wrong = || wrong_member(name.get_ref(), &format!("is {}", described(value.get_ref())));
            let text = value.get_ref().as_str().ok_or_else(wrong)?;
            Ok((name.get_ref().to_string(), text.to_owned()))
        });
        texts.collect::<Result<_, _>>().map(Self)
    }

    /// What stands there where a name is at fault.
    pub(super) fn described(&self) -> String {
        match self.iter().any(|(name, _)| name.is_empty()) {
            true => "an empty name".to_owned(),
            false => "a longer name".to_owned(),
        }
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

/// A table of which one member is at fault, on one line.
pub(super) fn wrong_member(name: &str, what: &str) -> String {
    const LONGEST: usize = 60;
    let cut: String = name.chars().take(LONGEST).collect();
    let more = if cut.len() < name.len() { "..." } else { "" };
    format!("a table in which `{}{more}` {what}", cut.escape_debug())
}
