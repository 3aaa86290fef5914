//! The shop of `examples/shop` with walrelay at work: orders are placed by clients that ask twice, their events arrive, and
//! neither a SIGKILL to the relay nor one to the order service loses or doubles anything.
//!
//! `scripts/demo` runs it. The servers are private and go away with this process.

mod account;
mod buyers;
mod programs;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use clap::Parser;
use walrelay_testbed::{
    Postgres, PostgresOptions, RabbitMq, RabbitMqOptions, Recorder, RelayBuilder, eventually,
};

use account::Account;
use buyers::{Bought, buy};
use programs::Programs;

/// How many orders are placed.
const ORDERS: usize = 450;

/// Who is killed after how many orders; the relay is started again after so many more, the others at once.
const KILL_RELAY_AT: usize = 150;
const START_RELAY_AT: usize = 225;
const KILL_SHOP_AT: usize = 300;

/// How many deliveries are shown one by one, at the start and after every silence.
const SHOWN: usize = 8;

/// How long the rest may take to arrive after the last order.
const DRAIN: Duration = Duration::from_secs(60);

/// How long the orders may take between two kills.
const PATIENCE: Duration = Duration::from_secs(120);

/// Shows walrelay at work on private throwaway servers.
#[derive(Parser)]
struct Arguments {
    /// The folder of the programs walrelay and shop [default: the one that this program was built in]
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Leave everything running at the end, until Ctrl-C
    #[arg(long)]
    keep: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let folder = arguments.programs.map_or_else(folder_of_programs, Ok)?;
    println!("Starting a private PostgreSQL and a private RabbitMQ ...");
    let (postgres, broker) = tokio::try_join!(
        Postgres::start(PostgresOptions::default()),
        RabbitMq::start(RabbitMqOptions::default())
    )?;
    let (database, vhost) = (postgres.database().await?, broker.vhost().await?);
    vhost.declare_route("outbox", "demo").await?;

    let builder = RelayBuilder::new(folder.join("walrelay"))
        .database(&database)
        .vhost(&vhost)
        .text("log.level", "info");
    let mut relay = builder.build()?;
    println!("$ walrelay setup\n{}", relay.setup().await?.stdout.trim_end());
    println!("$ walrelay run");
    relay.start()?;
    relay.wait_ready(Duration::from_secs(20)).await?;
    println!("$ shop order-service; shop inventory; shop coupons; shop risk");
    let mut programs = Programs::start(&folder.join("shop"), &database, &vhost, relay).await?;

    let recorder = Recorder::start(&vhost, "demo").await?;
    let bought = Bought::default();
    println!("\nPlacing {ORDERS} orders; clients ask twice, give up early and ask again:");
    let outcome = tokio::select! {
        outcome = story(&mut programs, &bought) => outcome,
        never = show(&recorder, &bought) => never,
    };
    let client = database.client().await?;
    let account = match outcome {
        Ok(()) => Account::settle(&client, &bought, &recorder, DRAIN).await?,
        Err(error) => {
            programs.print_logs();
            return Err(error);
        }
    };
    println!("\n{account}");
    if arguments.keep {
        println!(
            "Left running until Ctrl-C:\n  status page    http://127.0.0.1:{}/\n  order service  http://127.0.0.1:{}/orders\n  \
             database       {}\n  broker         {}",
            programs.relay.admin_port(),
            programs.port,
            database.url(),
            vhost.uri()
        );
        tokio::signal::ctrl_c().await.context("wait for Ctrl-C")?;
    }
    programs.relay.terminate()?;
    let status = programs.relay.wait_exit(Duration::from_secs(15)).await?;
    println!("$ kill -TERM: the relay ended with {status}");
    Ok(if account.is_sound() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// `target/debug` for `target/debug/examples/demo`.
fn folder_of_programs() -> anyhow::Result<PathBuf> {
    let demo = std::env::current_exe().context("find this program")?;
    let folder = demo.ancestors().nth(2).context("a folder of programs")?;
    for name in ["walrelay", "shop"] {
        anyhow::ensure!(
            folder.join(name).exists(),
            "no {name} beside this program: run `cargo build --bin walrelay -p walrelay -p walrelay-shop`, or name its folder by --programs"
        );
    }
    Ok(folder.to_owned())
}

/// Places the orders, and kills meanwhile.
async fn story(programs: &mut Programs, bought: &Bought) -> anyhow::Result<()> {
    let port = programs.port;
    let reach = |count: usize| {
        eventually("the orders", PATIENCE, move || {
            std::future::ready(bought.count() >= count)
        })
    };
    let crashes = async {
        reach(KILL_RELAY_AT).await?;
        println!("\n$ kill -KILL: the relay is dead; orders go on being placed");
        let killed = SystemTime::now();
        programs.relay.kill().await?;
        reach(START_RELAY_AT).await?;
        println!("$ walrelay run\n");
        programs.relay.start()?;
        programs.relay.wait_ready(Duration::from_secs(30)).await?;
        bought.outage.set(Some((killed, SystemTime::now())));
        reach(KILL_SHOP_AT).await?;
        println!(
            "\n$ kill -KILL: order service and inventory die in what they are doing, and are started again\n"
        );
        programs.kill_shop().await?;
        anyhow::Ok(())
    };
    tokio::try_join!(buy(port, ORDERS, bought), crashes)?;
    Ok(())
}

/// Prints the deliveries as they arrive: the first ones after every silence one by one, then a line a second. Never ends.
async fn show(recorder: &Recorder, bought: &Bought) -> anyhow::Result<()> {
    let mut seen = 0;
    let mut shown = 0;
    let mut last = Instant::now();
    let mut progress = Instant::now();
    loop {
        let more = recorder
            .wait_until("more", Duration::from_secs(3600), |deliveries| {
                deliveries.len() > seen
            })
            .await;
        more?;
        for delivery in recorder.deliveries_from(seen) {
            seen += 1;
            if delivery.received.saturating_duration_since(last) > Duration::from_millis(500) {
                shown = 0;
            }
            last = delivery.received;
            if shown < SHOWN {
                shown += 1;
                let body = String::from_utf8_lossy(&delivery.body);
                println!("  {:<18} {} {body}", delivery.routing_key, delivery.message_id);
                progress = Instant::now();
            } else if progress.elapsed() > Duration::from_secs(1) {
                progress = Instant::now();
                println!(
                    "  ... {seen} delivered, {} orders placed by {} requests so far",
                    bought.count(),
                    bought.requests()
                );
            }
        }
    }
}
