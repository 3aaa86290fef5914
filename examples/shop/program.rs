//! The command line of the shop's four programs, and their start.

use std::net::SocketAddr;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_postgres::Config;

use crate::consumer::{self, Source};
use crate::coupons::Coupons;
use crate::inventory::Inventory;
use crate::order_service;
use crate::risk::Risk;

/// A small shop around walrelay.
#[derive(Debug, Parser)]
pub struct Arguments {
    /// The database, as a libpq URL or key=value string
    #[arg(
        long,
        env = "SHOP_DATABASE_URL",
        default_value = "postgres://postgres@localhost/shop"
    )]
    database: Config,
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Program {
    /// Takes orders over HTTP and writes them with their events
    OrderService {
        /// Where to listen
        #[arg(long, env = "SHOP_LISTEN", default_value = "127.0.0.1:8080")]
        listen: SocketAddr,
    },
    /// Takes what was ordered out of the stock
    Inventory(Broker),
    /// Gives coupons for paid orders
    Coupons(Broker),
    /// Counts orders, declined cards and refunds
    Risk(Broker),
}

#[derive(Debug, Args)]
struct Broker {
    /// The broker
    #[arg(long, env = "SHOP_BROKER_URI", default_value = "amqp://guest@localhost/%2f")]
    broker: String,
    /// The exchange that walrelay publishes to
    #[arg(long, default_value = "outbox")]
    exchange: String,
    /// How often a message is delivered before it goes to the dead letters
    #[arg(long, default_value_t = 20)]
    delivery_limit: u32,
}

impl From<Broker> for Source {
    fn from(broker: Broker) -> Source {
        Source {
            uri: broker.broker,
            exchange: broker.exchange,
            delivery_limit: broker.delivery_limit,
        }
    }
}

/// Runs the program that is asked for, until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot start. Once it runs, it outlives the absence of whatever it needs.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let Arguments { database, program } = arguments;
    let stop = asked_to_stop()?;
    match program {
        Program::OrderService { listen } => {
            let listener = TcpListener::bind(listen)
                .await
                .with_context(|| format!("listen on {listen}"))?;
            tracing::info!(%listen, "taking orders");
            order_service::serve(listener, &database, stop).await?;
        }
        Program::Inventory(broker) => consumer::run(&Inventory, &database, &broker.into(), stop).await,
        Program::Coupons(broker) => consumer::run(&Coupons, &database, &broker.into(), stop).await,
        Program::Risk(broker) => consumer::run(&Risk, &database, &broker.into(), stop).await,
    }
    Ok(())
}

/// Ends at SIGINT or SIGTERM.
fn asked_to_stop() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
