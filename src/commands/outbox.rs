//! From `[[outbox]]` to the outbox tables that the engine reads.

use walrelay_engine::event::{AfterPublish, Columns, OutboxTable, Route, Source};
use walrelay_engine::policy::Policy;
use walrelay_engine::route::{Condition, Reference, Rule, Setting, Template, TemplateError};

use crate::config::{self, Config, FailurePolicy, FieldValue, OutboxConfig, Preset, RouteConfig};
use crate::postgres::QualifiedTable;

/// The outbox tables in the order of the configuration.
pub(super) fn outbox_tables(config: &Config) -> anyhow::Result<Vec<OutboxTable>> {
    let tables = config.outbox.iter().map(|outbox| {
        let table: QualifiedTable = outbox.table.parse()?;
        Ok(OutboxTable {
            schema: table.schema,
            name: table.name,
            columns: columns(outbox),
            route: route(config, outbox)?,
            after_publish: after_publish(outbox),
        })
    });
    tables.collect()
}

/// Where a table's messages go.
fn route(config: &Config, outbox: &OutboxConfig) -> Result<Route, TemplateError> {
    let exchange = match &outbox.exchange {
        Some(text) => Template::parse(text)?.of("outbox.exchange".into()),
        None => Template::parse(&config.rabbitmq.exchange)?.of(Setting::EXCHANGE),
    };
    let routing_key = match &outbox.routing_key {
        Some(text) => Template::parse(text)?.of("outbox.routing_key".into()),
        None => Template::parse(&config.rabbitmq.routing_key)?.of(Setting::ROUTING_KEY),
    };
    let rules = outbox.routes.iter().zip(1..);
    let rules = rules.map(|(route, number)| rule(route, number, &exchange, &routing_key));
    Ok(Route {
        rules: rules.collect::<Result<_, _>>()?,
        exchange,
        routing_key,
    })
}

/// A rule; what it does not say is the table's.
fn rule(
    route: &RouteConfig,
    number: usize,
    exchange: &Template,
    routing_key: &Template,
) -> Result<Rule, TemplateError> {
    let template = |text: &Option<String>, key: &'static str, of_table: &Template| match text {
        Some(text) => Ok(Template::parse(text)?.of(Setting::of_rule(key, number))),
        None => Ok(of_table.clone()),
    };
    let when = route.when.iter().map(|condition| {
        let any_of = condition.any_of.iter().map(String::as_str);
        Ok(Condition::new(Reference::parse(&condition.of)?, any_of))
    });
    Ok(Rule {
        when: when.collect::<Result<_, _>>()?,
        exchange: template(&route.exchange, "outbox.route.exchange", exchange)?,
        routing_key: template(&route.routing_key, "outbox.route.routing_key", routing_key)?,
        on_unroutable: route.on_unroutable.map(policy),
    })
}

/// What is configured to become of a table's published rows.
pub(super) fn after_publish(outbox: &OutboxConfig) -> Option<AfterPublish> {
    Some(match outbox.after_publish? {
        config::AfterPublish::Mark => AfterPublish::Mark,
        config::AfterPublish::Delete => AfterPublish::Delete,
        config::AfterPublish::Keep => AfterPublish::Keep,
    })
}

/// The preset's columns, but for those that are named.
fn columns(outbox: &OutboxConfig) -> Columns {
    let mut columns = match outbox.preset {
        Preset::Walrelay => Columns::default(),
        Preset::Debezium => Columns::debezium(),
    };
    let named = &outbox.columns;
    let column = |field: &mut String, named: &Option<FieldValue>| {
        if let Some(FieldValue::Column(name)) = named {
            field.clone_from(name);
        }
    };
    column(&mut columns.id, &named.id);
    column(&mut columns.payload, &named.payload);
    for (field, named) in [
        (&mut columns.aggregate_type, &named.aggregate_type),
        (&mut columns.aggregate_id, &named.aggregate_id),
        (&mut columns.event_type, &named.event_type),
        (&mut columns.headers, &named.headers),
        (&mut columns.created_at, &named.created_at),
        (&mut columns.sent_at, &named.sent_at),
        (&mut columns.routing_key, &named.routing_key),
        (&mut columns.exchange, &named.exchange),
        (&mut columns.content_type, &named.content_type),
        (&mut columns.expiration, &named.expiration),
        (&mut columns.priority, &named.priority),
        (&mut columns.correlation_id, &named.correlation_id),
    ] {
        match named {
            Some(FieldValue::Column(name)) => *field = Source::Column(name.clone()),
            Some(FieldValue::Constant(text)) => *field = Source::Constant(text.clone()),
            Some(FieldValue::Absent) => *field = Source::Absent,
            None => {}
        }
    }
    columns
}

/// What is configured to become of an event that cannot be delivered.
pub(super) const fn policy(policy: FailurePolicy) -> Policy {
    match policy {
        FailurePolicy::Hold => Policy::Hold,
        FailurePolicy::DeadLetter => Policy::DeadLetter,
        FailurePolicy::Discard => Policy::Discard,
    }
}

/// Whether an event may become a dead letter.
pub(super) fn has_dead_letters(config: &Config) -> bool {
    let delivery = &config.delivery;
    let routes = config.outbox.iter().flat_map(|outbox| &outbox.routes);
    let policies = routes.filter_map(|route| route.on_unroutable);
    delivery.hold_max_wal.is_some()
        || [delivery.on_unroutable, delivery.on_invalid]
            .into_iter()
            .chain(policies)
            .any(|policy| policy == FailurePolicy::DeadLetter)
}
