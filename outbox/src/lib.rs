//! The two statements around an outbox relay, for services on [`tokio_postgres`].
//!
//! An outbox relay such as walrelay delivers every event **at least once**. Two statements make one effect of that:
//!
//! * The producer writes its [`Event`] by [`Outbox::insert`], in the transaction that changes its own rows: either both
//!   are committed, or neither.
//! * The consumer asks [`Inbox::once`], in the transaction that does the work: a duplicate finds the id there, and the
//!   work is left out. It acknowledges the message after the commit, never before.
//!
//! Both take a [`Transaction`](tokio_postgres::Transaction), not a client, so that neither can be called outside of one by mistake. Both are a
//! single statement, printed in the documentation of each, for services in other languages and for other drivers.
//!
//! Tables are found by the session's `search_path`, so that each service can have a schema of its own. The outbox table is
//! the one that `walrelay setup` creates; the consumer's is [`Inbox::SCHEMA`].
//!
//! # A producer
//!
//! ```no_run
//! use walrelay_outbox::{Event, Outbox};
//!
//! # async fn place(client: &mut tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
//! let transaction = client.transaction().await?;
//! let row = transaction
//!     .query_one("insert into orders (user_id) values ($1) returning id", &[&7_i64])
//!     .await?;
//! let order_id: i64 = row.try_get(0)?;
//! let event = Event {
//!     id: uuid::Uuid::new_v4(),
//!     aggregate_type: "order",
//!     aggregate_id: order_id,
//!     event_type: "OrderCreated",
//!     payload: &format!(r#"{{"order_id": {order_id}}}"#),
//! };
//! Outbox::insert(&transaction, event).await?;
//! transaction.commit().await
//! # }
//! ```
//!
//! # A consumer
//!
//! ```no_run
//! use walrelay_outbox::{Arrival, Inbox};
//!
//! # async fn consume(client: &mut tokio_postgres::Client, message_id: uuid::Uuid) -> Result<(), tokio_postgres::Error> {
//! let transaction = client.transaction().await?;
//! match Inbox::once(&transaction, message_id).await? {
//!     Arrival::First => {
//!         transaction
//!             .execute("update stock set on_hand = on_hand - 1 where sku_id = $1", &[&42_i64])
//!             .await?;
//!         transaction.commit().await?;
//!     }
//!     // Another delivery has done it. There is nothing to commit.
//!     Arrival::Again => transaction.rollback().await?,
//! }
//! // And only now: basic.ack.
//! # Ok(())
//! # }
//! ```

mod inbox;
mod outbox;

pub use inbox::{Arrival, Inbox};
pub use outbox::{Event, Outbox};
