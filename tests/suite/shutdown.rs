//! The relay and its database's life: shutdowns that it must not hold up (rule 13), silence, WAL that is not its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio_postgres::Client;
use walrelay_testbed::{
    Database, Keep, Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Recorder, Relay, RelayBuilder,
    Signal, TcpProxy, Vhost, eventually, shared_rabbitmq,
};

use crate::world::{EXCHANGE, LONG, QUEUE, wal_end};

/// How long a shutdown may take.
const SHUTDOWN: Duration = Duration::from_secs(3);

/// A PostgreSQL server of the test's own, and a vhost behind a proxy.
pub(crate) struct Stage {
    pub(crate) postgres: Postgres,
    pub(crate) database: Database,
    pub(crate) vhost: Vhost,
    pub(crate) to_broker: TcpProxy,
}

impl Stage {
    pub(crate) async fn new() -> Result<Self> {
        Self::with(shared_rabbitmq().await?).await
    }

    async fn with(broker: &RabbitMq) -> Result<Self> {
        let vhost = broker.vhost().await?;
        vhost.declare_route(EXCHANGE, QUEUE).await?;
        let postgres = Postgres::start(PostgresOptions::default()).await?;
        Ok(Self {
            database: postgres.database().await?,
            to_broker: TcpProxy::start(vhost.port()).await?,
            postgres,
            vhost,
        })
    }

    pub(crate) fn relay(&self) -> RelayBuilder {
        RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&self.database)
            .rabbitmq_uri(&self.vhost.uri_through(self.to_broker.port()))
    }

    pub(crate) async fn recorder(&self) -> Result<Recorder> {
        Ok(Recorder::start(&self.vhost, QUEUE).await?)
    }

    /// Nobody reaches the broker any more.
    async fn broker_down(&mut self) {
        self.to_broker.refuse().await;
        self.to_broker.cut().await;
    }

    /// Stops the server, which the relay must neither hold up nor answer too often meanwhile.
    pub(crate) async fn stop(&mut self, signal: Signal, relay: &Relay) -> Result<()> {
        let before = metric(relay, "walrelay_status_updates_total").await?;
        let start = Instant::now();
        self.postgres.signal(signal)?;
        self.postgres.wait_stopped(SHUTDOWN).await?;
        let took = start.elapsed();
        let updates = metric(relay, "walrelay_status_updates_total").await? - before;
        ensure!(
            updates < 20.0 * took.as_secs_f64().max(1.0),
            "{updates} status updates in {took:?}"
        );
        Ok(())
    }

    /// The slot's confirmed and restart position, as byte positions.
    pub(crate) async fn slot(&self) -> Result<(i64, i64)> {
        let client = self.postgres.client("postgres").await?;
        let row = client
            .query_one(
                "select (confirmed_flush_lsn - '0/0')::bigint, (restart_lsn - '0/0')::bigint
                 from pg_replication_slots where database = $1",
                &[&self.database.name()],
            )
            .await?;
        Ok((row.get(0), row.get(1)))
    }
}

/// Commits events of one aggregate and this type in one transaction.
pub(crate) async fn commit_batch(client: &Client, count: usize, event_type: &str) -> Result<()> {
    client
        .execute(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', 42, $2, jsonb_build_object('number', number)
             from generate_series(1, $1::text::bigint) number",
            &[&count.to_string(), &event_type],
        )
        .await?;
    Ok(())
}

async fn metric(relay: &Relay, name: &str) -> Result<f64> {
    let value = relay.metrics().await?.value(name, &[]);
    value.with_context(|| format!("no metric {name}"))
}

async fn wait_for_metric(
    relay: &Relay,
    name: &str,
    deadline: Duration,
    condition: impl Fn(f64) -> bool,
) -> Result<()> {
    let condition = &condition;
    eventually(&format!("metric {name}"), deadline, || async move {
        metric(relay, name).await.is_ok_and(condition)
    })
    .await?;
    Ok(())
}

