//! Two relays on one slot: one streams, the other waits for its turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinHandle;
use walrelay_testbed::{Recorder, Relay, RelayBuilder, TcpProxy, eventually_some};

use crate::shutdown::Stage;
use crate::world::{LONG, insert_event};

const WINDOW: u64 = 100;

/// Waits until the relay says that it has this role, and is ready in it.
async fn wait_for_role(relay: &mut Relay, role: &str, deadline: Duration) -> Result<()> {
    relay
        .wait_readiness(&format!("the role {role}"), deadline, |ready| {
            ready.is_ready() && ready.json["role"] == role
        })
        .await?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_role", &[("role", role)]), Some(1.0));
    Ok(())
}

async fn published(relay: &Relay) -> Result<f64> {
    let published = relay.metrics().await?.value("walrelay_published_total", &[]);
    published.context("the metric")
}

/// A relay with a take-over time of two seconds.
fn builder(stage: &Stage) -> RelayBuilder {
    stage
        .relay()
        .text("postgres.wal_sender_timeout", "2s")
        .text("postgres.status_interval", "500ms")
        .set("delivery.max_in_flight", &WINDOW.to_string())
        // Where rows are marked, a report waits for them, and more may be settled meanwhile (R18).
        .env("WALRELAY_OUTBOX_AFTER_PUBLISH", "keep")
}

/// An active relay and a standby.
async fn pair(stage: &Stage) -> Result<(Relay, Relay)> {
    let mut active = builder(stage).start().await?;
    wait_for_role(&mut active, "active", LONG).await?;
    let mut standby = builder(stage).build()?;
    standby.start()?;
    wait_for_role(&mut standby, "standby", LONG).await?;
    Ok((active, standby))
}

/// Commits one event after the other until it is stopped; their ids in commit order.
struct Writer {
    task: JoinHandle<Result<Vec<String>>>,
    stop: Arc<AtomicBool>,
}

impl Writer {
    async fn start(stage: &Stage) -> Result<Self> {
        let client = stage.database.client().await?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let mut ids = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                ids.push(insert_event(&client, ids.len()).await?);
            }
            Ok(ids)
        });
        Ok(Self { task, stop })
    }

    async fn stop(self) -> Result<Vec<String>> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.context("the writer")?
    }
}

/// Nothing is lost, and the first deliveries are in commit order.
async fn assert_delivered_in_order(recorder: &Recorder, committed: &[String]) -> Result<()> {
    recorder.wait_for_distinct(committed.len(), LONG).await?;
    let mut seen = HashMap::new();
    let first: Vec<_> = recorder
        .message_ids()
        .into_iter()
        .filter(|id| seen.insert(id.clone(), ()).is_none())
        .collect();
    assert!(first == committed, "first deliveries are out of order");
    Ok(())
}

#[tokio::test]
async fn a_standby_says_so_without_a_trace_in_the_servers_log_and_follows_a_killed_relay() -> Result<()> {
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let (mut active, mut standby) = pair(&stage).await?;
    let writer = Writer::start(&stage).await?;
    recorder.wait_for(500, LONG).await?;
    active.kill().await?;
    wait_for_role(&mut standby, "active", Duration::from_secs(2)).await?;
    let reached = recorder.count();
    recorder.wait_for(reached + 500, LONG).await?;
    let committed = writer.stop().await?;
    assert_delivered_in_order(&recorder, &committed).await?;
    assert!(recorder.duplicates() <= 2 * WINDOW, "{}", recorder.duplicates());

    let told = standby
        .log()
        .iter()
        .filter(|line| line.contains("standing by"))
        .count();
    assert_eq!(told, 1);
    let log = stage.postgres.log();
    assert!(!log.contains("is active for PID"), "{log}");
    Ok(())
}

#[tokio::test]
async fn a_frozen_relay_is_followed_and_becomes_the_standby_when_it_wakes_up() -> Result<()> {
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let (mut frozen, mut standby) = pair(&stage).await?;
    let writer = Writer::start(&stage).await?;
    recorder.wait_for(500, LONG).await?;
    frozen.pause()?;
    wait_for_role(&mut standby, "active", Duration::from_secs(4)).await?;
    let reached = recorder.count();
    recorder.wait_for(reached + 500, LONG).await?;
    let before = recorder.duplicates();
    assert!(before <= 2 * WINDOW, "{before}");

    let mark = frozen.log_mark();
    frozen.resume()?;
    frozen
        .wait_for_log_after(mark, "that it stood still", LONG, |line| {
            line.contains("stood_still")
        })
        .await?;
    wait_for_role(&mut frozen, "standby", LONG).await?;
    let reached = recorder.count();
    recorder.wait_for(reached + 500, LONG).await?;
    let committed = writer.stop().await?;
    assert_delivered_in_order(&recorder, &committed).await?;
    let stale = recorder.duplicates() - before;
    assert!(stale <= WINDOW, "{stale}");

    // And back: the woken one is as good as any other.
    standby.terminate()?;
    assert_eq!(standby.wait_exit(LONG).await?.code(), Some(0));
    wait_for_role(&mut frozen, "active", Duration::from_secs(2)).await?;
    Ok(())
}

