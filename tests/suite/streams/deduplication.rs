//! R26: what is sent twice is stored once, and what must not be dropped is not.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio_postgres::Client;
use walrelay_testbed::{
    Certificates, Database, Postgres, PostgresOptions, QueueOptions, RabbitMq, RabbitMqOptions, RelayBuilder,
    StopMode, Vhost, eventually, free_port, shared_postgres,
};

use super::stored::Stored;
use crate::world::{LONG, World, insert_event, wal_end};

pub(super) const STREAM: &str = "events";

/// A broker with a stream listener, and a stream in a virtual host.
pub(super) struct Stage {
    pub(super) broker: RabbitMq,
    pub(super) vhost: Vhost,
    pub(super) database: Database,
    pub(super) client: Client,
    pub(super) stream_port: u16,
}

impl Stage {
    pub(super) async fn new() -> Result<Self> {
        Self::on(shared_postgres().await?).await
    }

    async fn on(postgres: &Postgres) -> Result<Self> {
        Self::with(postgres, RabbitMqOptions::default(), "tcp").await
    }

    /// With a stream listener for TLS, and none without.
    pub(super) async fn with_tls(certificates: &Certificates) -> Result<Self> {
        let options = RabbitMqOptions::default()
            .tls(certificates)
            .config("stream.listeners.tcp", "none");
        Self::with(shared_postgres().await?, options, "ssl").await
    }

    async fn with(postgres: &Postgres, options: RabbitMqOptions, listener: &str) -> Result<Self> {
        let stream_port = free_port();
        let options = options.plugin("rabbitmq_stream").config(
            &format!("stream.listeners.{listener}.1"),
            &format!("127.0.0.1:{stream_port}"),
        );
        let broker = RabbitMq::start(options).await?;
        let World {
            database,
            vhost,
            client,
        } = World::on(postgres, &broker).await?;
        vhost.declare_queue(QueueOptions::stream(STREAM)).await?;
        Ok(Self {
            broker,
            vhost,
            database,
            client,
            stream_port,
        })
    }

    pub(super) fn relay(&self) -> RelayBuilder {
        RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&self.database)
            .vhost(&self.vhost)
            .text("rabbitmq.stream.name", STREAM)
            .set("rabbitmq.stream.port", &self.stream_port.to_string())
    }

    pub(super) fn stored(&self) -> Stored {
        Stored::read(&self.vhost, STREAM)
    }

    async fn commit_events(&self, count: usize) -> Result<Vec<String>> {
        let mut ids = Vec::with_capacity(count);
        for number in 0..count {
            ids.push(insert_event(&self.client, number).await?);
        }
        Ok(ids)
    }
}

/// Commits events numbered from `first` on, ten to a transaction.
async fn commit_numbered(client: &Client, first: usize, count: usize) -> Result<()> {
    for first in (first..first + count).step_by(10) {
        let sql = format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', n, 'OrderCreated', jsonb_build_object('number', n)
             from generate_series({first}, {first} + 9) n"
        );
        client.batch_execute(&sql).await?;
    }
    Ok(())
}

/// The numbers of the events in the stream.
fn numbers(stored: &Stored) -> Result<Vec<usize>> {
    let number = |body: &[u8]| -> Result<usize> {
        let payload: serde_json::Value = serde_json::from_slice(body)?;
        let number = payload.get("number").and_then(serde_json::Value::as_u64);
        Ok(usize::try_from(number.context("a number")?)?)
    };
    stored.with(|messages| messages.iter().map(|message| number(&message.body)).collect())
}

