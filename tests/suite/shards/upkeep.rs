//! What recovers and marks rows by SQL keeps to the shard's own.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use walrelay::postgres::marks::{plan, sweep};
use walrelay::postgres::{Connector, ControlSession, QualifiedTable, Source};
use walrelay_testbed::eventually;

use super::{Cut, by_hash, ids, relay_of, world, write};
use crate::complaint::{Part, complains};
use crate::marks::wait_for_rows;
use crate::setup::{last_line, said, stop};

const HASH: &str = "hashint8(aggregate_id)";

/// R23: without its slot and its publication, what one shard has missed is its own rows and no other's.
#[tokio::test]
async fn r23_a_recovery_sends_what_the_shard_has_missed_and_nothing_of_another() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let mut cut = Cut::new(&world, 2, &["outbox_events"]).await?;
    cut.set_up().await?;
    cut.start().await?;
    write(&world, 20, 10).await?;
    cut.delivered(20).await?;
    for relay in &mut cut.relays {
        stop(relay).await?;
    }
    write(&world, 40, 20).await?;
    let slot = format!("shard_1_{}", world.database.name());
    let lose = format!("select pg_drop_replication_slot('{slot}')");
    world
        .client
        .batch_execute(&format!("{lose}; drop publication shard_1"))
        .await?;
    let of = by_hash(&world, "outbox_events", HASH, 2).await?;
    let unsent = ids(&world, "select id::text from outbox_events where sent_at is null").await?;
    assert_eq!(unsent.len(), 40);
    let missed = unsent.iter().filter(|id| of.get(*id) == Some(&1)).count();
    assert!((1..40).contains(&missed), "{missed}");

    let output = cut.relays[1].run_command(&["recover", "--yes"]).await?;
    let said = said(&world, &output)?;
    assert!(said.contains(&format!("copied   {missed} unsent rows")), "{said}");
    assert!(
        said.contains("created  publication shard_1 of shard 1/2"),
        "{said}"
    );
    cut.start().await?;
    assert_eq!(cut.delivered(60).await?, of);
    wait_for_rows(&world.client, 60, 0).await?;
    write(&world, 10, 10).await?;
    assert_eq!(cut.delivered(70).await?.len(), 70);
    Ok(())
}

/// R21: rows of another shard were not brought by this slot, however far it has come.
#[tokio::test]
async fn r21_a_sweep_marks_rows_of_its_shard_alone() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let cut = Cut::new(&world, 2, &["outbox_events"]).await?;
    cut.set_up().await?;
    write(&world, 40, 20).await?;
    let source = Source {
        slot: format!("shard_0_{}", world.database.name()).parse()?,
        publication: "shard_0".parse()?,
        outboxes: vec!["outbox_events".parse::<QualifiedTable>()?.into()],
        messages: None,
        shard: Some("0/2".parse()?),
    };
    let connector = Connector::new(world.database.url().parse()?);
    let session = ControlSession::open(&connector, &source.slot).await?;
    let plans = plan(&session, &source).await?;
    ensure!(plans.len() == 1 && plans[0].is_marked(), "{plans:?}");
    let of = by_hash(&world, "outbox_events", HASH, 2).await?;
    let own: HashSet<_> = of
        .into_iter()
        .filter(|(_, shard)| *shard == 0)
        .map(|(id, _)| id)
        .collect();
    assert!(!own.is_empty() && own.len() < 40);
    // Rows of before the oldest transaction of the server only, and others have theirs.
    let swept = async || -> Result<HashSet<String>> {
        let horizon = sweep::horizon(&session, &source.slot).await?;
        let horizon = anyhow::Context::context(horizon, "no horizon")?;
        sweep::sweep(&session, &source.slot, &plans[0], &horizon, 0..64).await?;
        ids(
            &world,
            "select id::text from outbox_events where sent_at is not null",
        )
        .await
    };
    eventually("the rows to be marked", crate::world::LONG, async || {
        swept().await.is_ok_and(|marked| marked.len() >= own.len())
    })
    .await?;
    assert_eq!(swept().await?, own);
    session.close().await;
    Ok(())
}

