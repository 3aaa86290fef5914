//! Templates: parsed once, bound to a relation, rendered per event.

use super::filter::Filter;
use super::parse::{self, TemplateError};
use super::reference::{BoundReference, Reference, RenderError, Setting, ValueFault};
use crate::pgoutput::Tuple;

/// A text with values of the row in it: `{aggregate_type}.{payload.country|lower|default:none}`. `{{` and `}}` stand for
/// the braces themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    segments: Vec<Segment<Reference>>,
    setting: Option<Setting>,
}

/// A template whose columns have been found in one relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundTemplate {
    segments: Vec<Segment<BoundValue>>,
    setting: Option<Setting>,
}

/// A piece of a template; values by what finds them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Segment<V> {
    Literal(String),
    Value { value: V, filters: Vec<Filter> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct BoundValue {
    at: BoundReference,
    /// As it is written, for naming it.
    written: String,
}

/// What a name in a template stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The column at this index of the relation.
    Column(usize),
    /// This text, for every row.
    Constant(String),
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// What is wrong, with its place in the text.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        Ok(Self {
            segments: parse::template(text)?,
            setting: None,
        })
    }

    /// A template that is this very text.
    #[must_use]
    pub fn constant(text: &str) -> Self {
        let is_empty = text.is_empty();
        let literal = || Segment::Literal(text.to_owned());
        Self {
            segments: (!is_empty).then(literal).into_iter().collect(),
            setting: None,
        }
    }

    /// The same, with the setting in which it stands.
    #[must_use]
    pub fn of(self, setting: Setting) -> Self {
        Self {
            setting: Some(setting),
            ..self
        }
    }

    /// The setting in which it stands, where that is known.
    #[must_use]
    pub const fn setting(&self) -> Option<Setting> {
        self.setting
    }

    /// The text, where no column is in it.
    #[must_use]
    pub fn as_constant(&self) -> Option<&str> {
        match self.segments.as_slice() {
            [] => Some(""),
            [Segment::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// What it names, in its order.
    pub fn references(&self) -> impl Iterator<Item = &Reference> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Value { value, .. } => Some(value),
        })
    }

    /// The names of the columns and fields in it.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.references().map(Reference::column)
    }

    /// Binds the columns to their indexes in a relation.
    ///
    /// # Errors
    /// The first column that `resolve` does not know.
    pub fn bind(&self, resolve: impl Fn(&str) -> Option<Bound>) -> Result<BoundTemplate, String> {
        let bound = self.segments.iter().map(|segment| match segment {
            Segment::Literal(text) => Ok(Segment::Literal(text.clone())),
            Segment::Value { value, filters } => match resolve(&value.column) {
                Some(Bound::Column(column)) => Ok(Segment::Value {
                    value: BoundValue {
                        at: BoundReference {
                            column,
                            path: value.path.clone(),
                        },
                        written: value.to_string(),
                    },
                    filters: filters.clone(),
                }),
                Some(Bound::Constant(mut text)) if !value.has_path() => {
                    filters.iter().for_each(|filter| filter.apply(&mut text, 0));
                    Ok(Segment::Literal(text))
                }
                Some(Bound::Constant(_)) | None => Err(value.column.clone()),
            },
        });
        Ok(BoundTemplate {
            segments: bound.collect::<Result<_, _>>()?,
            setting: self.setting,
        })
    }
}

impl BoundTemplate {
    /// The setting in which it stands, where that is known.
    #[must_use]
    pub const fn setting(&self) -> Option<Setting> {
        self.setting
    }

    /// Renders the template for a row into `out`, which is cleared first.
    ///
    /// # Errors
    /// What has no usable value.
    pub fn render(&self, row: &Tuple<'_>, out: &mut String) -> Result<(), RenderError> {
        out.clear();
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Literal(text) => {
                out.push_str(text);
                Ok(())
            }
            Segment::Value { value, filters } => {
                append(value, filters, row, out).map_err(|fault| RenderError {
                    reference: value.written.clone(),
                    fault,
                })
            }
        })
    }
}

/// Appends one value. Filters before a `default` have nothing to do where there is none.
fn append(
    value: &BoundValue,
    filters: &[Filter],
    row: &Tuple<'_>,
    out: &mut String,
) -> Result<(), ValueFault> {
    let start = out.len();
    let mut has_value = false;
    if let Some(text) = value.at.value(row)? {
        text.push_to(out);
        has_value = true;
    }
    for filter in filters {
        if has_value {
            filter.apply(out, start);
        } else if let Filter::Default(text) = filter {
            out.push_str(text);
            has_value = true;
        }
    }
    match has_value {
        true => Ok(()),
        false => Err(ValueFault::Missing),
    }
}
