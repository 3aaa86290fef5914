//! The nearest valid name to a wrong one.

use strsim::damerau_levenshtein;

use super::key::Key;
use super::keys::KEYS;

/// What to say after an unknown key: the nearest one, or all of its table.
pub(super) fn key_hint(path: &str) -> String {
    if let Some(key) = nearest_key(path) {
        return format!("did you mean {}?", key.path);
    }
    let section = path.rsplit_once('.').map_or("", |(section, _)| section);
    let names: Vec<_> = KEYS
        .iter()
        .filter(|key| key.section() == section)
        .map(Key::name)
        .collect();
    if names.is_empty() {
        format!("known tables are {}", sections().join(", "))
    } else {
        format!("known keys of {section} are {}", names.join(", "))
    }
}

/// What to say after an unknown table: the nearest one, or all.
pub(super) fn table_hint(path: &str) -> String {
    match nearest_word(path, sections()) {
        Some(section) => format!("did you mean {section}?"),
        None => format!("known tables are {}", sections().join(", ")),
    }
}

/// The nearest key, wherever it stands: a wrong letter in the right table counts less than a wrong table.
pub(super) fn nearest_key(path: &str) -> Option<&'static Key> {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let distances = KEYS.iter().map(|key| {
        let of_section = if section.is_empty() {
            0
        } else {
            damerau_levenshtein(section, key.section())
        };
        (damerau_levenshtein(name, key.name()), of_section, key)
    });
    distances
        .filter(|(of_name, _, _)| *of_name <= allowed(name))
        .min_by_key(|(of_name, of_section, _)| (of_name + of_section.min(&2), *of_section))
        .map(|(_, _, key)| key)
}

/// The nearest of a few words, if it is near.
pub(super) fn nearest_word<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    words
        .into_iter()
        .map(|candidate| (damerau_levenshtein(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed(word))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The tables of the file, in the order of the sample.
pub(super) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(Key::section).collect();
    sections.dedup();
    sections
}

/// Whether it is a table of the file, or one that holds such.
pub(super) fn is_section(path: &str) -> bool {
    let is_within = |section: &str| {
        section
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('.'))
    };
    sections()
        .iter()
        .any(|section| *section == path || is_within(section))
}

/// A third of a name may be wrong, and at least one letter.
fn allowed(name: &str) -> usize {
    (name.chars().count() / 3).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_found_across_tables() {
        for (wrong, right) in [
            ("delivery.max_inflight", "delivery.max_in_flight"),
            ("max_in_flight", "delivery.max_in_flight"),
            ("rabbitmq.slot", "postgres.slot"),
            ("rabbitmq.url", "rabbitmq.uri"),
            ("postgres.uri", "postgres.url"),
            ("postgres.pasword_file", "postgres.password_file"),
            ("rabbitmq.pasword_file", "rabbitmq.password_file"),
            ("rabbitmq.exchange_type", "rabbitmq.declare.exchange_type"),
        ] {
            assert_eq!(nearest_key(wrong).map(|key| key.path), Some(right), "{wrong}");
        }
    }

    #[test]
    fn without_a_near_key_those_of_the_table_are_named() {
        assert_eq!(
            key_hint("log.colour_scheme"),
            "known keys of log are format, level"
        );
    }
}
