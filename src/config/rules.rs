//! What single values must fulfil beyond their kind.

use super::field::FieldValue;
use super::value::Value;

/// A check of one value; the error completes "must be ...".
pub type Rule = fn(&Value) -> Result<(), &'static str>;

pub(super) fn not_empty(value: &Value) -> Result<(), &'static str> {
    let texts = value.texts();
    if texts.is_empty() || texts.contains(&"") {
        Err("not empty")
    } else {
        Ok(())
    }
}

/// <https://www.postgresql.org/docs/current/warm-standby.html#STREAMING-REPLICATION-SLOTS-MANIPULATION>, and
/// NAMEDATALEN - 1 bytes at most.
pub(super) fn slot_name(value: &Value) -> Result<(), &'static str> {
    let name = value.text();
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if (1..=63).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err("1 to 63 lower-case letters, digits and underscores")
}

/// An identifier: NAMEDATALEN - 1 bytes at most
/// (<https://www.postgresql.org/docs/current/sql-syntax-lexical.html#SQL-SYNTAX-IDENTIFIERS>).
pub(super) fn publication_name(value: &Value) -> Result<(), &'static str> {
    let name = value.text();
    if (1..=63).contains(&name.len()) && !name.contains('\0') {
        return Ok(());
    }
    Err("a name of 1 to 63 bytes")
}

/// A short string of AMQP 0-9-1, section 4.2.5.3: 255 bytes at most.
pub(super) fn short_text(value: &Value) -> Result<(), &'static str> {
    if value.text().len() <= 255 {
        Ok(())
    } else {
        Err("at most 255 bytes long")
    }
}

/// AMQP negotiates heartbeats in whole seconds (`connection.tune`, 0-9-1 section 1.4.2.5).
pub(super) fn heartbeat(value: &Value) -> Result<(), &'static str> {
    if matches!(value, Value::Duration(wait) if wait.subsec_nanos() == 0) {
        return Ok(());
    }
    Err("a whole number of seconds, or 0 for none")
}

/// Of `id` and `payload`: one that is the same for every event would be of no use.
pub(super) fn is_column(value: &Value) -> Result<(), &'static str> {
    if matches!(value, Value::Field(FieldValue::Column(_))) {
        return Ok(());
    }
    Err("the name of a column")
}

/// Of fields that every event has.
pub(super) fn is_not_absent(value: &Value) -> Result<(), &'static str> {
    if matches!(value, Value::Field(FieldValue::Absent)) {
        return Err("the name of a column or { value = \"...\" }");
    }
    Ok(())
}

/// Of fields that differ from row to row.
pub(super) fn is_no_constant(value: &Value) -> Result<(), &'static str> {
    if matches!(value, Value::Field(FieldValue::Constant(_))) {
        return Err("the name of a column, or \"\" for none");
    }
    Ok(())
}

/// What headers begin with: the names of CloudEvents' attributes still have room behind it (section 4.2.5.3).
pub(super) fn header_prefix(value: &Value) -> Result<(), &'static str> {
    match value.text().len() {
        1..=200 => Ok(()),
        _ => Err("1 to 200 bytes long"),
    }
}

/// A header's name is a short string (section 4.2.5.5).
pub(super) fn header_names(value: &Value) -> Result<(), &'static str> {
    let Value::Named(texts) = value else { return Ok(()) };
    match texts.iter().all(|(name, _)| (1..=255).contains(&name.len())) {
        true => Ok(()),
        false => Err("headers whose names have 1 to 255 bytes"),
    }
}
