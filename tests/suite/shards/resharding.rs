//! The steps of `docs/scaling.md`, in their order, while events are written.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinHandle;
use walrelay_testbed::{Delivery, Relay, eventually};

use super::{relay_of, world};
use crate::setup::stop;
use crate::world::{LONG, World, header, text};

const PAGE: &str = include_str!("../../../docs/scaling.md");

/// Aggregates of one writer.
const AGGREGATES: u64 = 12;

/// Two applications, each with aggregates of its own, that write their events in numbered order until they are stopped.
struct Writers {
    stopped: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    tasks: Vec<JoinHandle<Result<HashMap<String, u64>>>>,
}

impl Writers {
    async fn start(world: &World) -> Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let written = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for writer in 0..2_u64 {
            let client = world.database.client().await?;
            let (stopped, written) = (stopped.clone(), written.clone());
            tasks.push(tokio::spawn(async move {
                let mut last = HashMap::new();
                for number in 0_u64.. {
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                    // Some transactions have events of several shards.
                    let aggregates = if number.is_multiple_of(5) { 3 } else { 1 };
                    client.batch_execute("begin").await?;
                    for more in 0..aggregates {
                        let aggregate = writer * AGGREGATES + (number + more) % AGGREGATES;
                        let next = last.get(&aggregate.to_string()).map_or(0, |last| last + 1);
                        let sql = format!(
                            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                             values (gen_random_uuid(), 'order', {aggregate}, 'OrderCreated', '{next}')"
                        );
                        client.batch_execute(&sql).await?;
                        last.insert(aggregate.to_string(), next);
                    }
                    client.batch_execute("commit").await?;
                    written.fetch_add(aggregates, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Ok(last)
            }));
        }
        Ok(Self {
            stopped,
            written,
            tasks,
        })
    }

    /// Waits until so many more events are written.
    async fn go_on(&self, events: u64) -> Result<()> {
        let until = self.written.load(Ordering::Relaxed) + events;
        eventually("events to be written", LONG, || {
            std::future::ready(self.written.load(Ordering::Relaxed) >= until)
        })
        .await?;
        Ok(())
    }

    /// The last number of each aggregate.
    async fn stop(self) -> Result<HashMap<String, u64>> {
        self.stopped.store(true, Ordering::Relaxed);
        let mut last = HashMap::new();
        for task in self.tasks {
            last.extend(task.await??);
        }
        Ok(last)
    }
}

/// A step of the page: its command must stand there, for the first of the old or new relays.
async fn step(relay: &Relay, config: &str, arguments: &[&str]) -> Result<String> {
    let command = format!("walrelay --config {config} {}", arguments.join(" "));
    ensure!(PAGE.contains(&command), "the page does not say `{command}`");
    // There is no terminal to ask on.
    let arguments = match arguments {
        ["teardown"] => &["teardown", "--yes"],
        other => other,
    };
    let output = relay.run_command(arguments).await?;
    ensure!(output.code() == Some(0), "{command}: {output:?}");
    Ok(output.stdout)
}

/// Some relays, by the names of their slots.
struct Relays(Vec<(String, Relay)>);

impl Relays {
    /// One for each shard, or one for all rows, which are not set up.
    fn new(world: &World, generation: &str, of: usize) -> Result<Self> {
        let mut relays = Vec::new();
        for number in 0..of {
            let shard = if of == 1 {
                String::new()
            } else {
                format!("{number}/{of}")
            };
            let name = format!("{generation}_{number}");
            let slot = format!("{name}_{}", world.database.name());
            relays.push((slot, relay_of(world, &name, &shard).build()?));
        }
        Ok(Self(relays))
    }

