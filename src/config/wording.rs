//! How values and kinds are said: in complaints, and as a file would have them.

use secrecy::ExposeSecret as _;
use toml::de::DeValue;

use super::condition::ConditionValue;
use super::key::{Key, Kind};
use super::log_levels::LogLevels;
use super::problem::ProblemKind;
use super::suggest;
use super::value::Value;

pub(super) fn impossible(key: &'static Key, expected: String, found: String, hint: String) -> ProblemKind {
    let found = if key.hides_its_value() {
        String::new()
    } else {
        format!(", not {found}")
    };
    ProblemKind::Impossible {
        key: key.path.to_owned(),
        rule: format!("{expected}{found}{hint}"),
    }
}

pub(super) fn expected(kind: Kind) -> String {
    match kind {
        Kind::Text | Kind::Template | Kind::Password => "a text in quotes".to_owned(),
        Kind::Texts => "a text in quotes or a list of such".to_owned(),
        Kind::Field => "a column's name in quotes or { value = \"...\" }".to_owned(),
        Kind::Named => "a table of names, each with a text in quotes".to_owned(),
        Kind::Conditions => {
            "a table of columns and what each must be, as { aggregate_type = \"order\", event_type = [\"paid\", \"refund*\"] }"
                .to_owned()
        }
        Kind::Path => "a path in quotes".to_owned(),
        Kind::Duration { .. } => "a duration such as \"10s\" or \"100ms\"".to_owned(),
        Kind::Size { .. } => "a size such as \"32MiB\" or a number of bytes".to_owned(),
        Kind::Integer { .. } => "an integer".to_owned(),
        Kind::Boolean => "true or false".to_owned(),
        Kind::Choice(words) => match words {
            [rest @ .., last] if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => words.concat(),
        },
        Kind::Address => "an IP address and port such as \"127.0.0.1:10187\"".to_owned(),
        Kind::LogLevels => {
            "error, warn, info, debug, trace or off, or such by target as in \"info,walrelay::rabbitmq=debug\"".to_owned()
        }
    }
}

pub(super) fn range(kind: Kind) -> String {
    match kind {
        Kind::Duration { min, max } => {
            format!(
                "from {} to {}",
                humantime::format_duration(min),
                humantime::format_duration(max)
            )
        }
        Kind::Size { min, max } => format!("from {} to {}", size_text(min), size_text(max)),
        Kind::Integer { min, max } => format!("from {min} to {max}"),
        Kind::Text
        | Kind::Texts
        | Kind::Template
        | Kind::Password
        | Kind::Field
        | Kind::Named
        | Kind::Conditions
        | Kind::Path
        | Kind::Boolean
        | Kind::Choice(_)
        | Kind::Address
        | Kind::LogLevels => expected(kind),
    }
}

pub(super) fn nearest(kind: Kind, text: &str) -> String {
    let nearest = match kind {
        Kind::Choice(words) => suggest::nearest_word(text, words.iter().copied()),
        Kind::LogLevels => suggest::nearest_word(text, LogLevels::WORDS.iter().copied()),
        Kind::Boolean => suggest::nearest_word(text, ["true", "false"]),
        Kind::Text
        | Kind::Texts
        | Kind::Template
        | Kind::Password
        | Kind::Field
        | Kind::Named
        | Kind::Conditions
        | Kind::Path
        | Kind::Duration { .. }
        | Kind::Size { .. }
        | Kind::Integer { .. }
        | Kind::Address => None,
    };
    nearest.map_or_else(String::new, |word| format!("; did you mean {word}?"))
}

pub(super) fn described(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => shown(text),
        DeValue::Integer(number) => format!("the number {number}"),
        DeValue::Float(number) => format!("the number {number}"),
        DeValue::Boolean(on) => on.to_string(),
        DeValue::Datetime(_) => "a date or time".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// A text as part of one line: quoted, escaped, cut where it is long.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let cut: String = text.chars().take(LONGEST).collect();
    let more = if cut.len() < text.len() { "..." } else { "" };
    format!("\"{}{more}\"", cut.escape_debug())
}

/// A number of bytes in the largest binary unit that states it exactly.
pub(super) fn size_text(bytes: u64) -> String {
    let units = [
        (1 << 40, "TiB"),
        (1 << 30, "GiB"),
        (1 << 20, "MiB"),
        (1 << 10, "KiB"),
    ];
    let exact = units
        .iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    exact.map_or_else(
        || format!("{bytes}B"),
        |(unit, name)| format!("{}{name}", bytes / unit),
    )
}

/// The value as it would be written in a file, with passwords masked.
pub(super) fn to_toml(value: &Value) -> String {
    match value {
        Value::Text(text) => quoted(text),
        Value::Secret(text) => quoted(&super::mask::masked(text.expose_secret())),
        Value::Password(_) => quoted(super::mask::MASK),
        Value::Texts(texts) => listing(texts.iter().map(|text| quoted(text))),
        Value::Secrets(texts) => listing(
            texts
                .iter()
                .map(|text| quoted(&super::mask::masked(text.expose_secret()))),
        ),
        Value::Field(field) => field.to_toml(),
        Value::Named(texts) => texts.to_toml(),
        Value::Conditions(conditions) => {
            let conditions: Vec<_> = conditions.iter().map(ConditionValue::to_toml).collect();
            format!("{{ {} }}", conditions.join(", "))
        }
        Value::Path(path) => quoted(&path.to_string_lossy()),
        Value::Duration(wait) => quoted(&humantime::format_duration(*wait).to_string()),
        Value::Size(bytes) => quoted(&size_text(*bytes)),
        Value::Integer(number) => number.to_string(),
        Value::Boolean(on) => on.to_string(),
        Value::Word(word) => quoted(word),
        Value::Address(address) => quoted(&address.to_string()),
        Value::LogLevels(levels) => quoted(&levels.to_string()),
    }
}

/// A list; a single item stands for itself.
pub(super) fn listing(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    match items.as_slice() {
        [one] => one.clone(),
        _ => format!("[{}]", items.join(", ")),
    }
}

/// A basic string of TOML (<https://toml.io/en/v1.0.0#string>).
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
