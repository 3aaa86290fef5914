//! From `[[outbox]]` to the outbox tables that the engine reads.

use walrelay_engine::event::{AfterPublish, Columns, OutboxTable, Route, Source};
use walrelay_engine::route::Template;

use crate::config::{self, Config, FieldValue, OutboxConfig, Preset};
use crate::postgres::marker::{MarkSet, Marker};
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

/// The same, as SQL statements see them.
pub(super) fn outboxes(config: &Config) -> anyhow::Result<Vec<Outbox>> {
    let outboxes = config.outbox.iter().map(|outbox| {
        Ok(Outbox {
            after_publish: after_publish(outbox),
            columns: columns(outbox),
            marker: marker(outbox)?,
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
