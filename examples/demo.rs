//! walrelay at work: orders are committed with their events, the events arrive, and a SIGKILL in between loses nothing.
//!
//! `scripts/demo` runs it. The servers are private and go away with this process.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Parser;
use tokio_postgres::Client;
use uuid::Uuid;
use walrelay_testbed::{
    Database, Delivery, Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Recorder, Relay, RelayBuilder,
    eventually,
};

/// How many orders are committed; each has two events. One more in every `ROLLBACK_EVERY` is rolled back.
const ORDERS: i64 = 1500;
const ROLLBACK_EVERY: i64 = 25;

/// A transaction every so often: together with the above, about 15 s of load.
const PACE: Duration = Duration::from_millis(10);

/// The relay is killed after this many orders, and started again after that many.
const KILL_AT: usize = 500;
const START_AT: usize = 700;

/// How many deliveries are shown one by one, at the start and after the kill.
const SHOWN: usize = 8;

/// How long the rest may take to arrive after the last commit.
const DRAIN: Duration = Duration::from_secs(30);

/// Shows walrelay at work on private throwaway servers.
#[derive(Parser)]
struct Arguments {
    /// The walrelay program [default: the one that was built beside this one]
    #[arg(long)]
    relay: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let relay = Arguments::parse().relay.map_or_else(relay_beside_us, Ok)?;
    println!("Starting a private PostgreSQL and a private RabbitMQ ...");
    let (postgres, broker) = tokio::try_join!(
        Postgres::start(PostgresOptions::default()),
        RabbitMq::start(RabbitMqOptions::default())
    )?;
    let (database, vhost) = (postgres.database().await?, broker.vhost().await?);
    vhost.declare_route("outbox", "demo").await?;

    let builder = RelayBuilder::new(relay)
        .database(&database)
        .vhost(&vhost)
        .text("log.level", "info");
    let mut relay = builder.build()?;
    println!("$ walrelay setup\n{}", relay.setup().await?.stdout.trim_end());
    println!("$ walrelay run");
    relay.start()?;
    relay.wait_ready(Duration::from_secs(20)).await?;

    let recorder = Recorder::start(&vhost, "demo").await?;
    let history = History::default();
    let outcome = tokio::select! {
        outcome = story(&database, &mut relay, &recorder, &history) => outcome,
        never = show(&recorder, &history) => never,
    };
    if outcome.is_err() {
        relay
            .log()
            .iter()
            .rev()
            .take(20)
            .rev()
            .for_each(|line| eprintln!("relay: {line}"));
    }
    outcome?;
    relay.terminate()?;
    let status = relay.wait_exit(Duration::from_secs(15)).await?;
    println!("$ kill -TERM: the relay ended with {status}");
    Ok(summary(&recorder, &history))
}

/// `target/debug/walrelay` for `target/debug/examples/demo`.
fn relay_beside_us() -> anyhow::Result<PathBuf> {
    let demo = std::env::current_exe().context("find this program")?;
    let relay = demo
        .ancestors()
        .nth(2)
        .map(|folder| folder.join("walrelay"))
        .filter(|path| path.exists());
    relay.context("no walrelay beside this program: run `cargo build --bin walrelay`, or name it by --relay")
}

/// What was committed and when, as the writer saw it.
#[derive(Default)]
struct History {
    /// When the commit of each event was asked for.
    committed: Mutex<HashMap<String, Instant>>,
    /// From the kill to the relay's being ready again.
    outage: Mutex<Option<(Instant, Instant)>>,
}

