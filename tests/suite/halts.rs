//! What needs a person and strikes in mid-stream: named with its remedy within seconds, never skipped in silence, and the
//! slot never made anew (R4 to R6, R8, I1, I9).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walrelay_testbed::{Postgres, PostgresOptions, Readiness, Relay, eventually, shared_rabbitmq};

use crate::complaint::{Part, complains};
use crate::world::{EXCHANGE, LONG, QUEUE, World, insert_event, text, wal_end};

/// How soon after the event that shows it a cause must be named.
const SOON: Duration = Duration::from_secs(5);

/// How soon readiness must be green again after the remedy.
const HEALED: Duration = Duration::from_secs(12);

/// Waits until one of these causes is named as a halt with its remedy. The server decides which of two looks comes first.
pub(crate) async fn halts(relay: &mut Relay, causes: &[&str]) -> Result<Readiness> {
    let is_named = |readiness: &Readiness| {
        causes
            .iter()
            .any(|cause| readiness.json["database"]["cause"] == **cause)
    };
    let readiness = relay
        .wait_readiness(&format!("{causes:?}"), SOON, is_named)
        .await?;
    let database = &readiness.json["database"];
    ensure!(
        database["class"] == "halted" && database["remedy"].is_string(),
        "{}",
        readiness.text
    );
    Ok(readiness)
}

/// Waits for a few further tries, none of which may get past the halt.
async fn stays_halted(relay: &mut Relay, cause: &str) -> Result<()> {
    let tries = || relay.log().iter().filter(|line| line.contains(cause)).count();
    let until = tries() + 3;
    eventually("further tries", LONG, || std::future::ready(tries() >= until)).await?;
    let readiness = relay.ready().await?;
    ensure!(
        readiness.status == 503 && readiness.json["database"]["class"] == "halted",
        "{}",
        readiness.text
    );
    Ok(())
}

/// R8: a person may be at it, and a server that has just started may not say the truth yet.
#[tokio::test]
async fn with_exit_on_halt_a_missing_slot_is_looked_for_again_before_the_exit() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world
        .relay()
        .arg("--exit-on-halt")
        .text("log.level", "debug")
        .build()?;
    relay.setup().await?;
    world.database.drop_slots().await?;
    relay.start()?;
    assert_eq!(relay.wait_exit(LONG).await?.code(), Some(69));
    let log = relay.log();
    let sightings = |word: &str| {
        let mut lines = log.iter();
        lines.any(|line| line.contains(word) && line.contains("\"cause\":\"slot_missing\""))
    };
    assert!(sightings("halted") && sightings("as before"), "{log:#?}");
    Ok(())
}

/// Commits what nobody may lose, by SQL; where the WAL ended before it.
async fn commits(world: &World, sql: &str) -> Result<i64> {
    let before = wal_end(&world.client).await?;
    world.client.batch_execute(sql).await?;
    Ok(before)
}

/// An insert into a table that has an outbox's columns.
fn insert_into(table: &str) -> String {
    format!(
        "insert into {table} (id, aggregate_type, aggregate_id, event_type, payload)
         values (gen_random_uuid(), 'order', 42, 'OrderCreated', '{{}}')"
    )
}

/// R8: the live session sees the same as of an administrator's kill.
#[tokio::test]
async fn a_slot_whose_wal_was_removed_halts_and_is_not_made_anew() -> Result<()> {
    let postgres =
        Postgres::start(PostgresOptions::default().setting("max_slot_wal_keep_size", "1MB")).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    world.vhost.delete_queue(QUEUE).await?;
    let mut relay = world.running().await?;
    // It holds the slot where it is.
    insert_event(&world.client, 1).await?;
    relay
        .wait_readiness("a held event", LONG, |ready| {
            ready.json["delivery"]["state"] == "held"
        })
        .await?;
    let slot = format!(
        "select wal_status from pg_replication_slots where slot_name = '{}'",
        world.slot()
    );
    world.client.batch_execute("create table noise (n int)").await?;
    eventually("the slot to be lost", LONG, async || {
        // Each switch begins a new segment of 16 MB.
        for sql in [
            "insert into noise values (1)",
            "select pg_switch_wal()",
            "checkpoint",
        ] {
            if world.client.batch_execute(sql).await.is_err() {
                return false;
            }
        }
        text(&world.client, &slot)
            .await
            .is_ok_and(|status| status == "lost")
    })
    .await?;
    halts(&mut relay, &["slot_lost"]).await?;
    stays_halted(&mut relay, "slot_lost").await?;
    assert_eq!(text(&world.client, &slot).await?, "lost");

    // The remedy, while the relay runs.
    world.vhost.declare_route(EXCHANGE, QUEUE).await?;
    let torn_down = relay.run_command(&["teardown", "--yes"]).await?;
    ensure!(torn_down.code() == Some(0), "{torn_down:?}");
    relay.setup().await?;
    relay.wait_ready(HEALED).await?;
    let recorder = world.recorder().await?;
    let id = insert_event(&world.client, 2).await?;
    recorder
        .wait_until("the event", LONG, |came| {
            came.iter().any(|came| came.message_id == id)
        })
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_slot_dropped_in_mid_stream_halts_and_is_not_made_anew() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder) = world.delivering().await?;
    world.database.drop_slots().await?;
    halts(&mut relay, &["slot_missing"]).await?;
    stays_halted(&mut relay, "slot_missing").await?;
    assert_eq!(world.slots().await?, 0);

    let recovered = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!(recovered.code(), Some(0), "{}", recovered.stderr);
    relay.wait_ready(HEALED).await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(2, LONG).await?;
    Ok(())
}

