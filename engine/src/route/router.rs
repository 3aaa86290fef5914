//! The routes of one table, bound to its relation.

use super::reference::{BoundReference, Setting};
use super::rule::{BoundRule, Rule, Subjects};
use super::template::{Bound, BoundTemplate, Template};
use crate::amqp::EncodeError;
use crate::event::{Columns, InvalidRow, MappingError, OutboxTable, Source};
use crate::pgoutput::{Relation, Tuple, Value};
use crate::policy::Policy;

/// The bytes of a short string (AMQP 0-9-1, section 4.2.5.3, "Strings").
const LONGEST: usize = 255;

/// Where one event goes. Its buffers are used again for the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destination {
    /// The exchange.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
    /// The rule that the event met, counted from 0; none for the table's own route.
    pub rule: Option<usize>,
    /// That rule's policy for events that no queue is bound for, where it has one.
    pub on_unroutable: Option<Policy>,
}

/// Finds the destination of a table's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Router {
    subjects: Subjects,
    rules: Vec<BoundRule>,
    exchange: Target,
    routing_key: Target,
}

/// What an exchange or a routing key comes from where no rule says it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// The column that counts before any template where it has a value, and its name.
    column: Option<(usize, String)>,
    /// The table's own template.
    template: BoundTemplate,
    /// The setting of templates that do not say theirs.
    setting: Setting,
    /// What AMQP calls it.
    field: &'static str,
}

impl Router {
    /// Finds the columns of `relation` by name.
    ///
    /// # Errors
    /// A column that a template, a condition or `outbox.columns` names is missing.
    pub fn bind(relation: &Relation<'_>, outbox: &OutboxTable) -> Result<Self, MappingError> {
        let binder = Binder {
            relation,
            columns: &outbox.columns,
        };
        let (route, columns) = (&outbox.route, &outbox.columns);
        let mut subjects = Subjects::default();
        let mut rules = Vec::with_capacity(route.rules.len());
        for (rule, number) in route.rules.iter().zip(1..) {
            rules.push(binder.rule(rule, number, &mut subjects)?);
        }
        Ok(Self {
            exchange: Target {
                column: binder.column("exchange", &columns.exchange)?,
                template: binder.template(&route.exchange, Setting::EXCHANGE, &columns.exchange)?,
                setting: Setting::EXCHANGE,
                field: "exchange",
            },
            routing_key: Target {
                column: binder.column("routing_key", &columns.routing_key)?,
                template: binder.template(&route.routing_key, Setting::ROUTING_KEY, &columns.routing_key)?,
                setting: Setting::ROUTING_KEY,
                field: "routing key",
            },
            subjects,
            rules,
        })
    }

    /// Finds where a row goes: by a column of its own, else by the first rule that it meets, else by the table's templates.
    ///
    /// # Errors
    /// A template or a rule asks for a value that the row has not, or that no text can be made of; `out` is then of no use.
    pub fn route(&self, row: &Tuple<'_>, out: &mut Destination) -> Result<(), InvalidRow> {
        out.rule = self.first_met(row)?;
        let rule = out.rule.and_then(|number| self.rules.get(number));
        out.on_unroutable = rule.and_then(|rule| rule.on_unroutable);
        let (exchange, routing_key) = match rule {
            Some(rule) => (&rule.exchange, &rule.routing_key),
            None => (&self.exchange.template, &self.routing_key.template),
        };
        self.exchange.find(row, exchange, &mut out.exchange)?;
        self.routing_key.find(row, routing_key, &mut out.routing_key)
    }

