//! `delivery.ordering` and `delivery.max_rate`: when an event may be sent.

use std::time::Duration;

use anyhow::{Context as _, Result};
use walrelay_testbed::RelayBuilder;
use walrelay_testbed::scripted_broker::answer;

use crate::link::{Scripted, numbers};
use crate::world::{LONG, World, commit_at_once};

/// Commits events in one transaction: of aggregate 1 the numbers 1 and 2, of aggregate 2 the number 3.
const TWO_AGGREGATES: &str =
    "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
    select gen_random_uuid(), 'order', aggregate, 'OrderCreated', jsonb_build_object('number', number)
    from (values (1, 1), (1, 2), (2, 3)) as event (aggregate, number) order by number";

/// R14: an event in backoff is unsettled too.
#[tokio::test]
async fn in_strict_order_an_event_waits_for_the_earlier_one_of_its_aggregate_and_others_do_not() -> Result<()>
{
    let strict = |relay: RelayBuilder| relay.text("delivery.ordering", "strict");
    let (mut scripted, mut connection) = Scripted::start(strict).await?;
    scripted.client.batch_execute(TWO_AGGREGATES).await?;
    assert_eq!(numbers(&mut connection, 2).await?, [1, 3]);
    connection.idle(1).await?;
    connection
        .send(&[answer::nack(1, false), answer::ack(2, false)].concat())
        .await?;
    // Tried again alone, as often as it is refused.
    assert_eq!(numbers(&mut connection, 1).await?, [1]);
    connection.send(&answer::nack(3, false)).await?;
    assert_eq!(numbers(&mut connection, 1).await?, [1]);
    scripted.held("event_nacked").await?;
    connection.send(&answer::ack(4, false)).await?;
    assert_eq!(numbers(&mut connection, 1).await?, [2]);
    connection.send(&answer::ack(5, false)).await?;
    scripted.acknowledged().await
}

/// The same without it, so that the one above says something.
#[tokio::test]
async fn in_pipelined_order_no_event_waits_for_another() -> Result<()> {
    let (scripted, mut connection) = Scripted::start(|relay| relay).await?;
    scripted.client.batch_execute(TWO_AGGREGATES).await?;
    assert_eq!(numbers(&mut connection, 3).await?, [1, 2, 3]);
    connection.send(&answer::ack(3, true)).await?;
    scripted.acknowledged().await
}

#[tokio::test]
async fn a_backlog_goes_out_no_faster_than_max_rate() -> Result<()> {
    const EVENTS: usize = 300;
    const RATE: u32 = 200;
    let world = World::new().await?;
    let mut relay = world
        .relay()
        .set("delivery.max_rate", &RATE.to_string())
        .build()?;
    relay.setup().await?;
    commit_at_once(&world.client, EVENTS).await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    let deliveries = recorder.wait_for(EVENTS as u64, LONG).await?;
    let first = deliveries.first().context("a first one")?.received;
    let last = deliveries.last().context("a last one")?.received;
    // Half a second less: what was sent later may have taken less time on its way.
    let least = Duration::from_secs(1) * (EVENTS as u32 - 1) / RATE - Duration::from_millis(500);
    assert!(last - first >= least, "{:?}", last - first);
    Ok(())
}
