//! walrelay draining a backlog.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use walrelay_testbed::{QueueKind, Relay, eventually_some, processor_time};

use crate::backlog::{AGGREGATES, Outbox, Shape, commit};
use crate::book::{Notes, Quantity};
use crate::stage::{QUEUE, Stage, walsender};

/// The kinds of queue, in the order of the tables.
pub(crate) const KINDS: [QueueKind; 3] = [QueueKind::Classic, QueueKind::Quorum, QueueKind::Stream];

/// How long nothing may come of what should.
const STANDSTILL: Duration = Duration::from_secs(60);

/// How often progress is looked at: rarely in between, since being asked costs the relay processor time, often near the end.
const LOOKS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How long marks may take after the last confirm.
const MARKS: Duration = Duration::from_secs(120);

const FAREWELL: Duration = Duration::from_secs(30);

pub(crate) const fn kind_name(kind: QueueKind) -> &'static str {
    match kind {
        QueueKind::Classic => "classic",
        QueueKind::Quorum => "quorum",
        QueueKind::Stream => "stream",
    }
}

/// What is drained, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drain {
    pub(crate) kind: QueueKind,
    pub(crate) shape: Shape,
    pub(crate) after_publish: &'static str,
    pub(crate) strict: bool,
    /// All events belong to one aggregate.
    pub(crate) hot: bool,
}

impl Drain {
    /// Pipelined, of 10,000 aggregates, rows kept.
    pub(crate) const fn plain(kind: QueueKind, shape: Shape) -> Drain {
        Drain {
            kind,
            shape,
            after_publish: "keep",
            strict: false,
            hot: false,
        }
    }

    pub(crate) fn case(&self) -> String {
        let mut case = format!("drain / {} / {}", kind_name(self.kind), self.shape.name());
        if self.after_publish != "keep" {
            case += &format!(" / {}", self.after_publish);
        }
        match (self.strict, self.hot) {
            (false, _) => {}
            (true, false) => case += " / strict",
            (true, true) => case += " / strict, one aggregate",
        }
        case
    }
}

/// Commits a backlog of its own and drains it.
pub(crate) async fn alone(stage: &Stage, notes: &mut Notes<'_>, drain: Drain, events: u32) -> Result<()> {
    let outbox = Outbox::new(stage, drain.after_publish).await?;
    let aggregates = if drain.hot { 1 } else { AGGREGATES };
    commit(&outbox.client, events, drain.shape, aggregates).await?;
    measure(stage, notes, &outbox, &outbox.slot(), drain, events).await?;
    stage.drop_database(&outbox.database).await
}

/// A backlog that several drain, one after the other, each from a slot of its own.
pub(crate) struct Shared {
    pub(crate) outbox: Outbox,
    events: u32,
}

/// The slot of `pg_recvlogical`.
pub(crate) const CEILING_SLOT: &str = "ceiling";

/// The slot that a bare relay reads and never advances, so that one does for all kinds of queue.
pub(crate) const BARE_SLOT: &str = "bare";

impl Shared {
    /// The slots of these drains, [`CEILING_SLOT`] and [`BARE_SLOT`], then the events.
    pub(crate) async fn commit(stage: &Stage, drains: &[Drain], shape: Shape, events: u32) -> Result<Shared> {
        let shared = Shared {
            outbox: Outbox::bare(stage).await?,
            events,
        };
        for (index, _) in drains.iter().enumerate() {
            let relay = stage.relay(&shared.outbox.database, "keep").slot(&slot(index));
            relay.build()?.setup().await?;
        }
        for slot in [CEILING_SLOT, BARE_SLOT] {
            let sql = format!("select pg_create_logical_replication_slot('{slot}', 'pgoutput')");
            shared.outbox.client.batch_execute(&sql).await?;
        }
        commit(&shared.outbox.client, events, shape, AGGREGATES).await?;
        Ok(shared)
    }

    /// Drains by the slot of this place in the list.
    pub(crate) async fn drain(
        &self,
        stage: &Stage,
        notes: &mut Notes<'_>,
        index: usize,
        drain: Drain,
    ) -> Result<()> {
        measure(stage, notes, &self.outbox, &slot(index), drain, self.events).await
    }
}

fn slot(index: usize) -> String {
    format!("bench_{index}")
}

/// A moment of a drain.
struct Reading {
    at: Instant,
    confirmed: f64,
    /// Processor time of relay, walsender and broker.
    used: [Duration; 3],
    /// Context switches of the relay.
    switches: u64,
}

/// What a drain has come to.
pub(crate) struct Drained {
    pub(crate) rate: f64,
    /// Processor time of relay, walsender and broker in µs an event.
    pub(crate) used: [f64; 3],
    /// Context switches of the relay an event.
    pub(crate) switches: f64,
}

async fn measure(
    stage: &Stage,
    notes: &mut Notes<'_>,
    outbox: &Outbox,
    slot: &str,
    drain: Drain,
    events: u32,
) -> Result<()> {
    stage.fresh_queue(drain.kind).await?;
    let ordering = if drain.strict { "strict" } else { "pipelined" };
    let relay = stage.relay(&outbox.database, drain.after_publish).slot(slot);
    let mut relay = relay.text("delivery.ordering", ordering).build()?;
    relay.start()?;
    let case = drain.case();
    let drained = watch(stage, outbox, slot, &mut relay, 0.0, f64::from(events)).await?;
    let ended = Instant::now();
    note(notes, &case, &drained);
    if drain.after_publish != "keep" {
        let dropped = marked(&relay, f64::from(events)).await?;
        notes.note(&case, Quantity::MarkLag, ended.elapsed().as_secs_f64());
        notes.note(&case, Quantity::MarksDropped, dropped);
        let used = marking_time(outbox).await?.as_secs_f64();
        notes.note(&case, Quantity::BackendCpu, used * 1e6 / f64::from(events));
    }
    notes.note(&case, Quantity::PeakRss, relay.peak_rss_kib()? as f64 / 1024.0);
    stop(&mut relay).await?;
    stage.vhost.delete_queue(QUEUE).await?;
    Ok(())
}

