//! A run: round after round of faults under load, then everything is mended, delivered and judged.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tokio_postgres::Client;
use uuid::Uuid;
use walrelay_testbed::{Keep, Recorder, eventually};

use crate::history::{History, Round};
use crate::journal::{Journal, Marker, flushed, touch};
use crate::schedule::{Fault, Settings};
use crate::search::Search;
use crate::stage::{GRACE, LONG, QUEUE, STREAM, Servers, Stage};
use crate::writers::{Writers, committed, count_committed, dead_letters, prepare};

/// Nothing is broken for so long after each round: what comes twice then has no excuse.
const CALM: Duration = Duration::from_millis(1000);

/// When a run ends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Length {
    /// After so many rounds.
    Rounds(usize),
    /// With the first round that ends so long after the beginning.
    Time(Duration),
}

/// Runs it; the history is complete even when the relay failed.
pub(crate) async fn run(settings: Settings, length: Length, servers: &mut Servers) -> Result<History> {
    let stage = Stage::new(settings, servers).await?;
    prepare(&stage.database).await?;
    let (journal, _reader) = Journal::start(&stage.vhost, STREAM, stage.start);
    let _marker = Marker::start(&stage.database, &stage.vhost, &stage.slot(), STREAM, stage.start);
    let queue = Recorder::keeping(&stage.vhost, QUEUE, Keep::Ids).await?;
    for instance in &stage.instances {
        let mut relay = instance.relay.lock().await;
        relay.start()?;
        relay.wait_ready(LONG).await?;
    }
    let writers = Writers::start(settings, &stage.database, &journal);
    let rounds = stage.rounds(length, &journal, &writers).await?;
    let rolled_back = writers.stop().await?;
    let client = stage.database.client().await?;
    stage.drain(&client, &journal, &queue).await?;
    stage.stop_relays().await?;
    // Only now: it takes a while, and the proxies run on this thread.
    let committed = committed(&client).await?;
    let dead_letters = dead_letters(&client).await?;
    let missing = journal.missing(committed.keys());
    let unread = stage.read_again(missing).await;
    let (stream, strange) = journal.take();
    strange.into_iter().for_each(|text| stage.complain(text));
    let queue = queue
        .distinct_ids()
        .iter()
        .filter_map(|id| id.parse::<Uuid>().ok())
        .collect();
    stage.database.drop_slots().await?;
    let (complaints, peaks) = stage.notes();
    Ok(History {
        settings,
        committed,
        rolled_back,
        dead_letters,
        stream,
        unread,
        queue,
        rounds,
        peaks,
        complaints,
        lasted: stage.now(),
    })
}