/// Stops the server while this many events wait for a broker that is down.
async fn shut_down_while_events_wait(signal: Signal, count: usize) -> Result<()> {
    let mut stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let mut relay = stage.relay().set("delivery.max_in_flight", "100").start().await?;
    stage.broker_down().await;
    let client = stage.database.client().await?;
    commit_batch(&client, count, "OrderCreated").await?;
    let committed = wal_end(&client).await?;
    drop(client);
    let in_flight = count.min(100) as f64;
    wait_for_metric(&relay, "walrelay_in_flight_events", LONG, |events| {
        events == in_flight
    })
    .await?;
    assert!(stage.postgres.has_walsender());

    stage.stop(signal, &relay).await?;
    let down = relay
        .wait_readiness("the database to be down", LONG, |ready| {
            ready.json["database"]["state"] == "down"
        })
        .await?;
    assert!(!down.is_ready());

    stage.postgres.start_again().await?;
    // Anywhere before: an older server keeps only what a checkpoint saw, a newer one also what was reported meanwhile, up to
    // a keepalive from amid the transaction's records.
    assert!(
        stage.slot().await?.0 < committed,
        "the slot moved past what was not confirmed"
    );
    stage.to_broker.pass().await?;
    recorder.wait_for_distinct(count, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_fast_shutdown_ends_though_a_full_window_waits_for_the_broker() -> Result<()> {
    shut_down_while_events_wait(Signal::Interrupt, 5000).await
}

#[tokio::test]
async fn a_fast_shutdown_ends_though_a_few_events_wait_for_the_broker() -> Result<()> {
    shut_down_while_events_wait(Signal::Interrupt, 10).await
}

#[tokio::test]
async fn a_smart_shutdown_ends_though_a_full_window_waits_for_the_broker() -> Result<()> {
    shut_down_while_events_wait(Signal::Terminate, 5000).await
}

#[tokio::test]
async fn a_fast_shutdown_ends_though_an_event_is_held() -> Result<()> {
    let mut stage = Stage::new().await?;
    stage.vhost.delete_queue(QUEUE).await?;
    let mut relay = stage.relay().start().await?;
    commit_batch(&stage.database.client().await?, 1, "OrderCreated").await?;
    relay
        .wait_readiness("a held event", LONG, |ready| {
            ready.json["delivery"]["state"] == "held"
        })
        .await?;
    // These wait behind it.
    commit_batch(&stage.database.client().await?, 1000, "OrderPaid").await?;

    stage.stop(Signal::Interrupt, &relay).await?;
    stage.postgres.start_again().await?;
    stage.vhost.declare_route(EXCHANGE, QUEUE).await?;
    let recorder = stage.recorder().await?;
    recorder.wait_for_distinct(1001, LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_smart_shutdown_waits_neither_for_the_active_relay_nor_for_the_standby() -> Result<()> {
    let mut stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let relay = stage.relay().start().await?;
    let mut standby = stage.relay().build()?;
    standby.start()?;
    standby
        .wait_readiness("a standby", LONG, |ready| ready.json["role"] == "standby")
        .await?;
    commit_batch(&stage.database.client().await?, 10, "OrderCreated").await?;
    recorder.wait_for_distinct(10, LONG).await?;
    stage.stop(Signal::Terminate, &relay).await?;
    Ok(())
}

/// Some megabytes of WAL that no event is in, from our database and as many from another one.
async fn write_foreign_wal(stage: &Stage, megabytes: usize) -> Result<i64> {
    for client in [
        stage.database.client().await?,
        stage.postgres.client("postgres").await?,
    ] {
        // A thousand rows of a kilobyte each, and the WAL's own share on top.
        client
            .batch_execute(&format!(
                "create table if not exists noise (text text);
                 insert into noise select repeat('x', 1000) from generate_series(1, 1000 * {megabytes})",
            ))
            .await?;
    }
    let client = stage.postgres.client("postgres").await?;
    // The slot's restart position moves at what a checkpoint writes.
    client.batch_execute("checkpoint").await?;
    let row = client
        .query_one("select (pg_current_wal_flush_lsn() - '0/0')::bigint", &[])
        .await?;
    Ok(row.get(0))
}

#[tokio::test]
async fn wal_without_events_is_acknowledged_unless_an_event_is_unsettled() -> Result<()> {
    foreign_wal_is_acknowledged(50).await
}

#[tokio::test]
#[ignore = "a gigabyte of WAL takes some minutes and the disk: the short one above has a tenth of it"]
async fn a_gigabyte_of_wal_without_events_is_acknowledged_unless_an_event_is_unsettled() -> Result<()> {
    foreign_wal_is_acknowledged(512).await
}

async fn foreign_wal_is_acknowledged(megabytes: usize) -> Result<()> {
    const TEN_SECONDS: Duration = Duration::from_secs(10);
    let written_at_least = i64::try_from(megabytes * 2_000_000)?;
    let stage = Stage::new().await?;
    let mut relay = stage.relay().start().await?;
    let (_, restart) = stage.slot().await?;
    let written = write_foreign_wal(&stage, megabytes).await?;
    assert!(
        written - restart > written_at_least,
        "only {} bytes of WAL",
        written - restart
    );
    let stage = &stage;
    eventually("the slot to follow", TEN_SECONDS, || async move {
        // Another checkpoint tells the slot of no more than it has confirmed by now.
        let client = stage.postgres.client("postgres").await;
        let checkpoint = async { client.ok()?.batch_execute("checkpoint").await.ok() };
        checkpoint.await.is_some()
            && stage
                .slot()
                .await
                .is_ok_and(|(confirmed, restart)| confirmed >= written && restart >= written)
    })
    .await?;

    stage.vhost.delete_queue(QUEUE).await?;
    commit_batch(&stage.database.client().await?, 1, "OrderCreated").await?;
    relay
        .wait_readiness("a held event", LONG, |ready| {
            ready.json["delivery"]["state"] == "held"
        })
        .await?;
    let before = stage.slot().await?;
    let written = write_foreign_wal(stage, megabytes).await?;
    wait_for_metric(&relay, "walrelay_received_lsn", LONG, |received| {
        received >= written as f64
    })
    .await?;
    let updates = metric(&relay, "walrelay_status_updates_total").await?;
    wait_for_metric(&relay, "walrelay_status_updates_total", LONG, |now| {
        now > updates + 1.0
    })
    .await?;
    let (confirmed, restart) = stage.slot().await?;
    assert!(
        confirmed < written - written_at_least && confirmed - before.0 < 1_000_000,
        "{confirmed} {before:?}"
    );
    assert!(restart < written - written_at_least, "{restart} {written}");
    Ok(())
}

#[tokio::test]
async fn a_long_silence_is_no_reason_to_reconnect() -> Result<()> {
    let stage = Stage::new().await?;
    let relay = stage
        .relay()
        .text("postgres.wal_sender_timeout", "2s")
        .text("postgres.status_interval", "200ms")
        .text("rabbitmq.heartbeat", "1s")
        .start()
        .await?;
    // Twelve seconds: twice what a silent server would be given.
    let updates = metric(&relay, "walrelay_status_updates_total").await?;
    wait_for_metric(&relay, "walrelay_status_updates_total", LONG, |now| {
        now >= updates + 60.0
    })
    .await?;
    assert_eq!(metric(&relay, "walrelay_sessions_total").await?, 1.0);
    assert_eq!(metric(&relay, "walrelay_links_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn the_session_outlives_a_blocked_broker_with_a_large_transaction_waiting() -> Result<()> {
    session_outlives_a_blocked_broker(100_000).await
}

#[tokio::test]
#[ignore = "some minutes: a million events, where the short one above has 100,000"]
async fn the_session_outlives_a_blocked_broker_with_a_million_events_waiting() -> Result<()> {
    session_outlives_a_blocked_broker(1_000_000).await
}

async fn session_outlives_a_blocked_broker(events: usize) -> Result<()> {
    let mut broker = RabbitMq::start(RabbitMqOptions::default()).await?;
    let stage = Stage::with(&broker).await?;
    let recorder = Recorder::keeping(&stage.vhost, QUEUE, Keep::Ids).await?;
    let mut relay = stage
        .relay()
        .text("postgres.wal_sender_timeout", "5s")
        .start()
        .await?;
    broker.raise_memory_alarm().await?;
    commit_batch(&stage.database.client().await?, events, "OrderCreated").await?;
    relay
        .wait_readiness("the alarm", LONG, |ready| {
            ready.json["broker"]["cause"] == "broker_blocked"
        })
        .await?;
    // One a second: three times the time-out.
    let updates = metric(&relay, "walrelay_status_updates_total").await?;
    wait_for_metric(&relay, "walrelay_status_updates_total", LONG, |now| {
        now >= updates + 15.0
    })
    .await?;
    assert_eq!(metric(&relay, "walrelay_sessions_total").await?, 1.0);
    assert!(metric(&relay, "walrelay_in_flight_events").await? <= 1000.0);
    let peak = relay.peak_rss_kib()?;
    assert!(peak < 64 * 1024, "{peak} KiB");
    // The looks for a shutdown (rule 13) leave without a trace.
    let log = stage.postgres.log();
    assert!(!log.contains(" watch "), "{log}");

    broker.clear_memory_alarm().await?;
    recorder.wait_for_many(events, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    assert_eq!(metric(&relay, "walrelay_sessions_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn a_socket_to_postgresql_that_stalls_is_found_by_a_deadline() -> Result<()> {
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let to_postgres = TcpProxy::start(stage.postgres.port()).await?;
    let mut relay = stage
        .relay()
        .postgres_url(&stage.database.url_through(to_postgres.port()))
        .text("postgres.wal_sender_timeout", "1s")
        .text("postgres.status_interval", "200ms")
        .start()
        .await?;
    to_postgres.stall();
    commit_batch(&stage.database.client().await?, 10, "OrderCreated").await?;
    found_silent(&mut relay).await?;
    to_postgres.cut().await;
    to_postgres.resume();
    recorder.wait_for_distinct(10, LONG).await?;
    Ok(())
}

/// Nothing is read then, so only new connections tell (R13).
#[tokio::test]
async fn a_socket_to_postgresql_that_stalls_while_reading_is_paused_is_found_too() -> Result<()> {
    let mut stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let to_postgres = TcpProxy::start(stage.postgres.port()).await?;
    let mut relay = stage
        .relay()
        .postgres_url(&stage.database.url_through(to_postgres.port()))
        .text("postgres.wal_sender_timeout", "1s")
        .text("postgres.status_interval", "200ms")
        .set("delivery.max_in_flight", "10")
        .start()
        .await?;
    stage.broker_down().await;
    commit_batch(&stage.database.client().await?, 100, "OrderCreated").await?;
    wait_for_metric(&relay, "walrelay_in_flight_events", LONG, |events| events == 10.0).await?;
    to_postgres.stall();
    found_silent(&mut relay).await?;
    to_postgres.cut().await;
    to_postgres.resume();
    stage.to_broker.pass().await?;
    recorder.wait_for_distinct(100, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

async fn found_silent(relay: &mut Relay) -> Result<()> {
    let silent = relay
        .wait_readiness("a silent database", LONG, |ready| {
            ready.json["database"]["state"] == "down"
        })
        .await?;
    assert_eq!(
        silent.json["database"]["cause"], "database_silent",
        "{}",
        silent.text
    );
    Ok(())
}
