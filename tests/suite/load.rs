//! Size: memory stays bounded whatever comes.

use std::time::Duration;

use anyhow::Result;
use walrelay_testbed::{Keep, Postgres, PostgresOptions, QueueOptions, Recorder, shared_rabbitmq};

use crate::world::{EXCHANGE, QUEUE, World, wal_end};

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

    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'order', n % 1000, 'OrderCreated', jsonb_build_object('number', n)
         from generate_series(1, {EVENTS}) n"
    );
    world.client.batch_execute(&sql).await?;
    let committed = wal_end(&world.client).await?;
    recorder
        .wait_for_distinct(EVENTS, Duration::from_secs(600))
        .await?;

    assert_eq!(recorder.distinct_count(), EVENTS);
    assert_eq!(recorder.duplicates(), 0);
    world.wait_flushed(committed).await?;
    let peak = relay.peak_rss_kib()?;
    assert!(peak < 64 * 1024, "{peak} KiB");
    Ok(())
}
