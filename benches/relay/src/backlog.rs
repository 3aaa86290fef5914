//! Events in the outbox table: about 300 bytes of jsonb each, of 10,000 aggregates.

use anyhow::{Context as _, Result};
use tokio_postgres::Client;
use walrelay_testbed::Database;

use crate::stage::Stage;

/// How many aggregates the events belong to.
pub(crate) const AGGREGATES: u32 = 10_000;

/// How events are grouped into transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One event each, as a service writes them.
    OneRow,
    /// A thousand each.
    Thousand,
    /// All in one.
    Single,
}

impl Shape {
    pub(crate) const ALL: [Shape; 3] = [Shape::OneRow, Shape::Thousand, Shape::Single];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Shape::OneRow => "one-row transactions",
            Shape::Thousand => "1,000-row transactions",
            Shape::Single => "one transaction",
        }
    }

    const fn rows(self, events: u32) -> u32 {
        match self {
            Shape::OneRow => 1,
            Shape::Thousand => 1_000,
            Shape::Single => events,
        }
    }
}

/// A payload like those of the backlog, with a number in front.
pub(crate) fn payload(number: u64) -> String {
    format!(
        "{{\"t\": {number}, \"order_id\": {number}, \"currency\": \"EUR\", \"note\": \"{}\"}}",
        "x".repeat(230)
    )
}

/// Commits so many events.
pub(crate) async fn commit(client: &Client, events: u32, shape: Shape, aggregates: u32) -> Result<()> {
    let rows = shape.rows(events).min(events);
    let sql = format!(
        "do $$ begin
           for number in 0..{} loop
             insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             select gen_random_uuid(), 'order', n % {aggregates}, 'OrderCreated',
                    jsonb_build_object('t', n, 'order_id', n, 'currency', 'EUR', 'note', repeat('x', 230))
             from generate_series(number * {rows} + 1, (number + 1) * {rows}) n;
             commit;
           end loop;
         end $$",
        events / rows - 1,
    );
    client.batch_execute(&sql).await.context("commit events")
}

/// A database that is set up, with an outbox that one relay empties.
pub(crate) struct Outbox {
    pub(crate) database: Database,
    pub(crate) client: Client,
}

impl Outbox {
    /// A fresh database with the table, the publication and one slot.
    pub(crate) async fn new(stage: &Stage, after_publish: &str) -> Result<Outbox> {
        let outbox = Outbox::bare(stage).await?;
        let relay = stage.relay(&outbox.database, after_publish).build()?;
        relay.setup().await?;
        Ok(outbox)
    }

    /// As [`new`](Self::new), without table and slot.
    pub(crate) async fn bare(stage: &Stage) -> Result<Outbox> {
        let database = stage.postgres.database().await?;
        let client = database.client().await?;
        Ok(Outbox { database, client })
    }

    /// The name of the slot that [`new`](Self::new) made.
    pub(crate) fn slot(&self) -> String {
        format!("slot_{}", self.database.name())
    }
}
