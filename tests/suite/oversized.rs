//! Rows with columns over `delivery.max_event_bytes`: read without buffering them, invalid only if the event needs them.

use anyhow::{Context, Result, ensure};
use tokio_postgres::Client;

use crate::world::{LONG, World, insert_event};

/// Characters of the large values; the limit is 16 MiB.
const LARGE: usize = 40_000_000;

/// What the relay may have resident at most while it reads such a row.
const RSS_KIB: u64 = 40 * 1024;

/// Inserts an event whose payload is a JSON object around a text of `LARGE` characters. Returns its id.
async fn insert_large_event(client: &Client) -> Result<String> {
    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         values (gen_random_uuid(), 'order', 42, 'OrderCreated', jsonb_build_object('text', repeat('x', {LARGE})))
         returning id::text"
    );
    Ok(client.query_one(&sql, &[]).await?.get(0))
}

#[tokio::test]
async fn a_row_with_a_large_payload_is_invalid_under_its_key_and_never_buffered() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    world.client.batch_execute("begin").await?;
    let before = insert_event(&world.client, 0).await?;
    let large = insert_large_event(&world.client).await?;
    let behind = insert_event(&world.client, 2).await?;
    world.client.batch_execute("commit").await?;
    let later = world.commit_events(1).await?;

    // Told again after a restart: the row is read again, and its key stays the same.
    let mut errors = Vec::new();
    for _ in 0..2 {
        let readiness = relay
            .wait_readiness("the large event to be held", LONG, |readiness| {
                readiness.json["delivery"]["cause"] == "event_invalid"
            })
            .await?;
        let error = readiness.json["delivery"]["error"].as_str().context("an error")?;
        errors.push(error.to_owned());
        let peak = relay.peak_rss_kib()?;
        ensure!(peak < RSS_KIB, "{peak} KiB resident");
        relay
            .wait_for_log("the held event", LONG, |line| {
                line.contains("event is held") && line.contains(&large) && line.contains(r#""tx_seq":1"#)
            })
            .await?;
        recorder.wait_for_distinct(1, LONG).await?;
        relay.kill().await?;
        relay.start()?;
    }

    let length = LARGE + r#"{"text": ""}"#.len();
    let reason = format!(
        "column \"payload\" has {length} bytes; there is room for 16777216 (delivery.max_event_bytes)"
    );
    ensure!(
        errors[0].contains(&format!("event {large} at ")) && errors[0].ends_with(&reason),
        "{}",
        errors[0]
    );
    assert_eq!(errors[0], errors[1]);
    let delivered = recorder.distinct_ids();
    assert!(delivered.contains(&before));
    assert!(!delivered.contains(&behind) && !delivered.contains(&later[0]));
    Ok(())
}

#[tokio::test]
async fn a_large_value_that_the_event_does_not_need_does_not_delay_it() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let relay = world.running().await?;
    let sql = format!(
        "alter table outbox_events add column notes text, add column more text;
         insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload, notes, more)
         values (gen_random_uuid(), 'order', 42, 'OrderCreated', '7', repeat('x', {LARGE}), 'more')"
    );
    world.client.batch_execute(&sql).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.deliveries()[0].body, b"7");
    world.commit_events(1).await?;
    recorder.wait_for_distinct(2, LONG).await?;
    let peak = relay.peak_rss_kib()?;
    ensure!(peak < RSS_KIB, "{peak} KiB resident");
    Ok(())
}
