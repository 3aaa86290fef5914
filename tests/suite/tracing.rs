//! The trace that an event belongs to, passed on with its message.

use anyhow::Result;
use walrelay_testbed::Delivery;

use crate::world::{EXCHANGE, LONG, QUEUE, World, header};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const STATE: &str = "rojo=00f067aa0ba902b7,congo=\"t61\\r\"";

#[tokio::test]
async fn a_trace_in_columns_or_headers_is_passed_on_unchanged() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let mut relay = relay;
    relay.start()?;
    relay.wait_ready(LONG).await?;

    let insert = async |columns: &str, values: &str| -> Result<()> {
        let sql = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload {columns})
             values (gen_random_uuid(), 'order', 42, 'OrderCreated', '{{}}' {values})"
        );
        Ok(world.client.batch_execute(&sql).await?)
    };
    insert("", "").await?;
    let headers = format!(
        ", jsonb_build_object('nested', '{{\"traceparent\": 1}}'::jsonb, 'traceparent', '{PARENT}', 'tracestate', '{STATE}')"
    );
    insert(", headers", &headers).await?;
    insert(", headers", ", '{\"traceparent\": 7, \"tracestate\": null}'").await?;
    // Columns of their own, added while the relay runs.
    let alter = "alter table outbox_events add column traceparent text, add column tracestate text";
    world.client.batch_execute(alter).await?;
    insert(", traceparent, headers", &format!(", 'of the column' {headers}")).await?;

    let came = recorder.wait_for(4, LONG).await?;
    let traces: Vec<_> = came.iter().map(trace).collect();
    assert_eq!(
        traces,
        [
            (None, None),
            (Some(PARENT), Some(STATE)),
            (None, None),
            (Some("of the column"), Some(STATE)),
        ]
    );
    Ok(())
}

#[tokio::test]
async fn a_dead_letter_that_is_delivered_keeps_its_trace() -> Result<()> {
    let world = World::for_orders().await?;
    let relay = world
        .relay()
        .text("delivery.on_unroutable", "dead_letter")
        .start()
        .await?;
    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
         values (gen_random_uuid(), 'nobody', 42, 'Created', '{{}}', jsonb_build_object('traceparent', '{PARENT}'))"
    );
    world.client.batch_execute(&sql).await?;
    relay
        .wait_for_log("a dead letter", LONG, |line| {
            line.contains("event stored as a dead letter")
        })
        .await?;
    world.vhost.bind(QUEUE, EXCHANGE, "nobody.#").await?;
    let recorder = world.recorder().await?;
    let output = relay.run_command(&["dead-letters", "retry", "--all"]).await?;
    assert_eq!(output.code(), Some(0), "{output:?}");
    let came = recorder.wait_for(1, LONG).await?;
    assert_eq!(trace(&came[0]), (Some(PARENT), None));
    Ok(())
}

fn trace(delivery: &Delivery) -> (Option<&str>, Option<&str>) {
    (header(delivery, "traceparent"), header(delivery, "tracestate"))
}
