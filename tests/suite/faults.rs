//! Faults around the relay: servers that die, refuse or starve, and deaths and stops of the relay itself.
//!
//! What every fault has in common: nothing committed is lost (I1), nothing else is delivered (I2), and what stops
//! delivery is said and heals without a restart (I9, R8).

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use walrelay_testbed::{
    Direction, Postgres, PostgresOptions, QueueOptions, RabbitMq, RabbitMqOptions, Readiness, Recorder,
    Relay, Signal, StopMode, TcpProxy, eventually, shared_postgres, shared_rabbitmq,
};

use crate::world::{EXCHANGE, LONG, QUEUE, World, header, held_commit, position, text, wal_end};
use crate::writer::Writer;

/// How many deliveries a fault waits for, so that it comes under load.
const SOME: usize = 500;

/// The one broker that tests may kill and starve, one test at a time: it takes seconds to start.
pub(crate) async fn harmed_broker() -> Result<MutexGuard<'static, RabbitMq>> {
    static BROKER: OnceCell<Mutex<RabbitMq>> = OnceCell::const_new();
    let start =
        async || Ok::<_, anyhow::Error>(Mutex::new(RabbitMq::start(RabbitMqOptions::default()).await?));
    let mut broker = BROKER.get_or_try_init(start).await?.lock().await;
    // A test that failed may have left it dead.
    broker.start_again().await?;
    Ok(broker)
}

pub(crate) async fn shared_recorder(world: &World) -> Result<Arc<Recorder>> {
    Ok(Arc::new(world.recorder().await?))
}

pub(crate) async fn wait_for_more(recorder: &Recorder) -> Result<()> {
    Ok(recorder
        .wait_for_distinct(recorder.distinct_count() + SOME, LONG)
        .await?)
}

/// Lets `QUEUE` take only the keys that match.
pub(crate) async fn bind_only(world: &World, queue: QueueOptions, key: &str) -> Result<()> {
    world.vhost.delete_queue(QUEUE).await?;
    world.vhost.declare_queue(queue).await?;
    Ok(world.vhost.bind(QUEUE, EXCHANGE, key).await?)
}

pub(crate) async fn wait_for_cause(relay: &mut Relay, part: &str, cause: &str) -> Result<Readiness> {
    let named = |readiness: &Readiness| readiness.json[part]["cause"] == cause;
    let readiness = relay.wait_readiness(cause, LONG, named).await?;
    assert_eq!(readiness.status, 503, "{}", readiness.text);
    assert!(readiness.json[part]["remedy"].is_string(), "{}", readiness.text);
    let faults = relay.metrics().await?;
    assert_eq!(faults.value("walrelay_fault", &[("cause", cause)]), Some(1.0));
    Ok(readiness)
}

pub(crate) async fn wait_for_metric(relay: &Relay, name: &str, least: f64) -> Result<()> {
    let reached = async || {
        let metrics = relay.metrics().await;
        metrics.is_ok_and(|metrics| metrics.sum(name, &[]) >= least)
    };
    Ok(eventually(&format!("{name} to be {least}"), LONG, reached).await?)
}

