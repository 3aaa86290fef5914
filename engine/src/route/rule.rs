//! Rules: the first one whose conditions an event meets says where it goes.

use super::reference::{BoundReference, Reference, RenderError, Text, ValueFault};
use super::template::{BoundTemplate, Template};
use crate::pgoutput::Tuple;
use crate::policy::Policy;

/// One `[[outbox.route]]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What an event must meet, all of it.
    pub when: Vec<Condition>,
    /// The exchange.
    pub exchange: Template,
    /// The routing key.
    pub routing_key: Template,
    /// What to do with an event of this rule that no queue is bound for; none: as for all others.
    pub on_unroutable: Option<Policy>,
}

/// What a value of the row must be. One that is null or missing meets no condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    reference: Reference,
    any_of: Vec<Pattern>,
}

/// A text, or how it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Whole(String),
    Prefix(String),
}

impl Pattern {
    fn matches(&self, text: Text<'_>) -> bool {
        match self {
            Self::Whole(whole) => text.is(whole),
            Self::Prefix(prefix) => text.begins_with(prefix),
        }
    }
}

impl Condition {
    /// The value must be one of these texts; of one that ends in `*` it must have the beginning.
    #[must_use]
    pub fn new<'a>(reference: Reference, any_of: impl IntoIterator<Item = &'a str>) -> Self {
        let patterns = any_of.into_iter().map(|text| match text.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.to_owned()),
            None => Pattern::Whole(text.to_owned()),
        });
        Self {
            any_of: patterns.collect(),
            reference,
        }
    }

    /// What it looks at.
    #[must_use]
    pub const fn reference(&self) -> &Reference {
        &self.reference
    }

    /// Whether a text that is the same for every row meets it.
    pub(super) fn is_met_by(&self, raw: &str) -> bool {
        let text = Text {
            raw,
            is_escaped: false,
        };
        self.any_of.iter().any(|pattern| pattern.matches(text))
    }
}

/// A rule whose columns have been found in one relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BoundRule {
    /// Each with its subject's place among [`Subjects`].
    pub(super) when: Vec<(usize, Condition)>,
    /// Whether what is the same for every row meets its conditions.
    pub(super) is_possible: bool,
    pub(super) exchange: BoundTemplate,
    pub(super) routing_key: BoundTemplate,
    pub(super) on_unroutable: Option<Policy>,
}

/// What the rules of a table look at, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Subjects(Vec<(BoundReference, Reference)>);

/// So many values of a row are looked up once however many rules ask for them; further ones for each rule.
const KEPT: usize = 8;

/// A subject's value in one row, once it has been looked up: none where nothing can be compared with a text.
type Known<'a> = Option<Option<Text<'a>>>;

/// The values that have been looked up in one row.
pub(super) struct Looked<'a, 't> {
    subjects: &'t Subjects,
    row: &'t Tuple<'a>,
    known: [Known<'a>; KEPT],
}

impl Subjects {
    /// The place of a subject, which is added where it is not there.
    pub(super) fn place(&mut self, bound: BoundReference, reference: &Reference) -> usize {
        let found = self.0.iter().position(|(known, _)| *known == bound);
        found.unwrap_or_else(|| {
            self.0.push((bound, reference.clone()));
            self.0.len() - 1
        })
    }

    /// Nothing has been looked up yet.
    pub(super) const fn of<'a, 't>(&'t self, row: &'t Tuple<'a>) -> Looked<'a, 't> {
        Looked {
            subjects: self,
            row,
            known: [None; KEPT],
        }
    }
}

impl BoundRule {
    /// Whether a row meets every condition.
    ///
    /// # Errors
    /// A value that cannot be compared: whether the rule is for this row cannot be told.
    pub(super) fn is_met(&self, looked: &mut Looked<'_, '_>) -> Result<bool, RenderError> {
        if !self.is_possible {
            return Ok(false);
        }
        for (subject, condition) in &self.when {
            let value = looked.value(*subject)?;
            let is_met =
                value.is_some_and(|value| condition.any_of.iter().any(|pattern| pattern.matches(value)));
            if !is_met {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<'a> Looked<'a, '_> {
    fn value(&mut self, subject: usize) -> Result<Option<Text<'a>>, RenderError> {
        if let Some(Some(known)) = self.known.get(subject) {
            return Ok(*known);
        }
        let Some((bound, reference)) = self.subjects.0.get(subject) else {
            return Ok(None);
        };
        let value = match bound.value(self.row) {
            // No text is equal to an object or an array.
            Err(ValueFault::Nested) => None,
            value => value.map_err(|fault| RenderError {
                reference: reference.to_string(),
                fault,
            })?,
        };
        if let Some(known) = self.known.get_mut(subject) {
            *known = Some(value);
        }
        Ok(value)
    }
}
