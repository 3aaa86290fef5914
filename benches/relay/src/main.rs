//! Measures walrelay on private servers: beside the limit of either side, and beside a polling relay. `scripts/bench` runs it.
//!
//! What is measured is a scenario: it cleans up behind itself, notes its values in the [`book`], and may fail without ending the
//! run. Rounds interleave the scenarios, so that a machine that changes its pace changes it for all.

mod backlog;
mod bare;
mod book;
mod consumer;
mod drain;
mod link;
mod machine;
mod outage;
mod plan;
mod plot;
mod polling;
mod prebuilt;
mod publisher;
mod receiver;
mod report;
mod rest;
mod stage;
mod steady;
mod targets;
mod walsender;
mod writer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use serde_json::json;
use walrelay_testbed::QueueKind;

use backlog::Shape;
use book::{Book, Notes};
use drain::{Drain, KINDS, Shared};
use plan::Plan;
use report::Run;
use stage::Stage;
use steady::Relayer;

/// Longer than any scenario takes on a slow machine.
const LIMIT: Duration = Duration::from_secs(420);

/// Measures walrelay on private throwaway servers.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// Little of everything, in two minutes: shows that it works, not how fast
    #[arg(long)]
    quick: bool,
    /// Only these groups of scenarios: drains, steady, outage, start, idle
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// How many rounds [default: 3, 1 with --quick]
    #[arg(long)]
    rounds: Option<usize>,
    /// Where results.json, the plots and the page go
    #[arg(long, default_value = "target/bench")]
    out: PathBuf,
    /// The relay's program [default: the one beside this one]
    #[arg(long)]
    walrelay: Option<PathBuf>,
    /// The command that the report names
    #[arg(long, default_value = "walrelay-bench", hide = true)]
    said: String,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The polling relay to compare with, until killed
    #[command(hide = true)]
    Poll(polling::PollArgs),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(Command::Poll(poll)) = &arguments.command {
        return polling::run(poll).await.map(|()| ExitCode::SUCCESS);
    }
    consumer::nanoseconds();
    let walrelay = match &arguments.walrelay {
        Some(path) => path
            .canonicalize()
            .with_context(|| format!("find {}", path.display()))?,
        None => std::env::current_exe()
            .context("find this program")?
            .with_file_name("walrelay"),
    };
    anyhow::ensure!(
        walrelay.exists(),
        "no {}: cargo build --release -p walrelay",
        walrelay.display()
    );
    let mut plan = if arguments.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    plan.rounds = arguments.rounds.unwrap_or(plan.rounds).max(1);
    let (began, load) = (Instant::now(), machine::load());
    eprintln!("starting a private PostgreSQL and a private RabbitMQ");
    let stage = Stage::start(&walrelay).await?;
    let about = json!({
        "date": machine::date(),
        "command": arguments.said,
        "machine": machine::machine(),
        "load": load,
        "versions": machine::versions(&stage, &walrelay).await?,
        "settings": machine::settings(),
    });
    let mut bench = Bench {
        stage,
        began,
        plan,
        round: 0,
        book: Book::default(),
        failures: Vec::new(),
    };
    let wants = |group: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == group);
    bench.rounds(wants("drains"), wants("steady")).await;
    bench.round = 1;
    if wants("outage") {
        bench.outage().await;
    }
    if wants("start") {
        bench.start().await;
    }
    if wants("idle") {
        bench.idle().await;
    }
    let run = Run {
        plan: bench.plan,
        book: bench.book,
        failures: bench.failures,
        took: began.elapsed(),
        about,
    };
    println!("{}", run.figures());
    run.write(&arguments.out)?;
    eprintln!("written to {}", arguments.out.display());
    Ok(if run.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A run on its way.
struct Bench {
    stage: Stage,
    began: Instant,
    plan: Plan,
    round: usize,
    book: Book,
    failures: Vec<(String, String)>,
}

impl Bench {
    /// Runs a scenario and says what came of it; a failure is kept for the report.
    async fn scenario<T>(
        &mut self,
        name: &str,
        work: impl AsyncFnOnce(&mut Stage, &mut Notes<'_>) -> Result<T>,
    ) -> Option<T> {
        let mut notes = Notes {
            book: &mut self.book,
            round: self.round,
        };
        let working = work(&mut self.stage, &mut notes);
        let result = match tokio::time::timeout(LIMIT, Box::pin(working)).await {
            Ok(result) => result,
            Err(_elapsed) => Err(anyhow::anyhow!("not done after {LIMIT:?}")),
        };
        let elapsed = self.began.elapsed().as_secs();
        let clock = format!("{:02}:{:02}", elapsed / 60, elapsed % 60);
        match result {
            Ok(value) => {
                eprintln!("[{clock}] {}. {name}: {}", self.round, notes.said(name));
                Some(value)
            }
            Err(error) => {
                eprintln!("[{clock}] {}. {name}: FAILED: {error:#}", self.round);
                self.failures.push((name.to_owned(), format!("{error:#}")));
                self.recover().await;
                None
            }
        }
    }

    /// A scenario that failed may have left the broker down.
    async fn recover(&mut self) {
        if let Err(error) = self.stage.broker.start_again().await {
            eprintln!("the broker does not start again: {error}");
        }
    }

    async fn rounds(&mut self, drains: bool, steady: bool) {
        for round in 1..=self.plan.rounds {
            self.round = round;
            if drains {
                for shape in Shape::ALL {
                    self.drain_shared(shape).await;
                }
                self.drain_alone().await;
            }
            if steady {
                self.steady().await;
            }
        }
    }

    /// A backlog of one shape, drained to each kind of queue; beside the limits.
    async fn drain_shared(&mut self, shape: Shape) {
        let events = self.plan.backlog;
        let mut drains: Vec<Drain> = KINDS.map(|kind| Drain::plain(kind, shape)).to_vec();
        if shape == Shape::Thousand {
            drains.push(Drain {
                strict: true,
                ..Drain::plain(QueueKind::Quorum, shape)
            });
        }
        let name = format!("backlog / {}", shape.name());
        let committing =
            async |stage: &mut Stage, _: &mut Notes<'_>| Shared::commit(stage, &drains, shape, events).await;
        let Some(shared) = self.scenario(&name, committing).await else {
            return;
        };
        self.scenario(&walsender::case(shape), async |stage, notes| {
            walsender::measure(stage, notes, &shared, shape, events).await
        })
        .await;
        for (index, drain) in drains.iter().enumerate() {
            // The slowest of all says little that the other two do not: once is enough for the time there is.
            if shape == Shape::Single && drain.kind == QueueKind::Classic && self.round > 1 {
                continue;
            }
            // Beside the drain that it is compared with most.
            if shape == Shape::OneRow {
                self.scenario(&publisher::case(drain.kind), async |stage, notes| {
                    publisher::measure(stage, notes, drain.kind, events).await
                })
                .await;
            }
            if shape == Shape::OneRow {
                self.scenario(&bare::case(drain.kind, shape), async |stage, notes| {
                    bare::measure(stage, notes, &shared, (drain.kind, shape), events).await
                })
                .await;
            }
            self.scenario(&drain.case(), async |stage, notes| {
                shared.drain(stage, notes, index, *drain).await
            })
            .await;
        }
        self.scenario("clean up", async |stage, _| {
            stage.drop_database(&shared.outbox.database).await
        })
        .await;
    }

    /// What needs a backlog of its own, since it changes the rows.
    async fn drain_alone(&mut self) {
        let plain = |kind| Drain::plain(kind, Shape::Thousand);
        let (events, hot) = (self.plan.backlog, self.plan.hot);
        let after = |kind, after_publish| Drain {
            after_publish,
            ..plain(kind)
        };
        let one_aggregate = Drain {
            strict: true,
            hot: true,
            ..plain(QueueKind::Quorum)
        };
        for (drain, events) in [
            (after(QueueKind::Classic, "mark"), events),
            (after(QueueKind::Quorum, "mark"), events),
            (after(QueueKind::Quorum, "delete"), events),
            (one_aggregate, hot),
        ] {
            self.scenario(&drain.case(), async |stage, notes| {
                drain::alone(stage, notes, drain, events).await
            })
            .await;
        }
        let polled = self.plan.polled;
        self.scenario(polling::CASE, async |stage, notes| {
            polling::measure(stage, notes, polled).await
        })
        .await;
    }

    async fn steady(&mut self) {
        for (rate, length) in self.plan.steady.clone() {
            for relayer in [Relayer::Walrelay, Relayer::Polling] {
                if relayer == Relayer::Polling && rate != self.plan.compared {
                    continue;
                }
                self.scenario(&steady::case(relayer, rate), async |stage, notes| {
                    steady::measure(stage, notes, relayer, rate, length).await
                })
                .await;
            }
        }
    }

    async fn outage(&mut self) {
        let events = self.plan.outage;
        self.scenario(outage::AFTER, async |stage, notes| {
            outage::measure(stage, notes, events).await
        })
        .await;
        self.scenario(outage::SINGLE, async |stage, notes| {
            outage::single(stage, notes, events).await
        })
        .await;
    }

    async fn start(&mut self) {
        let starts = self.plan.starts;
        self.scenario(rest::START, async |stage, notes| {
            rest::start(stage, notes, starts).await
        })
        .await;
        self.scenario(rest::BINARY, async |stage, notes| {
            let walrelay = stage.walrelay.clone();
            rest::size(notes, &walrelay)
        })
        .await;
    }

    async fn idle(&mut self) {
        let length = self.plan.idle;
        self.scenario(rest::IDLE, async |stage, notes| {
            rest::idle(stage, notes, length).await
        })
        .await;
    }
}
