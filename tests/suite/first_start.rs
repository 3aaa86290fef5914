//! Set-up of tables that have rows already (R7, R22): no gap, no double, and nothing half done.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use walrelay::postgres::migrations::create_table;
use walrelay_testbed::{Postgres, PostgresOptions, Relay, eventually, shared_rabbitmq};

use crate::backfill::{LEFT, ids, is_backfilled};
use crate::complaint::{Part, complains};
use crate::setup::{last_line, said, stop};
use crate::world::{LONG, World, insert_event, text, wal_end};

/// Commits events in transactions of its own until it is told to stop; returns the ids.
async fn write(client: Client, stop: tokio::sync::watch::Receiver<bool>) -> Result<Vec<String>> {
    let mut written = Vec::new();
    for number in 0.. {
        if *stop.borrow() {
            break;
        }
        client.batch_execute("begin").await?;
        let id = insert_event(&client, number).await?;
        client.batch_execute("select pg_sleep(0.005)").await?;
        if number % 5 == 4 {
            client.batch_execute("rollback").await?;
        } else {
            client.batch_execute("commit").await?;
            written.push(id);
        }
    }
    Ok(written)
}

/// R22. With any other snapshot than the slot's own, rows in flight at its starting point come twice or never.
#[tokio::test]
async fn r22_what_is_written_during_setup_is_neither_missed_nor_doubled() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut writers: Vec<JoinHandle<Result<Vec<String>>>> = Vec::new();
    for _ in 0..6 {
        writers.push(tokio::spawn(write(
            world.database.client().await?,
            stopped.clone(),
        )));
    }
    let enough = "select count(*)::text from outbox_events";
    let rows = async |least: usize| -> Result<()> {
        eventually("some rows", LONG, || async {
            let count = text(&world.client, enough).await;
            count.is_ok_and(|count| count.parse::<usize>().is_ok_and(|count| count >= least))
        })
        .await?;
        Ok(())
    };
    rows(100).await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    let copied: usize = text(&world.client, LEFT).await?.parse()?;
    rows(copied + 100).await?;
    stop.send_replace(true);
    let mut committed = HashSet::new();
    for writer in writers {
        committed.extend(writer.await??);
    }
    let recorder = world.recorder().await?;
    relay.start()?;
    recorder.wait_for_distinct(committed.len(), LONG).await?;
    world.wait_backfilled().await?;
    // What would come twice would have come before this one.
    world.commit_events(1).await?;
    recorder.wait_for_distinct(committed.len() + 1, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    let delivered = recorder.distinct_ids();
    assert!(committed.is_subset(&delivered));
    assert_eq!(delivered.len(), committed.len() + 1);
    let backfilled = recorder
        .deliveries()
        .iter()
        .filter(|delivery| is_backfilled(delivery))
        .count();
    assert_eq!(backfilled, copied);
    Ok(())
}

