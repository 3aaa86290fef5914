//! What can be wrong with a configuration, and where it stands.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::key::Key;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A line of the configuration file, counted from 1.
    File {
        /// The file as it was named.
        path: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
    },
    /// An environment variable of this name.
    Environment(String),
    /// A flag of this name, as `--set`.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong, and where.
#[derive(Debug)]
pub struct Problem {
    /// Where it stands, if anywhere.
    pub origin: Option<Origin>,
    /// What is wrong.
    pub kind: ProblemKind,
}

/// What is wrong. The texts name the key and what to do, but no value of a secret key.
#[derive(Debug, thiserror::Error)]
pub enum ProblemKind {
    /// No key or table of this name.
    #[error("unknown {what} {name}; {hint}")]
    Unknown {
        /// "key" or "table".
        what: &'static str,
        /// Its path as written.
        name: String,
        /// The nearest valid one, or all that are valid.
        hint: String,
    },
    /// A value of the wrong type, out of range, or against the key's rules.
    #[error("{key} must be {rule}")]
    Impossible {
        /// The key's path.
        key: String,
        /// What would be right, what stands there (unless it is secret), and the nearest valid value.
        rule: String,
    },
    /// A value that its own module refused.
    #[error("{key}{} is not valid", .item.map_or_else(String::new, |item| format!(" (item {item})")))]
    Refused {
        /// The key's path.
        key: &'static str,
        /// Which of several texts, counted from 1.
        item: Option<usize>,
        /// Why, in words that show no secret.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A required key that nobody set.
    #[error(
        "{path} is not set: write {name} under {header} in {file}, or set {env}, or pass --set {path}=...",
        path = .key.path, name = .key.name(), header = .key.header(), env = .key.env_name()
    )]
    Missing {
        /// The key.
        key: &'static Key,
        /// The file in use, or the one that would be found.
        file: String,
    },
    /// There is no configuration file, and something is missing.
    #[error(
        "no configuration file: neither {} exists; --config FILE names another",
        .looked_for.join(" nor ")
    )]
    NoFile {
        /// Where it would have been found.
        looked_for: Vec<String>,
    },
    /// A `[source.messages]` that says nothing.
    #[error("[source.messages] has no prefix; write prefix = \"outbox\" below it")]
    MessagesWithoutPrefix,
    /// A table of a list without the key that it is of no use without.
    #[error("[[{section}]] has no {needed}; write {} below it", example(needed))]
    ListedWithout {
        /// The list's name.
        section: &'static str,
        /// The key's name.
        needed: &'static str,
    },
    /// A key of `[[outbox.route]]` in a variable or a flag.
    #[error("{} can be set in a configuration file only, where {} can be there several times", .key.path, .key.header())]
    InFileOnly {
        /// The key.
        key: &'static Key,
    },
    /// A key of `[[outbox]]` in a variable or a flag, where the file has several.
    #[error("there are {count} [[outbox]] tables: set {} in the file, in the one that it is for", .key.path)]
    OutboxSeveral {
        /// How many there are.
        count: usize,
        /// The key.
        key: &'static Key,
    },
    /// An empty list of outbox tables.
    #[error("outbox must hold at least one table; leave it out for the default, public.outbox_events")]
    OutboxEmpty,
    /// A table in two `[[outbox]]`.
    #[error("outbox.table {0:?} is there twice; name each table once")]
    OutboxTwice(String),
    /// Two keys that contradict one another.
    #[error("{0}")]
    Contradiction(String),
    /// Not TOML.
    #[error("{message}")]
    Syntax {
        /// Counted from 1, in characters.
        column: usize,
        /// The parser's message; it holds nothing of the text.
        message: String,
    },
    /// The configuration file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file as it was named.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The configuration file is too large to be one.
    #[error("{} is larger than {limit} bytes; name a configuration file", path.display())]
    TooLarge {
        /// The file as it was named.
        path: PathBuf,
        /// Bytes.
        limit: u64,
    },
    /// A variable or file that is not UTF-8.
    #[error("is not valid UTF-8 text")]
    NotText,
    /// A `--set` without a key and a `=`.
    #[error("needs KEY=VALUE, as in --set log.level=debug")]
    SetWithoutValue,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, &self.kind) {
            (Some(origin), ProblemKind::Syntax { column, .. }) => write!(f, "{origin}:{column}: ")?,
            (Some(origin), _) => write!(f, "{origin}: ")?,
            (None, _) => {}
        }
        write!(f, "{}", self.kind)?;
        let mut source = self.kind.source();
        let mut pointed = None;
        while let Some(error) = source {
            write!(f, ": {error}")?;
            pointed = pointed.or(error.downcast_ref::<Pointed>());
            source = error.source();
        }
        match pointed {
            Some(pointed) => write!(f, "\n{}", pointed.excerpt()),
            None => Ok(()),
        }
    }
}