    fn iter(&self) -> impl Iterator<Item = &Relay> {
        self.0.iter().map(|(_, relay)| relay)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Relay> {
        self.0.iter_mut().map(|(_, relay)| relay)
    }

    /// The names of the slots as SQL lists them.
    fn slots(&self) -> String {
        let slots: Vec<_> = self.0.iter().map(|(slot, _)| format!("'{slot}'")).collect();
        slots.join(", ")
    }

    async fn start(&mut self) -> Result<()> {
        for relay in self.iter_mut() {
            relay.start()?;
        }
        for relay in self.iter_mut() {
            relay.wait_ready(LONG).await?;
        }
        Ok(())
    }
}

/// Takes the rows from the old relays to new ones, by the steps of the page. `advances` is the step that it leaves to choice.
async fn reshard(
    world: &World,
    writers: &Writers,
    old: &mut Relays,
    new: &mut Relays,
    advances: bool,
) -> Result<()> {
    for relay in new.iter() {
        let said = step(relay, "new-0.toml", &["setup"]).await?;
        ensure!(!said.contains("copied"), "{said}");
        writers.go_on(20).await?;
    }
    for relay in old.iter() {
        step(relay, "old-0.toml", &["wait", "--current"]).await?;
    }
    for relay in old.iter_mut() {
        stop(relay).await?;
        writers.go_on(20).await?;
    }
    if advances {
        let (_, sql) = PAGE.split_once("```sql\n").context("no SQL on the page")?;
        let (sql, _) = sql.split_once("```").context("the SQL has no end")?;
        ensure!(
            sql.contains("('old_0')") && sql.contains("('new_0', 'new_1')"),
            "{sql}"
        );
        let sql = sql
            .replace("'old_0'", &old.slots())
            .replace("'new_0', 'new_1'", &new.slots());
        world.client.batch_execute(&sql).await?;
    }
    for relay in old.iter() {
        step(relay, "old-0.toml", &["teardown"]).await?;
    }
    for relay in new.iter() {
        let said = step(relay, "new-0.toml", &["setup"]).await?;
        ensure!(!said.contains("warning"), "{said}");
    }
    new.start().await?;
    for relay in new.iter() {
        let said = relay.run_command(&["doctor"]).await?.stdout;
        ensure!(
            !said.contains("shard_missing") && !said.contains("shards_overlap"),
            "{said}"
        );
    }
    writers.go_on(100).await
}

/// Checks that nothing is missing and that the first deliveries of an aggregate are in order. Returns how many came again.
fn check(deliveries: &[Delivery], last: &HashMap<String, u64>) -> Result<usize> {
    let mut next: HashMap<&str, u64> = HashMap::new();
    let mut again = 0;
    for delivery in deliveries {
        let aggregate = header(delivery, "aggregate_id").context("no aggregate")?;
        let number: u64 = std::str::from_utf8(&delivery.body)?.trim().parse()?;
        let due = next.entry(aggregate).or_default();
        ensure!(
            number <= *due,
            "aggregate {aggregate}: {number} came before {due}"
        );
        if number == *due {
            *due += 1;
        } else {
            again += 1;
        }
    }
    for (aggregate, last) in last {
        let came = next.get(aggregate.as_str()).copied().unwrap_or_default();
        ensure!(
            came == last + 1,
            "aggregate {aggregate}: {came} of {} came",
            last + 1
        );
    }
    Ok(again)
}

/// Reshards again and again, while events are written. Returns how many came twice, or nothing where there are no shards.
async fn through(cuts: &[usize], advances: bool) -> Result<Option<usize>> {
    let Some(world) = world().await? else {
        return Ok(None);
    };
    let recorder = world.recorder().await?;
    let mut relays = None;
    let mut writing = None;
    for (generation, of) in cuts.iter().enumerate() {
        let mut new = Relays::new(&world, &format!("generation_{generation}"), *of)?;
        match (&mut relays, &writing) {
            (Some(old), Some(writers)) => reshard(&world, writers, old, &mut new, advances).await?,
            _ => {
                for relay in new.iter() {
                    relay.setup().await?;
                }
                let writers = Writers::start(&world).await?;
                new.start().await?;
                writers.go_on(100).await?;
                writing = Some(writers);
            }
        }
        relays = Some(new);
    }
    let last = writing.context("no cut")?.stop().await?;
    let count: u64 = last.values().map(|last| last + 1).sum();
    recorder.wait_for_distinct(usize::try_from(count)?, LONG).await?;
    let left = "select count(*)::text from outbox_events where sent_at is null";
    eventually("all rows to be marked", LONG, async || {
        text(&world.client, left).await.is_ok_and(|left| left == "0")
    })
    .await?;
    check(&recorder.deliveries(), &last).map(Some)
}

/// R25: nothing is lost, first deliveries keep their order, and what came between the new starts and the old ends comes twice.
#[tokio::test]
async fn r25_the_number_of_shards_is_changed_by_the_steps_of_the_page_and_nothing_is_lost() -> Result<()> {
    let again = through(&[1, 2, 3, 1], false).await?;
    assert_ne!(again, Some(0), "the page says that some come twice");
    Ok(())
}

/// R25: what one old relay has confirmed, the new ones can leave out.
#[tokio::test]
async fn r25_new_slots_that_are_advanced_to_where_the_old_one_ended_send_nothing_twice() -> Result<()> {
    let again = through(&[1, 2], true).await?;
    assert!(again.is_none_or(|again| again == 0), "{again:?} came twice");
    Ok(())
}

/// The same from several old ones: some events may come twice, none is lost.
#[tokio::test]
async fn r25_new_slots_are_advanced_to_the_first_end_of_several() -> Result<()> {
    through(&[2, 3], true).await?;
    Ok(())
}

/// An old relay that was not drained past a new start has events that nobody else brings: its slot may not be passed over.
#[tokio::test]
async fn r25_a_new_slot_cannot_be_advanced_to_before_its_start() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let old = relay_of(&world, "old_0", "").build()?;
    old.setup().await?;
    world.commit_events(3).await?;
    let new = relay_of(&world, "new_0", "0/2").build()?;
    new.setup().await?;
    let name = world.database.name();
    let sql = format!(
        "select pg_replication_slot_advance('new_0_{name}', confirmed_flush_lsn) from pg_replication_slots \
         where slot_name = 'old_0_{name}'"
    );
    let error = world.client.batch_execute(&sql).await.unwrap_err();
    let said = error
        .as_db_error()
        .map(|error| error.message().to_owned())
        .unwrap_or_default();
    assert!(said.contains("cannot advance replication slot"), "{said}");
    Ok(())
}
