//! Gives a coupon for each order that is paid, and takes it back with a refund.

use tokio_postgres::Transaction;

use crate::consumer::{Failure, Message, Worker};

/// The coupons.
#[derive(Debug, Clone, Copy)]
pub struct Coupons;

impl Worker for Coupons {
    const NAME: &'static str = "coupons";
    const SCHEMA: &'static str = include_str!("schema/coupons.sql");

    async fn work(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let change: i64 = match message.event.status.as_str() {
            "paid" => 1,
            "refunded" => -1,
            _ => return Ok(()),
        };
        transaction
            .execute(
                "insert into balances (user_id, coupons) values ($1, $2)
                 on conflict (user_id) do update set coupons = balances.coupons + excluded.coupons",
                &[&message.event.user_id, &change],
            )
            .await?;
        Ok(())
    }
}
