//! PostgreSQL: slot, publication, table. Each is set up, then spoilt, then mended.

use anyhow::{Result, ensure};
use walrelay_testbed::Relay;

use super::stays_unready;
use crate::complaint::{Part, complains};
use crate::world::{LONG, World};

#[tokio::test]
async fn a_slot_of_another_plugin_is_refused_until_it_is_gone() -> Result<()> {
    let world = World::new().await?;
    let slot = world.slot();
    let create = format!("select pg_create_logical_replication_slot('{slot}', 'test_decoding')");
    world.database.execute(&create).await?;
    let mut relay = world.relay().build()?;
    let output = relay.run_command(&["setup"]).await?;
    ensure!(
        output.code() == Some(1) && output.stderr.contains("test_decoding"),
        "{output:?}"
    );
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "slot_foreign",
        &[&slot, "test_decoding", "pgoutput"],
    )
    .await?;
    world.database.drop_slots().await?;
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_physical_slot_or_one_of_another_database_is_refused() -> Result<()> {
    let world = World::new().await?;
    let other = World::without_exchange().await?;
    let physical = format!("physical_{}", world.database.name());
    world
        .database
        .execute(&format!(
            "select pg_create_physical_replication_slot('{physical}')"
        ))
        .await?;
    let mut relay = world.relay().slot(&physical).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "slot_foreign",
        &[&physical, "physical"],
    )
    .await?;

    other.relay().build()?.setup().await?;
    let mut relay = world.relay().slot(&other.slot()).build()?;
    relay.start()?;
    let words = [&*other.slot(), other.database.name(), world.database.name()];
    complains(&mut relay, Part::Database, "slot_foreign", &words).await?;
    world
        .database
        .execute(&format!("select pg_drop_replication_slot('{physical}')"))
        .await
        .map_err(Into::into)
}

#[tokio::test]
async fn a_table_that_is_not_published_heals_when_it_is_added() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay drop table outbox_events",
        ("table_not_published", &["public.outbox_events", "walrelay"]),
        "alter publication walrelay add table outbox_events",
    )
    .await
}

#[tokio::test]
async fn a_missing_publication_is_named() -> Result<()> {
    spoilt_publication(
        "drop publication walrelay",
        ("publication_missing", &["walrelay"]),
        // Only because nothing was written meanwhile: a slot does not see a publication that is younger.
        "create publication walrelay for table outbox_events with (publish = 'insert')",
    )
    .await
}

#[tokio::test]
async fn a_publication_without_inserts_is_refused() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay set (publish = 'update')",
        ("publication_unfit", &["walrelay", "insert"]),
        "alter publication walrelay set (publish = 'insert')",
    )
    .await
}

#[tokio::test]
async fn a_row_filter_is_refused() -> Result<()> {
    if World::new().await?.major().await? < 15 {
        // There are none yet.
        return Ok(());
    }
    spoilt_publication(
        "alter publication walrelay set table outbox_events where (aggregate_id > 5)",
        ("publication_unfit", &["row filter", "public.outbox_events"]),
        "alter publication walrelay set table outbox_events",
    )
    .await
}

#[tokio::test]
async fn an_unlogged_table_is_refused() -> Result<()> {
    spoilt_publication(
        "alter publication walrelay drop table outbox_events; alter table outbox_events set unlogged",
        ("table_unlogged", &["public.outbox_events", "WAL"]),
        "alter table outbox_events set logged; alter publication walrelay add table outbox_events",
    )
    .await
}

#[tokio::test]
async fn a_missing_table_is_named() -> Result<()> {
    spoilt(
        "alter table outbox_events rename to hidden",
        ("table_missing", &["public.outbox_events"]),
        "alter table hidden rename to outbox_events",
    )
    .await
}

#[tokio::test]
async fn a_missing_column_is_named() -> Result<()> {
    spoilt(
        "alter table outbox_events rename column event_type to kind",
        ("column_missing", &["public.outbox_events", "event_type"]),
        "alter table outbox_events rename column kind to event_type",
    )
    .await
}

#[tokio::test]
async fn a_payload_that_no_body_can_be_made_of_is_refused() -> Result<()> {
    spoilt(
        "alter table outbox_events alter column payload type int using 1",
        ("payload_type", &["public.outbox_events", "payload", "integer"]),
        "alter table outbox_events alter column payload type text",
    )
    .await
}

#[tokio::test]
async fn a_column_that_goes_in_mid_stream_is_named_once_and_readiness_does_not_flap() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    world.commit_events(1).await?;
    // The row stays in the log as it was written, so only a person can help.
    world
        .database
        .execute(
            "alter table outbox_events rename column event_type to kind;
             insert into outbox_events (id, aggregate_type, aggregate_id, kind, payload)
             values (gen_random_uuid(), 'order', 1, 'OrderCreated', '{}');
             alter table outbox_events rename column kind to event_type",
        )
        .await?;
    complains(&mut relay, Part::Database, "column_missing", &["event_type"]).await?;
    stays_unready(&mut relay, "column_missing").await
}

#[tokio::test]
async fn a_further_cause_of_the_same_kind_is_said_too() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    world
        .database
        .execute("alter table outbox_events rename id to a; alter table outbox_events rename payload to b")
        .await?;
    relay.start()?;
    complains(&mut relay, Part::Database, "column_missing", &["`id`"]).await?;
    world
        .database
        .execute("alter table outbox_events rename a to id")
        .await?;
    let told = |line: &str| line.contains("\"ERROR\"") && line.contains("`payload`");
    relay.wait_for_log("the next missing column", LONG, told).await?;
    Ok(())
}

/// Sets up, spoils by SQL, sees the relay name it, mends by SQL, sees events pass without a restart.
async fn spoilt(spoil: &str, complaint: (&str, &[&str]), mend: &str) -> Result<()> {
    let (world, mut relay) = named_when_spoilt(spoil, complaint).await?;
    world.database.execute(mend).await?;
    flows_again(&world, &mut relay).await
}

/// The same for what the guard watches: mended, it is not what set-up left, so a person has to say that it will do (R5).
async fn spoilt_publication(spoil: &str, complaint: (&str, &[&str]), mend: &str) -> Result<()> {
    let (world, mut relay) = named_when_spoilt(spoil, complaint).await?;
    world.database.execute(mend).await?;
    relay
        .wait_readiness("the guard's word", LONG, |readiness| {
            readiness.json["database"]["cause"] == "publication_changed"
        })
        .await?;
    let recovered = relay.run_command(&["recover"]).await?;
    anyhow::ensure!(
        recovered.code() == Some(0),
        "recover failed: {}",
        recovered.stderr
    );
    flows_again(&world, &mut relay).await
}

async fn named_when_spoilt(spoil: &str, (cause, words): (&str, &[&str])) -> Result<(World, Relay)> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    world.database.execute(spoil).await?;
    relay.start()?;
    complains(&mut relay, Part::Database, cause, words).await?;
    Ok((world, relay))
}

async fn flows_again(world: &World, relay: &mut Relay) -> Result<()> {
    relay.wait_ready(LONG).await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    Ok(())
}
