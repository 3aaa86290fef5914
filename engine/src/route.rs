//! Templates for the exchange and the routing key: parsed once, bound to a relation, rendered per event.

use std::fmt;

use crate::pgoutput::{Tuple, Value};

/// A text with columns in it: `{aggregate_type}.{event_type}`. `{{` and `}}` stand for the braces themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    segments: Vec<Segment<String>>,
}

/// A template whose columns have been found in one relation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundTemplate {
    segments: Vec<Segment<usize>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment<C> {
    Literal(String),
    Column(C),
}

/// What a name in a template stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The column at this index of the relation.
    Column(usize),
    /// This text, for every row.
    Constant(String),
}

/// A text that is no template; the position counts characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at character {position} of the template")]
pub struct TemplateError {
    fault: TemplateFault,
    /// The character at fault, counted from 1.
    pub position: usize,
}

/// What is wrong with a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TemplateFault {
    Unclosed,
    Unopened,
    Unnamed,
    BadName,
}

impl fmt::Display for TemplateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unclosed => "`{` without its `}`",
            Self::Unopened => "`}` without its `{` (write `}}` for a brace)",
            Self::Unnamed => "`{}` without a column's name",
            Self::BadName => "a column's name has letters, digits and `_` only",
        })
    }
}

/// A value that a template cannot take; columns are indexes in the relation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenderError {
    /// The column is NULL or was not sent.
    Null {
        /// The column.
        column: usize,
    },
    /// The column's text is not UTF-8.
    NotUtf8 {
        /// The column.
        column: usize,
    },
    /// The column's value was too large to be kept.
    TooLarge {
        /// The column.
        column: usize,
        /// Its length in bytes.
        length: u64,
        /// How long it might have been.
        limit: u64,
    },
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// Braces that do not pair, and names that cannot be a column's.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut segments = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().enumerate().peekable();
        let error = |fault, index: usize| {
            Err(TemplateError {
                fault,
                position: index + 1,
            })
        };
        while let Some((index, character)) = chars.next() {
            match character {
                '{' if chars.next_if(|(_, next)| *next == '{').is_some() => literal.push('{'),
                '}' if chars.next_if(|(_, next)| *next == '}').is_some() => literal.push('}'),
                '}' => return error(TemplateFault::Unopened, index),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match chars.next() {
                            None => return error(TemplateFault::Unclosed, index),
                            Some((_, '}')) => break,
                            Some((_, c)) if c == '_' || c.is_alphanumeric() => name.push(c),
                            Some((at, _)) => return error(TemplateFault::BadName, at),
                        }
                    }
                    if name.is_empty() {
                        return error(TemplateFault::Unnamed, index);
                    }
                    if !literal.is_empty() {
                        segments.push(Segment::Literal(std::mem::take(&mut literal)));
                    }
                    segments.push(Segment::Column(name));
                }
                other => literal.push(other),
            }
        }
        if !literal.is_empty() {
            segments.push(Segment::Literal(literal));
        }
        Ok(Self { segments })
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

    /// The names of the columns in it.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Literal(_) => None,
            Segment::Column(name) => Some(name.as_str()),
        })
    }

    /// Renders the template with the values of columns by name; `None` where `value_of` lacks one.
    #[must_use]
    pub fn render_by_name<'a>(&self, value_of: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
        let mut text = String::new();
        for segment in &self.segments {
            text.push_str(match segment {
                Segment::Literal(literal) => literal,
                Segment::Column(name) => value_of(name)?,
            });
        }
        Some(text)
    }

    /// Binds the columns to their indexes in a relation.
    ///
    /// # Errors
    /// The first column that `resolve` does not know.
    pub fn bind(&self, resolve: impl Fn(&str) -> Option<Bound>) -> Result<BoundTemplate, String> {
        let bound = self.segments.iter().map(|segment| match segment {
            Segment::Literal(text) => Ok(Segment::Literal(text.clone())),
            Segment::Column(name) => match resolve(name) {
                Some(Bound::Column(index)) => Ok(Segment::Column(index)),
                Some(Bound::Constant(text)) => Ok(Segment::Literal(text)),
                None => Err(name.clone()),
            },
        });
        Ok(BoundTemplate {
            segments: bound.collect::<Result<_, _>>()?,
        })
    }
}