/// R20: the marks of a shard are one slot's, and those of another cut change hands when the old slot is gone.
#[tokio::test]
async fn r20_the_marks_of_a_shard_belong_to_one_slot_and_pass_on_at_a_teardown() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let whole = relay_of(&world, "whole", "").build()?;
    whole.setup().await?;
    write(&world, 10, 10).await?;
    let owners = async || -> Result<String> {
        let sql = "select string_agg(slot || ' ' || shard, ', ' order by shard) from walrelay.mark_owners";
        let owners: String = world.client.query_one(sql, &[]).await?.get(0);
        Ok(owners.replace(&format!("_{}", world.database.name()), ""))
    };
    assert_eq!(owners().await?, "whole ");
    let halves = [
        relay_of(&world, "first", "0/2").build()?,
        relay_of(&world, "second", "1/2").build()?,
    ];
    for half in &halves {
        let output = half.setup().await?;
        let said = output.stdout.replace(world.database.name(), "DB");
        assert!(!said.contains("copied"), "{said}");
        for words in [
            "warning  slot whole_DB still sends the rows that are in table public.outbox_events, so none of them was noted: start \
             this relay when that one has been drained and stopped (docs/scaling.md)",
            "warning  rows will not be marked: the rows of table public.outbox_events are marked by slot `whole_DB`; set \
             after_publish = \"keep\" for the table, or run `walrelay setup` once the other slot is torn down",
        ] {
            assert!(said.contains(words), "{said}");
        }
    }
    assert_eq!(owners().await?, "whole ");

    // It has confirmed none of the ten.
    let output = whole.run_command(&["teardown", "--yes"]).await?;
    ensure!(output.code() != Some(0) && output.stdout.is_empty(), "{output:?}");
    let refusal = last_line(&output).replace(world.database.name(), "DB");
    assert!(
        refusal.starts_with("walrelay: the slot `whole_DB` has confirmed up to "),
        "{refusal}"
    );
    for words in [
        "only, and the slot `second_DB`, which brings the same rows, starts at",
        "nobody would deliver what lies between",
    ] {
        assert!(refusal.contains(words), "{refusal}");
    }
    assert_eq!(owners().await?, "whole ");
    let mut whole = whole;
    whole.start()?;
    let output = whole.run_command(&["wait", "--current"]).await?;
    ensure!(output.code() == Some(0), "{output:?}");
    stop(&mut whole).await?;
    let output = whole.run_command(&["teardown", "--yes"]).await?;
    ensure!(output.code() == Some(0), "{output:?}");
    for half in &halves {
        let said = half.setup().await?.stdout;
        assert!(!said.contains("warning"), "{said}");
    }
    assert_eq!(owners().await?, "first 0/2, second 1/2");

    let double = relay_of(&world, "double", "1/2").build()?;
    let output = double.run_command(&["setup"]).await?;
    ensure!(output.code() != Some(0), "{output:?}");
    let refusal = last_line(&output).replace(world.database.name(), "DB");
    assert!(
        refusal.contains("the rows of table public.outbox_events are marked by slot `second_DB`"),
        "{refusal}"
    );
    Ok(())
}