/// R8, I1: the row is in the log as it was written, so the position stays before it.
#[tokio::test]
async fn a_required_column_dropped_in_mid_stream_halts_before_the_first_row_without_it() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder) = world.delivering().await?;
    world
        .client
        .batch_execute("alter table outbox_events drop column event_type")
        .await?;
    let before = commits(
        &world,
        "insert into outbox_events (id, aggregate_type, aggregate_id, payload)
         values (gen_random_uuid(), 'order', 42, '{}')",
    )
    .await?;
    halts(&mut relay, &["column_missing"]).await?;
    complains_no_more_than_once(&relay, "column_missing")?;
    // Mended too late for that row.
    world
        .client
        .batch_execute("alter table outbox_events add column event_type text not null default 'OrderCreated'")
        .await?;
    stays_halted(&mut relay, "column_missing").await?;
    assert!(world.flushed().await? <= before);
    assert_eq!(recorder.count(), 1);
    Ok(())
}

fn complains_no_more_than_once(relay: &Relay, cause: &str) -> Result<()> {
    let said: Vec<_> = relay
        .log()
        .into_iter()
        .filter(|line| line.contains(cause) && line.contains("\"ERROR\""))
        .collect();
    ensure!(said.len() == 1, "{said:#?}");
    Ok(())
}

/// R5: nothing of the new table is in the stream, so only the guard can tell.
#[tokio::test]
async fn a_table_dropped_and_created_again_with_other_columns_halts() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world
        .relay()
        .text("postgres.guard_interval", "1s")
        .start()
        .await?;
    let before = commits(
        &world,
        "drop table outbox_events; create table outbox_events (id int, note text);
         insert into outbox_events values (1, 'lost to the stream')",
    )
    .await?;
    // The guard finds it, and then each look before a session.
    halts(&mut relay, &["publication_changed", "column_missing"]).await?;
    stays_halted(&mut relay, "column_missing").await?;
    let after = wal_end(&world.client).await?;
    assert!(before < after && world.flushed().await? <= after);
    Ok(())
}

/// R5, R8: the new table is published at once, and its rows fit no event.
#[tokio::test]
async fn a_table_created_again_in_a_published_schema_halts_before_its_first_row() -> Result<()> {
    let world = World::new().await?;
    if world.major().await? < 15 {
        // Schemas are published from 15 on.
        return Ok(());
    }
    world
        .client
        .batch_execute("create publication walrelay for tables in schema public with (publish = 'insert')")
        .await?;
    let mut relay = world.running().await?;
    let before = commits(
        &world,
        "drop table outbox_events; create table outbox_events (id int, note text);
         insert into outbox_events values (1, 'kept in the log')",
    )
    .await?;
    halts(&mut relay, &["column_missing", "publication_changed"]).await?;
    assert!(world.flushed().await? <= before);
    Ok(())
}

fn text_of<'a>(readiness: &'a Readiness, key: &str) -> Result<&'a str> {
    let text: &Value = &readiness.json["database"][key];
    text.as_str()
        .with_context(|| format!("no {key} in {}", readiness.text))
}

/// R5, R6: up to 17 the server ends the stream with 42704, 18 says in a notice that it goes on without the rows.
#[tokio::test]
async fn a_publication_dropped_in_mid_stream_halts_before_the_rows_that_it_no_longer_has() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder) = world.delivering().await?;
    world.client.batch_execute("drop publication walrelay").await?;
    let before = commits(&world, &insert_into("outbox_events")).await?;
    halts(&mut relay, &["publication_missing"]).await?;
    assert!(world.flushed().await? <= before);

    // Created again it is another one, and the rows between are not in it.
    relay.setup().await?;
    stays_halted(&mut relay, "publication_").await?;
    let recovered = relay.run_command(&["recover"]).await?;
    ensure!(recovered.code() == Some(0), "{recovered:?}");
    let mark = relay.log_mark();
    relay
        .wait_for_log_after(mark, "that the slot still lacks it", LONG, |line| {
            line.contains("publication_missing")
        })
        .await?;
    assert!(world.flushed().await? <= before);
    assert_eq!(recorder.count(), 1);
    Ok(())
}

