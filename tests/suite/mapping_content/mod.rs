//! What messages carry beside their payload: headers, properties, formats.

mod formats;
mod headers;

use anyhow::Result;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use serde_json::Value as Json;
use walrelay_testbed::{Delivery, RelayBuilder, eventually};

use crate::world::{LONG, World, text};

/// A world whose outbox table has a column for whatever a message can carry, and its relay: what cannot be delivered is set
/// aside. `settings` stand in its `[[outbox]]`.
async fn world_and_relay(settings: &str) -> Result<(World, RelayBuilder)> {
    let world = World::for_orders().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (
               id bigint generated always as identity primary key, aggregate_type text not null default 'order',
               aggregate_id text not null default '42', event_type text not null default 'created',
               payload json not null default '{\"n\": 0.10000000000000000001}', meta json, ttl text, prio text, cause text,
               media text, created_at timestamptz not null default now())",
        )
        .await?;
    let columns = "[outbox.columns]\nheaders = 'meta'\nexpiration = 'ttl'\npriority = 'prio'\ncorrelation_id = 'cause'\n\
                   content_type = 'media'\n";
    let relay = world
        .relay()
        .text("delivery.on_invalid", "dead_letter")
        .text("delivery.on_unroutable", "dead_letter")
        .extra(settings)
        .extra(columns);
    Ok((world, relay))
}

/// Inserts an event whose column has this value; its id.
async fn insert(world: &World, column: &str, value: &str) -> Result<String> {
    let cast = if column == "meta" { "::json" } else { "" };
    let sql = format!("insert into outbox_events ({column}) values ($1::text{cast}) returning id::text");
    Ok(world.client.query_one(&sql, &[&value]).await?.get(0))
}

/// Waits until so many events were set aside.
async fn wait_for_dead_letters(world: &World, count: usize) -> Result<()> {
    let sql = "select count(*)::text from walrelay.dead_letters";
    let count = count.to_string();
    eventually("the events are set aside", LONG, || async {
        text(&world.client, sql).await.is_ok_and(|found| found == count)
    })
    .await?;
    Ok(())
}

/// The headers that not every message has.
fn more_headers(delivery: &Delivery) -> FieldTable {
    let own = [
        "aggregate_type",
        "aggregate_id",
        "commit_lsn",
        "tx_seq",
        "replayed",
        "replay_seq",
    ];
    let mut more = FieldTable::default();
    for (name, value) in delivery.properties.headers().iter().flatten() {
        if !own.contains(&name.as_str()) {
            more.insert(name.clone(), value.clone());
        }
    }
    more
}

/// What a JSON object becomes.
fn table_of(object: &Json) -> FieldTable {
    let members = object.as_object().into_iter().flatten();
    let entries = members.map(|(name, value)| (ShortString::from(name.as_str()), value_of(value)));
    entries.collect::<std::collections::BTreeMap<_, _>>().into()
}

fn value_of(json: &Json) -> AMQPValue {
    let text = |text: &str| AMQPValue::LongString(text.into());
    match json {
        Json::Null => AMQPValue::Void,
        Json::Bool(value) => AMQPValue::Boolean(*value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => AMQPValue::LongLongInt(number),
            (None, Some(float)) if number.is_f64() => AMQPValue::Double(float),
            (None, _) => text(&number.to_string()),
        },
        Json::String(value) => text(value),
        Json::Array(items) => AMQPValue::FieldArray(items.iter().map(value_of).collect::<Vec<_>>().into()),
        Json::Object(_) => AMQPValue::FieldTable(table_of(json)),
    }
}
