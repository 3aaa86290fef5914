//! How rows show that they are sent where no time tells it: `outbox.unsent` and `outbox.mark_set`, SQL of an operator's.
//!
//! What they mean only PostgreSQL knows, and it is asked before anything depends on them; here they are read so far that
//! each stays in its place within a statement.

mod check;

use std::str::FromStr;

use super::identifier::quote_identifier;

pub use check::MarkerUnfit;
pub(super) use check::{check, check_end, check_plan, refused_plan};

/// SQL that tells and sets marks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// The condition that a row is not sent.
    pub unsent: Unsent,
    /// What marks it.
    pub set: MarkSet,
}

/// One SQL condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unsent(String);

/// Assignments, as they stand behind `update … set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkSet {
    assignments: Vec<Assignment>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The column, as PostgreSQL stores its name.
    pub(super) column: String,
    /// The expression.
    pub(super) value: String,
}

/// Why a text is no such SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MarkerError {
    /// Nothing there.
    #[error("there is nothing in it")]
    Empty,
    /// More than one statement.
    #[error("a semicolon has no place in it")]
    Semicolon,
    /// A comment could hide what follows.
    #[error("a comment has no place in it")]
    Comment,
    /// A place for a value that nobody gives.
    #[error("a parameter such as $1 has no place in it")]
    Parameter,
    /// A string or a quoted name without its end.
    #[error("a quote in it is not closed")]
    Quote,
    /// Brackets that do not match.
    #[error("its brackets do not match")]
    Brackets,
    /// No `column = expression`.
    #[error("it must be a list of column = expression")]
    Assignment,
    /// The rest of an update.
    #[error("the word `{0}` has no place in it outside brackets")]
    Word(&'static str),
}

/// Words that would end the assignments of an update.
const ENDING: [&str; 3] = ["from", "where", "returning"];

impl Marker {
    /// Whether the condition names a column that is set, or asks for what no name tells: a whole row, another table.
    fn may_ask_for_what_it_sets(&self) -> bool {
        let Ok(tokens) = tokens(&self.unsent.0) else {
            return true;
        };
        let is_set = |name: &String| self.set.columns().any(|column| column == name);
        let next = tokens.iter().skip(1).map(Some).chain([None]);
        tokens.iter().zip(next).any(|(token, next)| match &token.kind {
            Kind::Word(word) if word == "t" => next.is_none_or(|next| next.kind != Kind::Other('.')),
            Kind::Word(word) if word == "select" => true,
            Kind::Word(name) | Kind::Name(name) => is_set(name),
            Kind::Text | Kind::Other(_) => false,
        })
    }
}

impl Unsent {
    /// The condition in brackets.
    pub(super) fn condition(&self) -> String {
        format!("({})", self.0)
    }
}

impl FromStr for Unsent {
    type Err = MarkerError;

    fn from_str(text: &str) -> Result<Self, MarkerError> {
        let text = text.trim();
        match tokens(text)?.is_empty() {
            true => Err(MarkerError::Empty),
            false => Ok(Self(text.to_owned())),
        }
    }
}

impl MarkSet {
    /// The columns that it sets.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.assignments
            .iter()
            .map(|assignment| assignment.column.as_str())
    }

    /// The assignments.
    pub(super) fn assignments(&self) -> &[Assignment] {
        &self.assignments
    }

    /// The list, with the columns quoted.
    pub(super) fn list(&self) -> String {
        let assignments = self.assignments.iter();
        let list: Vec<_> = assignments
            .map(|Assignment { column, value }| format!("{} = {value}", quote_identifier(column)))
            .collect();
        list.join(", ")
    }
}

impl FromStr for MarkSet {
    type Err = MarkerError;

    fn from_str(text: &str) -> Result<Self, MarkerError> {
        let tokens = tokens(text)?;
        if tokens.is_empty() {
            return Err(MarkerError::Empty);
        }
        let is_comma = |token: &Token| token.depth == 0 && token.kind == Kind::Other(',');
        let assignments = tokens.split(is_comma).map(|tokens| assignment(text, tokens));
        Ok(Self {
            assignments: assignments.collect::<Result<_, _>>()?,
        })
    }
}

