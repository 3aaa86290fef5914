//! A server that is set back to an older state of itself, on the same timeline, while the relay lives: R2, R22.

use std::collections::HashSet;

use anyhow::Result;
use walrelay_testbed::{Postgres, PostgresOptions, StopMode, shared_rabbitmq};

use crate::world::{LONG, World};

/// The numbers of the rows start over, so a relay that goes by them would strike rows out that were never sent.
#[tokio::test]
async fn r22_rows_noted_anew_on_a_server_that_was_set_back_are_all_sent() -> Result<()> {
    let mut postgres = Postgres::start(PostgresOptions::default()).await?;
    let mut world = World::on(&postgres, shared_rabbitmq().await?)
        .await?
        .with_old_table()
        .await?;
    postgres.stop(StopMode::Fast).await?;
    postgres.save()?;
    postgres.start_again().await?;

    world.client = world.database.client().await?;
    let first = world.old_rows(20).await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for_distinct(first.len(), LONG).await?;
    world.wait_backfilled().await?;
    relay.wait_ready(LONG).await?;

    postgres.stop(StopMode::Fast).await?;
    postgres.set_back()?;
    postgres.start_again().await?;
    world.client = world.database.client().await?;
    let second = world.old_rows(15).await?;
    relay.setup().await?;
    recorder
        .wait_for_distinct(first.len() + second.len(), LONG)
        .await?;
    world.wait_backfilled().await?;
    let streamed = world.commit_events(1).await?;
    recorder
        .wait_for_distinct(first.len() + second.len() + 1, LONG)
        .await?;
    let expected: HashSet<String> = [first, second, streamed].into_iter().flatten().collect();
    assert_eq!(recorder.distinct_ids(), expected);
    relay.wait_ready(LONG).await?;
    Ok(())
}
