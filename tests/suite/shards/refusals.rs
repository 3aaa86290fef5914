//! What cannot be shared, and what is not as it was set up.

use anyhow::{Result, ensure};
use walrelay_testbed::Relay;

use super::{relay_of, world};
use crate::complaint::{Part, complains, named};
use crate::setup::last_line;
use crate::world::{LONG, World};

/// What set-up says on its last line, having failed.
async fn refused(world: &World, relay: &Relay, arguments: &[&str]) -> Result<String> {
    let output = relay.run_command(&[&["setup"], arguments].concat()).await?;
    ensure!(output.code() != Some(0) && output.stdout.is_empty(), "{output:?}");
    Ok(last_line(&output).replace(world.database.name(), "DB"))
}

/// A filter may hash only what a built-in, immutable function takes as it is: the server refuses a cast in it.
#[tokio::test]
async fn an_aggregate_that_no_row_filter_can_hash_is_refused_by_the_name_of_its_type() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    world
        .client
        .batch_execute(
            "create type color as enum ('red'); create domain number as bigint;
             create table outbox_events (id uuid primary key, aggregate_type text not null, aggregate_id date,
             event_type text not null, payload jsonb not null)",
        )
        .await?;
    let relay = relay_of(&world, "half", "0/2").build()?;
    for (alter, name) in [
        ("", "date"),
        ("color using null", "color"),
        ("number using null", "number"),
        ("json using null", "json"),
    ] {
        if !alter.is_empty() {
            let sql = format!("alter table outbox_events alter column aggregate_id type {alter}");
            world.client.batch_execute(&sql).await?;
        }
        assert_eq!(
            refused(&world, &relay, &[]).await?,
            format!(
                "walrelay: the column `aggregate_id` of public.outbox_events is of the type {name}, which no row filter can \
                 hash: shards need bigint, integer, smallint, numeric, text, varchar, char or uuid: leave postgres.shard out, \
                 or change what the error names (docs/scaling.md)"
            )
        );
    }
    let doctor = relay.run_command(&["doctor"]).await?;
    assert!(
        doctor
            .stdout
            .contains("✗ shard: the column `aggregate_id` of public.outbox_events is of the type json"),
        "{}",
        doctor.stdout
    );
    // Why there is no way round it.
    let cast =
        "create publication p for table outbox_events where (mod(hashtext(aggregate_id::text), 2) = 1)";
    let error = world.client.batch_execute(cast).await.unwrap_err();
    assert_eq!(error.code().map(|code| code.code()), Some("0A000"));

    let collated =
        "create collation folding (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                    alter table outbox_events alter column aggregate_id type text collate folding using null";
    world.client.batch_execute(collated).await?;
    assert_eq!(
        refused(&world, &relay, &[]).await?,
        "walrelay: the server takes no row filter on the column `aggregate_id`: User-defined collations are not allowed: \
         leave postgres.shard out, or change what the error names (docs/scaling.md)"
    );
    // Nothing is left of these tries.
    let left = "select (select count(*) from pg_publication) + (select count(*) from pg_replication_slots \
                where database = current_database())";
    assert_eq!(world.client.query_one(left, &[]).await?.get::<_, i64>(0), 0);
    Ok(())
}

#[tokio::test]
async fn every_type_that_has_a_hash_is_set_up_and_found_again() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    for (number, kind) in [
        "bigint",
        "integer",
        "smallint",
        "numeric(20, 2)",
        "text",
        "varchar(40)",
        "char(8)",
        "uuid",
    ]
    .into_iter()
    .enumerate()
    {
        let table = format!("\"Out box {number}\"");
        let sql = format!(
            "create table {table} (id uuid primary key, aggregate_type text not null, aggregate_id {kind},
             event_type text not null, payload jsonb not null)"
        );
        world.client.batch_execute(&sql).await?;
        for shard in ["0/3", "1/3"] {
            let name = format!("type_{number}_{}", &shard[..1]);
            let relay = relay_of(&world, &name, shard).outboxes(&[&table]).build()?;
            relay.setup().await?;
            // The second run reads back what the first has written.
            let again = relay.setup().await?;
            let found = format!("found    publication {name} of shard {shard}");
            assert!(again.stdout.contains(&found), "{kind}: {}", again.stdout);
        }
        world.database.drop_slots().await?;
    }
    Ok(())
}

