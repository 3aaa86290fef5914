//! The broker's limit: prebuilt messages straight to the exchange, by one task over one socket.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use walrelay_testbed::{QueueKind, Vhost, processor_time};

use crate::book::{Notes, Quantity};
use crate::drain::kind_name;
use crate::prebuilt::{Prebuilt, Sender};
use crate::stage::Stage;

/// How long the broker may answer nothing.
const SILENCE: Duration = Duration::from_secs(30);

pub(crate) fn case(kind: QueueKind) -> String {
    format!("publisher alone / {}", kind_name(kind))
}

/// Measures how fast the broker takes messages for a queue of this kind.
pub(crate) async fn measure(stage: &Stage, notes: &mut Notes<'_>, kind: QueueKind, count: u32) -> Result<()> {
    stage.fresh_queue(kind).await?;
    let case = case(kind);
    let (vhost, broker) = (stage.vhost.clone(), stage.broker_pid()?);
    let count = usize::try_from(count)?;
    let (elapsed, broker_time) = tokio::task::spawn_blocking(move || {
        let frames = Prebuilt::new()?;
        let before = processor_time(broker)?;
        let elapsed = publish(&vhost, &frames, count)?;
        anyhow::Ok((elapsed, processor_time(broker)? - before))
    })
    .await??;
    let events = count as f64;
    notes.note(&case, Quantity::Rate, events / elapsed.as_secs_f64());
    notes.note(
        &case,
        Quantity::BrokerCpu,
        broker_time.as_secs_f64() * 1e6 / events,
    );
    Ok(())
}

/// Publishes so many messages, never waiting while the window has room; how long it took until the last was confirmed.
fn publish(vhost: &Vhost, frames: &Prebuilt, count: usize) -> Result<Duration> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut sender = Sender::open(vhost, frames)?;
        sender.unsent = count;
        let began = Instant::now();
        loop {
            sender.hear()?;
            if sender.confirmed == count {
                return Ok(began.elapsed());
            }
            if !sender.work(began)? {
                tokio::time::timeout(SILENCE, sender.ready())
                    .await
                    .context("the broker does not answer")??;
            }
        }
    })
}
