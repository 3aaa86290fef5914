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
    let output = relay
        .run_command(&["dead-letters", "retry", "--all", "--yes"])
        .await?;
    assert_eq!(output.code(), Some(0), "{output:?}");
    let came = recorder.wait_for(1, LONG).await?;
    assert_eq!(trace(&came[0]), (Some(PARENT), None));
    Ok(())
}

fn trace(delivery: &Delivery) -> (Option<&str>, Option<&str>) {
    (header(delivery, "traceparent"), header(delivery, "tracestate"))
}

/// A key that would have no effect is an error, and names what it needs.
#[cfg(not(feature = "otel"))]
#[tokio::test]
async fn a_collector_needs_the_feature() -> Result<()> {
    let world = World::new().await?;
    let relay = world
        .relay()
        .text("otel.endpoint", "http://localhost:4318")
        .build()?;
    let output = relay.run_command(&["run"]).await?;
    assert_eq!(output.code(), Some(78), "{output:?}");
    assert!(
        output.stderr.contains("otel.endpoint") && output.stderr.contains("--features otel"),
        "{output:?}"
    );
    Ok(())
}

#[cfg(feature = "otel")]
mod collector {
    use walrelay_testbed::{Collector, eventually_some};

    use super::*;
    use crate::world::commit_at_once;

    const TRACE_ID: &[u8] = b"\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c";
    const PARENT_ID: &[u8] = b"\xb7\xad\x6b\x71\x69\x20\x33\x31";

    #[tokio::test]
    async fn each_publish_is_a_span_of_its_trace() -> Result<()> {
        let (world, collector) = (World::for_orders().await?, Collector::start().await?);
        let recorder = world.recorder().await?;
        let relay = world
            .relay()
            .text("otel.endpoint", &collector.endpoint())
            .text("delivery.on_unroutable", "discard")
            .start()
            .await?;
        // One is sampled, one is not, one belongs to no trace.
        let unsampled = PARENT.replace("-01", "-00").replace("0af7", "1111");
        for (key, headers) in [
            ("order", format!("jsonb_build_object('traceparent', '{PARENT}')")),
            (
                "order",
                format!("jsonb_build_object('traceparent', '{unsampled}')"),
            ),
            ("order", "null".to_owned()),
            ("nobody", format!("jsonb_build_object('traceparent', '{PARENT}')")),
        ] {
            let sql = format!(
                "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, headers)
                 values (gen_random_uuid(), '{key}', 42, 'Created', '{{}}', {headers})"
            );
            world.client.batch_execute(&sql).await?;
        }
        recorder.wait_for_distinct(3, LONG).await?;
        let all = eventually_some("both spans", LONG, async || {
            let requests = collector.requests();
            let holds = |words: &[u8]| requests.iter().any(|request| request.holds(words));
            (holds(b"order.Created") && holds(b"nobody.Created")).then(|| requests.clone())
        })
        .await?;
        assert!(
            all[0].head.starts_with("POST /v1/traces HTTP/1.1"),
            "{}",
            all[0].head
        );
        let holds = |words: &[u8]| all.iter().any(|request| request.holds(words));
        for words in [
            TRACE_ID,
            PARENT_ID,
            b"publish outbox",
            b"rabbitmq",
            b"returned",
            b"walrelay",
        ] {
            assert!(holds(words), "{words:x?}");
        }
        assert!(!holds(b"\x11\x11\x65\x19"), "a trace that is not sampled");
        let id = &recorder.message_ids()[0];
        assert!(holds(id.as_bytes()));
        drop(relay);
        Ok(())
    }

    /// A collector that hangs costs spans and nothing else.
    #[tokio::test]
    async fn a_collector_that_hangs_holds_nothing_up() -> Result<()> {
        const EVENTS: usize = 8000;
        let (world, collector) = (World::new().await?, Collector::silent().await?);
        let recorder = world.recorder().await?;
        let mut relay = world
            .relay()
            .text("otel.endpoint", &collector.endpoint())
            .text("log.level", "info")
            .start()
            .await?;
        let default = format!(
            "alter table outbox_events alter column headers
             set default jsonb_build_object('traceparent', '{PARENT}')"
        );
        world.client.batch_execute(&default).await?;
        commit_at_once(&world.client, EVENTS).await?;
        recorder.wait_for_distinct(EVENTS, LONG).await?;
        let metrics = relay.metrics().await?;
        let dropped = metrics
            .value("walrelay_spans_dropped_total", &[])
            .unwrap_or_default();
        assert!(dropped > 0.0, "{dropped}");
        relay.terminate()?;
        let status = relay.wait_exit(LONG).await?;
        assert!(status.success(), "{status}");
        Ok(())
    }
}
