//! `shop order-service`, `shop inventory`, `shop coupons` and `shop risk`.

use clap::Parser as _;
use walrelay_shop::program::{Arguments, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    run(Arguments::parse()).await
}
