//! The account at the end: what clients were told and what the database holds, against each other.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Result;
use tokio_postgres::Client;
use walrelay_shop::state_machine::Status;

use super::buyer::Bought;
use crate::world::text;

/// What clients know.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    bought: Vec<Bought>,
}

impl Ledger {
    pub(super) fn add(&mut self, bought: Vec<Bought>) {
        self.bought.extend(bought);
    }

    pub(super) fn summary(&self) -> String {
        let tries: usize = self.bought.iter().map(|bought| bought.tries).sum();
        format!("{} orders by {tries} requests", self.bought.len())
    }
}

/// Everything that is not as it has to be.
pub(super) async fn violations(client: &Client, ledger: &Ledger, consumers: &[&str]) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    orders(client, ledger, &mut wrong).await?;
    histories(client, &mut wrong).await?;
    effects(client, &mut wrong).await?;
    for consumer in consumers {
        processed(client, consumer, &mut wrong).await?;
    }
    Ok(wrong)
}

/// One order for each key, and every client was told which.
async fn orders(client: &Client, ledger: &Ledger, wrong: &mut Vec<String>) -> Result<()> {
    let sql = "select id, user_id, idempotency_key, sku_ids, status from orders";
    let rows = client.query(sql, &[]).await?;
    if rows.len() != ledger.bought.len() {
        wrong.push(format!("{} orders of {} keys", rows.len(), ledger.bought.len()));
    }
    let by_key: HashMap<(i64, String), (i64, Vec<i64>, String)> = rows
        .iter()
        .map(|row| ((row.get(1), row.get(2)), (row.get(0), row.get(3), row.get(4))))
        .collect();
    for bought in &ledger.bought {
        let told: HashSet<_> = bought.answers.iter().map(|answer| answer.order_id()).collect();
        if told.len() != 1 {
            wrong.push(format!("{:?} was answered with orders {told:?}", bought.key));
        }
        if bought
            .answers
            .iter()
            .any(|answer| answer.body != bought.answers[0].body)
        {
            wrong.push(format!("{:?} was answered differently", bought.key));
        }
        match by_key.get(&(bought.user_id, bought.key.clone())) {
            Some((id, sku_ids, status)) => {
                let same =
                    told.contains(&Some(*id)) && *sku_ids == bought.sku_ids && *status == bought.status;
                if !same {
                    wrong.push(format!("{bought:?} is {id} {sku_ids:?} {status}"));
                }
            }
            None => wrong.push(format!("no order of {:?}", bought.key)),
        }
    }
    Ok(())
}

/// Each order's events are a way through the state machine, to where it stands.
async fn histories(client: &Client, wrong: &mut Vec<String>) -> Result<()> {
    let sql = "select id, status, (select array_agg(event_type || ' ' || (payload ->> 'version')
                                    order by (payload ->> 'version')::integer)
                                   from outbox_events where aggregate_id = orders.id) from orders";
    for row in client.query(sql, &[]).await? {
        let (id, status): (i64, String) = (row.get(0), row.get(1));
        let events: Vec<String> = row.get::<_, Option<_>>(2).unwrap_or_default();
        if !is_legal(&events, &status) {
            wrong.push(format!("order {id}, {status}, has the events {events:?}"));
        }
    }
    Ok(())
}

fn is_legal(events: &[String], status: &str) -> bool {
    let named = |event: &str| {
        Status::ALL
            .into_iter()
            .find(|status| status.event_type() == event)
    };
    let mut at: Option<Status> = None;
    for (number, event) in (1..).zip(events) {
        let Some(to) = event.strip_suffix(&format!(" {number}")).and_then(named) else {
            return false;
        };
        let legal = match at {
            None => to == Status::Created,
            Some(from) => to.sources().any(|source| source == from),
        };
        if !legal {
            return false;
        }
        at = Some(to);
    }
    at.is_some_and(|at| at.name() == status)
}

/// What the consumers did is what the orders ask for, each once.
async fn effects(client: &Client, wrong: &mut Vec<String>) -> Result<()> {
    for (what, is, should) in [
        (
            "stock of",
            "select sku_id::text, 1000000 - on_hand from inventory.stock where on_hand <> 1000000",
            "select sku_id::text, count(*) from orders, unnest(sku_ids) sku_id
             where status not in ('failed', 'refunded') group by sku_id",
        ),
        (
            "coupons of",
            "select user_id::text, coupons from coupons.balances where coupons <> 0",
            "select user_id::text, count(*) from orders where status in ('paid', 'refunding') group by user_id",
        ),
        (
            "risk's counts of",
            "select user_id || ' ' || declined || ' ' || refunded, orders from risk.users",
            "select user_id || ' ' || count(*) filter (where status = 'failed') || ' '
                    || count(*) filter (where status = 'refunded'), count(*) from orders group by user_id",
        ),
        (
            "risk's status of",
            "select order_id || ' ' || status, version::bigint from risk.orders",
            "select id || ' ' || status, version::bigint from orders",
        ),
    ] {
        let (is, should) = (table(client, is).await?, table(client, should).await?);
        let names: HashSet<&String> = is.keys().chain(should.keys()).collect();
        for name in names {
            let (is, should) = (is.get(name), should.get(name));
            if is != should {
                wrong.push(format!("{what} {name}: {is:?} instead of {should:?}"));
            }
        }
    }
    Ok(())
}

async fn table(client: &Client, sql: &str) -> Result<BTreeMap<String, i64>> {
    let rows = client.query(sql, &[]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// Every event is noted once, although there were more deliveries than events.
async fn processed(client: &Client, consumer: &str, wrong: &mut Vec<String>) -> Result<()> {
    let differing = format!(
        "select count(*)::text from outbox_events full join {consumer}.processed_events on id = event_id
         where id is null or event_id is null"
    );
    let differing = text(client, &differing).await?;
    if differing != "0" {
        wrong.push(format!("{differing} events of {consumer} are on one side only"));
    }
    let sql =
        format!("select (select last_value from tries_{consumer}), (select count(*) from outbox_events)");
    let row = client.query_one(&sql, &[]).await?;
    let (deliveries, events): (i64, i64) = (row.get(0), row.get(1));
    println!("{consumer}: {deliveries} deliveries of {events} events");
    if deliveries <= events {
        wrong.push(format!(
            "{consumer} had {deliveries} deliveries of {events} events: no duplicate was seen"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_legal;

    #[test]
    fn a_history_is_a_way_without_gap_or_repetition_that_ends_where_the_order_stands() {
        let legal = |events: &[&str], status| {
            let events: Vec<String> = events.iter().map(|event| (*event).to_owned()).collect();
            is_legal(&events, status)
        };
        assert!(legal(&["OrderCreated 1", "OrderPaying 2", "OrderPaid 3"], "paid"));
        assert!(legal(&["OrderCreated 1"], "created"));
        assert!(!legal(&[], "created"));
        assert!(!legal(&["OrderCreated 1", "OrderPaying 2"], "paid"));
        assert!(!legal(&["OrderCreated 1", "OrderPaid 2"], "paid"));
        assert!(!legal(&["OrderPaying 1", "OrderPaid 2"], "paid"));
        assert!(!legal(
            &["OrderCreated 1", "OrderPaying 2", "OrderPaying 2"],
            "paying"
        ));
        assert!(!legal(&["OrderCreated 1", "OrderPaying 3"], "paying"));
    }
}