fn assignment(text: &str, tokens: &[Token]) -> Result<Assignment, MarkerError> {
    let outside = tokens.iter().filter(|token| token.depth == 0);
    for token in outside {
        if let Kind::Word(word) = &token.kind
            && let Some(ending) = ENDING.into_iter().find(|ending| ending == word)
        {
            return Err(MarkerError::Word(ending));
        }
    }
    let [name, equals, value, rest @ ..] = tokens else {
        return Err(MarkerError::Assignment);
    };
    let (Kind::Word(column) | Kind::Name(column), Kind::Other('=')) = (&name.kind, &equals.kind) else {
        return Err(MarkerError::Assignment);
    };
    // What stands close to it would be another operator.
    if value.start == equals.end && matches!(value.kind, Kind::Other('=' | '<' | '>' | '~')) {
        return Err(MarkerError::Assignment);
    }
    let end = rest.last().unwrap_or(value).end;
    let value = text.get(value.start..end).unwrap_or_default();
    Ok(Assignment {
        column: column.clone(),
        value: value.to_owned(),
    })
}

/// A piece of SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    kind: Kind,
    /// How many brackets are open before it, or after a closing one.
    depth: usize,
    start: usize,
    end: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// A name without quotes, or a keyword: folded.
    Word(String),
    /// A quoted name, unquoted.
    Name(String),
    /// A string.
    Text,
    /// A number, an operator or a bracket: its first character.
    Other(char),
}

/// The pieces of a text, in which quotes are closed and brackets match, and which has neither comment nor semicolon.
///
/// <https://www.postgresql.org/docs/current/sql-syntax-lexical.html>
fn tokens(text: &str) -> Result<Vec<Token>, MarkerError> {
    let mut tokens: Vec<Token> = Vec::new();
    let mut open = Vec::new();
    let mut at = 0;
    while let Some(character) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let rest = text.get(at..).unwrap_or_default();
        let is_escaping = tokens
            .last()
            .is_some_and(|last| last.end == at && matches!(&last.kind, Kind::Word(word) if word == "e"));
        let (kind, length) = match character {
            _ if character.is_whitespace() => {
                at += character.len_utf8();
                continue;
            }
            ';' => return Err(MarkerError::Semicolon),
            '-' if rest.starts_with("--") => return Err(MarkerError::Comment),
            '/' if rest.starts_with("/*") => return Err(MarkerError::Comment),
            '\'' => (Kind::Text, quoted(rest, '\'', is_escaping)?),
            '"' => {
                let length = quoted(rest, '"', false)?;
                let name = rest.get(1..length - 1).unwrap_or_default();
                (Kind::Name(name.replace("\"\"", "\"")), length)
            }
            '$' => (Kind::Text, dollar_quoted(rest)?),
            _ if character.is_alphabetic() || character == '_' => {
                let is_within = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
                let length = rest.find(|c| !is_within(c)).unwrap_or(rest.len());
                let word = rest.get(..length).unwrap_or_default();
                (Kind::Word(word.to_ascii_lowercase()), length)
            }
            _ => (Kind::Other(character), character.len_utf8()),
        };
        match character {
            ')' | ']' if open.pop() != Some(character) => return Err(MarkerError::Brackets),
            _ => {}
        }
        tokens.push(Token {
            kind,
            depth: open.len(),
            start: at,
            end: at + length,
        });
        match character {
            '(' => open.push(')'),
            '[' => open.push(']'),
            _ => {}
        }
        at += length;
    }
    match open.is_empty() {
        true => Ok(tokens),
        false => Err(MarkerError::Brackets),
    }
}

/// The length of what begins with this quote, up to the same quote alone.
fn quoted(text: &str, quote: char, is_escaping: bool) -> Result<usize, MarkerError> {
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if character == quote {
            if characters.next_if(|(_, next)| *next == quote).is_none() {
                return Ok(at + quote.len_utf8());
            }
        } else if is_escaping && character == '\\' {
            characters.next();
        }
    }
    Err(MarkerError::Quote)
}

