//! The way to the broker: cut, refused, stalled, and a broker that dies in the middle of a large transaction.
//!
//! Whatever happens to the link, the stream is not read again, nothing counts as an attempt of an event's, PostgreSQL
//! is told how far we are, and the process goes on, `--exit-on-halt` or not.

use anyhow::{Context as _, Result};
use std::collections::HashSet;
use walrelay_testbed::{
    Direction, Keep, QueueOptions, Recorder, Relay, RelayBuilder, TcpProxy, eventually, shared_postgres,
};

use crate::faults::{
    bind_only, harmed_broker, shared_recorder, wait_for_cause, wait_for_metric, wait_for_more,
    wait_for_report,
};
use crate::world::{EXCHANGE, LONG, QUEUE, World, commit_at_once, text};
use crate::writer::Writer;

/// What the relay may have in flight by default, and so send again on each new link.
const WINDOW: u64 = 1_000;

/// The relay with the test on its way to the broker.
fn through(world: &World, proxy: &TcpProxy) -> RelayBuilder {
    world
        .relay()
        .rabbitmq_uri(&world.vhost.uri_through(proxy.port()))
        .arg("--exit-on-halt")
}

/// Nothing but links was lost: one session, and no event that failed.
async fn only_links_were_lost(relay: &Relay) -> Result<()> {
    let metrics = relay.metrics().await?;
    let total = |name: &str| metrics.sum(&format!("walrelay_{name}_total"), &[]);
    let failures = [
        "returned",
        "nacked",
        "unanswered",
        "refused",
        "invalid",
        "recognised",
    ]
    .map(total);
    assert_eq!(
        (total("sessions"), failures),
        (1.0, [0.0; 6]),
        "sessions, and what failed or came again"
    );
    Ok(())
}

/// I1, I2, I3, I7.
#[tokio::test]
async fn a_way_to_the_broker_that_is_cut_under_load_costs_neither_an_event_nor_an_attempt() -> Result<()> {
    let world = World::new().await?;
    let recorder = shared_recorder(&world).await?;
    let proxy = TcpProxy::start(world.vhost.port()).await?;
    let mut relay = through(&world, &proxy).start().await?;
    let writer = Writer::start(&world.database, &recorder);
    for links in 2..5 {
        wait_for_more(&recorder).await?;
        proxy.cut().await;
        wait_for_metric(&relay, "walrelay_links_total", f64::from(links)).await?;
    }
    wait_for_more(&recorder).await?;

    let written = writer.stop().await?;
    written.wait_delivered(&recorder).await?;
    assert!(written.came_in_commit_order(&recorder));
    assert!(recorder.duplicates() <= 3 * WINDOW, "{}", recorder.duplicates());
    relay.wait_ready(LONG).await?;
    only_links_were_lost(&relay).await
}

/// I8, I9.
#[tokio::test]
async fn while_the_broker_refuses_readiness_says_since_when_and_postgresql_hears_from_us() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut proxy = TcpProxy::start(world.vhost.port()).await?;
    let mut relay = through(&world, &proxy).start().await?;
    let mut ids = world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    // A delivery may be seen before its confirm.
    wait_for_metric(&relay, "walrelay_confirmed_total", 10.0).await?;

    proxy.refuse().await;
    proxy.cut().await;
    let first = wait_for_cause(&mut relay, "broker", "broker_unreachable").await?;
    ids.extend(world.commit_events(20).await?);
    wait_for_metric(&relay, "walrelay_in_flight_events", 20.0).await?;
    for _ in 0..3 {
        wait_for_report(&world).await?;
    }
    let tries = || {
        let tried = |line: &&String| line.contains("broker_unreachable") && line.contains("as before");
        std::future::ready(relay.log().iter().filter(tried).count() >= 4)
    };
    eventually("four more tries", LONG, tries).await?;
    let later = relay.ready().await?;
    let (database, broker) = (&later.json["database"], &later.json["broker"]);
    assert_eq!(
        (&database["state"], &database["cause"]),
        (&"up".into(), &().into())
    );
    assert_eq!(broker["state"], "down");
    assert_eq!(broker["since"], first.json["broker"]["since"]);
    let error = broker["error"].as_str().context("an error")?;
    assert!(error.contains(&format!("127.0.0.1:{}", proxy.port())), "{error}");

    proxy.pass().await?;
    recorder.wait_for_distinct(30, LONG).await?;
    // A connection that breaks again while the way opens may repeat some.
    let mut seen = HashSet::new();
    let first: Vec<_> = recorder
        .message_ids()
        .into_iter()
        .filter(|id| seen.insert(id.clone()))
        .collect();
    assert_eq!(first, ids);
    relay.wait_ready(LONG).await?;
    only_links_were_lost(&relay).await
}

/// The broker's side takes bytes and answers nothing; the connection looks alive.
async fn stalled(settings: &[(&str, &str)], cause: &str) -> Result<(World, Recorder, Relay)> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let proxy = TcpProxy::start(world.vhost.port()).await?;
    let mut relay = through(&world, &proxy);
    for (key, value) in settings {
        relay = relay.text(key, value);
    }
    let mut relay = relay.start().await?;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    wait_for_metric(&relay, "walrelay_confirmed_total", 10.0).await?;
    proxy.stall();
    world.commit_events(10).await?;
    wait_for_cause(&mut relay, "broker", cause).await?;
    for _ in 0..2 {
        wait_for_report(&world).await?;
    }
    proxy.resume();
    recorder.wait_for_distinct(20, LONG).await?;
    relay.wait_ready(LONG).await?;
    // What the stalled connection still held may have come as well.
    assert!(recorder.duplicates() <= 10, "{}", recorder.duplicates());
    drop(proxy);
    Ok((world, recorder, relay))
}

