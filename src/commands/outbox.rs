//! From `[[outbox]]` to the outbox tables that the engine reads.

use std::error::Error;

use walrelay_engine::event::{
    AfterPublish, CloudEvents, Columns, Content, Format, OutboxTable, Route, Source, expiration_fault,
    is_uri_reference, priority_of,
};
use walrelay_engine::policy::Policy;
use walrelay_engine::route::{Condition, Reference, Rule, Setting, Template, TemplateError};

use crate::config::{
    self, Config, FailurePolicy, FieldValue, MessageFormat, OutboxConfig, Preset, RouteConfig,
};
use crate::postgres::marker::{MarkSet, Marker};
use crate::postgres::{MessagePrefix, Outbox, QualifiedTable};

/// The outbox tables in the order of the configuration.
pub(super) fn outbox_tables(config: &Config) -> anyhow::Result<Vec<OutboxTable>> {
    let tables = config.outbox.iter().map(|outbox| {
        let table: QualifiedTable = outbox.table.parse()?;
        Ok(OutboxTable {
            content: content(outbox, &table)?,
            schema: table.schema,
            name: table.name,
            columns: columns(outbox),
            route: route(config, outbox)?,
            after_publish: after_publish(outbox),
        })
    });
    tables.collect()
}

/// The outbox tables, and behind them the one that stands for events without a table, if there are such: see `FlowConfig`.
pub(super) fn all_tables(config: &Config) -> anyhow::Result<Vec<OutboxTable>> {
    let mut tables = outbox_tables(config)?;
    if let Some(prefix) = &config.messages_prefix {
        let prefix: MessagePrefix = prefix.parse()?;
        tables.push(messages_table(config, prefix.table())?);
    }
    Ok(tables)
}

/// The table that stands for events without one: they go by the templates of `[rabbitmq]`.
fn messages_table(config: &Config, table: QualifiedTable) -> anyhow::Result<OutboxTable> {
    Ok(OutboxTable {
        schema: table.schema,
        name: table.name,
        columns: Columns::default(),
        content: Content::default(),
        route: Route {
            exchange: Template::parse(&config.rabbitmq.exchange)?.of(Setting::EXCHANGE),
            routing_key: Template::parse(&config.rabbitmq.routing_key)?.of(Setting::ROUTING_KEY),
            rules: Vec::new(),
        },
        after_publish: Some(AfterPublish::Keep),
    })
}

/// The same, as SQL statements see them.
pub(super) fn outboxes(config: &Config) -> anyhow::Result<Vec<Outbox>> {
    let tables = outbox_tables(config)?;
    let outboxes = config.outbox.iter().zip(&tables).map(|(outbox, table)| {
        Ok(Outbox {
            after_publish: table.after_publish,
            columns: table.columns.clone(),
            marker: marker(outbox)?,
            table: outbox.table.parse()?,
            named: named(table),
        })
    });
    outboxes.collect()
}

/// The columns that a table's templates and rules name, each behind its setting.
fn named(table: &OutboxTable) -> Vec<(String, String)> {
    let references = table.references().into_iter();
    let columns = references.filter_map(|(setting, reference)| {
        let source = table.columns.source_of(reference.column());
        Some((setting.to_string(), source.column()?.to_owned()))
    });
    columns.collect()
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
fn after_publish(outbox: &OutboxConfig) -> Option<AfterPublish> {
    let Some(after_publish) = outbox.after_publish else {
        return outbox.unsent.as_ref().map(|_| AfterPublish::Mark);
    };
    Some(match after_publish {
        config::AfterPublish::Mark => AfterPublish::Mark,
        config::AfterPublish::Delete => AfterPublish::Delete,
        config::AfterPublish::Keep => AfterPublish::Keep,
    })
}

/// What tells and sets marks, where the time of sending does not.
fn marker(outbox: &OutboxConfig) -> anyhow::Result<Option<Marker>> {
    let (Some(unsent), Some(mark_set)) = (&outbox.unsent, &outbox.mark_set) else {
        return Ok(None);
    };
    Ok(Some(Marker {
        unsent: unsent.parse()?,
        set: mark_set.parse()?,
    }))
}

/// Why a table whose old rows are to be deleted has no time to go by.
pub(super) fn retention_without_time(config: &Config) -> Option<&'static str> {
    let mut kept = config.outbox.iter().filter(|outbox| outbox.keep_sent.is_some());
    kept.find_map(|outbox| {
        let columns = columns(outbox);
        let Some(sent_at) = columns.sent_at.column() else {
            return Some(
                "outbox.retention.keep_sent goes by the time at which rows were sent, and outbox.columns.sent_at says that there is none",
            );
        };
        // A text that is none has been refused.
        let set = outbox.mark_set.as_ref()?.parse::<MarkSet>().ok()?;
        let sets_it = set.columns().any(|column| column == sent_at);
        (!sets_it).then_some(
            "outbox.retention.keep_sent goes by the column of outbox.columns.sent_at, which outbox.mark_set does not set",
        )
    })
}