/// The length of `$tag$…$tag$`.
fn dollar_quoted(text: &str) -> Result<usize, MarkerError> {
    let tag = text.get(1..).and_then(|rest| rest.split_once('$'));
    let is_tag = |tag: &str| {
        !tag.starts_with(|c: char| c.is_ascii_digit()) && tag.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    let Some((tag, rest)) = tag.filter(|(tag, _)| is_tag(tag)) else {
        return Err(MarkerError::Parameter);
    };
    let quote = format!("${tag}$");
    let end = rest.find(&quote).ok_or(MarkerError::Quote)?;
    Ok(quote.len() + end + quote.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> Result<String, MarkerError> {
        text.parse::<MarkSet>().map(|set| set.list())
    }

    #[test]
    fn a_condition_is_taken_as_it_stands() {
        for text in [
            "status = 'NEW'",
            "status in ('NEW', 'a;b -- c') and not done",
            "state = E'a\\'; b'",
            "note = $q$; -- $q$ or \"odd ; name\" is null",
            "(a or b) and c[1] > 0",
        ] {
            let condition = text.parse::<Unsent>().unwrap().condition();
            assert_eq!(condition, format!("({text})"));
        }
    }

    #[test]
    fn what_would_leave_its_place_in_a_statement_is_refused() {
        for (text, error) in [
            ("  ", MarkerError::Empty),
            ("a; drop table b", MarkerError::Semicolon),
            ("a -- b", MarkerError::Comment),
            ("a /* b", MarkerError::Comment),
            ("a = $1", MarkerError::Parameter),
            ("a = 'b", MarkerError::Quote),
            ("a = e'b\\'", MarkerError::Quote),
            ("a = $x$ b", MarkerError::Quote),
            ("a) or (b", MarkerError::Brackets),
            ("(a", MarkerError::Brackets),
            ("(a]", MarkerError::Brackets),
        ] {
            assert_eq!(text.parse::<Unsent>(), Err(error), "{text}");
        }
    }

    #[test]
    fn a_condition_that_names_nothing_that_is_set_is_told_apart() {
        for (unsent, set, may) in [
            ("status = 'NEW'", "published_at = now()", false),
            ("t.status = 'published_at'", "published_at = now()", false),
            ("status = 'NEW'", "status = 'SENT'", true),
            ("t.STATUS = 'NEW'", "\"status\" = 'SENT'", true),
            ("\"Sent At\" is null", "\"Sent At\" = now()", true),
            ("to_jsonb(t)->>'status' = 'NEW'", "status = 'SENT'", true),
            ("id not in (select id from sent)", "status = 'SENT'", true),
        ] {
            let marker = Marker {
                unsent: unsent.parse().unwrap(),
                set: set.parse().unwrap(),
            };
            assert_eq!(marker.may_ask_for_what_it_sets(), may, "{unsent}, {set}");
        }
    }

    #[test]
    fn assignments_name_their_columns() {
        assert_eq!(set("status = 'SENT'").as_deref(), Ok("\"status\" = 'SENT'"));
        assert_eq!(
            set("Status='a, b', \"Sent At\" = now(), n = (n + 1) , f = coalesce(a, b)").as_deref(),
            Ok("\"status\" = 'a, b', \"Sent At\" = now(), \"n\" = (n + 1), \"f\" = coalesce(a, b)")
        );
        let columns = "a = extract(epoch from now()), \"B\"\"b\" = default"
            .parse::<MarkSet>()
            .unwrap();
        assert_eq!(columns.columns().collect::<Vec<_>>(), ["a", "B\"b"]);
    }

    #[test]
    fn what_is_no_list_of_assignments_is_refused() {
        for (text, error) in [
            ("", MarkerError::Empty),
            ("status", MarkerError::Assignment),
            ("status =", MarkerError::Assignment),
            ("status == 'x'", MarkerError::Assignment),
            ("status >= 'x'", MarkerError::Assignment),
            ("(a, b) = (1, 2)", MarkerError::Assignment),
            ("a = 1,", MarkerError::Assignment),
            ("t.a = 1", MarkerError::Assignment),
            ("a = 1 where true", MarkerError::Word("where")),
            ("a = 1 FROM other", MarkerError::Word("from")),
            ("a = 1 returning a", MarkerError::Word("returning")),
        ] {
            assert_eq!(set(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-z$'\"(),=;\\\\eE é\\-/*]{0,30}") {
            drop(text.parse::<Unsent>());
            drop(text.parse::<MarkSet>());
        }
    }
}