/// I1, R3, R8, R9.
#[tokio::test]
async fn an_unroutable_event_among_5000_holds_the_durable_lsn_and_is_blamed_alone() -> Result<()> {
    let world = World::new().await?;
    bind_only(&world, QueueOptions::classic(QUEUE), "order.#").await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    let client = &world.client;
    let insert = async |count: i32| {
        let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   select gen_random_uuid(), 'order', n, 'OrderCreated', '{}' from generate_series(1, $1::integer) n";
        client.execute(sql, &[&count]).await
    };

    insert(2_500).await?;
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'parcel', 1, 'Lost', '{}') returning id::text";
    let culprit = text(client, sql).await?;
    insert(1_000).await?;
    insert(1_500).await?;

    let readiness = wait_for_cause(&mut relay, "delivery", "event_unroutable").await?;
    let error = readiness.json["delivery"]["error"].as_str().unwrap_or_default();
    assert!(
        error.contains(&culprit) && error.contains("parcel.Lost"),
        "{error}"
    );
    let commit = held_commit(error)?;
    assert_eq!(readiness.json["delivery"]["class"], "held");
    // Everything before it is acknowledged, and nothing of its own transaction, while it is tried again and again.
    recorder.wait_for_distinct(2_500, LONG).await?;
    let before = recorder.deliveries().into_iter().nth(2_499);
    let before = before
        .as_ref()
        .and_then(|delivery| header(delivery, "commit_lsn"));
    world
        .wait_flushed(position(before.context("a commit LSN")?)? + 1)
        .await?;
    wait_for_metric(&relay, "walrelay_returned_total", 3.0).await?;
    let flushed = world.flushed().await?;
    assert!(
        flushed <= commit,
        "{flushed} is beyond the held event's commit at {commit}"
    );
    let blamed: Vec<_> = relay
        .log()
        .into_iter()
        .filter(|line| line.contains("event is held"))
        .collect();
    assert!(blamed.len() == 1 && blamed[0].contains(&culprit), "{blamed:?}");

    world.vhost.bind(QUEUE, EXCHANGE, "parcel.#").await?;
    recorder.wait_for_distinct(5_001, LONG).await?;
    let ids = recorder.message_ids();
    assert_eq!(ids.iter().filter(|id| **id == culprit).count(), 1);
    assert_eq!(recorder.duplicates(), 0);
    world.wait_flushed(wal_end(client).await?).await?;
    relay.wait_ready(LONG).await?;
    assert_eq!(relay.metrics().await?.sum("walrelay_halted", &[]), 0.0);
    Ok(())
}