/// What a validator says of one place in a text: it is shown with the text and a caret below that place. Not for texts
/// that may hold a secret.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Pointed {
    /// The whole text.
    pub text: String,
    /// The first character at fault, counted from 1.
    pub position: usize,
    /// How many characters are at fault.
    pub length: usize,
    /// What is wrong, without the place.
    pub why: String,
}

impl Pointed {
    /// Around a fault, so many characters are shown at most.
    const AROUND: usize = 50;

    /// Two lines: the text, cut where it is long, and carets below the fault.
    fn excerpt(&self) -> String {
        const INDENT: &str = "    ";
        let fault = self.position.saturating_sub(1);
        let start = fault.saturating_sub(Self::AROUND);
        let shown = Self::AROUND + self.length.min(Self::AROUND) + Self::AROUND;
        // A character that takes no or much room would put the caret in the wrong place.
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        let rest = self.text.chars().skip(start);
        let text: String = rest.take(shown).map(plain).collect();
        let before = if start > 0 { "…" } else { "" };
        let after = match self.text.chars().count() > start + shown {
            true => "…",
            false => "",
        };
        let offset = " ".repeat(before.chars().count() + fault - start);
        let carets = "^".repeat(self.length.clamp(1, 2 * Self::AROUND));
        format!("{INDENT}{before}{text}{after}\n{INDENT}{offset}{carets}")
    }
}

/// How a key is written that a table of a list needs.
fn example(needed: &str) -> &'static str {
    match needed {
        "when" => "when = { aggregate_type = \"order\" }",
        _ => "table = \"schema.name\"",
    }
}

/// Everything that is wrong with a configuration; its text is one line for each problem, and two more for one that is shown
/// with its place.
#[derive(Debug)]
pub struct ConfigError(Vec<Problem>);

impl ConfigError {
    /// So many lines at most: what follows is mostly the consequence.
    const SHOWN: usize = 20;

    /// A contradiction that shows only where the values are put to use.
    #[must_use]
    pub fn contradiction(text: String) -> Self {
        Self(vec![Problem {
            origin: None,
            kind: ProblemKind::Contradiction(text),
        }])
    }

    /// Sorts the problems: by line within the file, then those of the environment and the flags.
    pub(super) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| match &problem.origin {
            Some(Origin::File { line, .. }) => *line,
            Some(Origin::Default | Origin::Environment(_) | Origin::Flag(_)) | None => usize::MAX,
        });
        Self(problems)
    }

    /// Whether the command line is at fault rather than what it sets.
    #[must_use]
    pub fn is_wrong_usage(&self) -> bool {
        let mut kinds = self.0.iter().map(|problem| &problem.kind);
        kinds.any(|kind| matches!(kind, ProblemKind::SetWithoutValue))
    }

    /// The problems, in the order in which they are shown.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(Self::SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        match self.0.len().saturating_sub(Self::SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}

impl Error for ConfigError {}
