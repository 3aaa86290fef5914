//! What most tests need: a database, a vhost with a queue, the relay between them, and a recorder.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay_testbed::{
    Database, Delivery, Postgres, QueueOptions, RabbitMq, Recorder, Relay, RelayBuilder, Vhost, eventually,
    eventually_some, shared_postgres, shared_rabbitmq,
};

/// Longer than anything here takes on a slow machine; a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The exchange of the default configuration, and the queue bound to it for every key.
pub(crate) const EXCHANGE: &str = "outbox";
pub(crate) const QUEUE: &str = "everything";

/// The shared servers with a database and a vhost of this test's own.
pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) vhost: Vhost,
    pub(crate) client: Client,
}

impl World {
    /// A fresh database and a vhost in which every routing key reaches [`QUEUE`].
    pub(crate) async fn new() -> Result<Self> {
        Self::on(shared_postgres().await?, shared_rabbitmq().await?).await
    }

    /// As [`new`](Self::new), on servers of the test's own.
    pub(crate) async fn on(postgres: &Postgres, broker: &RabbitMq) -> Result<Self> {
        let database = postgres.database().await?;
        let vhost = broker.vhost().await?;
        vhost.declare_route(EXCHANGE, QUEUE).await?;
        let client = database.client().await?;
        Ok(Self {
            database,
            vhost,
            client,
        })
    }

    /// As [`new`](Self::new), but only events about an `order` find a queue.
    pub(crate) async fn for_orders() -> Result<Self> {
        let world = Self::without_exchange().await?;
        world
            .vhost
            .declare_exchange(EXCHANGE, lapin::ExchangeKind::Topic)
            .await?;
        world.vhost.declare_queue(QueueOptions::classic(QUEUE)).await?;
        world.vhost.bind(QUEUE, EXCHANGE, "order.#").await?;
        Ok(world)
    }

    /// The PostgreSQL server's major version.
    pub(crate) async fn major(&self) -> Result<u32> {
        let version = text(&self.client, "select current_setting('server_version_num')").await?;
        Ok(version.parse::<u32>()? / 10_000)
    }

    /// The relay's settings for this world.
    pub(crate) fn relay(&self) -> RelayBuilder {
        RelayBuilder::new(env!("CARGO_BIN_EXE_walrelay"))
            .database(&self.database)
            .vhost(&self.vhost)
    }

    /// A relay that is set up and running.
    pub(crate) async fn running(&self) -> Result<Relay> {
        Ok(self.relay().start().await?)
    }

    /// A recorder on [`QUEUE`].
    pub(crate) async fn recorder(&self) -> Result<Recorder> {
        Ok(Recorder::start(&self.vhost, QUEUE).await?)
    }

    /// A relay that has delivered a first event, and the recorder that has it.
    pub(crate) async fn delivering(&self) -> Result<(Relay, Recorder)> {
        let recorder = self.recorder().await?;
        let relay = self.running().await?;
        self.commit_events(1).await?;
        recorder.wait_for_distinct(1, LONG).await?;
        Ok((relay, recorder))
    }

    /// Commits events of one aggregate, one transaction each; their ids in commit order.
    pub(crate) async fn commit_events(&self, count: usize) -> Result<Vec<String>> {
        let mut ids = Vec::with_capacity(count);
        for number in 0..count {
            ids.push(insert_event(&self.client, number).await?);
        }
        Ok(ids)
    }

    /// The flushed position of this world's slot: the durable LSN as PostgreSQL knows it.
    pub(crate) async fn flushed(&self) -> Result<i64> {
        let sql =
            "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = $1";
        let slot = format!("slot_{}", self.database.name());
        Ok(self.client.query_one(sql, &[&slot]).await?.get(0))
    }

    /// Waits until the slot's flushed position is `position` or more.
    pub(crate) async fn wait_flushed(&self, position: i64) -> Result<()> {
        let what = format!("the slot to be flushed up to {position}");
        eventually_some(&what, LONG, async || match self.flushed().await {
            Ok(flushed) if flushed < position => None,
            other => Some(other.map(drop)),
        })
        .await?
    }
}

/// The end of the WAL: above the commits that the client has seen, not above those to come.
pub(crate) async fn wal_end(client: &Client) -> Result<i64> {
    let row = client
        .query_one("select (pg_current_wal_insert_lsn() - '0/0')::bigint", &[])
        .await?;
    Ok(row.get(0))
}

/// A single text out of the database.
pub(crate) async fn text(client: &Client, sql: &str) -> Result<String> {
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// Waits until a query's one text is `true`.
pub(crate) async fn wait_true(client: &Client, what: &str, sql: &str) -> Result<()> {
    eventually(what, LONG, async || {
        text(client, sql).await.is_ok_and(|text| text == "true")
    })
    .await?;
    Ok(())
}

/// Where the transaction of a held event committed, from the error that names it: `event ID at LSN:SEQ: why`.
pub(crate) fn held_commit(error: &str) -> Result<i64> {
    let (_, place) = error.split_once(" at ").context("a place")?;
    let (lsn, _) = place.split_once(':').context("LSN:SEQ")?;
    position(lsn)
}

/// Inserts one event in a transaction of its own, or in the one that is open. Returns its id.
pub(crate) async fn insert_event(client: &Client, number: usize) -> Result<String> {
    let row = client
        .query_one(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (gen_random_uuid(), 'order', 42, 'OrderCreated', jsonb_build_object('number', $1::text::bigint))
             returning id::text",
            &[&number.to_string()],
        )
        .await?;
    Ok(row.get(0))
}

/// Commits so many events in one transaction, numbered from 1. Returns the end of the WAL behind it.
pub(crate) async fn commit_at_once(client: &Client, events: usize) -> Result<i64> {
    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'order', n % 1000, 'OrderCreated', jsonb_build_object('number', n)
         from generate_series(1, {events}) n"
    );
    client.batch_execute(&sql).await?;
    wal_end(client).await
}

/// A text among a message's headers.
pub(crate) fn header<'a>(delivery: &'a Delivery, name: &str) -> Option<&'a str> {
    let headers = delivery.properties.headers().as_ref()?.inner();
    std::str::from_utf8(headers.get(name)?.as_long_string()?.as_bytes()).ok()
}

/// The event's place in its transaction, among a message's headers.
pub(crate) fn tx_seq(delivery: &Delivery) -> Option<i64> {
    let headers = delivery.properties.headers().as_ref()?.inner();
    headers.get("tx_seq")?.as_long_long_int()
}

/// `X/Y` as a number.
pub(crate) fn position(lsn: &str) -> Result<i64> {
    let (high, low) = lsn.split_once('/').context("an LSN")?;
    Ok(i64::from_str_radix(high, 16)? << 32 | i64::from_str_radix(low, 16)?)
}
