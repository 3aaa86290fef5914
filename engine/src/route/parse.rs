//! The parser of templates. What is wrong is named with its place, so that a caret can stand under it.

use std::fmt;

use super::filter::Filter;
use super::path::{MAX_STEPS, Step};
use super::reference::Reference;
use super::template::Segment;

/// A text that is no template; places count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at character {position} of the template")]
pub struct TemplateError {
    fault: TemplateFault,
    /// The first character at fault, counted from 1.
    pub position: usize,
    /// How many characters are at fault; at least one.
    pub length: usize,
}

impl TemplateError {
    /// What is wrong, without the place.
    #[must_use]
    pub fn fault(&self) -> String {
        self.fault.to_string()
    }
}

/// What is wrong with a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TemplateFault {
    Unclosed,
    Unopened,
    Unnamed,
    BadName,
    SpacedBar,
    UnnamedStep,
    BadStep,
    TooDeep,
    UnnamedFilter,
    UnknownFilter,
    NeedsText,
    TakesNoText,
}

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unclosed => "`{` without its `}`",
            Self::Unopened => "`}` without its `{` (write `}}` for a brace)",
            Self::Unnamed => "a column's name is missing",
            Self::BadName => "a column's name has letters, digits and `_` only",
            Self::SpacedBar => "no spaces around `|`, as in `{event_type|lower}`",
            Self::UnnamedStep => "a name is missing after the dot",
            Self::BadStep => "a name in a path has no space, quote, brace or bracket",
            Self::TooDeep => "a path has 16 names at most",
            Self::UnnamedFilter => "a filter's name is missing after the `|`",
            Self::UnknownFilter => {
                "there is no such filter: there are default:TEXT, kebab_case, lower, snake_case and upper"
            }
            Self::NeedsText => "the filter needs a text, as in `default:none`",
            Self::TakesNoText => "the filter takes no text",
        })
    }
}

/// Parses a whole template.
pub(super) fn template(text: &str) -> Result<Vec<Segment<Reference>>, TemplateError> {
    let mut segments = Vec::new();
    let mut literal = String::new();
    // Characters before `rest`.
    let (mut rest, mut at) = (text, 0);
    while let Some(brace) = rest.find(['{', '}']) {
        let (before, from) = rest.split_at_checked(brace).unwrap_or((rest, ""));
        literal.push_str(before);
        at += before.chars().count();
        if let Some((escape, after)) = [("{{", '{'), ("}}", '}')]
            .into_iter()
            .find_map(|(pair, brace)| Some((brace, from.strip_prefix(pair)?)))
        {
            literal.push(escape);
            (rest, at) = (after, at + 2);
            continue;
        }
        let Some(inside) = from.strip_prefix('{') else {
            return fault(TemplateFault::Unopened, at, 1);
        };
        let Some((inside, after)) = inside.split_once('}') else {
            return fault(TemplateFault::Unclosed, at, 1);
        };
        if !literal.is_empty() {
            segments.push(Segment::Literal(std::mem::take(&mut literal)));
        }
        segments.push(placeholder(inside, at + 1)?);
        at += inside.chars().count() + 2;
        rest = after;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        segments.push(Segment::Literal(literal));
    }
    Ok(segments)
}

/// Parses what stands between braces, behind so many characters.
fn placeholder(text: &str, at: usize) -> Result<Segment<Reference>, TemplateError> {
    let mut parts = text.split('|');
    let name = parts.next().unwrap_or_default();
    let length = name.chars().count();
    let trimmed = name.trim_end().chars().count();
    if trimmed < length && 0 < trimmed && text.contains('|') {
        return fault(TemplateFault::SpacedBar, at + trimmed, length - trimmed);
    }
    let value = reference(name, at)?;
    let mut at = at + length;
    let mut filters = Vec::new();
    for part in parts {
        filters.push(filter(part, at + 1)?);
        at += part.chars().count() + 1;
    }
    Ok(Segment::Value { value, filters })
}

/// Parses a reference behind so many characters.
pub(super) fn reference(text: &str, at: usize) -> Result<Reference, TemplateError> {
    let mut names = text.split('.');
    let column = names.next().unwrap_or_default();
    if column.is_empty() {
        // Under the brace: between `{` and `}` there is nothing to point at.
        return fault(TemplateFault::Unnamed, at.saturating_sub(1), 1);
    }
    let is_of_name = |c: char| c == '_' || c.is_alphanumeric();
    if let Some(wrong) = column.chars().position(|c| !is_of_name(c)) {
        return fault(TemplateFault::BadName, at + wrong, 1);
    }
    let mut at = at + column.chars().count();
    let mut path = Vec::new();
    for name in names {
        // The dot comes before it.
        at += 1;
        if name.is_empty() {
            return fault(TemplateFault::UnnamedStep, at - 1, 1);
        }
        let is_of_step = |c: char| {
            !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '\'' | '{' | '}' | '[' | ']' | '|')
        };
        if let Some(wrong) = name.chars().position(|c| !is_of_step(c)) {
            return fault(TemplateFault::BadStep, at + wrong, 1);
        }
        let length = name.chars().count();
        if path.len() == MAX_STEPS {
            return fault(TemplateFault::TooDeep, at, length);
        }
        path.push(Step::new(name));
        at += length;
    }
    Ok(Reference {
        column: column.to_owned(),
        path,
    })
}

/// Parses a filter behind so many characters.
fn filter(text: &str, at: usize) -> Result<Filter, TemplateError> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name, Some(argument)),
        None => (text, None),
    };
    let length = name.chars().count();
    match (name, argument, Filter::named(name)) {
        ("", _, _) => fault(TemplateFault::UnnamedFilter, at.saturating_sub(1), 1),
        (spaced, _, None) if spaced != spaced.trim() && Filter::is_name(spaced.trim()) => {
            let before = spaced.chars().take_while(|c| c.is_whitespace()).count();
            let wrong = if before > 0 {
                0
            } else {
                spaced.trim_end().chars().count()
            };
            fault(TemplateFault::SpacedBar, at + wrong, 1)
        }
        ("default", Some(text), _) if !text.contains('{') => Ok(Filter::Default(text.to_owned())),
        ("default", Some(text), _) => {
            let brace = text.chars().position(|c| c == '{').unwrap_or_default();
            fault(TemplateFault::Unclosed, at + length + 1 + brace, 1)
        }
        ("default", None, _) => fault(TemplateFault::NeedsText, at, length),
        (_, None, Some(filter)) => Ok(filter),
        (_, Some(argument), Some(_)) => fault(
            TemplateFault::TakesNoText,
            at + length,
            argument.chars().count() + 1,
        ),
        (_, _, None) => fault(TemplateFault::UnknownFilter, at, length),
    }
}

/// An error behind so many characters.
fn fault<T>(fault: TemplateFault, at: usize, length: usize) -> Result<T, TemplateError> {
    Err(TemplateError {
        fault,
        position: at + 1,
        length,
    })
}
