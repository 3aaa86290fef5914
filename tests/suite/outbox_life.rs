//! The whole life of an outbox under hard names, and of one whose partitions come and go.

use anyhow::{Context as _, Result, ensure};
use tokio_postgres::Client;
use walrelay_testbed::{Delivery, Recorder, Relay, eventually};

use crate::setup::stop;
use crate::world::{LONG, World, text};

/// A schema and a table whose names need quotes, as SQL writes them.
const TABLE: &str = "\"Sales Dept\".\"OutBox\"";

async fn insert(client: &Client, count: i32) -> Result<Vec<String>> {
    let sql = format!(
        "insert into {TABLE} (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'order', 42, 'OrderCreated', '{{}}' from generate_series(1, $1::int) returning id::text"
    );
    let rows = client.query(&sql, &[&count]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Waits until the table has so many rows, so many of them unsent.
async fn wait_for_left(client: &Client, table: &str, left: &str) -> Result<()> {
    let sql = format!("select count(*) || ' ' || count(*) filter (where sent_at is null) from {table}");
    let what = format!("{left} rows, all and unsent");
    eventually(&what, LONG, || async {
        text(client, &sql).await.is_ok_and(|found| found == left)
    })
    .await?;
    Ok(())
}

async fn done(relay: &Relay, arguments: &[&str]) -> Result<String> {
    let output = relay.run_command(arguments).await?;
    ensure!(output.code() == Some(0), "{arguments:?}: {}", output.stderr);
    Ok(output.stdout)
}

#[tokio::test]
async fn an_outbox_in_another_schema_under_mixed_case_names_lives_as_any_other() -> Result<()> {
    let world = World::new().await?;
    world.client.batch_execute("create schema \"Sales Dept\"").await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .outboxes(&[TABLE])
        .text("postgres.publication", "Wal Relay's")
        .build()?;
    // Set-up makes the table; then it streams and marks.
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let first = insert(&world.client, 10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    wait_for_left(&world.client, TABLE, "10 0").await?;

    // Replay, by id and by everything else.
    let table = "\"Sales Dept\".\"OutBox\"";
    let replayed = done(&relay, &["replay", "--table", table, "--id", &first[0]]).await?;
    assert_eq!(replayed, "1 confirmed, 0 failed\n");
    let arguments = ["replay", "--aggregate", "order/42", "--since", "1h", "--yes"];
    assert_eq!(done(&relay, &arguments).await?, "10 confirmed, 0 failed\n");
    recorder.wait_for(21, LONG).await?;

    // Purge.
    let age = format!(
        "update {TABLE} set sent_at = now() - interval '8 days', created_at = now() - interval '9 days'
                       where id <> '{}'",
        first[0]
    );
    world.client.batch_execute(&age).await?;
    let arguments = ["purge", "--yes", "--older-than", "7d", "--table", table];
    let purged = done(&relay, &arguments).await?;
    assert!(purged.contains('9'), "{purged}");
    wait_for_left(&world.client, TABLE, "1 0").await?;

    // The slot is gone, and two rows with it.
    stop(&mut relay).await?;
    world.database.drop_slots().await?;
    let missed = insert(&world.client, 2).await?;
    let recovered = done(&relay, &["recover", "--yes"]).await?;
    assert!(
        recovered.contains("2 unsent rows of \"Sales Dept\".\"OutBox\", to be sent first"),
        "{recovered}"
    );
    relay.start()?;
    recorder.wait_for_distinct(12, LONG).await?;
    world.wait_backfilled().await?;
    wait_for_left(&world.client, TABLE, "3 0").await?;
    let delivered = recorder.distinct_ids();
    assert!(missed.iter().all(|id| delivered.contains(id)));
    stop(&mut relay).await?;
    let torn_down = done(&relay, &["teardown", "--yes"]).await?;
    assert!(
        torn_down.contains("dropped  publication Wal Relay's"),
        "{torn_down}"
    );
    Ok(())
}

async fn last(recorder: &Recorder, count: u64) -> Result<Delivery> {
    let deliveries = recorder.wait_for(count, LONG).await?;
    deliveries.last().cloned().context("a delivery")
}

/// Columns are found by name, in each partition's own order; the marks and a replay go through the root.
#[tokio::test]
async fn a_partition_with_columns_in_another_order_joins_a_live_table() -> Result<()> {
    let world = World::new().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (id bigint primary key, aggregate_type text not null,
                 aggregate_id bigint not null, event_type text not null, payload jsonb not null,
                 sent_at timestamptz, created_at timestamptz not null default now()) partition by range (id);
             create table first_ones partition of outbox_events for values from (1) to (100)",
        )
        .await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    let insert = |id: i32| {
        format!(
            "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
             values ({id}, 'order', {id}, 'OrderCreated', '{{\"number\": {id}}}')"
        )
    };
    world.client.batch_execute(&insert(1)).await?;
    last(&recorder, 1).await?;

    // One with other places and a column that was dropped, another made in place.
    world
        .client
        .batch_execute(
            "create table second_ones (payload jsonb not null, event_type text not null, gone int, sent_at timestamptz,
                 aggregate_id bigint not null, created_at timestamptz not null default now(),
                 aggregate_type text not null, id bigint not null);
             alter table second_ones drop column gone;
             alter table outbox_events attach partition second_ones for values from (100) to (200);
             create table third_ones partition of outbox_events for values from (200) to (300)",
        )
        .await?;
    for (count, id) in [(2, 100), (3, 200), (4, 101)] {
        world.client.batch_execute(&insert(id)).await?;
        let came = last(&recorder, count).await?;
        assert_eq!(came.message_id, id.to_string());
        assert_eq!(came.body, format!("{{\"number\": {id}}}").as_bytes());
        assert_eq!(came.routing_key, "order.OrderCreated");
    }
    wait_for_left(&world.client, "outbox_events", "4 0").await?;
    let replayed = done(&relay, &["replay", "--id", "100", "--id", "101"]).await?;
    assert_eq!(replayed, "2 confirmed, 0 failed\n");
    assert_eq!(last(&recorder, 6).await?.body, b"{\"number\": 101}");

    // A partition leaves, and the others go on.
    world
        .client
        .batch_execute("alter table outbox_events detach partition first_ones; drop table first_ones")
        .await?;
    world.client.batch_execute(&insert(102)).await?;
    assert_eq!(last(&recorder, 7).await?.message_id, "102");
    wait_for_left(&world.client, "outbox_events", "4 0").await?;
    Ok(())
}
