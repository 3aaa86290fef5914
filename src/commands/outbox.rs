//! From `[[outbox]]` to the outbox tables that the engine reads.

use walrelay_engine::event::{AfterPublish, Columns, OutboxTable, Route, Source};
use walrelay_engine::route::Template;

use crate::config::{self, Config, FieldValue, OutboxConfig, Preset};
use crate::postgres::{Outbox, QualifiedTable};

/// The outbox tables in the order of the configuration.
pub(super) fn outbox_tables(config: &Config) -> anyhow::Result<Vec<OutboxTable>> {
    let route = route(config)?;
    let tables = config.outbox.iter().map(|outbox| {
        let table: QualifiedTable = outbox.table.parse()?;
        Ok(OutboxTable {
            schema: table.schema,
            name: table.name,
            columns: columns(outbox),
            route: route.clone(),
            after_publish: after_publish(outbox),
        })
    });
    tables.collect()
}

/// The table that stands for events without one.
pub(super) fn messages_table(table: &QualifiedTable, route: &Route) -> OutboxTable {
    OutboxTable {
        schema: table.schema.clone(),
        name: table.name.clone(),
        columns: Columns::default(),
        route: route.clone(),
        after_publish: Some(AfterPublish::Keep),
    }
}

/// The same, as SQL statements see them.
pub(super) fn outboxes(config: &Config) -> anyhow::Result<Vec<Outbox>> {
    let outboxes = config.outbox.iter().map(|outbox| {
        Ok(Outbox {
            after_publish: after_publish(outbox),
            columns: columns(outbox),
            table: outbox.table.parse()?,
        })
    });
    outboxes.collect()
}

/// Where messages go.
pub(super) fn route(config: &Config) -> anyhow::Result<Route> {
    Ok(Route {
        exchange: Template::parse(&config.rabbitmq.exchange)?,
        routing_key: Template::parse(&config.rabbitmq.routing_key)?,
    })
}

/// What is configured to become of a table's published rows.
fn after_publish(outbox: &OutboxConfig) -> Option<AfterPublish> {
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
