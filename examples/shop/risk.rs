//! Keeps count of each user's orders, declined cards and refunds, and knows where each order stands.
//!
//! Counting does not mind the order of events. Where an order stands does: an event that comes late, after a redelivery, must
//! not overwrite a newer one. The order's version in the event tells which is newer.

use tokio_postgres::Transaction;

use crate::consumer::{Failure, Message, Worker};

/// The risk desk.
#[derive(Debug, Clone, Copy)]
pub struct Risk;

impl Worker for Risk {
    const NAME: &'static str = "risk";
    const SCHEMA: &'static str = include_str!("schema/risk.sql");

    async fn work(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let event = &message.event;
        let count = |status: &str| i64::from(event.status == status);
        transaction
            .execute(
                "insert into users (user_id, orders, declined, refunded) values ($1, $2, $3, $4)
                 on conflict (user_id) do update set orders = users.orders + excluded.orders,
                     declined = users.declined + excluded.declined, refunded = users.refunded + excluded.refunded",
                &[
                    &event.user_id,
                    &count("created"),
                    &count("failed"),
                    &count("refunded"),
                ],
            )
            .await?;
        transaction
            .execute(
                "insert into orders (order_id, status, version) values ($1, $2, $3)
                 on conflict (order_id) do update set status = excluded.status, version = excluded.version
                     where orders.version < excluded.version",
                &[&event.order_id, &event.status, &event.version],
            )
            .await?;
        Ok(())
    }
}
