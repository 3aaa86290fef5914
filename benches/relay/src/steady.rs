//! Steady state: how long events take from before the INSERT to the consumer, and what that costs.

use std::time::Duration;

use anyhow::{Result, ensure};
use walrelay_testbed::{QueueKind, eventually, eventually_some, processor_time};

use crate::backlog::Outbox;
use crate::book::{Notes, Quantity};
use crate::consumer::{Consumer, nanoseconds};
use crate::drain::stop;
use crate::polling::Poller;
use crate::stage::{QUEUE, Stage, walsender};
use crate::writer::Writers;

const READY: Duration = Duration::from_secs(30);

/// What is not measured at the beginning: connections warm up, and the first events are the slowest.
const WARM_UP: Duration = Duration::from_secs(1);

/// How long the last events may take.
const TAIL: Duration = Duration::from_secs(30);

/// Who relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relayer {
    Walrelay,
    Polling,
}

impl Relayer {
    const fn name(self) -> &'static str {
        match self {
            Relayer::Walrelay => "walrelay",
            Relayer::Polling => "polling relay",
        }
    }
}

pub(crate) fn case(relayer: Relayer, rate: u32) -> String {
    format!("steady / {} / {rate} events/s", relayer.name())
}

/// Measures one rate, into a classic durable queue with a consumer.
pub(crate) async fn measure(
    stage: &Stage,
    notes: &mut Notes<'_>,
    relayer: Relayer,
    rate: u32,
    length: Duration,
) -> Result<()> {
    let outbox = Outbox::new(stage, "mark").await?;
    stage.fresh_queue(QueueKind::Classic).await?;
    let consumer = Consumer::start(&stage.vhost, QUEUE)?;
    match relayer {
        Relayer::Walrelay => {
            let mut relay = stage.relay(&outbox.database, "mark").build()?;
            relay.start()?;
            relay.wait_ready(READY).await?;
            let slot = outbox.slot();
            let sender = eventually_some("the walsender", READY, async || {
                walsender(&outbox.client, &slot).await.ok().flatten()
            })
            .await?;
            let pids = [relay.pid()?, sender, stage.broker_pid()?];
            let quantities = [Quantity::RelayCpu, Quantity::WalsenderCpu, Quantity::BrokerCpu];
            run(
                &outbox,
                notes,
                &consumer,
                &case(relayer, rate),
                rate,
                length,
                pids,
                quantities,
            )
            .await?;
            stop(&mut relay).await?;
        }
        Relayer::Polling => {
            outbox.database.drop_slots().await?;
            let mut poller = Poller::start(stage, &outbox).await?;
            let pids = [poller.service.pid()?, poller.backend, stage.broker_pid()?];
            let quantities = [Quantity::RelayCpu, Quantity::BackendCpu, Quantity::BrokerCpu];
            run(
                &outbox,
                notes,
                &consumer,
                &case(relayer, rate),
                rate,
                length,
                pids,
                quantities,
            )
            .await?;
            poller.service.kill().await?;
        }
    }
    consumer.end()?;
    stage.vhost.delete_queue(QUEUE).await?;
    stage.drop_database(&outbox.database).await
}

#[expect(clippy::too_many_arguments, reason = "what is watched, and what it is called")]
async fn run(
    outbox: &Outbox,
    notes: &mut Notes<'_>,
    consumer: &Consumer,
    case: &str,
    rate: u32,
    length: Duration,
    pids: [u32; 3],
    quantities: [Quantity; 3],
) -> Result<()> {
    let writers = Writers::start(&outbox.database, rate, WARM_UP + length);
    tokio::time::sleep(WARM_UP).await;
    let used = || -> Result<Vec<Duration>> { pids.iter().map(|pid| Ok(processor_time(*pid)?)).collect() };
    let (before, warm, from) = (used()?, consumer.count(), nanoseconds());
    let (written, reached) = writers.join().await?;
    let (after, counted) = (used()?, consumer.count() - warm);
    let complete = || std::future::ready(consumer.count() as u64 >= written);
    eventually("the last events to arrive", TAIL, complete).await?;
    notes.note(case, Quantity::Reached, reached);
    let mut latencies: Vec<u64> = consumer
        .take()
        .into_iter()
        .filter(|(began, _)| *began >= from)
        .map(|(began, came)| came - began)
        .collect();
    latencies.sort_unstable();
    ensure!(!latencies.is_empty(), "nothing arrived");
    for (quantity, share) in [
        (Quantity::P50, 0.5),
        (Quantity::P99, 0.99),
        (Quantity::P999, 0.999),
    ] {
        let rank = (latencies.len() as f64 * share).ceil() as usize;
        let nanoseconds = latencies[rank.clamp(1, latencies.len()) - 1];
        notes.note(case, quantity, nanoseconds as f64 / 1e6);
    }
    for (quantity, (before, after)) in quantities.into_iter().zip(before.iter().zip(after)) {
        notes.note(
            case,
            quantity,
            (after - *before).as_secs_f64() * 1e6 / counted.max(1) as f64,
        );
    }
    Ok(())
}
