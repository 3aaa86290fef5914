//! Stopping the relay: what it waits for, how long, and what it leaves behind (I1, I7, R9).

use std::time::Duration;

use anyhow::Result;
use walrelay_testbed::{Relay, RelayBuilder, Signal, TcpProxy, eventually, shared_postgres};

use crate::faults::{harmed_broker, wait_for_cause, wait_for_metric, wait_for_more};
use crate::world::{EXCHANGE, LONG, QUEUE, World, insert_event, text};

/// The end of a process that has nothing to wait for, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// I7: a clean stop between small transactions repeats nothing.
#[tokio::test]
async fn a_relay_stopped_and_started_under_load_repeats_nothing() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder, writer) = world.under_load().await?;
    for _ in 0..3 {
        wait_for_more(&recorder).await?;
        relay.terminate()?;
        assert_eq!(relay.wait_exit(LONG).await?.code(), Some(0));
        relay.start()?;
    }
    wait_for_more(&recorder).await?;

    let mut written = writer.stop().await?;
    // Whatever would come again comes before this one.
    written.committed.push(insert_event(&world.client, 0).await?);
    written.wait_delivered(&recorder).await?;
    assert!(written.came_in_commit_order(&recorder));
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// A relay whose broker has gone away with events in flight, and the way to the broker.
async fn cut_off(world: &World, grace: &str) -> Result<(Relay, TcpProxy)> {
    let mut broker = TcpProxy::start(world.vhost.port()).await?;
    let relay = world
        .relay()
        .rabbitmq_uri(&world.vhost.uri_through(broker.port()));
    let relay = relay.text("delivery.shutdown_grace", grace).start().await?;
    broker.refuse().await;
    broker.cut().await;
    world.commit_events(10).await?;
    wait_for_metric(&relay, "walrelay_in_flight_events", 10.0).await?;
    Ok((relay, broker))
}

#[tokio::test]
async fn a_stop_while_the_broker_is_down_ends_within_the_grace_and_loses_nothing() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let (mut relay, mut broker) = cut_off(&world, "1s").await?;

    relay.terminate()?;
    // The grace, a second for each side's good-bye, and what a busy machine takes.
    let status = relay.wait_exit(Duration::from_secs(6)).await?;
    assert_eq!(status.code(), Some(0));
    assert_eq!(recorder.count(), 0);

    broker.pass().await?;
    relay.start()?;
    recorder.wait_for_distinct(10, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

#[tokio::test]
async fn a_second_signal_ends_the_relay_at_once() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, _broker) = cut_off(&world, "1h").await?;

    relay.terminate()?;
    relay
        .wait_for_log("the first signal", LONG, |line| line.contains("\"stopping\""))
        .await?;
    assert!(relay.exit_status()?.is_none());
    relay.signal(Signal::Interrupt)?;
    let status = relay.wait_exit(AT_ONCE).await?;
    assert_eq!(status.code(), Some(130), "128 and SIGINT");
    Ok(())
}

/// Operators send it to have a configuration read again, and terminals when they close.
#[tokio::test]
async fn a_hang_up_signal_does_not_disturb_delivery() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    relay.signal(Signal::HangUp)?;
    relay
        .wait_for_log("the signal", LONG, |line| line.contains("hang-up signal ignored"))
        .await?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    Ok(())
}

/// Waits until the slot is free for another process.
async fn wait_slot_free(world: &World) -> Result<()> {
    let sql = format!(
        "select active::text from pg_replication_slots where slot_name = '{}'",
        world.slot()
    );
    let is_free = async || {
        text(&world.client, &sql)
            .await
            .is_ok_and(|active| active == "false")
    };
    Ok(eventually("the slot to be free", Duration::from_secs(1), is_free).await?)
}

/// I1: an alarm keeps even the good-bye from the broker, and nothing from the database.
#[tokio::test]
async fn a_stop_while_the_broker_is_blocked_ends_within_the_grace_and_frees_the_slot() -> Result<()> {
    let mut broker = harmed_broker().await?;
    let world = World::on(shared_postgres().await?, &broker).await?;
    let recorder = world.recorder().await?;
    let relay = world.relay().text("delivery.shutdown_grace", "1s");
    let mut relay = relay.start().await?;
    let mut ids = world.commit_events(5).await?;
    recorder.wait_for_distinct(5, LONG).await?;
    broker.raise_memory_alarm().await?;
    ids.extend(world.commit_events(10).await?);
    wait_for_cause(&mut relay, "broker", "broker_blocked").await?;

    relay.terminate()?;
    // The grace, and a second for each side's good-bye.
    let status = relay.wait_exit(Duration::from_secs(3)).await?;
    assert_eq!(status.code(), Some(0));
    wait_slot_free(&world).await?;

    broker.clear_memory_alarm().await?;
    relay.start()?;
    recorder.wait_for_distinct(15, LONG).await?;
    assert_eq!(recorder.distinct_ids(), ids.into_iter().collect());
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// R9: nothing behind a held event can be delivered, so there is nothing to wait for.
async fn stops_at_once_with(world: &World, relay: RelayBuilder) -> Result<Relay> {
    let mut relay = relay.text("delivery.shutdown_grace", "1h").start().await?;
    for event in ["insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         values (gen_random_uuid(), 'parcel', 1, 'Lost', '{}')"; 2]
    {
        world.client.batch_execute(event).await?;
    }
    relay
        .wait_readiness("a held event", LONG, |ready| {
            ready.json["delivery"]["state"] == "held"
        })
        .await?;
    world.commit_events(10).await?;
    relay.terminate()?;
    let status = relay.wait_exit(AT_ONCE).await?;
    assert_eq!(status.code(), Some(0));
    wait_slot_free(world).await?;
    Ok(relay)
}

#[tokio::test]
async fn a_stop_with_a_held_event_does_not_wait_for_the_grace() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let builder = world
        .relay()
        .text("rabbitmq.routing_key", "{aggregate_type}.{event_type}");
    world.vhost.delete_queue(QUEUE).await?;
    world
        .vhost
        .declare_queue(walrelay_testbed::QueueOptions::classic(QUEUE))
        .await?;
    world.vhost.bind(QUEUE, EXCHANGE, "order.#").await?;
    let mut relay = stops_at_once_with(&world, builder).await?;

    world.vhost.bind(QUEUE, EXCHANGE, "#").await?;
    relay.start()?;
    recorder.wait_for_distinct(12, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// I7: what would be confirmed without a session could not be reported, so it would only come twice.
#[tokio::test]
async fn a_stop_while_postgresql_is_down_does_not_wait_for_the_broker() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut database = TcpProxy::start(world.database.port()).await?;
    let mut broker = TcpProxy::start(world.vhost.port()).await?;
    let relay = world
        .relay()
        .postgres_url(&world.database.url_through(database.port()));
    let relay = relay.rabbitmq_uri(&world.vhost.uri_through(broker.port()));
    let mut relay = relay.text("delivery.shutdown_grace", "1h").start().await?;
    broker.refuse().await;
    broker.cut().await;
    let ids = world.commit_events(10).await?;
    wait_for_metric(&relay, "walrelay_in_flight_events", 10.0).await?;
    database.refuse().await;
    database.cut().await;
    wait_for_cause(&mut relay, "database", "database_unreachable").await?;
    relay.terminate()?;
    assert_eq!(relay.wait_exit(AT_ONCE).await?.code(), Some(0));

    database.pass().await?;
    broker.pass().await?;
    relay.start()?;
    recorder.wait_for_distinct(10, LONG).await?;
    assert_eq!(recorder.message_ids(), ids);
    Ok(())
}
