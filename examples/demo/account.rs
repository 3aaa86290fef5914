//! The account at the end: what was asked for, what was delivered, and what came of it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use tokio_postgres::Client;
use walrelay_testbed::{Recorder, eventually};

use crate::buyers::Bought;

/// All figures.
pub(crate) struct Account {
    requests: usize,
    keys: usize,
    orders: usize,
    /// Orders whose number is not what the client was told.
    mistaken: usize,
    events: usize,
    delivered: usize,
    duplicates: u64,
    lost: usize,
    /// Delivered, but never committed.
    strangers: usize,
    /// Articles ordered and not given back, and those that left the stock; coupons likewise.
    ordered: i64,
    taken: i64,
    paid: i64,
    coupons: i64,
    /// From the begin of the transaction to the first delivery: of all events, and of those that the relay's death did not hold up.
    latencies: Vec<Duration>,
    steady: Vec<Duration>,
}

impl Account {
    /// Waits until the consumers have everything, for a while: what does not come is counted.
    pub(crate) async fn settle(
        client: &Client,
        bought: &Bought,
        recorder: &Recorder,
        patience: Duration,
    ) -> anyhow::Result<Account> {
        let left = "select (select count(*) from outbox_events where id not in (select event_id from inventory.processed_events))
                  + (select count(*) from outbox_events where id not in (select event_id from coupons.processed_events))
                  + (select count(*) from outbox_events where id not in (select event_id from risk.processed_events))";
        let settled = eventually("the rest to arrive", patience, async || {
            client
                .query_one(left, &[])
                .await
                .is_ok_and(|row| row.get::<_, i64>(0) == 0)
        });
        if let Err(late) = settled.await {
            eprintln!("{late}");
        }
        let events = client
            .query(
                "select id::text, extract(epoch from created_at)::float8 from outbox_events",
                &[],
            )
            .await?;
        if let Err(late) = recorder.wait_for_distinct(events.len(), patience).await {
            eprintln!("{late}");
        }
        let begun: HashMap<String, f64> = events.iter().map(|row| (row.get(0), row.get(1))).collect();
        let mut first = HashSet::new();
        let outage = bought.outage.get();
        let (mut latencies, mut steady) = (Vec::new(), Vec::new());
        for delivery in recorder.deliveries() {
            let Some(begun) = begun.get(&delivery.message_id) else {
                continue;
            };
            if !first.insert(delivery.message_id.clone()) {
                continue;
            }
            let begun = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(*begun);
            let latency = delivery.received_at.duration_since(begun).unwrap_or_default();
            latencies.push(latency);
            if !outage.is_some_and(|(from, to)| begun <= to && delivery.received_at >= from) {
                steady.push(latency);
            }
        }
        steady.sort_unstable();
        latencies.sort_unstable();

        let orders = client
            .query("select idempotency_key, id from orders", &[])
            .await?;
        let by_key: HashMap<String, i64> = orders.iter().map(|row| (row.get(0), row.get(1))).collect();
        let told = bought.orders.borrow().clone();
        let figures = client
            .query_one(
                "select (select count(*) from orders, unnest(sku_ids) where status <> 'failed'),
                        (select (100 * 1000000 - sum(on_hand))::bigint from inventory.stock),
                        (select count(*) from orders where status = 'paid'),
                        (select coalesce(sum(coupons), 0)::bigint from coupons.balances)",
                &[],
            )
            .await?;
        Ok(Account {
            requests: bought.requests(),
            keys: told.len(),
            orders: orders.len(),
            mistaken: told
                .iter()
                .filter(|(key, id)| by_key.get(key) != Some(id))
                .count(),
            events: events.len(),
            delivered: first.len(),
            duplicates: recorder.duplicates(),
            lost: begun.keys().filter(|id| !first.contains(*id)).count(),
            strangers: recorder
                .distinct_ids()
                .iter()
                .filter(|id| !begun.contains_key(*id))
                .count(),
            ordered: figures.get(0),
            taken: figures.get(1),
            paid: figures.get(2),
            coupons: figures.get(3),
            latencies,
            steady,
        })
    }

    /// Whether everything is there once.
    pub(crate) fn is_sound(&self) -> bool {
        self.orders == self.keys
            && self.mistaken == 0
            && self.delivered == self.events
            && self.lost == 0
            && self.strangers == 0
            && self.taken == self.ordered
            && self.coupons == self.paid
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> String {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    let latency = sorted.get(rank);
    latency.map_or_else(
        || "none".to_owned(),
        |latency| format!("{:.1} ms", latency.as_secs_f64() * 1000.0),
    )
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "requests sent      {:>6}   (twice at once, given up, and sent again)",
            self.requests
        )?;
        writeln!(f, "orders asked for   {:>6}", self.keys)?;
        writeln!(
            f,
            "orders placed      {:>6}   ({} with a number that the client was not told)",
            self.orders, self.mistaken
        )?;
        writeln!(f, "events committed   {:>6}", self.events)?;
        writeln!(f, "events delivered   {:>6}", self.delivered)?;
        writeln!(
            f,
            "duplicates         {:>6}   (sent again after the kill: at least once)",
            self.duplicates
        )?;
        writeln!(f, "lost               {:>6}", self.lost)?;
        writeln!(f, "never committed    {:>6}", self.strangers)?;
        writeln!(
            f,
            "articles ordered   {:>6}   and {} taken from stock",
            self.ordered, self.taken
        )?;
        writeln!(
            f,
            "orders paid        {:>6}   and {} coupons given",
            self.paid, self.coupons
        )?;
        for (latencies, which) in [
            (&self.steady, "the kill aside"),
            (&self.latencies, "all, the time without a relay included"),
        ] {
            let (median, slow) = (percentile(latencies, 50), percentile(latencies, 99));
            writeln!(f, "begin to delivery    p50 {median}, p99 {slow}   ({which})")?;
        }
        if cfg!(debug_assertions) {
            writeln!(
                f,
                "(A debug build; WALRELAY_DEMO_RELEASE=1 scripts/demo measures an optimised one.)"
            )?;
        }
        Ok(())
    }
}
