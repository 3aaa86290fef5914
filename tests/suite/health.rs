//! `/livez`, `/readyz`, `/metrics`, and what the relay keeps open while it runs.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use walrelay_testbed::{
    Postgres, PostgresOptions, Relay, Samples, StopMode, TcpProxy, eventually, http_get, shared_rabbitmq,
};

use crate::complaint::{Part, named};
use crate::world::{LONG, World, insert_event};

#[tokio::test]
async fn a_relay_that_starts_before_its_servers_delivers_once_they_are_up() -> Result<()> {
    let world = World::new().await?;
    let mut server = Postgres::start(PostgresOptions::default()).await?;
    let mut broker = TcpProxy::start(shared_rabbitmq().await?.port()).await?;
    let relay = world
        .relay()
        .postgres_url(&server.url("postgres"))
        .rabbitmq_uri(&world.vhost.uri_through(broker.port()));
    let mut relay = relay.build()?;
    relay.setup().await?;
    server.stop(StopMode::Fast).await?;
    broker.refuse().await;

    let started = SystemTime::now();
    relay.start()?;
    let readiness = named(&mut relay, Part::Database, "database_unreachable").await?;
    named(&mut relay, Part::Broker, "broker_unreachable").await?;
    assert_alive(&relay).await?;
    let since = readiness.json["database"]["since"].as_str().context("no since")?;
    // It is given in whole seconds.
    let since = humantime::parse_rfc3339(since)? + Duration::from_secs(1);
    assert!(
        (started..=SystemTime::now() + Duration::from_secs(1)).contains(&since),
        "{since:?}"
    );

    // One side up is not enough, and the other one is named.
    server.start_again().await?;
    let what = "the database's side alone to be up";
    let readiness = relay
        .wait_readiness(what, LONG, |readiness| {
            readiness.json["database"]["state"] == "up"
        })
        .await?;
    assert_eq!(
        (readiness.status, &readiness.json["broker"]["state"]),
        (503, &"down".into())
    );
    let client = server.client("postgres").await?;
    let id = insert_event(&client, 1).await?;
    broker.pass().await?;
    relay.wait_ready(LONG).await?;
    let recorder = world.recorder().await?;
    assert_eq!(recorder.wait_for(1, LONG).await?[0].message_id, id);

    // Both go again: alive, unready, and back by itself.
    server.stop(StopMode::Fast).await?;
    broker.refuse().await;
    broker.cut().await;
    named(&mut relay, Part::Database, "database_unreachable").await?;
    named(&mut relay, Part::Broker, "broker_unreachable").await?;
    assert_alive(&relay).await?;
    server.start_again().await?;
    broker.pass().await?;
    relay.wait_ready(LONG).await?;
    let id = insert_event(&server.client("postgres").await?, 2).await?;
    recorder.wait_for_distinct(2, LONG).await?;
    assert!(recorder.distinct_ids().contains(&id));
    let metrics = relay.metrics().await?;
    assert!(metrics.value("walrelay_sessions_total", &[]) >= Some(2.0));
    assert!(metrics.value("walrelay_links_total", &[]) >= Some(2.0));
    Ok(())
}

#[tokio::test]
async fn metrics_have_help_and_type_and_move_with_the_events() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    let response = http_get(relay.admin_port(), "/metrics").await?;
    assert_eq!(response.status, 200);
    assert!(
        response
            .head
            .to_lowercase()
            .contains("content-type: application/openmetrics-text"),
        "{}",
        response.head
    );
    assert!(response.body.ends_with("# EOF\n"), "{}", response.body);
    assert_described(&response.body)?;

    let before = relay.metrics().await?;
    let counters = ["events_read", "published", "confirmed"].map(|name| format!("walrelay_{name}_total"));
    let transactions = |metrics: &Samples| metrics.value("walrelay_transactions_total", &[]);
    // PostgreSQL 14 sends those too that hold nothing for the relay, such as its own.
    let all_are_sent = world.major().await? < 15;
    assert!(
        counters.iter().all(|name| before.value(name, &[]) == Some(0.0))
            && (transactions(&before) == Some(0.0) || all_are_sent),
        "{before:?}"
    );
    for (name, value) in [
        ("ready", 1.0),
        ("database_up", 1.0),
        ("broker_up", 1.0),
        ("in_flight_events", 0.0),
    ] {
        assert_eq!(
            before.value(&format!("walrelay_{name}"), &[]),
            Some(value),
            "{name}"
        );
    }
    assert_eq!(
        before.sum("walrelay_halted", &[]) + before.sum("walrelay_fault", &[]),
        0.0
    );

    let recorder = world.recorder().await?;
    world.commit_events(7).await?;
    recorder.wait_for_distinct(7, LONG).await?;
    let moved = eventually("the counters to move", LONG, || async {
        let Ok(metrics) = relay.metrics().await else {
            return false;
        };
        let counted = counters.iter().all(|name| metrics.value(name, &[]) == Some(7.0))
            && (transactions(&metrics) == Some(7.0) || (all_are_sent && transactions(&metrics) > Some(7.0)));
        counted && metrics.value("walrelay_durable_lsn", &[]) > before.value("walrelay_durable_lsn", &[])
    });
    moved.await?;
    let progress = relay
        .metrics()
        .await?
        .value("walrelay_last_progress_timestamp_seconds", &[]);
    assert!(progress > Some(1.7e9), "{progress:?}");

    // A halt comes and goes.
    world
        .database
        .execute("alter publication walrelay drop table outbox_events")
        .await?;
    let end = "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1";
    world.client.query(end, &[&world.slot()]).await?;
    named(&mut relay, Part::Database, "table_not_published").await?;
    let halted = relay.metrics().await?;
    let reason = [("reason", "table_not_published")];
    assert_eq!(halted.value("walrelay_halted", &reason), Some(1.0));
    assert_eq!(halted.value("walrelay_ready", &[]), Some(0.0));
    world
        .database
        .execute("alter publication walrelay add table outbox_events")
        .await?;
    // What was changed and changed back needs a person's word (R5).
    let recovered = relay.run_command(&["recover"]).await?;
    anyhow::ensure!(
        recovered.code() == Some(0),
        "recover failed: {}",
        recovered.stderr
    );
    relay.wait_ready(LONG).await?;
    let healed = relay.metrics().await?;
    assert_eq!(healed.value("walrelay_halted", &reason), None);
    assert_eq!(healed.value("walrelay_ready", &[]), Some(1.0));
    Ok(())
}

