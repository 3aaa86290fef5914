//! The main path: WAL, event, message, confirm, acknowledged position.

use anyhow::Result;

use crate::world::{LONG, World};

#[tokio::test]
async fn an_event_survives_the_relays_death_and_is_delivered() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;

    let before = world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    relay.kill().await?;
    let after = world.commit_events(1).await?;
    relay.start()?;
    recorder.wait_for_distinct(2, LONG).await?;

    let delivered = recorder.distinct_ids();
    assert!(before.iter().chain(&after).all(|id| delivered.contains(id)));
    Ok(())
}
