//! The steps of `docs/moving-from-polling.md`, in their order.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use walrelay_testbed::{Recorder, eventually};

use crate::setup::{said, stop};
use crate::world::{LONG, World, insert_event};

/// Ids of events, and how often each was noted.
#[derive(Default)]
struct Ids(Mutex<HashMap<String, usize>>);

impl Ids {
    fn note(&self, id: String) {
        *self.lock().entry(id).or_default() += 1;
    }

    fn all(&self) -> HashSet<String> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Something that goes on until it is stopped.
struct Running(watch::Sender<bool>, JoinHandle<Result<()>>);

impl Running {
    async fn stop(self) -> Result<()> {
        self.0.send_replace(true);
        self.1.await?
    }
}

/// Polls as the page says: takes rows without `sent_at`, publishes them, marks them.
async fn worker(world: &World, published: &Arc<Ids>) -> Result<Running> {
    let (stop, stopped) = watch::channel(false);
    let client = world.database.client().await?;
    let published = published.clone();
    let task = tokio::spawn(async move {
        while !*stopped.borrow() {
            let sql = "with taken as (select id from outbox_events where sent_at is null order by created_at limit 10 \
                       for update skip locked) update outbox_events o set sent_at = now() from taken \
                       where o.id = taken.id returning o.id::text";
            let rows = client.query(sql, &[]).await?;
            rows.iter().for_each(|row| published.note(row.get(0)));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    });
    Ok(Running(stop, task))
}

/// The application: writes an event every few milliseconds.
fn writer(client: Client, written: Arc<Ids>) -> Running {
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(async move {
        for number in 0.. {
            if *stopped.borrow() {
                break;
            }
            let id = insert_event(&client, number).await?;
            written.note(id);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    });
    Running(stop, task)
}

#[tokio::test]
async fn from_a_polling_worker_and_back() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let published = Arc::new(Ids::default());
    let written = Arc::new(Ids::default());
    let polling = worker(&world, &published).await?;
    let writing = writer(world.database.client().await?, written.clone());

    // 1. The shadow run.
    world.vhost.declare_route("outbox-shadow", "shadow").await?;
    let mut shadow = world
        .relay()
        .slot(&format!("shadow_{}", world.database.name()))
        .text("postgres.publication", "walrelay_shadow")
        .text("rabbitmq.exchange", "outbox-shadow")
        .build()?;
    let output = shadow.run_command(&["setup", "--backfill", "none"]).await?;
    ensure!(output.code() == Some(0), "{}", output.stderr);
    let before = written.all();
    let in_shadow = Recorder::start(&world.vhost, "shadow").await?;
    shadow.start()?;
    in_shadow.wait_for_distinct(100, LONG).await?;
    let of_both: HashSet<String> = written.all().difference(&before).cloned().collect();
    for (which, ids) in [("worker", None), ("shadow", Some(&in_shadow))] {
        eventually(&format!("the {which} to have sent them"), LONG, || {
            let sent = ids.map_or_else(|| published.all(), Recorder::distinct_ids);
            std::future::ready(of_both.is_subset(&sent))
        })
        .await?;
    }
    stop(&mut shadow).await?;
    let output = shadow.run_command(&["teardown", "--yes"]).await?;
    insta::assert_snapshot!(said(&world, &output)?.replace(world.database.name(), "DB"), @"
    dropped  slot shadow_DB
    dropped  publication walrelay_shadow
    ");

    // 2. The cut-over, with the worker at work.
    let recorder = world.recorder().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    polling.stop().await?;
    let by_worker = published.all();
    let more = recorder.distinct_count() + 100;
    recorder.wait_for_distinct(more, LONG).await?;

    // 3. Back to the worker.
    let operator = world.database.client().await?;
    operator
        .batch_execute("begin; lock table outbox_events in share mode")
        .await?;
    let waited = relay.run_command(&["wait", "--current"]).await?;
    ensure!(waited.code() == Some(0), "{}", waited.stderr);
    stop(&mut relay).await?;
    operator
        .batch_execute("update outbox_events set sent_at = now() where sent_at is null; commit")
        .await?;
    let by_relay = recorder.distinct_ids();
    let polling = worker(&world, &published).await?;
    let more = published.all().len() + 50;
    eventually("the worker to go on", LONG, || {
        std::future::ready(published.all().len() >= more)
    })
    .await?;
    writing.stop().await?;
    let written = written.all();
    eventually("nothing to be missing", LONG, || {
        let sent = &published.all() | &by_relay;
        std::future::ready(written.is_subset(&sent))
    })
    .await?;
    polling.stop().await?;
    let again: Vec<_> = published.all().difference(&by_worker).cloned().collect();
    assert!(again.len() >= 50);
    assert!(
        again.iter().all(|id| !by_relay.contains(id)),
        "the worker sent again what the relay had sent"
    );
    assert!(published.lock().values().all(|times| *times == 1));
    Ok(())
}
