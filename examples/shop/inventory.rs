//! Takes what was ordered out of the stock, and puts it back where an order comes to nothing.

use tokio_postgres::Transaction;

use crate::consumer::{Failure, Message, Worker};

/// The inventory.
#[derive(Debug, Clone, Copy)]
pub struct Inventory;

impl Worker for Inventory {
    const NAME: &'static str = "inventory";
    const SCHEMA: &'static str = include_str!("schema/inventory.sql");

    async fn work(&self, transaction: &Transaction<'_>, message: &Message) -> Result<(), Failure> {
        let change: i64 = match message.event.status.as_str() {
            "created" => -1,
            "failed" | "refunded" => 1,
            _ => return Ok(()),
        };
        // A relative change: done twice it would be wrong, so it shows that it was not.
        let known: i64 = transaction
            .query_one(
                "with ordered as (select sku_id, count(*) from unnest($1::bigint[]) sku_id group by sku_id),
                 changed as (update stock set on_hand = on_hand + $2 * ordered.count from ordered
                             where stock.sku_id = ordered.sku_id returning stock.sku_id)
                 select count(*) from changed",
                &[&message.event.sku_ids, &change],
            )
            .await?
            .try_get(0)?;
        let ordered: std::collections::HashSet<i64> = message.event.sku_ids.iter().copied().collect();
        if usize::try_from(known) != Ok(ordered.len()) {
            let text = format!("an unknown article among {:?}", message.event.sku_ids);
            return Err(Failure::Poison(text));
        }
        Ok(())
    }
}
