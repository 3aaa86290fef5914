//! `postgres.ignore_tables`: what else the publication may hold (R4).

use anyhow::{Context as _, Result};

use crate::complaint::{Part, complains};
use crate::world::{LONG, World, insert_event, tx_seq, wal_end};

/// R1, R4.
#[tokio::test]
async fn a_row_of_a_published_table_halts_delivery_unless_it_is_listed_and_is_counted_then() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let publish = "create schema audit; create table audit.\"Log\" (id int primary key);
         alter publication walrelay add table audit.\"Log\"";
    world.client.batch_execute(publish).await?;
    let recovered = relay.run_command(&["recover"]).await?;
    assert_eq!(recovered.code(), Some(0), "{}", recovered.stderr);
    relay.start()?;
    relay.wait_ready(LONG).await?;

    world.client.batch_execute("begin").await?;
    let sql = "insert into audit.\"Log\" select generate_series(1, 3)";
    world.client.batch_execute(sql).await?;
    let event = insert_event(&world.client, 1).await?;
    world.client.batch_execute("commit").await?;
    complains(
        &mut relay,
        Part::Database,
        "table_unknown",
        &["audit.Log", "not in the configuration"],
    )
    .await?;
    assert_eq!(recorder.count(), 0);

    relay.kill().await?;
    let mark = relay.log_mark();
    relay.reconfigure(|relay| relay.set("postgres.ignore_tables", r#"['audit."Log"']"#))?;
    relay.start()?;
    recorder.wait_for_distinct(1, LONG).await?;
    let delivery = recorder.deliveries().into_iter().next().context("a delivery")?;
    assert_eq!(delivery.message_id, event);
    assert_eq!(tx_seq(&delivery), Some(3));

    // Rows of nothing else hold nothing up either.
    world
        .client
        .batch_execute("insert into audit.\"Log\" values (4)")
        .await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    let warned = relay
        .log()
        .iter()
        .skip(mark)
        .any(|line| line.contains("will halt delivery"));
    assert!(!warned, "warned of a table that is to be ignored");
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_ignored_total", &[]), Some(4.0));
    assert_eq!(metrics.value("walrelay_events_read_total", &[]), Some(1.0));
    Ok(())
}
