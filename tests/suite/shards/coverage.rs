//! What doctor says of a table that is shared.

use anyhow::Result;
use serde_json::Value;
use walrelay_testbed::Relay;

use super::{relay_of, world};
use crate::world::World;

/// What doctor has found about the shards of the table: check, outcome, cause and words; and what mends it.
async fn found(world: &World, relay: &Relay) -> Result<Vec<String>> {
    let output = relay.run_command(&["doctor", "--json"]).await?;
    let said: Value = serde_json::from_str(&output.stdout)?;
    let groups = said["groups"].as_array().cloned().unwrap_or_default();
    let mut lines = Vec::new();
    for group in groups {
        if group["about"] != "shards of public.outbox_events" {
            continue;
        }
        for finding in group["findings"].as_array().into_iter().flatten() {
            let text = |key: &str| finding[key].as_str().unwrap_or("-").to_owned();
            let line = format!(
                "{}: {}: {} [{}]",
                text("check"),
                text("cause"),
                text("found"),
                text("fix")
            );
            lines.push(line.replace(world.database.name(), "DB"));
        }
    }
    Ok(lines)
}

#[tokio::test]
async fn doctor_says_which_shard_this_is_and_which_ones_nobody_delivers() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let relays = [
        relay_of(&world, "first", "0/3").build()?,
        relay_of(&world, "second", "1/3").build()?,
        relay_of(&world, "third", "2/3").build()?,
    ];
    relays[0].setup().await?;
    relays[1].setup().await?;
    assert_eq!(
        found(&world, &relays[0]).await?,
        [
            "shard: -: 0/3, by the hash of aggregate_id; it also takes rows that have none [-]",
            "coverage: shard_missing: nobody delivers shard 2/3: no slot was set up [walrelay setup --shard 2/3]",
            "other cuts: -: no slot of another cut brings these rows [-]",
        ]
    );
    relays[2].setup().await?;
    assert_eq!(
        found(&world, &relays[1]).await?,
        [
            "shard: -: 1/3, by the hash of aggregate_id [-]",
            "coverage: -: each of the 3 shards has its slot [-]",
            "other cuts: -: no slot of another cut brings these rows [-]",
        ]
    );
    // A publication that nobody reads any more.
    world
        .database
        .execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like 'first_%' \
                  and database = current_database()")
        .await?;
    assert!(found(&world, &relays[1]).await?[1].contains("nobody delivers shard 0/3"));
    Ok(())
}

#[tokio::test]
async fn doctor_names_the_slots_that_bring_the_same_rows() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let relay = |name, shard| {
        relay_of(&world, name, shard)
            .extra("after_publish = \"keep\"")
            .build()
    };
    let relays = [relay("first", "0/2")?, relay("second", "1/2")?];
    let double = relay("double", "1/2")?;
    for relay in relays.iter().chain([&double]) {
        relay.setup().await?;
    }
    assert_eq!(
        found(&world, &relays[0]).await?[1],
        "coverage: shards_overlap: shard 1/2 is brought by the slots double_DB, second_DB [-]"
    );

    let whole = relay("whole", "")?;
    let setup = whole.run_command(&["setup", "--backfill", "none"]).await?;
    assert_eq!(setup.code(), Some(0), "{setup:?}");
    assert_eq!(
        found(&world, &relays[0]).await?[2],
        "other cuts: shards_overlap: slot whole_DB brings all rows too [-]"
    );
    assert_eq!(
        found(&world, &whole).await?,
        [
            "shard: -: all rows [-]",
            "coverage: -: all rows are this relay's [-]",
            "other cuts: shards_overlap: slot first_DB brings shard 0/2 too; slot double_DB brings shard 1/2 too; slot \
             second_DB brings shard 1/2 too [-]",
        ]
    );
    Ok(())
}