impl Stage<'_> {
    async fn rounds(&self, length: Length, journal: &Journal, writers: &Writers) -> Result<Vec<Round>> {
        let mut rounds = Vec::new();
        for faults in self.settings.rounds() {
            tokio::time::sleep(CALM).await;
            let (round, caught_up) = self.round(&faults, journal).await?;
            let names: Vec<&str> = faults.iter().map(|fault| fault.kind.name()).collect();
            eprintln!(
                "{:7.1} s  round {}: {}; caught up after {:.1} s; {} of {} events delivered",
                self.now().as_secs_f64(),
                rounds.len() + 1,
                names.join(", "),
                (round.caught_up - round.mended).as_secs_f64(),
                journal.distinct(),
                writers.committed(),
            );
            rounds.push(round);
            let is_over = match length {
                Length::Rounds(count) => rounds.len() >= count,
                Length::Time(length) => self.now() >= length,
            };
            if is_over || !caught_up || !self.are_relays_running().await? {
                break;
            }
        }
        tokio::time::sleep(CALM).await;
        Ok(rounds)
    }

    /// One round, and whether delivery has caught up after it.
    async fn round(&self, faults: &[Fault], journal: &Journal) -> Result<(Round, bool)> {
        let links = self.links().await;
        let began = self.now();
        let mut round = Round {
            began,
            ..Round::default()
        };
        // They are on their way when the faults strike.
        self.retry_dead_letters().await?;
        let [first, second, third] = [0, 1, 2].map(|place| faults.get(place).copied());
        let carry_out = async |fault: Option<Fault>| match fault {
            Some(fault) => self.carry_out(fault, journal).await.map(Some),
            None => Ok(None),
        };
        // All at once.
        let (first, second, third) = tokio::join!(carry_out(first), carry_out(second), carry_out(third));
        round
            .faults
            .extend([first?, second?, third?].into_iter().flatten());
        round.mended = self.now();
        let caught_up = self.catch_up(journal).await;
        round.caught_up = self.now();
        round.links = self.links().await - links;
        if let Err(error) = &caught_up {
            self.complain(format!(
                "delivery does not catch up: {error:#}{}",
                self.states().await
            ));
        }
        Ok((round, caught_up.is_ok()))
    }

    /// Waits until what is committed now is acknowledged, and then what is committed by then: whatever the faults
    /// have thrown back was in flight before.
    async fn catch_up(&self, journal: &Journal) -> Result<()> {
        for _ in 0..2 {
            let client = self
                .insist("the database", async || Ok(self.database.client().await?))
                .await?;
            self.acknowledged(&client, journal).await?;
        }
        Ok(())
    }

    /// Waits until everything that is committed has been acknowledged.
    async fn acknowledged(&self, client: &Client, journal: &Journal) -> Result<()> {
        let goal = wal_end(client).await?;
        let reached = async || {
            let flushed = flushed(client, &self.slot()).await;
            flushed.is_ok_and(|flushed| flushed >= goal)
        };
        let what = format!("the slot to reach {goal:X}");
        while_it_moves(&what, || journal.distinct(), reached).await
    }

    /// Waits until everything has come everywhere. What does not come is for the verdict.
    async fn drain(&self, client: &Client, journal: &Journal, queue: &Recorder) -> Result<()> {
        self.retry_dead_letters().await?;
        let count = count_committed(client).await?;
        let all = async || journal.distinct() >= count;
        if let Err(error) = while_it_moves("everything in the stream", || journal.distinct(), all).await {
            eprintln!("{error:#}");
        }
        let queue = queue.wait_for_distinct(usize::try_from(count)?, LONG).await;
        let acknowledged = self.acknowledged(client, journal).await;
        for error in [queue.map_err(anyhow::Error::from), acknowledged]
            .into_iter()
            .filter_map(Result::err)
        {
            self.complain(format!("{error:#}{}", self.states().await));
        }
        Ok(())
    }

    /// What of `missing` is in the stream after all.
    async fn read_again(&self, missing: HashSet<Uuid>) -> HashSet<Uuid> {
        if missing.is_empty() {
            return missing;
        }
        let until = self.now();
        let search = Search::start(&self.vhost, STREAM, missing.clone(), until);
        let over = async || search.is_over() || touch(&self.vhost, STREAM, until).await && search.is_over();
        if let Err(error) = while_it_moves("the stream's end, read again", || search.count(), over).await {
            self.complain(format!("{error:#}: what is missing is not known to be lost"));
        }
        &missing - &search.missing()
    }

    async fn are_relays_running(&self) -> Result<bool> {
        for (number, instance) in self.instances.iter().enumerate() {
            let mut relay = instance.relay.lock().await;
            self.note_peak(&relay);
            if let Some(status) = relay.exit_status()? {
                self.complain(format!("relay {} ended by itself: {status}", number + 1));
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn stop_relays(&self) -> Result<()> {
        for instance in &self.instances {
            let mut relay = instance.relay.lock().await;
            self.note_peak(&relay);
            relay.terminate()?;
            let status = relay.wait_exit(2 * GRACE).await?;
            if status.code() != Some(0) {
                self.complain(format!("stopped at the end, a relay ended with {status}"));
            }
        }
        self.write_logs().await
    }

    /// What the relays say about themselves.
    async fn states(&self) -> String {
        let mut text = String::new();
        for (number, instance) in self.instances.iter().enumerate() {
            let readiness = instance.relay.lock().await.ready().await;
            let readiness = readiness.map_or_else(|error| error.to_string(), |ready| ready.text);
            text.push_str(&format!("\n  relay {}: {}", number + 1, readiness.trim()));
        }
        text
    }

    /// Leaves the relays' logs behind, for reading after a run that failed.
    async fn write_logs(&self) -> Result<()> {
        for (number, instance) in self.instances.iter().enumerate() {
            let name = format!("chaos-seed-{}-relay-{}.log", self.settings.seed, number + 1);
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
            std::fs::write(path, instance.relay.lock().await.log().join("\n"))?;
        }
        Ok(())
    }
}

/// Waits for a condition as long as the count grows: how many there are to come depends on the machine.
async fn while_it_moves(
    what: &str,
    count: impl Fn() -> u64,
    condition: impl AsyncFn() -> bool,
) -> Result<()> {
    loop {
        let before = count();
        match eventually(what, LONG, async || condition().await).await {
            Err(_) if count() > before => {}
            reached => return Ok(reached?),
        }
    }
}

/// A position beyond everything committed so far, which the stream is sure to pass: another commit lies behind it.
async fn wal_end(client: &Client) -> Result<u64> {
    let sql = "select (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let end: i64 = client.query_one(sql, &[]).await?.get(0);
    client
        .batch_execute("select pg_logical_emit_message(true, 'chaos', '')")
        .await?;
    Ok(end.try_into()?)
}