impl History {
    fn committed(&self) -> usize {
        self.committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// The time from the commit to the delivery, unless the event was never committed.
    fn latency(&self, delivery: &Delivery) -> Option<Duration> {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = committed.get(&delivery.message_id)?;
        Some(delivery.received.saturating_duration_since(*asked))
    }

    fn in_outage(&self, delivery: &Delivery) -> bool {
        let committed = self.committed.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = self.outage.lock().unwrap_or_else(PoisonError::into_inner);
        match (committed.get(&delivery.message_id), *outage) {
            (Some(asked), Some((from, to))) => *asked <= to && delivery.received >= from,
            _ => false,
        }
    }
}

/// Commits orders, kills the relay meanwhile and starts it again, and waits until everything has arrived.
async fn story(
    database: &Database,
    relay: &mut Relay,
    recorder: &Recorder,
    history: &History,
) -> anyhow::Result<()> {
    let mut client = database.client().await?;
    client
        .batch_execute(
            "create table orders (id bigint primary key, customer text not null, total numeric not null)",
        )
        .await?;
    println!("\nCommitting {ORDERS} orders, each with two events in the same transaction:");
    let crash = async {
        let orders = |count: usize| async move { history.committed() >= 2 * count };
        eventually("the orders before the kill", Duration::from_secs(60), || {
            orders(KILL_AT)
        })
        .await?;
        let from = Instant::now();
        relay.kill().await?;
        println!("\n$ kill -KILL: the relay is dead; orders go on being committed");
        eventually("the orders after the kill", Duration::from_secs(60), || {
            orders(START_AT)
        })
        .await?;
        println!("$ walrelay run\n");
        relay.start()?;
        relay.wait_ready(Duration::from_secs(30)).await?;
        *history.outage.lock().unwrap_or_else(PoisonError::into_inner) = Some((from, Instant::now()));
        anyhow::Ok(())
    };
    tokio::try_join!(write_orders(&mut client, history), crash)?;
    // What does not come is counted, not an error here.
    if let Err(late) = recorder.wait_for_distinct(history.committed(), DRAIN).await {
        eprintln!("{late}");
    }
    Ok(())
}

async fn write_orders(client: &mut Client, history: &History) -> anyhow::Result<()> {
    let order = client
        .prepare("insert into orders values ($1, $2, ($3::text)::numeric)")
        .await?;
    let event = client
        .prepare(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values (($1::text)::uuid, 'order', $2, $3, ($4::text)::jsonb)",
        )
        .await?;
    let mut pace = tokio::time::interval(PACE);
    for number in 1..=ORDERS {
        pace.tick().await;
        let transaction = client.transaction().await?;
        let total = format!("{}.{:02}", number % 400, number % 100);
        transaction
            .execute(&order, &[&number, &format!("customer {}", number % 97), &total])
            .await?;
        let mut ids = Vec::new();
        for event_type in ["placed", "paid"] {
            let id = Uuid::new_v4().to_string();
            let payload = format!(r#"{{"order": {number}, "total": {total}, "step": "{event_type}"}}"#);
            transaction
                .execute(&event, &[&id, &number, &event_type, &payload])
                .await?;
            ids.push(id);
        }
        if number % ROLLBACK_EVERY == 0 {
            // Its events must never arrive.
            transaction.rollback().await?;
            continue;
        }
        let asked = Instant::now();
        // Before the commit, because the delivery may well come before the commit's answer.
        history
            .committed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(ids.into_iter().map(|id| (id, asked)));
        transaction.commit().await?;
    }
    Ok(())
}

/// Prints the deliveries as they arrive: the first ones after every silence one by one, then a line a second. Never ends.
async fn show(recorder: &Recorder, history: &History) -> anyhow::Result<()> {
    let mut seen = 0;
    let mut shown = 0;
    let mut last = Instant::now();
    let mut progress = Instant::now();
    loop {
        let more = recorder
            .wait_until("more", Duration::from_secs(3600), |deliveries| {
                deliveries.len() > seen
            })
            .await;
        more?;
        for delivery in recorder.deliveries_from(seen) {
            seen += 1;
            if delivery.received.saturating_duration_since(last) > Duration::from_millis(500) {
                shown = 0;
            }
            last = delivery.received;
            if shown < SHOWN {
                shown += 1;
                let latency = history.latency(&delivery).map(millis).unwrap_or_default();
                println!(
                    "  {:<13} {}  {latency:>10} after its commit",
                    delivery.routing_key, delivery.message_id
                );
                progress = Instant::now();
            } else if progress.elapsed() > Duration::from_secs(1) {
                progress = Instant::now();
                println!(
                    "  ... {seen} delivered of {} committed so far",
                    history.committed()
                );
            }
        }
    }
}

fn summary(recorder: &Recorder, history: &History) -> ExitCode {
    let committed: HashSet<String> = history
        .committed
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .keys()
        .cloned()
        .collect();
    let delivered = recorder.distinct_ids();
    let lost = committed.difference(&delivered).count();
    let strangers = delivered.difference(&committed).count();

    let mut first = HashSet::new();
    let (mut all, mut steady) = (Vec::new(), Vec::new());
    for delivery in recorder
        .deliveries()
        .iter()
        .filter(|delivery| first.insert(delivery.message_id.clone()))
    {
        let Some(latency) = history.latency(delivery) else {
            continue;
        };
        all.push(latency);
        if !history.in_outage(delivery) {
            steady.push(latency);
        }
    }
    println!("\nevents committed   {:>6}", committed.len());
    println!("events delivered   {:>6}", delivered.len());
    println!(
        "duplicates         {:>6}   (sent again after the kill: at least once)",
        recorder.duplicates()
    );
    println!("lost               {lost:>6}");
    println!("never committed    {strangers:>6}   (from rolled back transactions)");
    println!(
        "commit to delivery   p50 {}, p99 {}   (the kill aside)",
        percentile(&mut steady, 50),
        percentile(&mut steady, 99)
    );
    println!(
        "                     p50 {}, p99 {}   (all, the time without a relay included)",
        percentile(&mut all, 50),
        percentile(&mut all, 99)
    );
    if cfg!(debug_assertions) {
        println!("(A debug build; WALRELAY_DEMO_RELEASE=1 scripts/demo measures an optimised one.)");
    }
    if lost == 0 && strangers == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn percentile(latencies: &mut [Duration], percent: usize) -> String {
    latencies.sort_unstable();
    let rank = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
    latencies
        .get(rank)
        .map_or_else(|| "none".to_owned(), |latency| millis(*latency))
}

fn millis(latency: Duration) -> String {
    format!("{:.1} ms", latency.as_secs_f64() * 1000.0)
}
