//! Queues that refuse, answer nothing, or go away (R11, R12).

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use walrelay_testbed::{QueueOptions, RabbitMq, RabbitMqOptions, Recorder, eventually, shared_postgres};

use crate::faults::{shared_recorder, wait_for_cause, wait_for_metric, wait_for_more};
use crate::world::{EXCHANGE, LONG, QUEUE, World, wal_end};
use crate::writer::Writer;

/// R11: each try goes to the queue that accepts as well, so that only the oldest event may be tried.
#[tokio::test]
async fn beside_a_full_queue_the_one_that_accepts_gets_few_duplicates() -> Result<()> {
    const WINDOW: usize = 50;
    let world = World::new().await?;
    let full = QueueOptions::classic("full").refusing_beyond(5);
    world.vhost.declare_queue(full).await?;
    world.vhost.bind("full", EXCHANGE, "#").await?;
    let accepting = world.recorder().await?;
    let relay = world.relay().set("delivery.max_in_flight", &WINDOW.to_string());
    let mut relay = relay.start().await?;
    let ids = world.commit_events(100).await?;

    wait_for_cause(&mut relay, "delivery", "event_nacked").await?;
    let tried = || std::future::ready(accepting.duplicates() >= 3);
    eventually("three probes", LONG, tried).await?;
    let mut times = HashMap::new();
    for id in accepting.message_ids() {
        *times.entry(id).or_insert(0) += 1;
    }
    times.retain(|_, times| *times > 1);
    assert_eq!(times.keys().collect::<Vec<_>>(), [&ids[5]], "{times:?}");
    assert!(accepting.distinct_count() <= 5 + WINDOW);
    let probes = accepting.duplicates();

    let draining = Recorder::start(&world.vhost, "full").await?;
    draining.wait_for_distinct(100, LONG).await?;
    accepting.wait_for_distinct(100, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    // Each that was refused went out again once; a probe may have met the queue just before there was room.
    let allowed = probes + WINDOW as u64 + 5;
    assert!(
        accepting.duplicates() <= allowed,
        "{} > {allowed}",
        accepting.duplicates()
    );
    assert_eq!(draining.duplicates(), 0);
    Ok(())
}

/// I1, R12: a quorum queue that is deleted in mid-publish may leave messages without any answer.
#[tokio::test]
async fn a_quorum_queue_deleted_under_load_costs_no_event_that_another_queue_takes() -> Result<()> {
    let world = World::new().await?;
    let quorum = QueueOptions::quorum("quorum");
    world.vhost.declare_queue(quorum.clone()).await?;
    world.vhost.bind("quorum", EXCHANGE, "#").await?;
    let recorder = shared_recorder(&world).await?;
    let relay = world.relay().text("delivery.confirm_timeout", "2s");
    let mut relay = relay.arg("--exit-on-halt").start().await?;
    let writer = Writer::start(&world.database, &recorder);
    for _ in 0..2 {
        wait_for_more(&recorder).await?;
        world.vhost.delete_queue("quorum").await?;
        wait_for_more(&recorder).await?;
        world.vhost.declare_queue(quorum.clone()).await?;
        world.vhost.bind("quorum", EXCHANGE, "#").await?;
    }
    wait_for_more(&recorder).await?;
    writer.stop().await?.wait_delivered(&recorder).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// I1, R8, R12: three nodes of a cluster, of which two die. Each node is in `rabbitmq.uri`.
#[tokio::test]
#[ignore = "three brokers that form a cluster take half a minute to start and 400 MB"]
async fn a_quorum_queue_without_majority_is_waited_for() -> Result<()> {
    let options = RabbitMqOptions::default;
    let (first, second, third) = tokio::try_join!(
        RabbitMq::start(options()),
        RabbitMq::start(options()),
        RabbitMq::start(options())
    )?;
    let mut others = [second, third];
    for other in &others {
        other.ctl(&["stop_app"]).await?;
        other.ctl(&["join_cluster", first.node()]).await?;
        other.ctl(&["start_app"]).await?;
    }
    let world = World::on(shared_postgres().await?, &first).await?;
    world.vhost.delete_queue(QUEUE).await?;
    let queue = QueueOptions::quorum(QUEUE).number("x-quorum-initial-group-size", 3);
    world.vhost.declare_queue(queue).await?;
    world.vhost.bind(QUEUE, EXCHANGE, "#").await?;
    let ports = [others[0].port(), first.port(), others[1].port()];
    let uris = serde_json::to_string(&ports.map(|port| world.vhost.uri_through(port)))?;
    let relay = world
        .relay()
        .set("rabbitmq.uri", &uris)
        .text("delivery.confirm_timeout", "3s");
    let mut relay = relay.arg("--exit-on-halt").start().await?;
    let recorder = world.recorder().await?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;

    // One of three is a minority: the queue goes on, and we go on to the next node.
    others[0].kill().await?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    relay.wait_ready(LONG).await?;

    others[1].kill().await?;
    let before = wal_end(&world.client).await?;
    let ids = world.commit_events(10).await?;
    let readiness = wait_for_cause(&mut relay, "delivery", "confirm_timeout").await?;
    let error = readiness.json["delivery"]["error"].as_str().context("an error")?;
    assert!(error.contains(&ids[0]), "{error}");
    wait_for_metric(&relay, "walrelay_unanswered_total", 2.0).await?;
    assert_eq!(recorder.distinct_count(), 20);
    assert!(world.flushed().await? <= before);
    for other in &mut others {
        other.start_again().await?;
    }
    recorder.wait_for_distinct(30, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}
