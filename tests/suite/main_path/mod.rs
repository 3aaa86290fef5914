//! The main path: WAL, event, message, confirm, acknowledged position.
//!
//! Events are relayed in order, so a test that expects nothing of some rows lets an event follow them and looks at
//! what came before it.

mod messages;
mod tables;
mod transactions;

use anyhow::Result;
use tokio_postgres::Client;
use walrelay_testbed::{Delivery, Recorder};

use crate::world::LONG;

/// Inserts an event whose type is a label, to be recognised by its routing key.
async fn insert_labelled(client: &Client, label: &str) -> Result<()> {
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'order', 42, $1, '{}')";
    client.execute(sql, &[&label]).await?;
    Ok(())
}

/// The labels of what comes, in order, once the event labelled `last` is there.
async fn labels_up_to(recorder: &Recorder, last: &str) -> Result<Vec<String>> {
    let is_last = |delivery: &Delivery| label(delivery) == last;
    recorder
        .wait_until(last, LONG, |deliveries| deliveries.iter().any(is_last))
        .await?;
    Ok(recorder.deliveries().iter().map(label).collect())
}

fn label(delivery: &Delivery) -> String {
    let key = delivery.routing_key.rsplit_once('.');
    key.map(|(_, event_type)| event_type)
        .unwrap_or_default()
        .to_owned()
}
