//! The routes of one table, bound to its relation.

use super::reference::{BoundReference, Setting};
use super::rule::{BoundRule, Rule, Subjects};
use super::template::{Bound, BoundTemplate, Template};
use crate::amqp::EncodeError;
use crate::event::{Binder, BoundColumn, InvalidRow, MappingError, OutboxTable, Source};
use crate::pgoutput::{Relation, Tuple};
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
    /// The column that counts before any template where it has a value.
    column: Option<BoundColumn>,
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
        let (route, columns) = (&outbox.route, &outbox.columns);
        let binder = Binder { relation, columns };
        let mut subjects = Subjects::default();
        let mut rules = Vec::with_capacity(route.rules.len());
        for (rule, number) in route.rules.iter().zip(1..) {
            rules.push(bind_rule(&binder, rule, number, &mut subjects)?);
        }
        let target = |field: &'static str, key, template, setting, source| {
            Ok(Target {
                column: binder.optional_column(key, source)?,
                template: bind_template(&binder, template, setting, source)?,
                setting,
                field,
            })
        };
        Ok(Self {
            exchange: target(
                "exchange",
                "exchange",
                &route.exchange,
                Setting::EXCHANGE,
                &columns.exchange,
            )?,
            routing_key: target(
                "routing key",
                "routing_key",
                &route.routing_key,
                Setting::ROUTING_KEY,
                &columns.routing_key,
            )?,
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
        if let Some(column) = &self.column
            && let Some(text) = column.optional_text(row)?
        {
            out.clear();
            out.push_str(text);
            return Ok(());
        }
        template.render(row, out).map_err(|error| InvalidRow::Template {
            setting: template.setting().unwrap_or(self.setting),
            error,
        })
    }
}

/// A template, or what is the same for every row of the table in its place.
fn bind_template(
    binder: &Binder<'_>,
    template: &Template,
    fallback: Setting,
    source: &Source,
) -> Result<BoundTemplate, MappingError> {
    let setting = template.setting().unwrap_or(fallback);
    match source {
        Source::Constant(text) => binder.template(&Template::constant(text), setting),
        Source::Absent | Source::Column(_) | Source::ColumnIfThere(_) => binder.template(template, setting),
    }
}

fn bind_rule(
    binder: &Binder<'_>,
    rule: &Rule,
    number: usize,
    subjects: &mut Subjects,
) -> Result<BoundRule, MappingError> {
    let mut when = Vec::with_capacity(rule.when.len());
    let mut is_possible = true;
    for condition in &rule.when {
        let reference = condition.reference();
        match binder.resolve(reference.column()) {
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
            Some(Bound::Constant(_)) | None => {
                let setting = Setting::of_rule(Setting::WHEN, number);
                return Err(binder.missing(setting, reference.column().to_owned()));
            }
        }
    }
    let columns = binder.columns;
    Ok(BoundRule {
        when,
        is_possible,
        exchange: bind_template(binder, &rule.exchange, Setting::EXCHANGE, &columns.exchange)?,
        routing_key: bind_template(
            binder,
            &rule.routing_key,
            Setting::ROUTING_KEY,
            &columns.routing_key,
        )?,
        on_unroutable: rule.on_unroutable,
    })
}