/// Kills the relay ten times on the way; exactly the events are in the stream, each once, in the order of their commits.
async fn killed_ten_times(events: usize) -> Result<()> {
    const DEATHS: usize = 10;
    let stage = Stage::new().await?;
    let relay = stage.relay().env("WALRELAY_OUTBOX_AFTER_PUBLISH", "keep");
    let mut relay = relay.start().await?;
    let stored = stage.stored();
    let writer = async {
        let client = stage.database.client().await?;
        let step = events / 100;
        for chunk in 0..100 {
            commit_numbered(&client, chunk * step, step).await?;
            // Far enough ahead that there is always a window in flight.
            stored
                .wait_for((chunk * step).saturating_sub(events / 20))
                .await?;
        }
        Ok::<_, anyhow::Error>(())
    };
    let deaths = async {
        for death in 1..=DEATHS {
            stored
                .wait_for(events * death / (DEATHS + 1) + fastrand::usize(..events / 100))
                .await?;
            relay.kill().await?;
            relay.start()?;
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::try_join!(writer, deaths)?;
    let done = || std::future::ready(stored.count() >= events);
    eventually("every event in the stream", LONG * 4, done).await?;
    // What comes twice would come behind.
    let last = insert_event(&stage.client, events).await?;
    let is_there = || std::future::ready(stored.ids().last() == Some(&last));
    eventually("the last event", LONG, is_there).await?;
    let numbers = numbers(&stored)?;
    let wrong = numbers
        .iter()
        .enumerate()
        .find(|(place, number)| place != *number);
    ensure!(
        wrong.is_none() && numbers.len() == events + 1,
        "{} messages, out of place: {wrong:?}",
        numbers.len()
    );
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn r26_a_relay_killed_ten_times_during_100_000_events_stores_each_once_and_in_order() -> Result<()> {
    killed_ten_times(100_000).await
}

/// A broker's death leaves what it had confirmed, and nobody knows how much more.
#[tokio::test]
async fn r26_a_broker_that_is_killed_and_restarted_has_each_event_once() -> Result<()> {
    const EVENTS: usize = 6_000;
    let mut stage = Stage::new().await?;
    stage.broker.write_out().await?;
    let mut relay = stage.relay().start().await?;
    let stored = stage.stored();
    let client = stage.database.client().await?;
    let writer = tokio::spawn(async move {
        for chunk in 0..60 {
            commit_numbered(&client, chunk * 100, 100).await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, anyhow::Error>(())
    });
    stored.wait_for(EVENTS / 10).await?;
    stage.broker.kill().await?;
    relay.wait_not_ready(LONG).await?;
    stage.broker.start_again().await?;
    stored.wait_for(EVENTS / 2).await?;
    stage.broker.restart().await?;
    writer.await??;
    stored.wait_for(EVENTS).await?;
    let last = insert_event(&stage.client, EVENTS).await?;
    let is_there = || std::future::ready(stored.ids().last() == Some(&last));
    eventually("the last event", LONG, is_there).await?;
    assert_eq!(numbers(&stored)?, (0..=EVENTS).collect::<Vec<_>>());
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// Positions mean other events then, and what the stream has of the old ones must not let them be dropped.
#[tokio::test]
async fn r26_on_a_server_that_was_set_back_no_new_event_is_taken_for_an_old_one() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let mut stage = Stage::on(&postgres).await?;
    let mut relay = stage.relay().start().await?;
    let stored = stage.stored();
    let mut ids = stage.commit_events(5).await?;
    stored.wait_for(ids.len()).await?;
    relay.terminate()?;
    relay.wait_exit(LONG).await?;
    postgres.stop(StopMode::Fast).await?;
    postgres.save()?;
    postgres.start_again().await?;
    stage.client = stage.database.client().await?;

    relay.start()?;
    ids.extend(stage.commit_events(50).await?);
    stored.wait_for(ids.len()).await?;
    // Once while it lives, and once while it is away.
    for is_away in [false, true] {
        if is_away {
            relay.kill().await?;
        }
        postgres.stop(StopMode::Fast).await?;
        postgres.set_back()?;
        postgres.start_again().await?;
        stage.client = stage.database.client().await?;
        ids.extend(stage.commit_events(80).await?);
        if is_away {
            relay.start()?;
        }
        stored.wait_for_distinct(ids.len()).await?;
    }
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// The relay knows of it before a new event comes: its name is spent, and under the next one an event goes out alone first.
#[tokio::test]
async fn r26_after_a_set_back_the_next_name_is_on_record_before_more_is_published_under_it() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let mut stage = Stage::on(&postgres).await?;
    let mut relay = stage.relay().start().await?;
    let stored = stage.stored();
    postgres.stop(StopMode::Fast).await?;
    postgres.save()?;
    postgres.start_again().await?;
    stage.client = stage.database.client().await?;
    let mut ids = stage.commit_events(20).await?;
    stored.wait_for(ids.len()).await?;
    postgres.stop(StopMode::Fast).await?;
    postgres.set_back()?;
    let mark = relay.log_mark();
    postgres.start_again().await?;
    stage.client = stage.database.client().await?;
    let streams = |line: &str| line.contains("replication session started");
    relay
        .wait_for_log_after(mark, "the session after it", LONG, streams)
        .await?;
    ids.extend(stage.commit_events(50).await?);
    let begins = |line: &str| line.contains("beginning the session anew");
    relay
        .wait_for_log_after(mark, "the next name", LONG, begins)
        .await?;
    stored.wait_for_distinct(ids.len()).await?;
    assert_eq!(stored.ids(), ids, "each once, and in order");
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// Other messages may come of the same events, so that an id means another one.
#[tokio::test]
async fn r26_a_changed_configuration_publishes_by_another_name_and_loses_nothing() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relay = stage.relay().start().await?;
    let stored = stage.stored();
    let mut ids = stage.commit_events(20).await?;
    stored.wait_for(ids.len()).await?;
    relay.kill().await?;
    ids.extend(stage.commit_events(20).await?);
    relay.reconfigure(|relay| relay.text("rabbitmq.routing_key", "other.{event_type}"))?;
    relay.start()?;
    stored.wait_for_distinct(ids.len()).await?;
    let again = stored.ids();
    let first_of_new = again.iter().position(|id| *id == ids[20]).context("the first")?;
    assert_eq!(
        again[first_of_new..],
        ids[20..],
        "in order, behind what came twice"
    );
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// Whoever streams goes on counting where the other one was.
#[tokio::test]
async fn r26_two_relays_that_take_turns_store_each_event_once() -> Result<()> {
    const TURNS: usize = 6;
    const EVENTS: usize = 400;
    let stage = Stage::new().await?;
    let settings = || stage.relay().text("postgres.wal_sender_timeout", "3s");
    let mut first = settings().start().await?;
    let mut second = settings().build()?;
    second.start()?;
    let stored = stage.stored();
    let client = stage.database.client().await?;
    let slot = format!("slot_{}", stage.database.name());
    let active =
        "select active_pid from pg_replication_slots where slot_name = $1 and active_pid is not null";
    for turn in 0..TURNS {
        commit_numbered(&client, turn * EVENTS, EVENTS).await?;
        stored.wait_for(turn * EVENTS + EVENTS / 4).await?;
        // The one that streams now may get the slot again, or the other one.
        let pid: i32 = client.query_one(active, &[&slot]).await?.get(0);
        client.execute("select pg_terminate_backend($1)", &[&pid]).await?;
        if turn == TURNS / 2 {
            first.kill().await?;
            stored.wait_for((turn + 1) * EVENTS).await?;
            first.start()?;
        }
        stored.wait_for((turn + 1) * EVENTS).await?;
    }
    let last = insert_event(&stage.client, TURNS * EVENTS).await?;
    let is_there = || std::future::ready(stored.ids().last() == Some(&last));
    eventually("the last event", LONG, is_there).await?;
    assert_eq!(numbers(&stored)?, (0..=TURNS * EVENTS).collect::<Vec<_>>());
    first.wait_ready(LONG).await?;
    drop(second);
    Ok(())
}

/// The first one keeps its link while the other one streams. It must not go on counting from what it read back before.
#[tokio::test]
async fn r26_a_relay_that_comes_back_after_another_one_loses_nothing() -> Result<()> {
    const EVENTS: usize = 100;
    let stage = Stage::new().await?;
    let mut first = stage.relay().start().await?;
    let mut second = stage.relay().build()?;
    second.start()?;
    second.wait_ready(LONG).await?;
    let stored = stage.stored();
    commit_numbered(&stage.client, 0, EVENTS).await?;
    stored.wait_for(EVENTS).await?;

    let slot = format!("slot_{}", stage.database.name());
    let active =
        "select active_pid from pg_replication_slots where slot_name = $1 and active_pid is not null";
    let pid: i32 = stage.client.query_one(active, &[&slot]).await?.get(0);
    // Long enough for the other one to take the slot, not so long that it would be noticed.
    first.pause()?;
    stage
        .client
        .execute("select pg_terminate_backend($1)", &[&pid])
        .await?;
    let is_taken = async || {
        let taken = stage.client.query_opt(active, &[&slot]).await;
        taken.is_ok_and(|row| row.is_some_and(|row| row.get::<_, i32>(0) != pid))
    };
    eventually("the other relay to stream", LONG, is_taken).await?;
    first.resume()?;
    commit_numbered(&stage.client, EVENTS, EVENTS).await?;
    stored.wait_for(2 * EVENTS).await?;
    // The first one is not to see these events again.
    let end = wal_end(&stage.client).await?;
    let flushed =
        "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = $1";
    let is_reported = async || {
        let row = stage.client.query_one(flushed, &[&slot]).await;
        row.is_ok_and(|row| row.get::<_, i64>(0) >= end)
    };
    eventually("the other relay to report", LONG, is_reported).await?;

    second.kill().await?;
    commit_numbered(&stage.client, 2 * EVENTS, EVENTS).await?;
    stored.wait_for(3 * EVENTS).await?;
    assert_eq!(numbers(&stored)?, (0..3 * EVENTS).collect::<Vec<_>>());
    first.wait_ready(LONG).await?;
    Ok(())
}
