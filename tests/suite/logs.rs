//! Log lines for machines: whatever happens, each is one JSON object, and none holds what is nobody's business.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walrelay_testbed::TcpProxy;

use crate::world::{LONG, World};

const PASSWORD: &str = "passw0rd-not-to-be-told";
const PAYLOAD: &str = "payload-not-to-be-told";

#[tokio::test]
async fn every_line_is_one_object_without_payload_or_secret() -> Result<()> {
    let world = World::for_orders().await?;
    let (database, broker) = (
        TcpProxy::start(world.database.port()).await?,
        TcpProxy::start(world.vhost.port()).await?,
    );
    let url = format!(
        "postgres://postgres:{PASSWORD}@127.0.0.1:{}/{}",
        database.port(),
        world.database.name()
    );
    let mut relay = world
        .relay()
        .postgres_url(&url)
        .rabbitmq_uri(&world.vhost.uri_through(broker.port()))
        .text("log.level", "trace")
        .text("delivery.on_unroutable", "dead_letter")
        .text("delivery.on_invalid", "discard")
        .build()?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    // Delivered, unroutable, invalid; and both connections lost.
    for (aggregate_type, event_type) in [("order", "'Created'"), ("nobody", "'Created'"), ("order", "''")] {
        let sql = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), '{aggregate_type}', 42, {event_type}, '{{\"text\": \"{PAYLOAD}\"}}')"
        );
        world.client.batch_execute(&sql).await?;
    }
    let has = |words: &'static str| move |line: &str| line.contains(words);
    for words in ["event stored as a dead letter", "event discarded by policy"] {
        relay.wait_for_log(words, LONG, has(words)).await?;
    }
    for (proxy, words) in [
        (&broker, "\"side\":\"broker\""),
        (&database, "\"side\":\"database\""),
    ] {
        proxy.cut().await;
        relay.wait_for_log(words, LONG, has(words)).await?;
    }
    relay.wait_ready(LONG).await?;
    relay.terminate()?;
    relay.wait_exit(LONG).await?;

    let log = relay.log();
    ensure!(log.len() > 10, "only {} lines", log.len());
    for line in &log {
        let object: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        for key in ["timestamp", "level", "target", "message"] {
            ensure!(object[key].is_string(), "no {key} in {line}");
        }
        ensure!(!line.contains(PASSWORD) && !line.contains(PAYLOAD), "{line}");
    }
    Ok(())
}