impl BoundTemplate {
    /// Renders the template for a row into `out`, which is cleared first.
    ///
    /// # Errors
    /// A column without a usable value.
    pub fn render(&self, row: &Tuple<'_>, out: &mut String) -> Result<(), RenderError> {
        out.clear();
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => out.push_str(text),
                Segment::Column(column) => match row.value(*column) {
                    Some(Value::Text(text) | Value::Binary(text)) => {
                        let text = std::str::from_utf8(text);
                        out.push_str(text.map_err(|_| RenderError::NotUtf8 { column: *column })?);
                    }
                    Some(Value::Oversized { length, limit }) => {
                        return Err(RenderError::TooLarge {
                            column: *column,
                            length,
                            limit,
                        });
                    }
                    Some(Value::Null | Value::Unchanged) | None => {
                        return Err(RenderError::Null { column: *column });
                    }
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pgoutput::sample::{Cell, Sample};
    use crate::pgoutput::{Insert, Message};

    /// Renders a template of the columns `a`, `b` and `c` for one row.
    fn render(template: &str, row: [Cell; 3]) -> Result<String, RenderError> {
        let index_of = |name: &str| {
            ["a", "b", "c"]
                .iter()
                .position(|column| *column == name)
                .map(Bound::Column)
        };
        let bound = Template::parse(template).unwrap().bind(index_of).unwrap();
        let frame = Sample::Insert {
            oid: 1,
            new: row.to_vec(),
        }
        .encode();
        let Ok(Message::Insert(Insert { new, .. })) = Message::decode(&frame) else {
            panic!("not an insert")
        };
        let mut out = "what was there before".to_owned();
        bound.render(&new, &mut out).map(|()| out)
    }

    fn text(value: &str) -> Cell {
        Cell::Text(value.as_bytes().to_vec())
    }

    #[test]
    fn a_template_is_rendered_with_the_columns_of_the_row() {
        let row = || [text("order"), text(""), text("ü.{b}")];
        for (template, rendered) in [
            ("{a}.{c}", "order.ü.{b}"),
            ("{c}{a}{a}", "ü.{b}orderorder"),
            ("shop.{b}.x", "shop..x"),
            ("{{{a}}}", "{order}"),
            ("constant", "constant"),
            ("", ""),
        ] {
            assert_eq!(render(template, row()).as_deref(), Ok(rendered), "{template}");
        }
    }

    #[test]
    fn a_column_without_a_usable_value_is_named() {
        let row = |cell| [text("order"), Cell::Null, cell];
        let null = Err(RenderError::Null { column: 1 });
        assert_eq!(render("{a}.{b}", row(text("x"))), null);
        assert_eq!(render("{a}.{c}", row(text("x"))).as_deref(), Ok("order.x"));
        let unchanged = Err(RenderError::Null { column: 2 });
        assert_eq!(render("{c}", row(Cell::Unchanged)), unchanged);
        let not_utf8 = Err(RenderError::NotUtf8 { column: 2 });
        assert_eq!(render("{c}", row(Cell::Text(vec![0xFF]))), not_utf8);
    }

    #[test]
    fn a_template_is_rendered_by_name_where_every_column_has_a_value() {
        let template = Template::parse("{a}.x.{b}{{").unwrap();
        let value_of = |name: &str| (name != "c").then_some("v");
        assert_eq!(template.render_by_name(value_of).as_deref(), Some("v.x.v{"));
        assert_eq!(Template::parse("{a}{c}").unwrap().render_by_name(value_of), None);
    }

    #[test]
    fn a_template_is_literals_and_columns() {
        let template = Template::parse("shop.{aggregate_type}.{event_type}").unwrap();
        assert_eq!(
            template.columns().collect::<Vec<_>>(),
            ["aggregate_type", "event_type"]
        );
        assert_eq!(template.as_constant(), None);
        assert_eq!(Template::parse("").unwrap().as_constant(), Some(""));
        assert_eq!(
            Template::parse("{{outbox}}").unwrap().as_constant(),
            Some("{outbox}")
        );
    }

    #[test]
    fn a_fault_is_named_with_its_place() {
        for (text, message) in [
            ("a{b", "`{` without its `}` at character 2 of the template"),
            (
                "ab}",
                "`}` without its `{` (write `}}` for a brace) at character 3 of the template",
            ),
            (
                "{}",
                "`{}` without a column's name at character 1 of the template",
            ),
            (
                "ü{a.b}",
                "a column's name has letters, digits and `_` only at character 4 of the template",
            ),
        ] {
            assert_eq!(Template::parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn an_unknown_column_is_named() {
        let template = Template::parse("{event_type}.{colour}").unwrap();
        let index_of = |name: &str| (name == "event_type").then_some(Bound::Column(3));
        assert_eq!(template.bind(index_of), Err("colour".to_owned()));
    }

    proptest! {
        #![proptest_config(crate::property::config())]

        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z{}_. ü]{0,20}") {
            if let Ok(template) = Template::parse(&text) {
                prop_assert_eq!(template.as_constant().is_some(), template.columns().count() == 0);
            }
        }
    }
}
