//! Size: memory stays bounded whatever comes.

use std::time::{Duration, Instant};

use anyhow::Result;
use walrelay_testbed::{
    Keep, Postgres, PostgresOptions, QueueOptions, Recorder, eventually, shared_rabbitmq,
};

use crate::world::{EXCHANGE, LONG, QUEUE, World, commit_at_once};

/// I1, I5.
#[tokio::test]
async fn a_million_events_in_one_transaction_arrive_within_64_mib() -> Result<()> {
    const EVENTS: usize = 1_000_000;
    // Of its own: the other slots' walsenders would read this transaction too.
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    // A quorum queue takes half the broker's time.
    world.vhost.delete_queue(QUEUE).await?;
    world.vhost.declare_queue(QueueOptions::quorum(QUEUE)).await?;
    world.vhost.bind(QUEUE, EXCHANGE, "#").await?;
    let recorder = Recorder::keeping(&world.vhost, QUEUE, Keep::Ids).await?;
    let relay = world.running().await?;

    let committed = commit_at_once(&world.client, EVENTS).await?;
    recorder.wait_for_many(EVENTS, LONG).await?;

    assert_eq!(recorder.distinct_count(), EVENTS);
    assert_eq!(recorder.duplicates(), 0);
    world.wait_flushed(committed).await?;
    let peak = relay.peak_rss_kib()?;
    assert!(peak < 64 * 1024, "{peak} KiB");
    Ok(())
}

/// R14: its cost, in figures for docs/guarantees.md.
#[tokio::test]
#[ignore = "asserts nothing: it prints what strict order costs, for docs/guarantees.md, and wants --release and --nocapture"]
async fn strict_order_costs_little_over_many_aggregates_and_a_confirm_for_each_event_of_one() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    for (ordering, aggregates, events) in [
        ("pipelined", 1_000, 50_000),
        ("strict", 1_000, 50_000),
        ("pipelined", 1, 50_000),
        ("strict", 1, 5_000),
    ] {
        let world = World::on(&postgres, shared_rabbitmq().await?).await?;
        let relay = world.relay().text("delivery.ordering", ordering);
        let relay = relay.text("log.level", "info").start().await?;
        let sql = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', n % {aggregates}, 'OrderCreated',
                    jsonb_build_object('number', n, 'text', repeat('x', 250))
             from generate_series(1, {events}) n"
        );
        world.client.batch_execute(&sql).await?;
        let committed = Instant::now();
        eventually(
            "every event to be confirmed",
            Duration::from_secs(300),
            async || {
                let metrics = relay.metrics().await;
                metrics.is_ok_and(|metrics| {
                    metrics.value("walrelay_confirmed_total", &[]) == Some(f64::from(events))
                })
            },
        )
        .await?;
        let rate = f64::from(events) / committed.elapsed().as_secs_f64();
        println!("{ordering}, aggregates: {aggregates}, events/s: {rate:.0}");
    }
    Ok(())
}
