//! `walrelay status`: of a relay that runs, one that stands by, and from the database alone.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walrelay_testbed::{Relay, eventually};

use crate::world::{LONG, World};

async fn shown(relay: &Relay, code: i32) -> Result<String> {
    let output = relay.run_command(&["status"]).await?;
    assert_eq!(output.code(), Some(code), "{}{}", output.stdout, output.stderr);
    Ok(output.stdout)
}

/// The line of this name, without the name.
fn line<'a>(shown: &'a str, name: &str) -> Result<&'a str> {
    let mut lines = shown.lines();
    let found = lines.find(|line| line.split("  ").next() == Some(name));
    let found = found.with_context(|| format!("no line {name} in\n{shown}"))?;
    Ok(found.get(name.len()..).unwrap_or_default().trim_start())
}

/// What the table's row says of its rows.
fn cells(shown: &str) -> Result<Vec<&str>> {
    Ok(line(shown, "public.outbox_events")?.split_whitespace().collect())
}

#[tokio::test]
async fn a_relay_that_delivers_is_shown_with_its_rates_and_tables() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    world.commit_events(20).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    world.client.batch_execute("analyze outbox_events").await?;
    eventually("the rows to be marked", LONG, || async {
        let sql = "select count(*)::text from outbox_events where sent_at is null";
        crate::world::text(&world.client, sql)
            .await
            .is_ok_and(|left| left == "0")
    })
    .await?;
    let shown = shown(&relay, 0).await?;
    assert_eq!(line(&shown, "delivery")?, "flowing");
    ensure!(line(&shown, "relay")?.starts_with("active, version "), "{shown}");
    ensure!(line(&shown, "broker")?.starts_with("up since "), "{shown}");
    ensure!(
        line(&shown, "totals")?.starts_with("20 confirmed, 0 returned"),
        "{shown}"
    );
    ensure!(line(&shown, "rate")?.contains("/s over 10 s"), "{shown}");
    let streamer = format!("walrelay slot_{} from 127.0.0.1 streams", world.database.name());
    ensure!(line(&shown, "stream")?.starts_with(&streamer), "{shown}");
    ensure!(
        line(&shown, "WAL")?.contains("kept for the slot, reserved"),
        "{shown}"
    );
    assert_eq!(line(&shown, "dead letters")?, "0");
    assert_eq!(cells(&shown)?, ["about", "20", "0"]);
    Ok(())
}

#[tokio::test]
async fn what_holds_delivery_is_shown_with_its_remedy() -> Result<()> {
    let world = World::for_orders().await?;
    let relay = world.running().await?;
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'invoice', 1, 'InvoiceSent', '{}')";
    world.client.batch_execute(sql).await?;
    eventually("the event to be held", LONG, || async {
        relay.ready().await.is_ok_and(|readiness| !readiness.is_ready())
    })
    .await?;
    let shown = shown(&relay, 1).await?;
    ensure!(line(&shown, "delivery")?.contains("event_unroutable"), "{shown}");
    ensure!(shown.contains("routing key \"invoice.InvoiceSent\""), "{shown}");
    ensure!(shown.contains("→ bind a queue to the exchange"), "{shown}");
    assert_eq!(cells(&shown)?, ["?", "1"]);
    Ok(())
}

#[tokio::test]
async fn a_standby_says_that_it_is_one() -> Result<()> {
    let world = World::new().await?;
    let _active = world.running().await?;
    let mut standby = world.relay().build()?;
    standby.start()?;
    standby.wait_ready(LONG).await?;
    let shown = shown(&standby, 0).await?;
    ensure!(line(&shown, "relay")?.starts_with("standby, "), "{shown}");
    ensure!(line(&shown, "database")?.starts_with("waiting since "), "{shown}");
    Ok(())
}

#[tokio::test]
async fn without_a_relay_the_database_alone_tells() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    world.commit_events(3).await?;
    let shown = shown(&relay, 1).await?;
    ensure!(
        line(&shown, "relay")?.contains("connect to 127.0.0.1:"),
        "{shown}"
    );
    ensure!(shown.contains("from the database alone"), "{shown}");
    assert_eq!(line(&shown, "stream")?, "nobody streams");
    ensure!(line(&shown, "lag")?.ends_with(" of WAL not confirmed"), "{shown}");
    assert_eq!(cells(&shown)?, ["?", "3"]);

    let output = relay.run_command(&["status", "--json"]).await?;
    let json: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(json["well"], false);
    assert_eq!(json["database"]["tables"][0]["unsent"], 3);
    ensure!(
        json["database"]["slot"]["behind_bytes"].as_u64() > Some(0),
        "{json}"
    );
    ensure!(json["relay"]["error"].is_string(), "{json}");
    Ok(())
}

#[tokio::test]
async fn json_has_what_the_relay_and_the_database_say_and_a_token_is_used() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.folder().write("token", "s3cret\n", 0o600)?;
    let path = relay.folder().path().join("token").display().to_string();
    relay.reconfigure(|relay| relay.text("admin.token_file", &path))?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let output = relay.run_command(&["status", "--json"]).await?;
    assert_eq!(output.code(), Some(0), "{}", output.stdout);
    let json: Value = serde_json::from_str(&output.stdout)?;
    assert_eq!(
        (&json["well"], &json["relay"]["role"]),
        (&true.into(), &"active".into())
    );
    ensure!(json["database"]["slot"]["active_pid"].is_i64(), "{json}");
    assert_eq!(json["database"]["dead_letters"], 0);
    Ok(())
}

/// Ended by SIGINT, it says nothing and is well.
#[tokio::test]
async fn a_watch_draws_again_until_it_is_interrupted() -> Result<()> {
    let world = World::new().await?;
    let relay = world.relay().build()?;
    relay.setup().await?;
    let config = relay.config_path().display().to_string();
    let file = relay.folder().path().join("watched");
    let mut watch = Command::new(env!("CARGO_BIN_EXE_walrelay"))
        .args(["status", "--watch", "--interval", "100ms", "--config", &config])
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&file)?)
        .spawn()?;
    eventually("three screens", LONG, || async {
        let shown = std::fs::read_to_string(&file).unwrap_or_default();
        shown.matches("nobody streams").count() >= 3
    })
    .await?;
    // The second look knows how far the slot came since the first.
    ensure!(std::fs::read_to_string(&file)?.contains("/s of WAL confirmed"));
    let interrupt = ["-INT", &watch.id().to_string()];
    ensure!(Command::new("kill").args(interrupt).status()?.success());
    let ended = tokio::task::spawn_blocking(move || watch.wait());
    let status = tokio::time::timeout(Duration::from_secs(60), ended).await???;
    assert_eq!(status.code(), Some(0));
    Ok(())
}