#[tokio::test]
async fn readiness_is_json_and_unknown_paths_are_404() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let response = http_get(relay.admin_port(), "/readyz").await?;
    let head = response.head.to_lowercase();
    assert!(head.contains("content-type: application/json"), "{head}");
    let mut json: serde_json::Value = serde_json::from_str(&response.body)?;
    for side in ["database", "broker"] {
        let since = json[side]["since"].take();
        humantime::parse_rfc3339(since.as_str().context("no since")?)?;
    }
    let slot = world.slot();
    assert_eq!(
        json,
        serde_json::json!({
            "ready": true, "role": "active", "slot": slot, "sink": "rabbitmq",
            "database": {"state": "up", "since": null},
            "broker": {"state": "up", "since": null},
            "delivery": {"state": "flowing"},
        })
    );
    assert_eq!(http_get(relay.admin_port(), "/nowhere").await?.status, 404);
    assert_eq!(http_get(relay.admin_port(), "/livez").await?.body, "ok\n");
    Ok(())
}

#[tokio::test]
async fn no_sql_session_is_kept_while_it_runs() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    world.commit_events(2).await?;
    recorder.wait_for_distinct(2, LONG).await?;
    let sql = "select backend_type, application_name from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()";
    let sessions = world.client.query(sql, &[]).await?;
    let sessions: Vec<(String, String)> = sessions.iter().map(|row| (row.get(0), row.get(1))).collect();
    let name = format!("walrelay {}", world.slot());
    assert_eq!(sessions, [("walsender".to_owned(), name)]);
    drop(relay);
    Ok(())
}

#[tokio::test]
async fn an_unready_relay_is_alive_and_a_frozen_one_does_not_answer() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.running().await?;
    relay.pause()?;
    let asking = tokio::time::timeout(Duration::from_millis(300), http_get(relay.admin_port(), "/livez"));
    assert!(asking.await.is_err(), "a frozen process answered");
    relay.resume()?;
    relay.wait_ready(LONG).await?;
    assert_alive(&relay).await
}

async fn assert_alive(relay: &Relay) -> Result<()> {
    let response = http_get(relay.admin_port(), "/livez").await?;
    ensure!(response.status == 200, "{response:?}");
    Ok(())
}

/// Every sample belongs to a family that has a TYPE and a HELP, each once.
fn assert_described(text: &str) -> Result<()> {
    let described = |keyword: &str| -> Result<HashSet<&str>> {
        let prefix = format!("# {keyword} ");
        let lines: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .collect();
        let names: HashSet<&str> = lines.iter().filter_map(|line| line.split(' ').next()).collect();
        ensure!(names.len() == lines.len(), "{keyword} twice in\n{text}");
        Ok(names)
    };
    let (types, helps) = (described("TYPE")?, described("HELP")?);
    ensure!(types == helps && types.len() > 15, "{types:?} and {helps:?}");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let mut families = ["_total", "_sum", "_count", "_bucket"]
            .iter()
            .filter_map(|suffix| name.strip_suffix(suffix))
            .chain([name]);
        ensure!(
            families.any(|family| types.contains(family)),
            "{line} is not described"
        );
    }
    Ok(())
}

#[tokio::test]
async fn the_health_command_asks_the_running_relay() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.start()?;
    named(&mut relay, Part::Database, "not_set_up").await?;
    let health = relay.run_command(&["health"]).await?;
    ensure!(health.code() == Some(0) && health.stdout == "ok\n", "{health:?}");
    let ready = relay.run_command(&["health", "--ready"]).await?;
    ensure!(
        ready.code() == Some(1) && ready.stdout.contains("not_set_up"),
        "{ready:?}"
    );
    relay.setup().await?;
    relay.wait_ready(LONG).await?;
    let ready = relay.run_command(&["health", "--ready"]).await?;
    ensure!(ready.code() == Some(0), "{ready:?}");
    Ok(())
}