/// R7: the writer's row is in neither the scan of the table nor the stream, unless its end is waited for.
#[tokio::test]
async fn r7_a_table_joins_a_live_slot_with_its_rows() -> Result<()> {
    // A transaction that stays open holds up the creation of any slot of its server.
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let world = World::on(&postgres, shared_rabbitmq().await?).await?;
    let world = world.with_old_table().await?;
    let table = create_table(&"public.second".parse()?);
    world.database.execute(&table).await?;
    let mut relay = world
        .relay()
        .text("postgres.guard_interval", "1s")
        .start()
        .await?;
    let recorder = world.recorder().await?;
    world
        .database
        .execute("insert into second select gen_random_uuid(), 'order', n, 'OrderCreated', '{}' from generate_series(1, 10) n")
        .await?;
    let writer = world.database.client().await?;
    writer
        .batch_execute(
            "begin; insert into second values (gen_random_uuid(), 'order', 11, 'OrderCreated', '{}')",
        )
        .await?;

    relay.reconfigure(|relay| relay.outboxes(&["public.outbox_events", "public.second"]))?;
    let waiting = "select count(*)::text from pg_locks where relation = 'second'::regclass and mode = 'ShareLock' \
                   and not granted";
    let release = async {
        eventually("set-up to wait for the writer", LONG, || async {
            text(&world.client, waiting).await.is_ok_and(|count| count == "1")
        })
        .await?;
        writer.batch_execute("commit").await?;
        anyhow::Ok(())
    };
    let (output, released) = tokio::join!(relay.setup(), release);
    released?;
    insta::assert_snapshot!(said(&world, &output?)?, @"
    found    migrations
    found    table public.outbox_events
    found    table public.second
    changed  publication walrelay
    copied   11 unsent rows of public.second, to be sent first, by created_at
    changed  baseline of publication and tables
    found    slot SLOT
    ");
    // The relay with the old configuration goes on when the guard has looked.
    let end = wal_end(&world.client).await?;
    eventually("the guard to look", LONG, || async {
        let metrics = relay.metrics().await;
        metrics.is_ok_and(|metrics| metrics.sum("walrelay_server_lsn", &[]) >= end as f64)
    })
    .await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    world.wait_flushed(wal_end(&world.client).await?).await?;
    assert_eq!(relay.metrics().await?.sum("walrelay_sessions_total", &[]), 1.0);
    world
        .database
        .execute("insert into second values (gen_random_uuid(), 'order', 12, 'OrderCreated', '{}')")
        .await?;
    stop(&mut relay).await?;
    relay.start()?;
    recorder.wait_for_distinct(13, LONG).await?;
    world.wait_backfilled().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(14, LONG).await?;
    assert_eq!(recorder.duplicates(), 0);
    Ok(())
}

/// Starts `walrelay setup` so that it has created the slot and cannot note the rows, and returns both.
async fn stuck_setup(world: &World, relay: &Relay) -> Result<(std::process::Child, Client)> {
    relay.setup().await?;
    let torn_down = relay.run_command(&["teardown", "--yes"]).await?;
    ensure!(torn_down.code() == Some(0), "{}", torn_down.stderr);
    stuck(world, relay, &["setup"]).await
}

/// Starts a command so that it has created the slot and cannot note the rows.
async fn stuck(world: &World, relay: &Relay, command: &[&str]) -> Result<(std::process::Child, Client)> {
    let blocker = world.database.client().await?;
    blocker
        .batch_execute("begin; lock table walrelay.backfills in share mode")
        .await?;
    let child = std::process::Command::new(env!("CARGO_BIN_EXE_walrelay"))
        .args(command)
        .arg("--config")
        .arg(relay.config_path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .context("start walrelay")?;
    // A slot that is still being created would go with the session that creates it.
    let waiting =
        "select count(*)::text from pg_locks where relation = 'walrelay.backfills'::regclass and not granted";
    eventually("rows to be noted", LONG, || async {
        text(&world.client, waiting).await.is_ok_and(|count| count == "1")
    })
    .await?;
    Ok((child, blocker))
}

/// R22: a slot without its rows would start behind them.
#[tokio::test]
async fn r22_a_setup_killed_half_way_is_refused_until_it_is_run_again() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let expected = world.old_rows(20).await?;
    let mut relay = world.relay().build()?;
    let (mut setup, blocker) = stuck_setup(&world, &relay).await?;
    setup.kill()?;
    setup.wait()?;
    blocker.batch_execute("rollback").await?;
    assert_eq!(world.slots().await?, 1, "the slot was left behind");

    relay.start()?;
    complains(
        &mut relay,
        Part::Database,
        "setup_interrupted",
        &["was interrupted"],
    )
    .await?;
    let recorder = world.recorder().await?;
    insta::assert_snapshot!(said(&world, &relay.setup().await?)?, @"
    found    migrations
    dropped  slot SLOT of an interrupted set-up
    found    table public.outbox_events
    found    publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    copied   20 unsent rows of public.outbox_events, to be sent first, by created_at
    ");
    relay.wait_ready(LONG).await?;
    assert_eq!(ids(&recorder.wait_for(20, LONG).await?), expected);
    Ok(())
}

/// R23: set-up would note none of these rows, since a table whose rows are deleted needs no `sent_at`.
#[tokio::test]
async fn r23_a_recovery_killed_half_way_is_taken_up_by_another_and_not_by_setup() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let mut relay = world.relay().build()?;
    relay.setup().await?;
    world.database.drop_slots().await?;
    let expected = world.old_rows(20).await?;
    let (mut recovery, blocker) = stuck(&world, &relay, &["recover", "--yes"]).await?;
    recovery.kill()?;
    recovery.wait()?;
    blocker.batch_execute("rollback").await?;
    assert_eq!(world.slots().await?, 1, "the slot was left behind");

    relay.start()?;
    let cause = "recovery_interrupted";
    complains(&mut relay, Part::Database, cause, &["was interrupted"]).await?;
    let setup = relay.run_command(&["setup"]).await?;
    assert_eq!(setup.code(), Some(1));
    assert!(setup.stderr.contains("`walrelay recover`"), "{}", setup.stderr);
    let recorder = world.recorder().await?;
    let recover = relay.run_command(&["recover", "--yes"]).await?;
    assert_eq!(recover.code(), Some(0), "{}", recover.stderr);
    relay.wait_ready(LONG).await?;
    assert_eq!(ids(&recorder.wait_for(20, LONG).await?), expected);
    Ok(())
}

#[tokio::test]
async fn r22_a_setup_that_fails_half_way_leaves_no_slot() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    world.old_rows(20).await?;
    let relay = world.relay().build()?;
    let (mut setup, _blocker) = stuck_setup(&world, &relay).await?;
    // Its own lock time-out ends it.
    let ended = tokio::task::spawn_blocking(move || setup.wait()).await??;
    assert_eq!(ended.code(), Some(1));
    assert_eq!(world.slots().await?, 0);
    Ok(())
}