    fn first_met(&self, row: &Tuple<'_>) -> Result<Option<usize>, InvalidRow> {
        let mut looked = self.subjects.of(row);
        for (place, rule) in self.rules.iter().enumerate() {
            let is_met = rule.is_met(&mut looked).map_err(|error| InvalidRow::Template {
                setting: Setting::of_rule(Setting::WHEN, place + 1),
                error,
            })?;
            if is_met {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }
}

impl Target {
    fn find(&self, row: &Tuple<'_>, template: &BoundTemplate, out: &mut String) -> Result<(), InvalidRow> {
        self.render(row, template, out)?;
        let length = out.len();
        if length <= LONGEST {
            return Ok(());
        }
        // Nor is the buffer kept that a large value needed.
        *out = String::new();
        let field = self.field;
        Err(EncodeError::ShortStringTooLong { field, length }.into())
    }

    fn render(&self, row: &Tuple<'_>, template: &BoundTemplate, out: &mut String) -> Result<(), InvalidRow> {
        if let Some((at, name)) = &self.column {
            match row.value(*at) {
                Some(Value::Text(text) | Value::Binary(text)) => {
                    let text = std::str::from_utf8(text).map_err(|_| InvalidRow::NotUtf8(name.clone()))?;
                    out.clear();
                    out.push_str(text);
                    return Ok(());
                }
                Some(Value::Oversized { length, limit }) => {
                    return Err(InvalidRow::ColumnTooLarge {
                        column: name.clone(),
                        length,
                        limit,
                    });
                }
                Some(Value::Null | Value::Unchanged) | None => {}
            }
        }
        template.render(row, out).map_err(|error| InvalidRow::Template {
            setting: template.setting().unwrap_or(self.setting),
            error,
        })
    }
}

/// Finds columns in a relation.
struct Binder<'a> {
    relation: &'a Relation<'a>,
    columns: &'a Columns,
}

impl Binder<'_> {
    fn table(&self) -> String {
        format!("{}.{}", self.relation.namespace, self.relation.name)
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.relation.columns().position(|column| column.name == name)
    }

    /// A name means the event's field of this name before a column that is called so.
    fn resolve(&self, name: &str) -> Option<Bound> {
        match self.columns.source_of(name) {
            Source::Constant(text) => Some(Bound::Constant(text)),
            Source::Column(column) | Source::ColumnIfThere(column) => {
                self.index_of(&column).map(Bound::Column)
            }
            Source::Absent => None,
        }
    }

    fn missing(&self, setting: Setting, column: String) -> MappingError {
        MappingError::TemplateColumnMissing {
            table: self.table(),
            column,
            setting,
        }
    }

    fn column(&self, field: &'static str, source: &Source) -> Result<Option<(usize, String)>, MappingError> {
        let Some(name) = source.column() else {
            return Ok(None);
        };
        match (self.index_of(name), source) {
            (Some(at), _) => Ok(Some((at, name.to_owned()))),
            (None, Source::ColumnIfThere(_)) => Ok(None),
            (None, _) => Err(MappingError::ColumnMissing {
                table: self.table(),
                column: name.to_owned(),
                field,
            }),
        }
    }

    /// A template, or what is the same for every row of the table in its place.
    fn template(
        &self,
        template: &Template,
        fallback: Setting,
        source: &Source,
    ) -> Result<BoundTemplate, MappingError> {
        let constant = match source {
            Source::Constant(text) => Some(Template::constant(text)),
            Source::Absent | Source::Column(_) | Source::ColumnIfThere(_) => None,
        };
        let bound = constant
            .as_ref()
            .unwrap_or(template)
            .bind(|name| self.resolve(name));
        let setting = template.setting().unwrap_or(fallback);
        bound.map_err(|column| self.missing(setting, column))
    }

    fn rule(&self, rule: &Rule, number: usize, subjects: &mut Subjects) -> Result<BoundRule, MappingError> {
        let mut when = Vec::with_capacity(rule.when.len());
        let mut is_possible = true;
        for condition in &rule.when {
            let reference = condition.reference();
            let missing = || {
                let setting = Setting::of_rule(Setting::WHEN, number);
                self.missing(setting, reference.column().to_owned())
            };
            match self.resolve(reference.column()) {
                Some(Bound::Column(column)) => {
                    let bound = BoundReference {
                        column,
                        path: reference.path.clone(),
                    };
                    when.push((subjects.place(bound, reference), condition.clone()));
                }
                // The same for every row, so it is decided here.
                Some(Bound::Constant(text)) if !reference.has_path() => {
                    is_possible &= condition.is_met_by(&text);
                }
                Some(Bound::Constant(_)) | None => return Err(missing()),
            }
        }
        let columns = self.columns;
        Ok(BoundRule {
            when,
            is_possible,
            exchange: self.template(&rule.exchange, Setting::EXCHANGE, &columns.exchange)?,
            routing_key: self.template(&rule.routing_key, Setting::ROUTING_KEY, &columns.routing_key)?,
            on_unroutable: rule.on_unroutable,
        })
    }
}
