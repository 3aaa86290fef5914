//! The consumer's half.

use std::time::Duration;

use tokio_postgres::{Client, Error, Transaction};
use uuid::Uuid;

/// The table of processed events in a consumer's own database.
#[derive(Debug, Clone, Copy)]
pub struct Inbox;

/// Whether an event has come for the first time, as far as committed transactions tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the work is to be done for the first arrival only"]
pub enum Arrival {
    /// For the first time: do the work in this transaction, and commit it.
    First,
    /// Its work is committed already: do nothing, and acknowledge the message.
    Again,
}

impl Inbox {
    /// The table, for a migration. It can be run again at any time; it creates only what is missing,
    /// but waits for transactions that write to the table, and they wait for it.
    ///
    /// ```sql
    #[doc = include_str!("processed_events.sql")]
    /// ```
    pub const SCHEMA: &'static str = include_str!("processed_events.sql");

    /// Notes an event as processed in this transaction, and says whether this is the first time.
    ///
    /// ```sql
    /// insert into processed_events (event_id) values ($1) on conflict (event_id) do nothing
    /// ```
    ///
    /// Call it first in the transaction. While another transaction has noted the same event and is still open, this waits:
    /// if that one commits, the answer is [`Arrival::Again`]; if it rolls back, [`Arrival::First`]. So two consumers
    /// with the same message never both do the work. A rolled back transaction has noted nothing, and the message may
    /// be delivered again.
    ///
    /// Not cancel safe on its own: after a dropped future it is unknown whether the event is noted in the transaction. Drop
    /// the transaction too.
    ///
    /// # Errors
    /// What PostgreSQL says: `42P01` (`undefined_table`) where [`SCHEMA`](Self::SCHEMA) is not on the `search_path`, and, with
    /// isolation level `repeatable read` or `serializable`, `40001` (`serialization_failure`) where the other transaction
    /// committed meanwhile: roll back and begin anew. With `read committed`, the default, that does not occur.
    pub async fn once(transaction: &Transaction<'_>, event_id: Uuid) -> Result<Arrival, Error> {
        let inserted = transaction
            .execute(
                "insert into processed_events (event_id) values ($1) on conflict (event_id) do nothing",
                &[&event_id],
            )
            .await?;
        Ok(if inserted == 1 {
            Arrival::First
        } else {
            Arrival::Again
        })
    }

    /// Deletes the notes of events that were processed longer ago than `age`, at most `batch` rows in a statement of its
    /// own each, until none is left. Returns how many went.
    ///
    /// ```sql
    /// delete from processed_events where event_id in
    ///   (select event_id from processed_events where processed_at < now() - interval '30 days'
    ///    order by processed_at limit 1000 for update skip locked)
    /// ```
    ///
    /// **A duplicate of an event whose note is gone is taken for a new one.** So `age` must be longer than a message can
    /// come late: longer than the outbox keeps its rows (they can be replayed), than a message can lie in a queue or among
    /// dead letters, and than the broker or the relay can be down.
    ///
    /// Several may run at a time: each passes over the rows that another one deletes. `age` is counted in whole seconds; a
    /// `batch` of 0 deletes nothing. Cancel safe: what was deleted stays deleted, and the next call goes on from there.
    ///
    /// # Errors
    /// What PostgreSQL says. Batches before the one that failed stay deleted.
    pub async fn delete_older_than(client: &Client, age: Duration, batch: u32) -> Result<u64, Error> {
        let statement = client
            .prepare(
                "delete from processed_events where event_id in
                   (select event_id from processed_events where processed_at < now() - $1::bigint * interval '1 second'
                    order by processed_at limit $2 for update skip locked)",
            )
            .await?;
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        let mut deleted = 0;
        loop {
            let rows = client.execute(&statement, &[&seconds, &i64::from(batch)]).await?;
            deleted += rows;
            if rows < u64::from(batch) || batch == 0 {
                return Ok(deleted);
            }
        }
    }
}
