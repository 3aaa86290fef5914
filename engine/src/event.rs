//! From a row of an outbox table to an event.

mod binder;
mod columns;
mod content;
mod document;
mod format;
mod invalid;
mod mapping;
mod payload;
mod properties;
#[cfg(test)]
mod tests;
mod time;

use std::collections::BTreeSet;

pub(crate) use binder::{Binder, BoundColumn};
pub use columns::{Columns, Source};
pub use content::{Content, ContentScratch, MessageContent};
pub use format::{CloudEvents, Format, is_uri_reference};
pub use invalid::{AttributeFault, InvalidRow};
pub use mapping::{Event, Mapping, MappingError};
pub use payload::{Payload, PayloadType};
pub use properties::{expiration_fault, priority_of};

use crate::route::{Reference, Rule, Setting, Template};

/// Where the messages of one table go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The exchange.
    pub exchange: Template,
    /// The routing key.
    pub routing_key: Template,
    /// What counts before these two: the first rule that an event meets.
    pub rules: Vec<Rule>,
}

/// An outbox table and where its events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxTable {
    /// The schema, as PostgreSQL stores it.
    pub schema: String,
    /// The name, as PostgreSQL stores it.
    pub name: String,
    /// Where the fields of its events come from.
    pub columns: Columns,
    /// Where its messages go.
    pub route: Route,
    /// What its messages look like.
    pub content: Content,
    /// What becomes of rows whose events are confirmed or discarded; none for [`AfterPublish::Mark`] where there is a
    /// `sent_at`, else [`AfterPublish::Keep`].
    pub after_publish: Option<AfterPublish>,
}

impl OutboxTable {
    /// What its templates and rules name, each with its setting; the properties of [`Columns`] left aside.
    #[must_use]
    pub fn references(&self) -> Vec<(Setting, &Reference)> {
        let of_content = self.content.references();
        self.routing_references().chain(of_content).collect()
    }

    /// As [`references`](Self::references), of those that decide where its events go.
    fn routing_references(&self) -> impl Iterator<Item = (Setting, &Reference)> {
        let Route {
            exchange,
            routing_key,
            rules,
        } = &self.route;
        let own = [(exchange, Setting::EXCHANGE), (routing_key, Setting::ROUTING_KEY)];
        let of_rules = rules.iter().flat_map(|rule| {
            [
                (&rule.exchange, Setting::EXCHANGE),
                (&rule.routing_key, Setting::ROUTING_KEY),
            ]
        });
        let templates = own.into_iter().chain(of_rules).flat_map(|(template, fallback)| {
            let setting = template.setting().unwrap_or(fallback);
            template.references().map(move |reference| (setting, reference))
        });
        let conditions = rules.iter().zip(1..).flat_map(|(rule, number)| {
            let setting = Setting::of_rule(Setting::WHEN, number);
            rule.when
                .iter()
                .map(move |condition| (setting, condition.reference()))
        });
        templates.chain(conditions)
    }

    /// The columns that decide where its events go.
    #[must_use]
    pub fn routing_columns(&self) -> BTreeSet<String> {
        let sources = self
            .routing_references()
            .map(|(_, reference)| self.columns.source_of(reference.column()));
        let own = [&self.columns.exchange, &self.columns.routing_key].map(Clone::clone);
        let columns = sources.chain(own);
        columns
            .filter_map(|source| source.column().map(str::to_owned))
            .collect()
    }

    /// Whether an exchange may be known only when an event comes.
    #[must_use]
    pub fn has_open_exchange(&self) -> bool {
        match &self.columns.exchange {
            Source::Column(_) | Source::ColumnIfThere(_) => true,
            Source::Constant(_) => false,
            Source::Absent => self
                .exchange_templates()
                .any(|template| template.as_constant().is_none()),
        }
    }

    /// The exchanges that are known before an event comes, each once; "" is the default exchange.
    #[must_use]
    pub fn fixed_exchanges(&self) -> BTreeSet<&str> {
        if let Source::Constant(exchange) = &self.columns.exchange {
            return BTreeSet::from([exchange.as_str()]);
        }
        self.exchange_templates()
            .filter_map(Template::as_constant)
            .collect()
    }

    fn exchange_templates(&self) -> impl Iterator<Item = &Template> {
        let of_rules = self.route.rules.iter().map(|rule| &rule.exchange);
        of_rules.chain([&self.route.exchange])
    }
}

/// What becomes of a row whose event is confirmed or discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterPublish {
    /// `sent_at` is set.
    Mark,
    /// It is deleted.
    Delete,
    /// Nothing.
    Keep,
}

impl AfterPublish {
    /// What holds for a table, by its setting and its columns.
    #[must_use]
    pub const fn of(setting: Option<Self>, has_sent_at: bool) -> Self {
        match setting {
            Some(setting) => setting,
            None if has_sent_at => Self::Mark,
            None => Self::Keep,
        }
    }
}