/// R8.
#[tokio::test]
async fn a_stalled_socket_to_the_broker_is_found_by_the_missing_heartbeat() -> Result<()> {
    let settings = [("rabbitmq.heartbeat", "1s"), ("delivery.confirm_timeout", "1h")];
    stalled(&settings, "broker_silent").await.map(drop)
}

/// R12.
#[tokio::test]
async fn a_stalled_socket_to_the_broker_is_found_by_the_missing_confirm() -> Result<()> {
    let settings = [("rabbitmq.heartbeat", "0s"), ("delivery.confirm_timeout", "1s")];
    stalled(&settings, "confirm_timeout").await.map(drop)
}

/// I1, I5: killed once and stopped once, the stream is read only once.
async fn broker_gone_in_the_middle_of(events: usize) -> Result<()> {
    let mut broker = harmed_broker().await?;
    let world = World::on(shared_postgres().await?, &broker).await?;
    let recorder = Recorder::keeping(&world.vhost, QUEUE, Keep::Ids).await?;
    let mut relay = world.relay().arg("--exit-on-halt").start().await?;
    let committed = commit_at_once(&world.client, events).await?;

    for (delivered, kill) in [(events / 4, true), (events / 2, false)] {
        recorder.wait_for_many(delivered, LONG).await?;
        match kill {
            true => broker.kill().await?,
            false => broker.stop().await?,
        }
        wait_for_cause(&mut relay, "broker", "broker_unreachable").await?;
        wait_for_report(&world).await?;
        broker.start_again().await?;
    }
    recorder.wait_for_many(events, LONG).await?;
    world.wait_flushed(committed).await?;
    relay.wait_ready(LONG).await?;

    assert_eq!(recorder.distinct_count(), events);
    let read = relay.metrics().await?.sum("walrelay_events_read_total", &[]);
    assert_eq!(read, events as f64);
    assert!(recorder.duplicates() <= 2 * WINDOW, "{}", recorder.duplicates());
    let peak = relay.peak_rss_kib()?;
    assert!(peak < 64 * 1024, "{peak} KiB");
    only_links_were_lost(&relay).await
}

#[tokio::test]
async fn a_broker_that_goes_in_the_middle_of_a_large_transaction_does_not_make_it_read_again() -> Result<()> {
    broker_gone_in_the_middle_of(60_000).await
}

#[tokio::test]
#[ignore = "some minutes: a million events, where the short one above has 60,000"]
async fn a_broker_that_goes_in_the_middle_of_a_million_events_does_not_make_them_read_again() -> Result<()> {
    broker_gone_in_the_middle_of(1_000_000).await
}

/// The way to the broker is cut with something unanswered on it, and stays so for several tries.
async fn outage(relay: &Relay, proxy: &mut TcpProxy) -> Result<()> {
    proxy.refuse().await;
    proxy.cut().await;
    proxy.resume();
    let mark = relay.log_mark();
    let tries = || {
        let log = relay.log();
        let tried = log.iter().skip(mark).filter(|line| line.contains("as before"));
        std::future::ready(tried.count() >= 3)
    };
    eventually("three more tries", LONG, tries).await?;
    Ok(proxy.pass().await?)
}

/// R8, R16: only the broker's own word about an event counts.
#[tokio::test]
async fn an_outage_is_no_attempt_of_the_events_that_were_on_their_way() -> Result<()> {
    let world = World::new().await?;
    bind_only(&world, QueueOptions::classic(QUEUE), "order.#").await?;
    let recorder = world.recorder().await?;
    let mut proxy = TcpProxy::start(world.vhost.port()).await?;
    let relay = through(&world, &proxy).text("delivery.on_unroutable", "dead_letter");
    let mut relay = relay.start().await?;

    // Its return never reaches us; that of the same message after the outage does.
    proxy.stall_one_way(Direction::ToClient);
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'parcel', 1, 'Lost', '{}') returning id::text";
    let id = text(&world.client, sql).await?;
    wait_for_metric(&relay, "walrelay_published_total", 1.0).await?;
    outage(&relay, &mut proxy).await?;
    wait_for_metric(&relay, "walrelay_dead_lettered_total", 1.0).await?;
    assert_eq!(
        relay.metrics().await?.value("walrelay_returned_total", &[]),
        Some(1.0)
    );

    // The same for its retry, which would go back with one attempt more.
    proxy.stall_one_way(Direction::ToClient);
    let asked = relay.run_command(&["dead-letters", "retry", "--id", &id]).await?;
    assert_eq!(asked.code(), Some(0), "{}", asked.stderr);
    wait_for_metric(&relay, "walrelay_published_total", 3.0).await?;
    let row = "select state || ' ' || attempts from walrelay.dead_letters";
    assert_eq!(text(&world.client, row).await?, "retrying 1");
    world.vhost.bind(QUEUE, EXCHANGE, "parcel.#").await?;
    outage(&relay, &mut proxy).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.distinct_ids(), [id].into());
    wait_for_metric(&relay, "walrelay_retried_total", 1.0).await?;

    world.commit_events(5).await?;
    recorder.wait_for_distinct(6, LONG).await?;
    relay.wait_ready(LONG).await?;
    let published = relay.metrics().await?.value("walrelay_published_total", &[]);
    assert_eq!(published, Some(9.0));
    Ok(())
}