/// R4: the guard sees nothing when the old name is back within its interval.
#[tokio::test]
async fn a_row_inserted_while_the_table_had_another_name_halts_though_the_name_is_back() -> Result<()> {
    let world = World::new().await?;
    let (mut relay, recorder) = world.delivering().await?;
    world
        .client
        .batch_execute("alter table outbox_events rename to away")
        .await?;
    let before = commits(&world, &insert_into("away")).await?;
    world
        .client
        .batch_execute("alter table away rename to outbox_events")
        .await?;
    let readiness = halts(&mut relay, &["table_unknown"]).await?;
    ensure!(
        text_of(&readiness, "error")?.contains("public.away"),
        "{}",
        readiness.text
    );
    world.commit_events(1).await?;
    stays_halted(&mut relay, "table_unknown").await?;
    assert!(world.flushed().await? <= before);
    assert_eq!(recorder.count(), 1);
    Ok(())
}

/// R4, I1: the server knows a dropped leaf's root as of the time of its rows.
#[tokio::test]
async fn rows_of_a_leaf_partition_that_is_gone_before_they_are_read_are_delivered() -> Result<()> {
    const ROW: &str =
        "insert into outbox_events values (gen_random_uuid(), 'order', 1, 'OrderCreated', '{}', ";
    let world = World::new().await?;
    world
        .client
        .batch_execute(
            "create table outbox_events (id uuid not null, aggregate_type text not null, aggregate_id bigint not null,
             event_type text not null, payload jsonb not null, created_at date not null)
             partition by range (created_at);
             create table y0 partition of outbox_events for values from ('2020-01-01') to ('2021-01-01');
             create table y1 partition of outbox_events for values from ('2021-01-01') to ('2022-01-01');
             create table y2 partition of outbox_events for values from ('2022-01-01') to ('2023-01-01');
             create table y3 partition of outbox_events for values from ('2023-01-01') to ('2024-01-01');",
        )
        .await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    // Each text is one transaction.
    for (year, gone) in [
        (2020, "; drop table y0"),
        (2021, "; alter table outbox_events detach partition y1"),
        (2022, ""),
        (2023, ""),
    ] {
        let row = format!("{ROW} '{year}-06-01'){gone}");
        world.client.batch_execute(&row).await?;
    }
    for gone in ["drop table y1", "drop table y2"] {
        world.client.batch_execute(gone).await?;
    }
    relay.start()?;
    let recorder = world.recorder().await?;
    recorder.wait_for_distinct(4, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// I1: TRUNCATE is no halt, and what was inserted before it is in the log.
#[tokio::test]
async fn what_was_inserted_before_a_truncate_is_delivered_after_it() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let mut ids = world.commit_events(20).await?;
    world.client.batch_execute("truncate outbox_events").await?;
    ids.extend(world.commit_events(1).await?);
    relay.start()?;
    let recorder = world.recorder().await?;
    recorder.wait_for_distinct(ids.len(), LONG).await?;
    assert_eq!(recorder.message_ids(), ids);
    world.wait_flushed(wal_end(&world.client).await?).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// The pause between tries has grown to its longest by then.
async fn many_tries(relay: &Relay, cause: &str) -> Result<()> {
    let tries = || relay.log().iter().filter(|line| line.contains(cause)).count();
    Ok(eventually("many tries", LONG, || std::future::ready(tries() >= 6)).await?)
}

#[tokio::test]
async fn readiness_is_back_soon_after_recover() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world
        .relay()
        .text("postgres.guard_interval", "1s")
        .start()
        .await?;
    world
        .client
        .batch_execute(
            "alter publication walrelay set (publish = 'update');
             alter publication walrelay set (publish = 'insert')",
        )
        .await?;
    complains(&mut relay, Part::Database, "publication_changed", &["altered"]).await?;
    many_tries(&relay, "publication_changed").await?;
    let recovered = relay.run_command(&["recover"]).await?;
    ensure!(recovered.code() == Some(0), "{recovered:?}");
    relay.wait_ready(HEALED).await?;
    Ok(())
}

/// Each new link is up, and struck again by the first message; the first confirm tells that this is over.
#[tokio::test]
async fn readiness_is_back_soon_after_the_exchange_may_be_written_to() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name());
    let user = format!("writer-{}", world.database.name());
    broker.ctl(&["add_user", &user, "secret"]).await?;
    let may_write = async |write: &str| {
        let permissions = ["set_permissions", "-p", vhost, &user, "", write, ".*"];
        broker.ctl(&permissions).await
    };
    may_write("").await?;
    let uri = format!("amqp://{user}:secret@127.0.0.1:{}/{vhost}", world.vhost.port());
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.setup().await?;
    world.commit_events(3).await?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "exchange_forbidden", &[EXCHANGE]).await?;
    many_tries(&relay, "exchange_forbidden").await?;
    may_write(".*").await?;
    relay.wait_ready(HEALED).await?;
    world.recorder().await?.wait_for_distinct(3, LONG).await?;
    Ok(())
}
