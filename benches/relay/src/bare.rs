//! Both limits at once: as little as a relay can do.
//!
//! One task reads the walsender's stream, understands no more of it than where a row begins, and sends one prebuilt message for
//! each. Walsender and broker share the machine as they do under walrelay, so what walrelay falls behind this is its own.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use walrelay_testbed::{QueueKind, Vhost, eventually, processor_time};

use crate::backlog::Shape;
use crate::book::{Notes, Quantity};
use crate::drain::{BARE_SLOT, Shared, kind_name};
use crate::prebuilt::{Prebuilt, Sender};
use crate::receiver::Receiver;
use crate::stage::{Stage, walsender};

/// How long neither side may say anything.
const SILENCE: Duration = Duration::from_secs(30);

/// More rows are read when fewer wait to be sent: what comes meanwhile comes in one piece.
const IN_HAND: usize = 100;

/// How long the walsender may take to notice that it is alone.
const FAREWELL: Duration = Duration::from_secs(30);

pub(crate) fn case(kind: QueueKind, shape: Shape) -> String {
    format!("bare relay / {} / {}", kind_name(kind), shape.name())
}

/// Measures how fast a backlog gets from the server to a queue of this kind.
pub(crate) async fn measure(
    stage: &Stage,
    notes: &mut Notes<'_>,
    shared: &Shared,
    (kind, shape): (QueueKind, Shape),
    events: u32,
) -> Result<()> {
    stage.fresh_queue(kind).await?;
    let (database, vhost) = (&shared.outbox.database, stage.vhost.clone());
    let (port, name, broker) = (
        stage.postgres.port(),
        database.name().to_owned(),
        stage.broker_pid()?,
    );
    let count = usize::try_from(events)?;
    let relayed = tokio::task::spawn_blocking(move || {
        let frames = Prebuilt::new()?;
        relay(&vhost, &frames, (port, &name), broker, count)
    })
    .await??;
    let (case, events) = (case(kind, shape), f64::from(events));
    notes.note(&case, Quantity::Rate, events / relayed.elapsed.as_secs_f64());
    let quantities = [Quantity::RelayCpu, Quantity::WalsenderCpu, Quantity::BrokerCpu];
    for (quantity, used) in quantities.into_iter().zip(relayed.used) {
        notes.note(&case, quantity, used.as_secs_f64() * 1e6 / events);
    }
    // The next needs the slot.
    eventually("the walsender to end", FAREWELL, async || {
        let streaming = walsender(&shared.outbox.client, BARE_SLOT).await;
        matches!(streaming, Ok(None))
    })
    .await?;
    Ok(())
}

struct Relayed {
    elapsed: Duration,
    /// Processor time of this process, walsender and broker.
    used: [Duration; 3],
}

fn relay(
    vhost: &Vhost,
    frames: &Prebuilt,
    (port, database): (u16, &str),
    broker: u32,
    count: usize,
) -> Result<Relayed> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut sender = Sender::open(vhost, frames)?;
        let mut receiver = Receiver::open(port, database, BARE_SLOT)?;
        let pids = [std::process::id(), receiver.process, broker];
        let used = || -> Result<[Duration; 3]> {
            let [relay, walsender, broker] = pids.map(processor_time);
            Ok([relay?, walsender?, broker?])
        };
        let (mut began, mut before) = (Instant::now(), used()?);
        let mut has_begun = false;
        loop {
            sender.hear()?;
            // As for a drain the clock starts with the first confirm.
            if !has_begun && sender.confirmed > 0 {
                (began, before, has_begun) = (Instant::now(), used()?, true);
            }
            if sender.confirmed == count {
                let (elapsed, mut used) = (began.elapsed(), used()?);
                for (used, before) in used.iter_mut().zip(before) {
                    *used -= before;
                }
                return Ok(Relayed { elapsed, used });
            }
            let wants_rows = sender.unsent < IN_HAND;
            let mut worked = false;
            if wants_rows && let Some(rows) = receiver.read()? {
                sender.unsent += rows;
                worked = true;
            }
            worked |= sender.work(began)?;
            if !worked {
                let either = async {
                    tokio::select! {
                        ready = sender.ready() => ready,
                        ready = receiver.ready(), if wants_rows => ready,
                    }
                };
                tokio::time::timeout(SILENCE, either)
                    .await
                    .context("neither server says anything")??;
            }
        }
    })
}
