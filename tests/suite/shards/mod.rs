//! Several relays that share a table by row filters (rule 25).

mod coverage;
mod refusals;
mod resharding;
mod sharing;
mod upkeep;

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use walrelay_testbed::{CommandOutput, Recorder, Relay, RelayBuilder};

use crate::world::{LONG, World};

/// A world, or none on a server without row filters, which has no shards.
async fn world() -> Result<Option<World>> {
    let world = World::new().await?;
    Ok((world.major().await? >= 15).then_some(world))
}

/// A relay of a world, with slot and publication of its own: of a shard (`1/4`), or of all rows (no text).
fn relay_of(world: &World, name: &str, shard: &str) -> RelayBuilder {
    let relay = world
        .relay()
        .slot(&format!("{name}_{}", world.database.name()))
        .text("postgres.publication", name);
    match shard {
        "" => relay,
        shard => relay.text("postgres.shard", shard),
    }
}

/// The shards of a cut, each with an exchange and a queue of its own.
struct Cut {
    relays: Vec<Relay>,
    recorders: Vec<Recorder>,
}

impl Cut {
    /// So many relays, which do not run and are not set up.
    async fn new(world: &World, of: usize, outboxes: &[&str]) -> Result<Self> {
        let mut cut = Self {
            relays: Vec::new(),
            recorders: Vec::new(),
        };
        for number in 0..of {
            let name = format!("shard_{number}");
            world.vhost.declare_route(&name, &name).await?;
            cut.recorders.push(Recorder::start(&world.vhost, &name).await?);
            let relay = relay_of(world, &name, &format!("{number}/{of}"));
            let relay = relay.text("rabbitmq.exchange", &name).outboxes(outboxes);
            cut.relays.push(relay.build()?);
        }
        Ok(cut)
    }

    async fn set_up(&self) -> Result<Vec<CommandOutput>> {
        let mut said = Vec::new();
        for relay in &self.relays {
            said.push(relay.setup().await?);
        }
        Ok(said)
    }

    async fn start(&mut self) -> Result<()> {
        for relay in &mut self.relays {
            relay.start()?;
            relay.wait_ready(LONG).await?;
        }
        Ok(())
    }

    /// Waits until so many events have come, by whatever shard, and says which one had each. Fails where two had one.
    async fn delivered(&self, count: usize) -> Result<HashMap<String, usize>> {
        let total = || self.recorders.iter().map(Recorder::distinct_count).sum::<usize>();
        walrelay_testbed::eventually(&format!("{count} events"), LONG, || {
            std::future::ready(total() >= count)
        })
        .await?;
        let mut by_id = HashMap::new();
        for (number, recorder) in self.recorders.iter().enumerate() {
            ensure!(recorder.duplicates() == 0, "shard {number} has sent some twice");
            for id in recorder.distinct_ids() {
                ensure!(by_id.insert(id.clone(), number).is_none(), "{id} came twice");
            }
        }
        Ok(by_id)
    }
}

/// Which shard of `of` the server says each row of a table is of; `hash` is its expression.
async fn by_hash(world: &World, table: &str, hash: &str, of: usize) -> Result<HashMap<String, usize>> {
    let sql = format!(
        "select id::text, coalesce(mod({hash} & 2147483647, {of}), 0), aggregate_id::text from {table}"
    );
    let rows = world.client.query(&sql, &[]).await?;
    let number = |row: &tokio_postgres::Row| usize::try_from(row.get::<_, i32>(1)).unwrap_or(usize::MAX);
    Ok(rows.iter().map(|row| (row.get(0), number(row))).collect())
}

/// The ids of the rows that a query finds.
async fn ids(world: &World, sql: &str) -> Result<HashSet<String>> {
    let rows = world.client.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Writes so many events in a transaction each, of so many aggregates.
async fn write(world: &World, events: usize, aggregates: usize) -> Result<()> {
    for number in 0..events {
        let aggregate = i64::try_from(number % aggregates)?;
        world
            .client
            .execute(
                "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
                 values (gen_random_uuid(), 'order', $1, 'OrderCreated', '{}')",
                &[&aggregate],
            )
            .await?;
    }
    Ok(())
}
