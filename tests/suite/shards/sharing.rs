//! Each event goes through one relay, and an aggregate stays with its own.

use std::collections::{HashMap, HashSet};

use anyhow::Result;

use super::{Cut, by_hash, world, write};
use crate::marks::wait_for_rows;
use crate::setup::said;
use crate::world::{LONG, text};

const TABLES: [(&str, &str, &str, &str); 3] = [
    (
        "outbox_events",
        "bigint",
        "(n % 40) - 20",
        "hashint8(aggregate_id)",
    ),
    (
        "texts",
        "text",
        "'customer ' || (n % 40)",
        "hashtext(aggregate_id)",
    ),
    (
        "uuids",
        "uuid",
        "md5((n % 40)::text)::uuid",
        "uuid_hash(aggregate_id)",
    ),
];

/// R25, R20.
#[tokio::test]
async fn r25_each_event_goes_through_one_of_four_relays_and_an_aggregate_stays_with_it() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    for (table, kind, ..) in TABLES {
        let sql = format!(
            "create table {table} (id uuid primary key, aggregate_type text not null, aggregate_id {kind} not null,
             event_type text not null, payload jsonb not null, sent_at timestamptz,
             created_at timestamptz not null default now())"
        );
        world.client.batch_execute(&sql).await?;
    }
    let mut cut = Cut::new(&world, 4, &TABLES.map(|(table, ..)| table)).await?;
    cut.set_up().await?;
    cut.start().await?;
    for (table, _, aggregate, _) in TABLES {
        // Transactions with rows of all shards, and of one.
        let rows = |from, to| {
            format!(
                "insert into {table} (id, aggregate_type, aggregate_id, event_type, payload)
                 select gen_random_uuid(), 'order', {aggregate}, 'OrderCreated', '{{}}' from generate_series({from}, {to}) n"
            )
        };
        world.client.batch_execute(&rows(1, 160)).await?;
        for number in 1..=40 {
            world.client.batch_execute(&rows(number, number)).await?;
        }
    }
    let delivered = cut.delivered(600).await?;
    assert_eq!(delivered.len(), 600);
    for (table, _, _, hash) in TABLES {
        let expected = by_hash(&world, table, hash, 4).await?;
        assert_eq!(expected.len(), 200);
        for (id, shard) in &expected {
            assert_eq!(delivered.get(id), Some(shard), "{id} of {table}");
        }
        let used: HashSet<_> = expected.values().collect();
        assert_eq!(used.len(), 4, "{table} has no row of some shard");
        // Each has marked its own.
        let left = format!("select count(*)::text from {table} where sent_at is null");
        walrelay_testbed::eventually("all rows to be marked", LONG, async || {
            text(&world.client, &left).await.is_ok_and(|left| left == "0")
        })
        .await?;
    }
    Ok(())
}

/// R25: a filter of NULL lets nothing pass, so rows without an aggregate need a shard that takes them.
#[tokio::test]
async fn r25_a_row_without_an_aggregate_is_held_by_the_first_shard_and_by_no_other() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let sql = "create table outbox_events (id uuid primary key, aggregate_type text not null, aggregate_id varchar(20),
               event_type text not null, payload jsonb not null, sent_at timestamptz)";
    world.client.batch_execute(sql).await?;
    let mut cut = Cut::new(&world, 2, &["outbox_events"]).await?;
    cut.set_up().await?;
    cut.start().await?;
    let insert = |aggregate: &str| {
        format!(
            "insert into outbox_events select gen_random_uuid(), 'order', {aggregate}, 'OrderCreated', '{{}}' \
             from generate_series(1, 20) n"
        )
    };
    world.client.batch_execute(&insert("'a' || n")).await?;
    let first = cut.delivered(20).await?;
    world.client.batch_execute(&insert("null")).await?;
    let held = cut.relays[0]
        .wait_readiness("an invalid event to be held", LONG, |readiness| {
            readiness.json["delivery"]["cause"] == "event_invalid"
        })
        .await?;
    assert!(held.text.contains("aggregate_id"), "{}", held.text);
    world.client.batch_execute(&insert("'b' || n")).await?;
    let of = by_hash(&world, "outbox_events", "hashtext(aggregate_id)", 2).await?;
    let second = of.values().filter(|shard| **shard == 1).count();
    walrelay_testbed::eventually("the other shard to go on", LONG, || {
        std::future::ready(cut.recorders[1].distinct_count() == second)
    })
    .await?;
    assert!(cut.relays[1].ready().await?.is_ready());
    let by_first = first.values().filter(|shard| **shard == 0).count();
    assert_eq!(cut.recorders[0].distinct_count(), by_first);
    Ok(())
}

/// The filter stands on the root and is applied to rows of leaves, whatever the order of their columns.
#[tokio::test]
async fn a_partitioned_table_is_divided_by_the_filter_on_its_root() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let columns = "id uuid not null, aggregate_type text not null, aggregate_id bigint not null, event_type text not null, \
                   payload jsonb not null";
    let turned = "payload jsonb not null, aggregate_id bigint not null, id uuid not null, event_type text not null, \
                  aggregate_type text not null";
    world
        .client
        .batch_execute(&format!(
            "create table outbox_events ({columns}) partition by hash (id); create table one ({columns}); \
             create table two ({turned}); \
             alter table outbox_events attach partition one for values with (modulus 2, remainder 0); \
             alter table outbox_events attach partition two for values with (modulus 2, remainder 1)"
        ))
        .await?;
    let mut cut = Cut::new(&world, 2, &["outbox_events"]).await?;
    cut.set_up().await?;
    cut.start().await?;
    write(&world, 60, 30).await?;
    let delivered = cut.delivered(60).await?;
    let of = by_hash(&world, "outbox_events", "hashint8(aggregate_id)", 2).await?;
    assert_eq!(delivered, of);
    assert_eq!(of.values().collect::<HashSet<_>>().len(), 2);
    Ok(())
}

/// R22: of the rows that are there, each shard sends its own.
#[tokio::test]
async fn r22_of_rows_that_are_there_already_each_shard_notes_its_own() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    world.database.execute(walrelay_outbox_table()).await?;
    write(&world, 60, 30).await?;
    let mut cut = Cut::new(&world, 2, &["outbox_events"]).await?;
    let expected = by_hash(&world, "outbox_events", "hashint8(aggregate_id)", 2).await?;
    for (number, output) in cut.set_up().await?.iter().enumerate() {
        let count = expected.values().filter(|shard| **shard == number).count();
        let said = said(&world, output)?;
        let copied =
            format!("copied   {count} unsent rows of public.outbox_events, to be sent first, by created_at");
        assert!(said.contains(&copied), "{said}");
        let created = format!("created  publication shard_{number} of shard {number}/2");
        assert!(said.contains(&created), "{said}");
    }
    // What is written now comes by the streams.
    write(&world, 20, 20).await?;
    cut.start().await?;
    let delivered = cut.delivered(80).await?;
    let of = by_hash(&world, "outbox_events", "hashint8(aggregate_id)", 2).await?;
    assert_eq!(delivered, of);
    wait_for_rows(&world.client, 80, 0).await?;
    let owners: HashMap<String, String> = world
        .client
        .query("select shard, slot from walrelay.mark_owners", &[])
        .await?
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let slot = |number| format!("shard_{number}_{}", world.database.name());
    let own = [("0/2".to_owned(), slot(0)), ("1/2".to_owned(), slot(1))];
    assert_eq!(owners, HashMap::from(own));
    Ok(())
}

fn walrelay_outbox_table() -> &'static str {
    include_str!("../../../migrations/outbox_table.sql")
}
