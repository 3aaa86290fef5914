//! Start, size and idleness.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use walrelay_testbed::{Folder, QueueKind, eventually, eventually_some, processor_time, resident_kib};

use crate::backlog::{Outbox, Shape, commit};
use crate::book::{Notes, Quantity};
use crate::consumer::{Consumer, nanoseconds};
use crate::drain::stop;
use crate::polling::Poller;
use crate::stage::{QUEUE, Stage, walsender};

pub(crate) const START: &str = "start / from exec to the first message";
pub(crate) const BINARY: &str = "size / stripped release binary";
pub(crate) const IMAGE: &str = "size / image above its base";
pub(crate) const IDLE: &str = "idle / walrelay";
pub(crate) const IDLE_NOW: &str = "idle / walrelay, resident at the end";
pub(crate) const IDLE_POLLING: &str = "idle / polling relay";

const READY: Duration = Duration::from_secs(30);

/// Connections and caches of the start are not idleness.
const WARM_UP: Duration = Duration::from_secs(2);

/// Starts a relay for which an event waits, several times. The clock runs until a consumer has it, so the broker's part is in.
pub(crate) async fn start(stage: &Stage, notes: &mut Notes<'_>, times: usize) -> Result<()> {
    let outbox = Outbox::new(stage, "mark").await?;
    stage.fresh_queue(QueueKind::Classic).await?;
    let consumer = Consumer::start(&stage.vhost, QUEUE)?;
    let mut relay = stage.relay(&outbox.database, "mark").build()?;
    for time in 1..=times {
        commit(&outbox.client, 1, Shape::OneRow, 1).await?;
        let began = nanoseconds();
        relay.start()?;
        let arrived =
            eventually_some("the event", READY, || std::future::ready(consumer.take().pop())).await?;
        notes
            .book
            .note(time, START, Quantity::Start, (arrived.1 - began) as f64 / 1e6);
        stop(&mut relay).await?;
    }
    consumer.end()?;
    stage.vhost.delete_queue(QUEUE).await?;
    stage.drop_database(&outbox.database).await
}

/// The stripped binary; and the image, where `scripts/test-image` has left its size.
pub(crate) fn size(notes: &mut Notes<'_>, walrelay: &Path) -> Result<()> {
    const MIB: f64 = 1024.0 * 1024.0;
    let folder = Folder::new("strip-")?;
    let stripped = folder.path().join("walrelay");
    let status = Command::new("strip")
        .arg("-o")
        .arg(&stripped)
        .arg(walrelay)
        .status();
    ensure!(status.context("run strip (binutils)")?.success(), "strip failed");
    let bytes = std::fs::metadata(&stripped)?.len();
    notes.note(BINARY, Quantity::Size, bytes as f64 / MIB);
    // It stands beside the folder of the release build.
    let image = walrelay
        .ancestors()
        .nth(2)
        .map(|target| target.join("image-size"));
    if let Some(text) = image.and_then(|path| std::fs::read_to_string(path).ok()) {
        notes.note(
            IMAGE,
            Quantity::Size,
            text.trim().parse().context("the size of the image")?,
        );
    }
    Ok(())
}

/// Nothing happens, for walrelay and for a polling relay beside it.
pub(crate) async fn idle(stage: &Stage, notes: &mut Notes<'_>, length: Duration) -> Result<()> {
    let (ours, theirs) = (
        Outbox::new(stage, "mark").await?,
        Outbox::new(stage, "mark").await?,
    );
    theirs.database.drop_slots().await?;
    stage.fresh_queue(QueueKind::Classic).await?;
    let mut relay = stage.relay(&ours.database, "mark").build()?;
    relay.start()?;
    relay.wait_ready(READY).await?;
    let mut poller = Poller::start(stage, &theirs).await?;
    let slot = ours.slot();
    let sender = eventually_some("the walsender", READY, async || {
        walsender(&ours.client, &slot).await.ok().flatten()
    })
    .await?;
    tokio::time::sleep(WARM_UP).await;
    let transactions = async |outbox: &Outbox| -> Result<i64> {
        let sql = "select xact_commit from pg_stat_database where datname = current_database()";
        Ok(outbox.client.query_one(sql, &[]).await?.get(0))
    };
    let pids = [relay.pid()?, sender, poller.service.pid()?, poller.backend];
    let used = || -> Result<Vec<Duration>> { pids.iter().map(|pid| Ok(processor_time(*pid)?)).collect() };
    let committed = [transactions(&ours).await?, transactions(&theirs).await?];
    let (began, before) = (Instant::now(), used()?);
    tokio::time::sleep(length).await;
    let (seconds, after) = (began.elapsed().as_secs_f64(), used()?);
    let committed = [
        transactions(&ours).await? - committed[0],
        transactions(&theirs).await? - committed[1],
    ];
    let shares: Vec<f64> = before
        .iter()
        .zip(after)
        .map(|(before, after)| (after - *before).as_secs_f64() / seconds * 100.0)
        .collect();
    for (case, first, committed) in [(IDLE, 0, committed[0]), (IDLE_POLLING, 2, committed[1])] {
        notes.note(case, Quantity::RelayShare, shares[first]);
        notes.note(case, Quantity::DatabaseShare, shares[first + 1]);
        // The statistics view counts the query before this one too.
        notes.note(
            case,
            Quantity::Transactions,
            (committed - 1).max(0) as f64 / seconds,
        );
    }
    notes.note(IDLE, Quantity::PeakRss, relay.peak_rss_kib()? as f64 / 1024.0);
    notes.note(
        IDLE_NOW,
        Quantity::PeakRss,
        resident_kib(relay.pid()?)? as f64 / 1024.0,
    );
    eventually("the polling relay to be alive", READY, || {
        std::future::ready(poller.service.exit_status().is_ok_and(|status| status.is_none()))
    })
    .await?;
    poller.service.kill().await?;
    stop(&mut relay).await?;
    stage.vhost.delete_queue(QUEUE).await?;
    stage.drop_database(&ours.database).await?;
    stage.drop_database(&theirs.database).await
}
