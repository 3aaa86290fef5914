//! What the broker's absence costs, and a transaction of a million events: memory.

use std::time::Duration;

use anyhow::Result;
use walrelay_testbed::QueueKind;

use crate::backlog::{AGGREGATES, Outbox, Shape, commit};
use crate::book::{Notes, Quantity};
use crate::drain::{note, stop, watch};
use crate::stage::{QUEUE, Stage};

const READY: Duration = Duration::from_secs(30);

pub(crate) const DOWN: &str = "outage / broker down";
pub(crate) const AFTER: &str = "outage / drain afterwards / quorum";
pub(crate) const SINGLE: &str = "one huge transaction / stream";

/// Commits events while the broker is down, then lets it come back.
pub(crate) async fn measure(stage: &mut Stage, notes: &mut Notes<'_>, events: u32) -> Result<()> {
    let outbox = Outbox::new(stage, "keep").await?;
    stage.fresh_queue(QueueKind::Quorum).await?;
    let mut relay = stage.relay(&outbox.database, "keep").build()?;
    relay.start()?;
    relay.wait_ready(READY).await?;
    stage.broker.stop().await?;
    let waiting = async {
        relay.wait_not_ready(READY).await?;
        commit(&outbox.client, events, Shape::Thousand, AGGREGATES).await?;
        notes.note(DOWN, Quantity::PeakRss, relay.peak_rss_kib()? as f64 / 1024.0);
        anyhow::Ok(())
    };
    let waited = waiting.await;
    stage.broker.start_again().await?;
    waited?;
    let drained = watch(stage, &outbox, &outbox.slot(), &mut relay, 0.0, f64::from(events)).await?;
    note(notes, AFTER, &drained);
    notes.note(AFTER, Quantity::PeakRss, relay.peak_rss_kib()? as f64 / 1024.0);
    stop(&mut relay).await?;
    stage.vhost.delete_queue(QUEUE).await?;
    stage.drop_database(&outbox.database).await
}

/// Commits so many events in one transaction under a running relay.
pub(crate) async fn single(stage: &Stage, notes: &mut Notes<'_>, events: u32) -> Result<()> {
    let outbox = Outbox::new(stage, "keep").await?;
    stage.fresh_queue(QueueKind::Stream).await?;
    let mut relay = stage.relay(&outbox.database, "keep").build()?;
    relay.start()?;
    relay.wait_ready(READY).await?;
    commit(&outbox.client, events, Shape::Single, AGGREGATES).await?;
    let drained = watch(stage, &outbox, &outbox.slot(), &mut relay, 0.0, f64::from(events)).await?;
    note(notes, SINGLE, &drained);
    notes.note(SINGLE, Quantity::PeakRss, relay.peak_rss_kib()? as f64 / 1024.0);
    stop(&mut relay).await?;
    stage.vhost.delete_queue(QUEUE).await?;
    stage.drop_database(&outbox.database).await
}
