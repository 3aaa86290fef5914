//! The conditions of a rule, as they are written.

use toml::de::{DeTable, DeValue};

use super::wording::{listing, quoted};

/// What one value of a row must be, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionValue {
    /// The field, column, or path into one.
    pub of: String,
    /// The texts that it may be; at least one.
    pub any_of: Vec<String>,
}

impl ConditionValue {
    /// Reads `{ aggregate_type = "order" }`. A key with dots is a path, in quotes or not.
    pub(super) fn from_table(table: &DeTable<'_>) -> Option<Vec<Self>> {
        let mut conditions = Vec::new();
        Self::collect("", table, &mut conditions)?;
        (!conditions.is_empty()).then_some(conditions)
    }

    fn collect(prefix: &str, table: &DeTable<'_>, conditions: &mut Vec<Self>) -> Option<()> {
        for (name, value) in table {
            let of = match prefix {
                "" => name.get_ref().to_string(),
                prefix => format!("{prefix}.{}", name.get_ref()),
            };
            let value = value.get_ref();
            if let Some(inner) = value.as_table() {
                Self::collect(&of, inner, conditions)?;
                continue;
            }
            let any_of = match value.as_array() {
                Some(items) if items.is_empty() => return None,
                Some(items) => {
                    let texts = items.iter().map(|item| scalar(item.get_ref()));
                    texts.collect::<Option<_>>()?
                }
                None => vec![scalar(value)?],
            };
            conditions.push(Self { of, any_of });
        }
        Some(())
    }

    /// The condition as it would be written in a file.
    pub(super) fn to_toml(&self) -> String {
        let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let of = match self.of.chars().all(is_bare) {
            true => self.of.clone(),
            false => quoted(&self.of),
        };
        let any_of = self.any_of.iter().map(|text| quoted(text));
        format!("{of} = {}", listing(any_of))
    }
}

/// A text, or how a row would write a whole number or a boolean of JSON.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    if let DeValue::Boolean(on) = value {
        return Some(on.to_string());
    }
    match value.as_integer() {
        Some(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        Some(_) => None,
        None => value.as_str().map(str::to_owned),
    }
}
