//! Layers of settings, and what becomes of them laid on one another.

use std::collections::BTreeMap;

use super::key::{Key, MESSAGES, MESSAGES_PREFIX, OUTBOX, Presence, ROUTE, TABLE};
use super::keys::KEYS;
use super::problem::{Origin, Problem, ProblemKind};
use super::suggest;
use super::value::Value;
use super::wording::to_toml;

/// A value, its key, and where it comes from.
pub(super) struct Setting {
    pub(super) key: &'static Key,
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// Settings by the path of their key.
pub(super) type Entry = BTreeMap<&'static str, Setting>;

/// One `[[outbox]]`: its settings, and the list below it.
#[derive(Default)]
pub(super) struct OutboxEntry {
    /// All but those of the list.
    pub(super) values: Entry,
    /// Each `[[outbox.route]]`, in its order.
    pub(super) routes: Vec<Entry>,
}

/// What one source says.
#[derive(Default)]
pub(super) struct Layer {
    /// All but those of `[[outbox]]`.
    pub(super) values: Entry,
    /// The list of outbox tables, if this source is a file that has one.
    pub(super) outbox: Option<Vec<OutboxEntry>>,
    /// Those of `[[outbox]]` that the environment or flags set: they cannot say in which.
    pub(super) of_outbox: Entry,
    pub(super) problems: Vec<Problem>,
}

impl Layer {
    /// Takes a setting of the environment or a flag.
    pub(super) fn set(&mut self, setting: Setting) {
        let values = match setting.key.is_of_outbox() {
            true => &mut self.of_outbox,
            false => &mut self.values,
        };
        values.insert(setting.key.path, setting);
    }
}

/// The settings in effect, each with its origin.
pub struct Settings {
    pub(super) values: Entry,
    pub(super) outbox: Vec<OutboxEntry>,
}

impl Settings {
    /// Lays the layers on one another, from low to high, over the defaults.
    pub(super) fn merge(layers: impl IntoIterator<Item = Layer>) -> (Self, Vec<Problem>) {
        let mut settings = Self {
            values: Entry::new(),
            outbox: Vec::new(),
        };
        let mut problems = Vec::new();
        for layer in layers {
            settings.values.extend(layer.values);
            settings.outbox = layer.outbox.unwrap_or(settings.outbox);
            problems.extend(settings.lay_on_outbox(layer.of_outbox));
            problems.extend(layer.problems);
        }
        // Whoever takes events from messages may need no table.
        if settings.outbox.is_empty() && !settings.values.contains_key(MESSAGES_PREFIX) {
            settings.outbox.push(OutboxEntry::default());
        }
        for key in KEYS {
            let Presence::Default(text) = key.presence else {
                continue;
            };
            // A test shows that every default is valid.
            let Ok(value) = Value::from_text(key, text) else {
                continue;
            };
            let entries = if key.is_of_route() {
                settings
                    .outbox
                    .iter_mut()
                    .flat_map(|entry| &mut entry.routes)
                    .collect()
            } else if key.is_of_outbox() {
                settings
                    .outbox
                    .iter_mut()
                    .map(|entry| &mut entry.values)
                    .collect()
            } else {
                vec![&mut settings.values]
            };
            for entry in entries {
                let value = value.clone();
                entry.entry(key.path).or_insert(Setting {
                    key,
                    value,
                    origin: Origin::Default,
                });
            }
        }
        (settings, problems)
    }

    /// Lays what the environment or flags set of `[[outbox]]` on the only one there is. With a table's name among it, it is
    /// a list of one, in place of the list so far.
    fn lay_on_outbox(&mut self, values: Entry) -> Vec<Problem> {
        if values.is_empty() {
            return Vec::new();
        }
        if values.contains_key(TABLE) {
            self.outbox.clear();
        }
        let count = self.outbox.len();
        match self.outbox.as_mut_slice() {
            [] => self.outbox.push(OutboxEntry {
                values,
                ..OutboxEntry::default()
            }),
            [only] => only.values.extend(values),
            [..] => {
                let refused = values.into_values().map(|Setting { key, origin, .. }| Problem {
                    origin: Some(origin),
                    kind: ProblemKind::OutboxSeveral { count, key },
                });
                return refused.collect();
            }
        }
        Vec::new()
    }

    /// Where the value of this key comes from; of `[[outbox]]` the first. `None`: it is not set.
    #[must_use]
    pub fn origin(&self, path: &str) -> Option<&Origin> {
        let of_outbox = self.outbox.first().and_then(|entry| entry.values.get(path));
        self.values.get(path).or(of_outbox).map(|setting| &setting.origin)
    }

    /// The settings as a configuration file with origins as comments, passwords masked.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let is_below_outbox = |section: &str| section.starts_with("outbox.");
        for section in suggest::sections() {
            match section {
                // A table of an [[outbox]] stands behind it.
                OUTBOX => {
                    for entry in &self.outbox {
                        push_section(&mut text, section, &entry.values);
                        let below = suggest::sections()
                            .into_iter()
                            .filter(|name| is_below_outbox(name));
                        for section in below {
                            let entries = match section {
                                ROUTE => entry.routes.as_slice(),
                                _ => std::slice::from_ref(&entry.values),
                            };
                            for entry in entries {
                                push_section(&mut text, section, entry);
                            }
                        }
                    }
                }
                _ if is_below_outbox(section) => {}
                _ => push_section(&mut text, section, &self.values),
            }
        }
        text
    }

    /// Every setting: those of the outbox tables too.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Setting> {
        let of_outbox = self.outbox.iter().flat_map(|entry| {
            let of_routes = entry.routes.iter().flat_map(Entry::values);
            entry.values.values().chain(of_routes)
        });
        self.values.values().chain(of_outbox)
    }
}

/// Appends a table, with a blank line before it.
fn push_section(text: &mut String, section: &str, entry: &Entry) {
    let keys: Vec<_> = KEYS.iter().filter(|key| key.section() == section).collect();
    let Some(header) = keys.first().map(|key| key.header()) else {
        return;
    };
    let blank = if text.is_empty() { "" } else { "\n" };
    // The table alone would be an error.
    let off = match section == MESSAGES && !entry.contains_key(MESSAGES_PREFIX) {
        true => "# ",
        false => "",
    };
    text.push_str(&format!("{blank}{off}{header}\n{}", listing(&keys, entry)));
}

fn listing(keys: &[&'static Key], entry: &Entry) -> String {
    let lines = keys.iter().map(|key| match entry.get(key.path) {
        Some(Setting { value, origin, .. }) => {
            format!("{} = {}  # {origin}\n", key.name(), to_toml(value))
        }
        None => format!("# {} is not set: {}\n", key.name(), key.help),
    });
    lines.collect()
}