/// Before 15 there are no row filters.
#[tokio::test]
async fn a_server_without_row_filters_refuses_a_shard_with_both_versions() -> Result<()> {
    let world = World::new().await?;
    if world.major().await? >= 15 {
        return Ok(());
    }
    let relay = relay_of(&world, "half", "0/2").build()?;
    let said = refused(&world, &relay, &[]).await?;
    let expected = "shard 0/2 needs row filters, which came with PostgreSQL 15; the server is 14.";
    ensure!(said.contains(expected), "{said}");
    let doctor = relay.run_command(&["doctor"]).await?;
    ensure!(
        doctor.code() == Some(1) && doctor.stdout.contains(expected),
        "{}",
        doctor.stdout
    );
    Ok(())
}

#[tokio::test]
async fn a_shard_that_is_none_is_refused_with_its_place() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let relay = relay_of(&world, "half", "").build()?;
    let output = relay.run_command(&["setup", "--shard", "4/4"]).await?;
    assert_eq!(output.code(), Some(78));
    assert_eq!(
        last_line(&output),
        "--shard: postgres.shard is not valid: `4/4` names no shard: expected K/N as in 1/4, N from 2 to 1024, K from 0 to N - 1; \
         leave it out for a single relay"
    );
    Ok(())
}

/// The flag of set-up is not enough: what recovers, or sends rows that are there, needs to know the shard as well.
#[tokio::test]
async fn a_relay_that_is_configured_for_other_rows_than_its_publication_has_halts() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let mut relay = relay_of(&world, "half", "").build()?;
    let output = relay.run_command(&["setup", "--shard", "1/2"]).await?;
    ensure!(output.code() == Some(0), "{output:?}");
    relay.start()?;
    let words = ["publishes shard 1/2 of public.outbox_events", "says all rows"];
    complains(&mut relay, Part::Database, "shard_mismatch", &words).await?;
    relay.kill().await?;
    for shard in ["0/2", "1/4"] {
        relay.reconfigure(|relay| relay.text("postgres.shard", shard))?;
        assert_eq!(
            refused(&world, &relay, &[]).await?,
            format!(
                "walrelay: the publication `half` publishes shard 1/2 of public.outbox_events, the configuration says shard \
                 {shard}: set postgres.shard to what the publication publishes; a shard needs a postgres.slot and a \
                 postgres.publication of its own (docs/scaling.md)"
            )
        );
        let output = relay.run_command(&["recover", "--yes"]).await?;
        ensure!(
            output.code() != Some(0) && last_line(&output).contains("says shard"),
            "{output:?}"
        );
    }
    relay.reconfigure(|relay| relay.text("postgres.shard", "1/2"))?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_slot_of_another_shard_is_not_taken() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let first = relay_of(&world, "same", "0/2").build()?;
    first.setup().await?;
    let owners = "select string_agg(shard || ' ' || slot, ', ') from walrelay.mark_owners";
    let before: String = world.client.query_one(owners, &[]).await?.get(0);
    let second = relay_of(&world, "same", "1/2")
        .text("postgres.publication", "other")
        .build()?;
    assert_eq!(
        refused(&world, &second, &[]).await?,
        "walrelay: the slot `same_DB` was set up for the publication `same`, so it is not free for shard 1/2: set \
         postgres.shard to what the publication publishes; a shard needs a postgres.slot and a postgres.publication of its own \
         (docs/scaling.md)"
    );
    assert_eq!(
        world.client.query_one(owners, &[]).await?.get::<_, String>(0),
        before
    );
    Ok(())
}

/// R5: a row filter is part of what the guard compares.
#[tokio::test]
async fn r5_a_filter_that_is_changed_halts_even_if_it_is_changed_back() -> Result<()> {
    let Some(world) = world().await? else {
        return Ok(());
    };
    let mut relay = relay_of(&world, "half", "1/2")
        .text("postgres.guard_interval", "1s")
        .start()
        .await?;
    let filter = "mod(hashint8(aggregate_id) & 2147483647, 2) = 1";
    let set = |filter: &str| format!("alter publication half set table outbox_events where ({filter})");
    let change = format!("{}; {}", set("aggregate_id > 5"), set(filter));
    world.client.batch_execute(&change).await?;
    let words = ["public.outbox_events", "its filter or columns were changed"];
    complains(&mut relay, Part::Database, "publication_changed", &words).await?;
    let output = relay.run_command(&["recover", "--rescan"]).await?;
    ensure!(output.code() == Some(0), "{output:?}");
    relay.wait_ready(LONG).await?;

    // One that is none of ours is refused by recover, too.
    world.client.batch_execute(&set("aggregate_id > 5")).await?;
    named(&mut relay, Part::Database, "publication_changed").await?;
    let output = relay.run_command(&["recover"]).await?;
    ensure!(output.code() != Some(0), "{output:?}");
    assert!(
        last_line(&output).contains("has a row filter on public.outbox_events"),
        "{}",
        last_line(&output)
    );
    Ok(())
}
