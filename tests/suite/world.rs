//! What most tests need: a database, a vhost with a queue, the relay between them, and a recorder.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;
use walrelay_testbed::{Database, Recorder, Relay, RelayBuilder, Vhost, shared_postgres, shared_rabbitmq};

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
        let database = shared_postgres().await?.database().await?;
        let vhost = shared_rabbitmq().await?.vhost().await?;
        vhost.declare_route(EXCHANGE, QUEUE).await?;
        let client = database.client().await?;
        Ok(Self {
            database,
            vhost,
            client,
        })
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

    /// Commits events of one aggregate, one transaction each; their ids in commit order.
    pub(crate) async fn commit_events(&self, count: usize) -> Result<Vec<String>> {
        let mut ids = Vec::with_capacity(count);
        for number in 0..count {
            ids.push(insert_event(&self.client, number).await?);
        }
        Ok(ids)
    }
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
