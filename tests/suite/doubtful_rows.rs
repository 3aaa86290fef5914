//! Rows that look as if they had been dealt with, or had not: not visible yet, skipped under the same id elsewhere, written while
//! something else was published, or not to be marked at all (R1, R18, R20, R21).

use anyhow::Result;
use walrelay_testbed::{Postgres, PostgresOptions, eventually, shared_rabbitmq};

use crate::marks::wait_for_rows;
use crate::setup::stop;
use crate::world::{LONG, World, text, wal_end};

/// With synchronous replication a commit is streamed when it is on this server's disk, and seen when the standby has answered.
#[tokio::test]
async fn r18_a_row_that_is_published_before_it_is_visible_is_marked_later() -> Result<()> {
    let options = PostgresOptions::default()
        .setting("synchronous_commit", "local")
        .setting("synchronous_standby_names", "nobody");
    let postgres = Postgres::start(options).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let recorder = world.recorder().await?;
    let _relay = world.running().await?;
    let writer = world.database.client().await?;
    let writing = tokio::spawn(async move {
        let sql = "set synchronous_commit = on; \
                   insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload) \
                   select gen_random_uuid(), 'order', i, 'OrderCreated', '{}' from generate_series(1, 5) i";
        writer.batch_execute(sql).await
    });
    recorder.wait_for_distinct(5, LONG).await?;
    // The position waits for the marks, so a batch has been tried when it moves.
    world.wait_flushed(wal_end(&world.client).await?).await?;
    assert!(!writing.is_finished(), "no standby has answered");
    wait_for_rows(&world.client, 0, 0).await?;

    world
        .client
        .batch_execute("alter system set synchronous_standby_names = ''")
        .await?;
    world.client.batch_execute("select pg_reload_conf()").await?;
    writing.await??;
    wait_for_rows(&world.client, 5, 0).await?;
    Ok(())
}

const ID: &str = "7b7f5c1e-0000-4000-8000-000000000000";

async fn insert(world: &World, table: &str, id: &str, aggregate_type: &str) -> Result<()> {
    let sql = format!(
        "insert into {table} (id, aggregate_type, aggregate_id, event_type, payload) \
         values ('{id}', '{aggregate_type}', 1, 'OrderCreated', '{{}}')"
    );
    Ok(world.client.batch_execute(&sql).await?)
}

#[tokio::test]
async fn r1_a_skip_in_one_table_keeps_no_row_of_another_from_being_recovered() -> Result<()> {
    let world = World::for_orders().await?;
    let recorder = world.recorder().await?;
    world.relay().build()?.setup().await?;
    let like = "create table other_events (like outbox_events including all)";
    world.client.batch_execute(like).await?;
    let extra = "[[outbox]]\ntable = 'public.other_events'";
    let mut relay = world.relay().extra(extra).start().await?;
    insert(&world, "outbox_events", ID, "nobody").await?;
    relay.wait_not_ready(LONG).await?;
    let skip = relay.run_command(&["skip", ID, "--reason", "a test"]).await?;
    assert_eq!(skip.code(), Some(0), "{}", skip.stderr);
    let settled = "select coalesce(max(settled_outbox), '') from walrelay.skips where settled_at is not null";
    eventually("the skip to be on record", LONG, async || {
        text(&world.client, settled)
            .await
            .is_ok_and(|outbox| outbox == "public.outbox_events")
    })
    .await?;
    stop(&mut relay).await?;
    world.database.drop_slots().await?;
    insert(&world, "other_events", ID, "order").await?;

    let recover = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!(recover.code(), Some(0), "{}", recover.stderr);
    relay.start()?;
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.count(), 1, "the other table's row alone");
    Ok(())
}

#[tokio::test]
async fn r21_a_row_written_while_inserts_were_not_published_is_not_swept() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    world.commit_events(1).await?;
    wait_for_rows(&world.client, 1, 0).await?;
    stop(&mut relay).await?;
    let publish = async |what: &str| {
        let sql = format!("alter publication walrelay set (publish = '{what}')");
        world.client.batch_execute(&sql).await
    };
    publish("update").await?;
    insert(&world, "outbox_events", ID, "order").await?;
    publish("insert").await?;
    let recover = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!(recover.code(), Some(0), "{}", recover.stderr);
    // As a crash leaves it.
    let sql = "update walrelay.state set settled_complete = false";
    world.client.batch_execute(sql).await?;

    relay.start()?;
    world.commit_events(1).await?;
    relay
        .wait_for_log("the sweep", LONG, |line| line.contains("whose marks were lost"))
        .await?;
    wait_for_rows(&world.client, 3, 1).await?;
    assert_eq!(recorder.distinct_count(), 2, "it was never published");
    Ok(())
}

/// R20: the table's owner has a rule of their own, which one row breaks when it gets its mark.
#[tokio::test]
async fn a_row_that_cannot_be_marked_keeps_no_other_from_its_mark() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let rule = format!("alter table outbox_events add check (sent_at is null or id <> '{ID}')");
    world.client.batch_execute(&rule).await?;
    relay.start()?;
    world.client.batch_execute("begin").await?;
    world.commit_events(5).await?;
    insert(&world, "outbox_events", ID, "order").await?;
    world.commit_events(5).await?;
    world.client.batch_execute("commit").await?;
    recorder.wait_for_distinct(11, LONG).await?;
    wait_for_rows(&world.client, 11, 1).await?;
    let told = relay
        .wait_readiness("the failure", LONG, |ready| !ready.json["degraded"].is_null())
        .await?;
    assert!(told.text.contains("check constraint"), "{}", told.text);
    assert!(
        !told.text.contains("OrderCreated"),
        "no row is quoted: {}",
        told.text
    );
    Ok(())
}
