//! The producer's half.

use tokio_postgres::{Error, Transaction};
use uuid::Uuid;

/// The outbox table: events that are to be published once their transaction commits.
#[derive(Debug, Clone, Copy)]
pub struct Outbox;

/// One row of the outbox table, as `walrelay setup` creates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event<'a> {
    /// The message id, by which consumers know duplicates: a fresh one for each event
    /// ([`Uuid::new_v4`]), never that of a request or of the aggregate.
    pub id: Uuid,
    /// What it is about: `order`.
    pub aggregate_type: &'a str,
    /// Which one.
    pub aggregate_id: i64,
    /// What has happened, in the past tense: `OrderCreated`.
    pub event_type: &'a str,
    /// The message's body: JSON. An outbox table stores it as `jsonb`, which has its own spacing and order of keys.
    pub payload: &'a str,
}

impl Outbox {
    /// Writes an event in the transaction of the change that it tells of.
    ///
    /// ```sql
    /// insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
    /// values ($1, $2, $3, $4, $5)
    /// ```
    ///
    /// There is no `on conflict`: an id that is there already is a bug of the caller, and must not be passed over in
    /// silence. A relay publishes inserts only, so the update of an existing row would never be published.
    ///
    /// Not cancel safe on its own: after a dropped future it is unknown whether the row is in the transaction. Drop the
    /// transaction too.
    ///
    /// # Errors
    /// What PostgreSQL says: `23505` (`unique_violation`) for an id that is there already, `22P02`
    /// (`invalid_text_representation`) for a payload that is not JSON, `42P01` (`undefined_table`) where no outbox table is
    /// on the `search_path`. The transaction can then only be rolled back.
    pub async fn insert(transaction: &Transaction<'_>, event: Event<'_>) -> Result<(), Error> {
        transaction
            .execute(
                "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                 values ($1, $2, $3, $4, $5::text::jsonb)",
                &[
                    &event.id,
                    &event.aggregate_type,
                    &event.aggregate_id,
                    &event.event_type,
                    &event.payload,
                ],
            )
            .await
            .map(drop)
    }

    /// Writes an event without an outbox table, to the log alone, in the transaction of the change that it tells of. The
    /// relay needs `[source.messages]` with the prefix `outbox`; the payload reaches the broker byte for byte.
    ///
    /// ```sql
    /// select walrelay.emit($2, $3::text, $4, $5::json, event_id => $1)
    /// ```
    ///
    /// An id that was used before is not noticed.
    ///
    /// Not cancel safe on its own, as [`insert`](Self::insert).
    ///
    /// # Errors
    /// What PostgreSQL says: `22004` (`null_value_not_allowed`) for an empty event type, `22P02`
    /// (`invalid_text_representation`) for a payload that is not JSON, `42883` (`undefined_function`) where `walrelay setup` has
    /// not been run in this version, `42501` (`insufficient_privilege`). The transaction can then only be rolled back.
    pub async fn emit(transaction: &Transaction<'_>, event: Event<'_>) -> Result<(), Error> {
        transaction
            .execute(
                "select walrelay.emit($2, $3::bigint::text, $4, $5::text::json, event_id => $1)",
                &[
                    &event.id,
                    &event.aggregate_type,
                    &event.aggregate_id,
                    &event.event_type,
                    &event.payload,
                ],
            )
            .await
            .map(drop)
    }
}