/// R25: an event that is still to come by the old relay would come after later ones of its aggregate.
#[tokio::test]
async fn r25_a_new_shard_waits_until_the_old_relay_has_come_to_its_start() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let recorder = world.recorder().await?;
    let mut whole = relay_of(&world, "whole", "").build()?;
    whole.setup().await?;
    write(&world, 20, 10).await?;
    let mut halves = Vec::new();
    for (name, shard) in [("first", "0/2"), ("second", "1/2")] {
        let half = relay_of(&world, name, shard).build()?;
        half.setup().await?;
        halves.push(half);
    }
    write(&world, 20, 10).await?;
    for half in &mut halves {
        half.start()?;
        let words = ["whose place it takes, has confirmed up to", "whole_"];
        complains(half, Part::Database, "before_its_turn", &words).await?;
    }
    assert_eq!(recorder.count(), 0);
    whole.start()?;
    for half in &mut halves {
        half.wait_ready(crate::world::LONG).await?;
    }
    recorder.wait_for_distinct(40, crate::world::LONG).await?;
    let deliveries = recorder.deliveries();
    let first = ids(
        &world,
        "select id::text from outbox_events order by created_at limit 20",
    )
    .await?;
    let before: HashSet<_> = deliveries[..20]
        .iter()
        .map(|delivery| delivery.message_id.clone())
        .collect();
    assert_eq!(
        before, first,
        "those before the new starts come first, by the old one alone"
    );
    // Once it has begun, nothing asks again.
    stop(&mut whole).await?;
    stop(&mut halves[0]).await?;
    halves[0].start()?;
    halves[0].wait_ready(crate::world::LONG).await?;
    Ok(())
}

/// Where rows are kept nothing tells whether the new slot takes the old one's place: the wrong guess loses rows, or sends all
/// of them again.
#[tokio::test]
async fn beside_a_slot_that_keeps_its_rows_a_shard_must_be_told_what_is_due() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let kept = |name, shard| {
        relay_of(&world, name, shard)
            .extra("after_publish = \"keep\"")
            .build()
    };
    let whole = kept("whole", "")?;
    whole.setup().await?;
    write(&world, 10, 10).await?;
    let half = kept("half", "1/2")?;
    let output = half.run_command(&["setup"]).await?;
    ensure!(output.code() != Some(0), "{output:?}");
    assert_eq!(
        last_line(&output).replace(world.database.name(), "DB"),
        "walrelay: the slot `whole_DB` brings all rows of public.outbox_events too, so the rows that are there may be its own: \
         say `--backfill none` where `half_DB` takes its place, `--backfill unsent` where each of them delivers on its own: run \
         setup again with --backfill none or --backfill unsent (docs/scaling.md)"
    );
    let of = by_hash(&world, "outbox_events", HASH, 2).await?;
    let own = of.values().filter(|shard| **shard == 1).count();
    let output = half.run_command(&["setup", "--backfill", "unsent"]).await?;
    assert!(
        output.stdout.contains(&format!("copied   {own} unsent row")),
        "{output:?}"
    );
    let third = kept("third", "0/3")?;
    let output = third.run_command(&["setup", "--backfill", "none"]).await?;
    assert!(
        output.code() == Some(0) && !output.stdout.contains("copied"),
        "{output:?}"
    );
    Ok(())
}

/// A table that joins later joins each shard by its rows (R7).
#[tokio::test]
async fn r7_a_table_that_joins_is_divided_like_the_others() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let sql = "create table later (id uuid primary key, aggregate_type text not null, aggregate_id uuid not null, \
               event_type text not null, payload jsonb not null, sent_at timestamptz)";
    world.client.batch_execute(sql).await?;
    let insert = "insert into later select gen_random_uuid(), 'order', gen_random_uuid(), 'OrderCreated', '{}' \
                  from generate_series(1, 30)";
    let mut cut = Cut::new(&world, 2, &["outbox_events"]).await?;
    cut.set_up().await?;
    world.client.batch_execute(insert).await?;
    for relay in &mut cut.relays {
        relay.reconfigure(|relay| relay.outboxes(&["outbox_events", "later"]))?;
        let said = relay.setup().await?.stdout;
        assert!(
            said.contains("changed  publication shard_") && said.contains("unsent rows of public.later"),
            "{said}"
        );
        world.client.batch_execute(insert).await?;
    }
    cut.start().await?;
    let delivered = cut.delivered(90).await?;
    assert_eq!(
        delivered,
        by_hash(&world, "later", "uuid_hash(aggregate_id)", 2).await?
    );
    eventually("all rows to be marked", crate::world::LONG, async || {
        ids(&world, "select id::text from later where sent_at is null")
            .await
            .is_ok_and(|left| left.is_empty())
    })
    .await?;
    Ok(())
}
