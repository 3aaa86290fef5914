//! A set-up that is well, and what doctor leaves behind: nothing.

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio_postgres::Client;

use super::{said, set_up};
use crate::world::{LONG, QUEUE, World};

#[tokio::test]
async fn a_set_up_that_is_well_passes_every_check() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    world
        .vhost
        .declare_exchange("events", lapin::ExchangeKind::Topic)
        .await?;
    world.vhost.bind(QUEUE, "events", "order.#").await?;
    relay.reconfigure(|relay| relay.text("rabbitmq.exchange", "events"))?;
    insta::assert_snapshot!("well", said(&world, &relay, &["--probe"]).await?);
    Ok(())
}

#[tokio::test]
async fn a_running_relay_is_named_and_not_disturbed() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let said = said(&world, &relay, &[]).await?;
    for line in [
        "server process PID streams from it: walrelay slot_DB from 127.0.0.1",
        "a walrelay answers there: slot slot_DB, active, ready",
    ] {
        ensure!(said.contains(line), "{line} is not in\n{said}");
    }
    let recorder = world.recorder().await?;
    let ids = world.commit_events(3).await?;
    recorder.wait_for_distinct(3, LONG).await?;
    assert_eq!(recorder.message_ids(), ids);
    Ok(())
}

/// Rows of catalogs and of walrelay's own tables, as far as something could have been changed.
async fn catalogs(client: &Client) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    for sql in [
        "select slot_name, plugin, restart_lsn, confirmed_flush_lsn, active from pg_replication_slots where database = current_database()",
        "select xmin::text, * from pg_publication",
        "select xmin::text, * from pg_publication_rel",
        "select oid, relname, relfilenode, xmin::text from pg_class where relnamespace in ('public'::regnamespace, 'walrelay'::regnamespace)",
        "select xmin::text, * from walrelay.state",
        "select xmin::text, * from walrelay.slots",
        "select xmin::text, * from walrelay.mark_owners",
        "select xmin::text, * from walrelay.skips",
        "select xmin::text, * from walrelay.dead_letters",
        "select xmin::text, * from public.outbox_events",
        "select oid, rolname, rolconfig::text from pg_roles",
    ] {
        let sql = format!("select to_jsonb(t)::text from ({sql}) t order by 1");
        rows.extend(client.query(&sql, &[]).await?.iter().map(|row| row.get(0)));
    }
    Ok(rows)
}

async fn events_wait(world: &World) -> Result<u32> {
    Ok(world.vhost.queue_length(QUEUE).await?)
}

#[tokio::test]
async fn doctor_changes_nothing() -> Result<()> {
    let (world, relay) = set_up().await?;
    world.commit_events(2).await?;
    let (rows, waiting) = (catalogs(&world.client).await?, events_wait(&world).await?);
    for arguments in [&["doctor"][..], &["doctor", "--routes"]] {
        assert_eq!(relay.run_command(arguments).await?.code(), Some(0));
    }
    assert_eq!(catalogs(&world.client).await?, rows);
    assert_eq!(events_wait(&world).await?, waiting);
    // The queue takes every key, so it takes the message of the probe, as is said.
    let output = relay.run_command(&["doctor", "--probe"]).await?;
    ensure!(
        output.stdout.contains("a queue took the message"),
        "{}",
        output.stdout
    );
    assert_eq!(catalogs(&world.client).await?, rows);
    assert_eq!(events_wait(&world).await?, waiting + 1);
    Ok(())
}

#[tokio::test]
async fn json_has_every_finding_and_warnings_count_where_that_is_asked_for() -> Result<()> {
    let (world, relay) = set_up().await?;
    let sql = "alter table outbox_events alter column event_type drop not null";
    world.client.batch_execute(sql).await?;
    let output = relay.run_command(&["doctor", "--json"]).await?;
    assert_eq!(output.code(), Some(0));
    let report: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!((&report["failures"], &report["warnings"]), (&0.into(), &1.into()));
    let findings = report["groups"].as_array().into_iter().flatten();
    let findings = findings.flat_map(|group| group["findings"].as_array().into_iter().flatten());
    let warned: Vec<_> = findings.filter(|found| found["outcome"] == "warning").collect();
    assert_eq!(warned.len(), 1);
    assert_eq!(warned[0]["cause"], "column_nullable");
    assert_eq!(
        warned[0]["fix"],
        "alter table \"public\".\"outbox_events\" alter column \"event_type\" set not null;"
    );
    assert_eq!(relay.run_command(&["doctor", "--strict"]).await?.code(), Some(1));
    Ok(())
}
