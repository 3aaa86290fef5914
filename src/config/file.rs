//! Reads the TOML file: finds it, walks its tables by the table of keys, and collects every problem.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{Key, MESSAGES, OUTBOX, ROUTE};
use super::layers::{Layer, OutboxEntry, Setting};
use super::problem::{Origin, Problem, ProblemKind};
use super::suggest;
use super::value::Value;

/// Where the file is looked for when nobody names one.
pub(super) const SEARCH: &[&str] = &["walrelay.toml", "/etc/walrelay/walrelay.toml"];

/// A path of [`SEARCH`] for people: one of the current folder says so.
pub(super) fn shown(path: &str) -> String {
    if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("./{path}")
    }
}

/// More than any configuration needs; keeps a wrong path from filling the memory.
const LARGEST: u64 = 256 * 1024;

/// Reads the first of `search` that exists; none may.
pub(super) fn find(search: &[PathBuf]) -> Result<Option<(PathBuf, String)>, ProblemKind> {
    for path in search {
        match read(path) {
            Err(ProblemKind::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            Ok(text) => return Ok(Some((path.clone(), text))),
            Err(problem) => return Err(problem),
        }
    }
    Ok(None)
}

/// Reads a file that was named.
pub(super) fn read(path: &Path) -> Result<String, ProblemKind> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes))
        .map_err(|source| ProblemKind::Unreadable {
            path: path.to_owned(),
            source,
        })?;
    if bytes.len() as u64 > LARGEST {
        return Err(ProblemKind::TooLarge {
            path: path.to_owned(),
            limit: LARGEST,
        });
    }
    String::from_utf8(bytes).map_err(|error| ProblemKind::Unreadable {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, error.utf8_error()),
    })
}

/// Parses a file's text; `path` only serves to name it.
pub(super) fn parse(path: &Path, text: &str) -> Layer {
    let mut reader = Reader {
        path: path.into(),
        text,
        layer: Layer::default(),
    };
    match DeTable::parse(text) {
        Ok(document) => reader.table("", document.get_ref(), &mut OutboxEntry::default()),
        Err(error) => {
            let start = error.span().map_or(text.len(), |span| span.start);
            let column = reader.column(start);
            let message = error.message().replace('\n', " ");
            reader.problem(start, ProblemKind::Syntax { column, message });
        }
    }
    reader.layer
}

struct Reader<'a> {
    path: Arc<Path>,
    text: &'a str,
    layer: Layer,
}

impl Reader<'_> {
    /// Walks one table. Keys of an `[[outbox]]`, of the tables and of the list below it go to `entry`, all others to the
    /// layer.
    fn table(&mut self, prefix: &str, table: &DeTable<'_>, entry: &mut OutboxEntry) {
        for (name, value) in table {
            let at = name.span().start;
            let path = if prefix.is_empty() {
                printable(name.get_ref())
            } else {
                format!("{prefix}.{}", printable(name.get_ref()))
            };
            if let Some(key) = Key::find(&path) {
                match Value::from_toml(key, value.get_ref()) {
                    Ok(value) => {
                        let origin = self.origin_at(at);
                        let values = if key.is_of_outbox() {
                            &mut entry.values
                        } else {
                            &mut self.layer.values
                        };
                        values.insert(key.path, Setting { key, value, origin });
                    }
                    Err(kind) => self.problem(at, kind),
                }
            } else if path == OUTBOX {
                if let Some(entries) = self.list(OUTBOX, at, value.get_ref(), "table") {
                    if value.get_ref().as_array().is_some_and(|tables| tables.is_empty()) {
                        self.problem(at, ProblemKind::OutboxEmpty);
                    }
                    self.layer.outbox = Some(entries);
                }
            } else if path == ROUTE {
                let entries = self.list(ROUTE, at, value.get_ref(), "when");
                let routes = entries.into_iter().flatten();
                entry.routes.extend(routes.map(|route| route.values));
            } else if suggest::is_section(&path) {
                match value.get_ref().as_table() {
                    Some(inner) => {
                        // It would have no effect, and who wrote it expects one.
                        if path == MESSAGES && !inner.iter().any(|(name, _)| name.get_ref() == "prefix") {
                            self.problem(at, ProblemKind::MessagesWithoutPrefix);
                        }
                        self.table(&path, inner, entry);
                    }
                    None => self.wrong_table(at, path, "a table"),
                }
            } else {
                self.unknown(at, path, value.get_ref());
            }
        }
    }

    /// The tables of a list, each with its key `needed`; `None` where it is no list.
    fn list(
        &mut self,
        section: &'static str,
        at: usize,
        value: &DeValue<'_>,
        needed: &'static str,
    ) -> Option<Vec<OutboxEntry>> {
        let DeValue::Array(tables) = value else {
            let expected = format!("written with two brackets, as [[{section}]]");
            self.wrong_table(at, section.to_owned(), &expected);
            return None;
        };
        let entries = tables
            .iter()
            .filter_map(|table| self.list_entry(section, table, needed));
        Some(entries.collect())
    }

    fn list_entry(
        &mut self,
        section: &'static str,
        table: &Spanned<DeValue<'_>>,
        needed: &'static str,
    ) -> Option<OutboxEntry> {
        let Range { start, .. } = table.span();
        let DeValue::Table(inner) = table.get_ref() else {
            let expected = format!("a list of tables, as [[{section}]]");
            self.wrong_table(start, section.to_owned(), &expected);
            return None;
        };
        let mut entry = OutboxEntry::default();
        self.table(section, inner, &mut entry);
        if !inner.iter().any(|(name, _)| name.get_ref() == needed) {
            self.problem(start, ProblemKind::ListedWithout { section, needed });
        }
        Some(entry)
    }

    fn unknown(&mut self, at: usize, name: String, value: &DeValue<'_>) {
        let tables = value
            .as_array()
            .is_some_and(|items| items.iter().any(|item| item.get_ref().is_table()));
        let is_table = value.is_table() || tables;
        let (what, hint) = if is_table {
            ("table", suggest::table_hint(&name))
        } else {
            ("key", suggest::key_hint(&name))
        };
        self.problem(at, ProblemKind::Unknown { what, name, hint });
    }

    fn wrong_table(&mut self, at: usize, key: String, expected: &str) {
        self.problem(
            at,
            ProblemKind::Impossible {
                key,
                rule: expected.to_owned(),
            },
        );
    }

    fn problem(&mut self, at: usize, kind: ProblemKind) {
        let origin = Some(self.origin_at(at));
        self.layer.problems.push(Problem { origin, kind });
    }

    fn origin_at(&self, at: usize) -> Origin {
        Origin::File {
            path: Arc::clone(&self.path),
            line: self.before(at).matches('\n').count() + 1,
        }
    }

    /// Counted from 1, in characters.
    fn column(&self, at: usize) -> usize {
        let before = self.before(at);
        before.rsplit('\n').next().unwrap_or(before).chars().count() + 1
    }

    fn before(&self, at: usize) -> &str {
        self.text.get(..at).unwrap_or(self.text)
    }
}

/// A name as part of a path on one line: quoted and escaped unless it is a bare key of TOML.
fn printable(name: &str) -> String {
    const LONGEST: usize = 60;
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.len() <= LONGEST && name.chars().all(bare) {
        return name.to_owned();
    }
    let cut: String = name.chars().take(LONGEST).collect();
    format!("\"{}\"", cut.escape_debug())
}