/// R22: a scan under row security would miss rows without a word.
#[tokio::test]
async fn row_security_that_would_hide_rows_is_refused() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    world.old_rows(3).await?;
    let role = format!("owner_{}", world.database.name());
    world
        .client
        .batch_execute(&format!(
            "create role {role} login replication; grant create on database {} to {role}; grant create on schema public to {role};
             alter table outbox_events owner to {role}; alter table outbox_events enable row level security;
             alter table outbox_events force row level security;
             create policy few on outbox_events using (aggregate_id < 2)",
            world.database.name()
        ))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let relay = world.relay().postgres_url(&url).build()?;
    let refused = relay.run_command(&["setup"]).await?;
    assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(last_line(&refused).replace(&role, "ROLE"), @"walrelay: the rows of public.outbox_events that are there cannot be looked for: row security hides rows of it from the role `ROLE` (give the role BYPASSRLS, or use the table's owner): correct that, or say `--backfill none` to setup and leave the rows that are there unsent");
    assert_eq!(world.slots().await?, 0);
    // Nobody is kept from doing without.
    let without = relay.run_command(&["setup", "--backfill", "none"]).await?;
    assert_eq!(without.code(), Some(0), "{}", without.stderr);
    Ok(())
}

#[tokio::test]
async fn a_table_without_an_index_on_its_id_is_refused() -> Result<()> {
    let world = World::new().await?;
    let table = create_table(&"public.outbox_events".parse()?).replace(" primary key", "");
    world.database.execute(&table).await?;
    let relay = world.relay().build()?;
    let refused = relay.run_command(&["setup"]).await?;
    assert_eq!((refused.code(), refused.stdout.as_str()), (Some(1), ""));
    insta::assert_snapshot!(last_line(&refused), @"walrelay: the rows of public.outbox_events that are there cannot be looked for: no index of it begins with the column `id`, so that each row would take a scan of the table: correct that, or say `--backfill none` to setup and leave the rows that are there unsent");
    Ok(())
}

/// The relay's own role is no owner of anything; an administrator's URL does for set-up.
#[tokio::test]
async fn an_administrator_sets_up_for_a_role_that_then_does_all_the_relay_does() -> Result<()> {
    let world = World::new().await?.with_old_table().await?;
    let old = world.old_rows(3).await?;
    let role = format!("relay_{}", world.database.name());
    world
        .client
        .batch_execute(&format!("create role {role} login"))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let mut relay = world.relay().postgres_url(&url).build()?;
    let output = relay
        .run_command(&["setup", "--url", &world.database.url(), "--grant-to", &role])
        .await?;
    insta::assert_snapshot!(said(&world, &output)?.replace(&role, "ROLE"), @"
    created  migrations
    found    table public.outbox_events
    created  publication walrelay
    created  baseline of publication and tables
    granted  rights of the relay to role ROLE
    created  slot SLOT (streams from LSN)
    copied   3 unsent rows of public.outbox_events, to be sent first, by created_at
    ");
    let recorder = world.recorder().await?;
    relay.start()?;
    assert_eq!(ids(&recorder.wait_for(3, LONG).await?), old);
    world.wait_backfilled().await?;
    relay.wait_ready(LONG).await?;
    let adopting = relay.run_command(&["recover"]).await?;
    assert_eq!(
        adopting.code(),
        Some(1),
        "R5: the relay's role may write a baseline"
    );
    Ok(())
}

/// What `--print` writes is what set-up finds in place afterwards.
#[tokio::test]
async fn after_the_printed_sql_setup_has_only_the_slot_to_create() -> Result<()> {
    let world = World::new().await?;
    let role = format!("relay_{}", world.database.name());
    world
        .client
        .batch_execute(&format!("create role {role} login"))
        .await?;
    let url = world.database.url().replace("postgres@", &format!("{role}@"));
    let mut relay = world.relay().postgres_url(&url).build()?;
    let printed = relay
        .run_command(&["setup", "--print", "--grant-to", &role])
        .await?;
    assert_eq!(printed.code(), Some(0), "{}", printed.stderr);
    assert_eq!(
        text(
            &world.client,
            "select count(*)::text from pg_namespace where nspname = 'walrelay'"
        )
        .await?,
        "0"
    );
    world.database.execute(&printed.stdout).await?;
    let old = world.old_rows(3).await?;
    let output = relay
        .run_command(&["setup", "--url", &world.database.url()])
        .await?;
    insta::assert_snapshot!(said(&world, &output)?, @"
    found    migrations
    found    table public.outbox_events
    found    publication walrelay
    created  baseline of publication and tables
    created  slot SLOT (streams from LSN)
    copied   3 unsent rows of public.outbox_events, to be sent first, by created_at
    ");
    let recorder = world.recorder().await?;
    relay.start()?;
    assert_eq!(ids(&recorder.wait_for(3, LONG).await?), old);
    Ok(())
}
