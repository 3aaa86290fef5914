//! The conditions of a rule, as they are written.

use toml::de::{DeTable, DeValue};

use super::named::wrong_member;
use super::wording::{described, listing, quoted};

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
    ///
    /// # Errors
    /// What stands there instead.
    pub(super) fn from_table(table: &DeTable<'_>) -> Result<Vec<Self>, String> {
        if table.is_empty() {
            return Err("an empty table".to_owned());
        }
        let mut conditions = Vec::new();
        Self::collect("", table, &mut conditions)?;
        Ok(conditions)
    }

    fn collect(prefix: &str, table: &DeTable<'_>, conditions: &mut Vec<Self>) -> Result<(), String> {
        for (name, value) in table {
            let of = match prefix {
                "" => name.get_ref().to_string(),
                prefix => format!("{prefix}.{}", name.get_ref()),
            };
            let value = value.get_ref();
            let any_of = match value {
                DeValue::Table(inner) if inner.is_empty() => {
                    return Err(wrong_member(&of, "is an empty table"));
                }
                DeValue::Table(inner) => {
                    Self::collect(&of, inner, conditions)?;
                    continue;
                }
                DeValue::Array(items) if items.is_empty() => {
                    return Err(wrong_member(&of, "is an empty list"));
                }
                DeValue::Array(items) => {
                    let texts = items.iter().map(|item| scalar(&of, "holds", item.get_ref()));
                    texts.collect::<Result<_, _>>()?
                }
                DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_) => vec![scalar(&of, "is", value)?],
            };
            conditions.push(Self { of, any_of });
        }
        Ok(())
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
fn scalar(of: &str, has: &str, value: &DeValue<'_>) -> Result<String, String> {
    let text = match value {
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => None,
    };
    let wrong = |why| wrong_member(of, &format!("{has} {}{why}", described(value)));
    match text {
        Some(text) if text.strip_suffix('*').unwrap_or(&text).contains('*') => {
            Err(wrong(", with a `*` that is not at the end"))
        }
        Some(text) => Ok(text),
        None => Err(wrong("")),
    }
}