pub(crate) fn note(notes: &mut Notes<'_>, case: &str, drained: &Drained) {
    let [relay, walsender, broker] = drained.used;
    notes.note(case, Quantity::Rate, drained.rate);
    notes.note(case, Quantity::RelayCpu, relay);
    notes.note(case, Quantity::WalsenderCpu, walsender);
    notes.note(case, Quantity::BrokerCpu, broker);
    notes.note(case, Quantity::RelaySwitches, drained.switches);
}

/// Follows a relay from the first confirm beyond `before` to the last of `events` more.
///
/// The clock starts with the first confirm that is seen, so that connecting does not count.
pub(crate) async fn watch(
    stage: &Stage,
    outbox: &Outbox,
    slot: &str,
    relay: &mut Relay,
    before: f64,
    events: f64,
) -> Result<Drained> {
    let began = Instant::now();
    // While it starts, nobody answers.
    while confirmed(relay).await.unwrap_or(before) <= before {
        if began.elapsed() > STANDSTILL {
            bail!("nothing was confirmed: {}", ended(relay, "it still runs"));
        }
        if let Some(status) = relay.exit_status()? {
            bail!("{}", ended(relay, &status.to_string()));
        }
        tokio::time::sleep(LOOKS.0).await;
    }
    let walsender = eventually_some("the walsender", STANDSTILL, async || {
        walsender(&outbox.client, slot).await.ok().flatten()
    })
    .await?;
    let pids = [relay.pid()?, walsender, stage.broker_pid()?];
    let first = Reading::take(relay, pids).await?;
    let (mut last, mut progressed) = (first.confirmed, Instant::now());
    while last < before + events {
        let rate = (last - first.confirmed) / first.at.elapsed().as_secs_f64();
        let left = (before + events - last) / rate.max(1.0);
        let pause = Duration::from_secs_f64((left / 2.0).min(1.0)).clamp(LOOKS.0, LOOKS.1);
        tokio::time::sleep(pause).await;
        let now = confirmed(relay).await?;
        if now > last {
            (last, progressed) = (now, Instant::now());
        } else if progressed.elapsed() > STANDSTILL {
            bail!("{last} of {events} events were confirmed, then nothing more");
        }
        if let Some(status) = relay.exit_status()? {
            bail!("{}", ended(relay, &status.to_string()));
        }
    }
    let end = Reading::take(relay, pids).await?;
    let count = end.confirmed - first.confirmed;
    if count <= 0.0 {
        bail!("all was confirmed before it could be measured");
    }
    let mut used = [0.0; 3];
    for (used, (before, after)) in used.iter_mut().zip(first.used.iter().zip(end.used)) {
        *used = (after - *before).as_secs_f64() * 1e6 / count;
    }
    Ok(Drained {
        rate: count / (end.at - first.at).as_secs_f64(),
        used,
        switches: (end.switches - first.switches) as f64 / count,
    })
}

/// How a relay ended, with the last of what it said.
fn ended(relay: &Relay, how: &str) -> String {
    let log = relay.log();
    let last = log.iter().rev().take(3).rev();
    format!(
        "the relay: {how}; {}",
        last.cloned().collect::<Vec<_>>().join("; ")
    )
}

impl Reading {
    async fn take(relay: &Relay, pids: [u32; 3]) -> Result<Reading> {
        let confirmed = confirmed(relay).await?;
        let mut used = [Duration::ZERO; 3];
        for (used, pid) in used.iter_mut().zip(pids) {
            *used = processor_time(pid)?;
        }
        Ok(Reading {
            at: Instant::now(),
            confirmed,
            used,
            switches: relay.context_switches()?,
        })
    }
}

async fn confirmed(relay: &Relay) -> Result<f64> {
    let metrics = relay.metrics().await?;
    metrics
        .value("walrelay_confirmed_total", &[])
        .context("the relay counts no confirms")
}

/// Waits until every row is marked, or left to a sweep; how many were.
async fn marked(relay: &Relay, events: f64) -> Result<f64> {
    let dropped = eventually_some("every row to be marked", MARKS, async || {
        let metrics = relay.metrics().await.ok()?;
        let dropped = metrics.value("walrelay_marks_dropped_total", &[])?;
        (metrics.value("walrelay_marked_total", &[])? + dropped >= events).then_some(dropped)
    });
    Ok(dropped.await?)
}

/// Processor time of the server processes of the relay's sessions that do not stream, which is that of its marks.
async fn marking_time(outbox: &Outbox) -> Result<Duration> {
    let sql = "select pid from pg_stat_activity where backend_type = 'client backend'
               and datname = current_database() and application_name like 'walrelay %'";
    let rows = outbox.client.query(sql, &[]).await?;
    rows.iter().try_fold(Duration::ZERO, |sum, row| {
        let pid = u32::try_from(row.get::<_, i32>(0))?;
        Ok(sum + processor_time(pid)?)
    })
}

/// A clean stop.
pub(crate) async fn stop(relay: &mut Relay) -> Result<()> {
    relay.terminate()?;
    let status = relay.wait_exit(FAREWELL).await?;
    anyhow::ensure!(status.success(), "the relay ended with {status}");
    Ok(())
}
