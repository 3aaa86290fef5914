//! Broken slots, publications and tables.

use anyhow::Result;

use walrelay_testbed::shared_rabbitmq;

use super::{said, set_up, world};
use crate::recover::impatient_server;
use crate::world::World;

#[tokio::test]
async fn nothing_is_set_up() -> Result<()> {
    let world = world().await?;
    let relay = world.relay().build()?;
    insta::assert_snapshot!("nothing_set_up", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_slot_is_lost() -> Result<()> {
    let postgres = impatient_server().await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    world.lose_slot().await?;
    let said = said(&world, &relay, &[]).await?;
    let lost = "  ✗ slot: the replication slot `slot_DB` is lost: the server removed WAL that it needed
      → run `walrelay recover`: it makes the slot anew and sends what the tables still hold
        walrelay recover
";
    assert!(said.contains(lost), "{said}");
    assert!(said.contains("1 failure, 0 warnings"), "{said}");
    Ok(())
}

#[tokio::test]
async fn the_slot_is_of_another_plugin() -> Result<()> {
    let (world, relay) = set_up().await?;
    world.database.drop_slots().await?;
    let gone = said(&world, &relay, &[]).await?;
    assert!(gone.contains("\n        walrelay recover\n"), "{gone}");
    let sql = format!(
        "select pg_create_logical_replication_slot('slot_{}', 'test_decoding')",
        world.database.name()
    );
    world.client.batch_execute(&sql).await?;
    insta::assert_snapshot!("slot_foreign", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_publication_was_changed() -> Result<()> {
    let (world, relay) = set_up().await?;
    world
        .client
        .batch_execute(
            "create table orders (id int primary key);
             alter publication walrelay set (publish = 'insert, update, truncate');
             alter publication walrelay add table orders",
        )
        .await?;
    insta::assert_snapshot!("publication_changed", said(&world, &relay, &[]).await?);
    world
        .client
        .batch_execute("alter publication walrelay set (publish = 'update'); alter publication walrelay drop table outbox_events")
        .await?;
    insta::assert_snapshot!("publication_unfit", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_publication_filters_rows_and_columns() -> Result<()> {
    let (world, relay) = set_up().await?;
    if world.major().await? < 15 {
        return Ok(());
    }
    let sql =
        "alter publication walrelay set table outbox_events (id, payload) where (aggregate_type = 'order')";
    world.client.batch_execute(sql).await?;
    insta::assert_snapshot!("publication_filters", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_table_is_unlogged_and_lacks_a_column() -> Result<()> {
    let world = world().await?;
    world
        .client
        .batch_execute(
            "create unlogged table outbox_events (id uuid, aggregate_type text, aggregate_id text, payload xml);
             create publication walrelay",
        )
        .await?;
    let relay = world
        .relay()
        .text("rabbitmq.routing_key", "{tenant}.{event_type}")
        .build()?;
    insta::assert_snapshot!("table_unfit", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn the_table_is_partitioned_and_published_by_its_leaves() -> Result<()> {
    let world = world().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (id uuid not null, aggregate_type text not null, aggregate_id text not null,
               event_type text not null, payload jsonb not null, created_at timestamptz not null default now())
               partition by range (created_at);
             create table outbox_2026 partition of outbox_events for values from ('2026-01-01') to ('2028-01-01')",
        )
        .await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let sql = "alter publication walrelay set (publish_via_partition_root = false)";
    world.client.batch_execute(sql).await?;
    insta::assert_snapshot!("partitions", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn rows_cannot_be_marked_and_marks_are_dear() -> Result<()> {
    let world = world().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (id uuid not null, aggregate_type text not null, aggregate_id text not null,
               event_type text, payload bytea not null, sent_at timestamptz);
             create index unsent on outbox_events (event_type) where sent_at is null",
        )
        .await?;
    let relay = world.relay().build()?;
    relay.run_command(&["setup", "--backfill", "none"]).await?;
    insta::assert_snapshot!("marks", said(&world, &relay, &[]).await?);
    Ok(())
}

#[tokio::test]
async fn row_security_hides_rows_and_old_ones_cannot_be_deleted() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let role = format!("role_{}", world.database.name());
    world
        .client
        .batch_execute(&format!(
            "create role {role} login replication; alter table outbox_events enable row level security;
             grant usage on schema walrelay to {role}; grant select, insert, update, delete on all tables in schema walrelay to {role};
             grant select, update on outbox_events to {role}"
        ))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    relay.reconfigure(|relay| relay.postgres_url(&url).extra("retention.keep_sent = \"7d\""))?;
    insta::assert_snapshot!("row_security", said(&world, &relay, &[]).await?);
    Ok(())
}