/// I1, R11.
#[tokio::test]
async fn what_a_full_queue_refuses_is_held_and_delivered_once_there_is_room() -> Result<()> {
    let world = World::new().await?;
    bind_only(&world, QueueOptions::classic(QUEUE).refusing_beyond(5), "#").await?;
    let mut relay = world.running().await?;
    let ids = world.commit_events(50).await?;

    let readiness = wait_for_cause(&mut relay, "delivery", "event_nacked").await?;
    assert_eq!(readiness.json["delivery"]["class"], "held");
    wait_for_metric(&relay, "walrelay_nacked_total", 2.0).await?;
    assert_eq!(world.vhost.queue_length(QUEUE).await?, 5);

    let recorder = world.recorder().await?;
    recorder.wait_for_distinct(50, LONG).await?;
    assert_eq!(recorder.distinct_ids(), ids.into_iter().collect());
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// R8, I9.
#[tokio::test]
async fn a_deleted_exchange_halts_delivery_until_it_is_there_again() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder) = world.delivering().await?;

    world.vhost.delete_exchange(EXCHANGE).await?;
    world.commit_events(20).await?;
    let readiness = wait_for_cause(&mut relay, "broker", "exchange_missing").await?;
    assert_eq!(readiness.json["broker"]["class"], "halted");
    let halted = relay
        .metrics()
        .await?
        .value("walrelay_halted", &[("reason", "exchange_missing")]);
    assert_eq!(halted, Some(1.0));

    world.vhost.declare_route(EXCHANGE, QUEUE).await?;
    recorder.wait_for_distinct(21, LONG).await?;
    relay.wait_ready(LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// I1, I2, R8: only what the broker confirmed counts.
#[tokio::test]
async fn a_broker_killed_and_started_again_under_load_loses_nothing() -> Result<()> {
    let mut broker = harmed_broker().await?;
    let world = World::on(shared_postgres().await?, &broker).await?;
    let (mut relay, recorder, writer) = world.under_load().await?;
    wait_for_more(&recorder).await?;

    broker.kill().await?;
    wait_for_cause(&mut relay, "broker", "broker_unreachable").await?;
    broker.start_again().await?;
    wait_for_more(&recorder).await?;

    writer.stop().await?.wait_delivered(&recorder).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// I8, I9, R8, R12: an alarm is no halt, no confirm time-out and no reason for duplicates.
#[tokio::test]
async fn a_broker_with_a_memory_alarm_is_waited_for() -> Result<()> {
    let mut broker = harmed_broker().await?;
    let world = World::on(shared_postgres().await?, &broker).await?;
    let recorder = world.recorder().await?;
    let relay = world.relay().text("delivery.confirm_timeout", "1s");
    let mut relay = relay.start().await?;
    let first = world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;

    broker.raise_memory_alarm().await?;
    let second = world.commit_events(10).await?;
    let readiness = wait_for_cause(&mut relay, "broker", "broker_blocked").await?;
    assert_eq!(readiness.json["broker"]["class"], "unavailable");
    // The database is answered all the while, for longer than the time-out of confirms.
    for _ in 0..3 {
        wait_for_report(&world).await?;
    }
    assert_eq!(relay.metrics().await?.sum("walrelay_halted", &[]), 0.0);
    assert_eq!(
        relay.metrics().await?.value("walrelay_links_total", &[]),
        Some(1.0)
    );

    broker.clear_memory_alarm().await?;
    recorder.wait_for_distinct(20, LONG).await?;
    assert_eq!(recorder.message_ids(), [first, second].concat());
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// R8.
#[tokio::test]
async fn a_relay_starts_before_its_servers() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut database = TcpProxy::start(world.database.port()).await?;
    let mut broker = TcpProxy::start(world.vhost.port()).await?;
    let relay = world
        .relay()
        .postgres_url(&world.database.url_through(database.port()));
    let mut relay = relay
        .rabbitmq_uri(&world.vhost.uri_through(broker.port()))
        .build()?;
    relay.setup().await?;
    database.refuse().await;
    broker.refuse().await;
    relay.start()?;
    wait_for_cause(&mut relay, "database", "database_unreachable").await?;
    wait_for_cause(&mut relay, "broker", "broker_unreachable").await?;
    world.commit_events(10).await?;

    // Events are read and wait while the broker is not there.
    database.pass().await?;
    wait_for_metric(&relay, "walrelay_in_flight_events", 10.0).await?;
    assert!(!relay.ready().await?.is_ready());
    broker.pass().await?;
    recorder.wait_for_distinct(10, LONG).await?;
    relay.wait_ready(LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// I1, I3, R2: what is in flight is recognised when the next session brings it again.
#[tokio::test]
async fn a_terminated_walsender_under_load_costs_neither_an_event_nor_a_duplicate() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder, writer) = world.under_load().await?;
    let terminate = "select count(pg_terminate_backend(active_pid)) from pg_replication_slots
                     where database = current_database() and active_pid is not null";
    for sessions in 2..5 {
        wait_for_more(&recorder).await?;
        world.client.query(terminate, &[]).await?;
        wait_for_metric(&relay, "walrelay_sessions_total", f64::from(sessions)).await?;
    }
    wait_for_more(&recorder).await?;

    writer.wait_delivered_in_order(&recorder).await?;
    assert_eq!(recorder.duplicates(), 0);
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// I1, I2, I8: a fast shutdown is not held up; after a crash the server sends again what it had not noted.
#[tokio::test]
async fn a_postgresql_restarted_under_load_loses_nothing_and_is_not_held_up() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let (mut relay, recorder, writer) = world.under_load().await?;
    for mode in [Signal::Interrupt, Signal::Quit] {
        wait_for_more(&recorder).await?;
        postgres.signal(mode)?;
        postgres.wait_stopped(Duration::from_secs(15)).await?;
        relay.wait_not_ready(LONG).await?;
        postgres.start_again().await?;
        wait_for_more(&recorder).await?;
    }

    writer.wait_delivered_in_order(&recorder).await?;
    relay.wait_ready(LONG).await?;
    postgres.stop(StopMode::Immediate).await?;
    Ok(())
}

/// I1, I2, I3, I7: whether the window's messages or only their confirms were on the way.
#[tokio::test]
async fn a_relay_killed_under_load_loses_nothing_and_repeats_little() -> Result<()> {
    const WINDOW: u32 = 50;
    const DEATHS: [Direction; 4] = [
        Direction::ToServer,
        Direction::ToClient,
        Direction::ToServer,
        Direction::ToClient,
    ];
    let world = World::new().await?;
    let recorder = shared_recorder(&world).await?;
    let broker = TcpProxy::start(world.vhost.port()).await?;
    let relay = world
        .relay()
        .rabbitmq_uri(&world.vhost.uri_through(broker.port()));
    // Where rows are marked, a report waits for them, and more may be settled meanwhile (R18).
    let relay = relay.env("WALRELAY_OUTBOX_AFTER_PUBLISH", "keep");
    let relay = relay.set("delivery.max_in_flight", &WINDOW.to_string());
    let mut relay = relay.start().await?;
    let writer = Writer::start(&world.database, &recorder);
    for direction in DEATHS {
        wait_for_more(&recorder).await?;
        broker.stall_one_way(direction);
        wait_for_metric(&relay, "walrelay_in_flight_events", WINDOW.into()).await?;
        // What the relay knows by now has reached PostgreSQL.
        wait_for_report(&world).await?;
        relay.kill().await?;
        broker.cut().await;
        broker.resume();
        relay.start()?;
    }
    wait_for_more(&recorder).await?;

    let written = writer.wait_delivered_in_order(&recorder).await?;
    // At each death the window, and what was settled since the last report: that is due after as many.
    let (duplicates, deaths) = (recorder.duplicates(), DEATHS.len() as u64);
    let window = u64::from(WINDOW);
    assert!(
        duplicates > 0 && duplicates <= deaths * 2 * window,
        "{duplicates} of {}",
        written.committed.len()
    );
    Ok(())
}

/// Waits for a status update that was sent after this call.
pub(crate) async fn wait_for_report(world: &World) -> Result<()> {
    let now = text(&world.client, "select clock_timestamp()::text").await?;
    let sql = format!(
        "select coalesce(reply_time > '{now}', false)::text from pg_stat_replication, pg_replication_slots
         where pid = active_pid and database = current_database()"
    );
    let reported = async || {
        let reported = text(&world.client, &sql).await;
        reported.is_ok_and(|reported| reported == "true")
    };
    Ok(eventually("a status update", LONG, reported).await?)
}

/// R8.
#[tokio::test]
async fn exit_on_halt_exits_69_on_a_missing_slot_but_not_while_a_server_is_down() -> Result<()> {
    let world = World::new().await?;
    let mut database = TcpProxy::start(world.database.port()).await?;
    let mut broker = TcpProxy::start(world.vhost.port()).await?;
    let relay = world
        .relay()
        .postgres_url(&world.database.url_through(database.port()));
    let relay = relay.rabbitmq_uri(&world.vhost.uri_through(broker.port()));
    let mut relay = relay.arg("--exit-on-halt").start().await?;
    for proxy in [&mut database, &mut broker] {
        proxy.refuse().await;
        proxy.cut().await;
    }
    wait_for_cause(&mut relay, "database", "database_unreachable").await?;
    wait_for_cause(&mut relay, "broker", "broker_unreachable").await?;
    broker.pass().await?;
    database.pass().await?;
    relay.wait_ready(LONG).await?;

    database.refuse().await;
    database.cut().await;
    world.database.drop_slots().await?;
    database.pass().await?;
    let status = relay.wait_exit(LONG).await?;
    assert_eq!(status.code(), Some(69));
    let last = relay.log().pop().context("a log line")?;
    assert!(
        last.contains("slot_missing") && last.contains("walrelay setup"),
        "{last}"
    );
    Ok(())
}