/// R8: the one that finds the slot free a moment too late waits on, and the server's log stays quiet.
#[tokio::test]
async fn of_two_standbys_exactly_one_follows_a_killed_relay() -> Result<()> {
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let (mut active, first) = pair(&stage).await?;
    let mut second = builder(&stage).build()?;
    second.start()?;
    wait_for_role(&mut second, "standby", LONG).await?;
    let writer = Writer::start(&stage).await?;
    let mut standbys = [first, second];
    for deaths in 1..=2 {
        let reached = recorder.count();
        recorder.wait_for(reached + 300, LONG).await?;
        active.kill().await?;
        let winner = eventually_some("one to take over", Duration::from_secs(2), async || {
            let roles = [role(&standbys[0]).await, role(&standbys[1]).await];
            roles.iter().position(|role| role == "active")
        })
        .await?;
        let reached = recorder.count();
        recorder.wait_for(reached + 300, LONG).await?;
        assert_eq!(role(&standbys[1 - winner]).await, "standby");
        // At most one start that came too late for each death.
        let refused = stage.postgres.log().matches("is active for PID").count();
        assert!(refused <= deaths, "{refused} refusals");
        // The dead one comes back as a standby, and the winner is the next to die.
        active.start()?;
        wait_for_role(&mut active, "standby", LONG).await?;
        std::mem::swap(&mut active, &mut standbys[winner]);
    }
    let committed = writer.stop().await?;
    assert_delivered_in_order(&recorder, &committed).await?;
    assert!(recorder.duplicates() <= 4 * WINDOW, "{}", recorder.duplicates());
    Ok(())
}

async fn role(relay: &Relay) -> String {
    let ready = relay.ready().await;
    ready.map_or_else(
        |_| String::new(),
        |ready| ready.json["role"].as_str().unwrap_or_default().to_owned(),
    )
}

/// The way to the database is dead both ways, without an end of any connection; the broker is still there.
#[tokio::test]
async fn a_relay_that_the_network_cuts_off_is_followed_and_becomes_the_standby() -> Result<()> {
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let to_postgres = TcpProxy::start(stage.postgres.port()).await?;
    let url = stage.database.url_through(to_postgres.port());
    let mut cut_off = builder(&stage).postgres_url(&url).start().await?;
    wait_for_role(&mut cut_off, "active", LONG).await?;
    let mut standby = builder(&stage).build()?;
    standby.start()?;
    wait_for_role(&mut standby, "standby", LONG).await?;
    let writer = Writer::start(&stage).await?;
    recorder.wait_for(500, LONG).await?;

    let before = published(&cut_off).await?;
    to_postgres.stall();
    // The take-over time and two seconds.
    wait_for_role(&mut standby, "active", Duration::from_secs(4)).await?;
    let reached = recorder.count();
    recorder.wait_for(reached + 500, LONG).await?;
    cut_off.wait_not_ready(LONG).await?;
    let unreported = published(&cut_off).await? - before;

    to_postgres.cut().await;
    to_postgres.resume();
    wait_for_role(&mut cut_off, "standby", LONG).await?;
    let reached = recorder.count();
    recorder.wait_for(reached + 500, LONG).await?;
    let committed = writer.stop().await?;
    assert_delivered_in_order(&recorder, &committed).await?;
    // What was on the way, in the sockets' buffers, it still published, and could not report.
    let duplicates = recorder.duplicates() as f64;
    let allowed = (2 * WINDOW) as f64 + unreported;
    assert!(duplicates <= allowed, "{duplicates} of {allowed}");
    Ok(())
}

#[tokio::test]
async fn a_standby_stops_on_request_and_the_active_relay_goes_on() -> Result<()> {
    let stage = Stage::new().await?;
    let recorder = stage.recorder().await?;
    let (active, mut standby) = pair(&stage).await?;
    standby.terminate()?;
    assert_eq!(standby.wait_exit(Duration::from_secs(5)).await?.code(), Some(0));
    insert_event(&stage.database.client().await?, 1).await?;
    recorder.wait_for(1, LONG).await?;
    let metrics = active.metrics().await?;
    assert_eq!(metrics.value("walrelay_sessions_total", &[]), Some(1.0));
    Ok(())
}