/// Why rows cannot be divided among shards.
pub(super) fn shard_of_constant(config: &Config) -> Option<&'static str> {
    config.postgres.shard.as_ref()?;
    let mut ids = config.outbox.iter().map(|outbox| &outbox.columns.aggregate_id);
    ids.any(|id| matches!(id, Some(FieldValue::Constant(_)))).then_some(
        "postgres.shard goes by the hash of the aggregate's id: a shard needs a column, and outbox.columns.aggregate_id is a constant",
    )
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

/// What a table's messages look like.
fn content(outbox: &OutboxConfig, table: &QualifiedTable) -> anyhow::Result<Content> {
    let config = &outbox.content;
    let event = || -> anyhow::Result<_> {
        let source = match &config.cloudevents_source {
            Some(source) => Template::parse(source)?,
            None => Template::parse(&default_source(table))?,
        };
        let event_type = Template::parse(&config.cloudevents_type)?;
        Ok(CloudEvents { source, event_type })
    };
    let headers = config
        .headers
        .iter()
        .map(|(name, text)| Ok((name.to_owned(), Template::parse(text)?)));
    Ok(Content {
        format: match config.format {
            MessageFormat::Payload => Format::Payload,
            MessageFormat::CloudEventsBinary => Format::CloudEventsBinary {
                event: event()?,
                prefix: config.cloudevents_prefix.clone(),
            },
            MessageFormat::CloudEventsStructured => Format::CloudEventsStructured(event()?),
            MessageFormat::Envelope => Format::Envelope,
        },
        headers: headers.collect::<anyhow::Result<_>>()?,
    })
}

/// `/schema.table`, whatever the names are: a relay that takes over the table, or shares it, is the same source.
fn default_source(table: &QualifiedTable) -> String {
    let mut source = "/".to_owned();
    for byte in format!("{}.{}", table.schema, table.name).bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => source.push(byte.into()),
            byte => source.push_str(&format!("%{byte:02X}")),
        }
    }
    source
}

/// Whether a text can be the template of the property `expiration`.
pub(super) fn check_expiration(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    // What is wrong with a template is said of it elsewhere.
    let template = Template::parse(text).ok();
    match template
        .as_ref()
        .and_then(Template::as_constant)
        .and_then(expiration_fault)
    {
        Some(rule) => Err(format!("it is not {rule}").into()),
        None => Ok(()),
    }
}

/// Whether a text can be the template of the property `priority`.
pub(super) fn check_priority(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let template = Template::parse(text).ok();
    match template.as_ref().and_then(Template::as_constant).map(priority_of) {
        Some(Err(rule)) => Err(format!("it is not {rule}").into()),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Whether a text can be the template of the attribute `source`.
pub(super) fn check_source(text: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let source = Template::parse(text)?;
    match source.as_constant() {
        Some(source) if !is_uri_reference(source) => Err("it is no URI-reference, such as \"/orders\" or \
             \"//shop.example.com/orders\": other characters must be percent-encoded"
            .into()),
        Some(_) | None => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_message_could_have_is_refused_where_it_is_the_same_for_every_event() {
        for text in ["", "0", "60000", "315360000000", "{ttl}", "{ttl}0"] {
            assert!(check_expiration(text).is_ok(), "{text}");
        }
        for text in ["1m", "-1", "+1", " 1", "1.5", "315360000001"] {
            assert!(check_expiration(text).is_err(), "{text}");
        }
        for text in ["", "0", "255", "{urgency}"] {
            assert!(check_priority(text).is_ok(), "{text}");
        }
        for text in ["256", "-1", "+1", "high"] {
            assert!(check_priority(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_source_of_a_table_is_a_uri_reference_whatever_its_name() {
        for (name, source) in [
            ("public.outbox_events", "/public.outbox_events"),
            ("\"Ä b\".\"x{y\"", "/%C3%84%20b.x%7By"),
        ] {
            let found = default_source(&name.parse().expect("a table's name"));
            assert_eq!(found, source);
            assert!(check_source(&found).is_ok());
        }
        assert!(check_source("/a b").is_err() && check_source("").is_err() && check_source("{a").is_err());
        assert!(check_source("/{aggregate_type}").is_ok());
    }

    #[test]
    fn a_shard_needs_a_column_that_tells_aggregates_apart() {
        let of = |aggregate_id: &str| {
            let set = [
                "postgres.url=postgres://u@db/shop",
                "rabbitmq.uri=amqp://u@mq",
                "postgres.shard=1/4",
                aggregate_id,
            ];
            let sources = config::Sources {
                set: set.map(str::to_owned).to_vec(),
                agreements: super::super::resolve::AGREEMENTS,
                ..config::Sources::default()
            };
            config::load(&sources)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(of("outbox.columns.aggregate_id=key"), Ok(()));
        assert_eq!(
            of("outbox.columns.aggregate_id={ value = '7' }"),
            Err(
                "--set: postgres.shard goes by the hash of the aggregate's id: a shard needs a column, and \
                 outbox.columns.aggregate_id is a constant"
                    .to_owned()
            )
        );
    }
}
