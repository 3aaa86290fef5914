//! The HTTP endpoint: what it tells, whom, and what it bears.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use walrelay_testbed::{Relay, eventually, http_get};

use crate::world::{LONG, World};

/// A connection to the relay's endpoint.
fn connect(relay: &Relay) -> Result<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", relay.admin_port()))?;
    stream.set_read_timeout(Some(LONG))?;
    stream.set_write_timeout(Some(LONG))?;
    Ok(stream)
}

/// The answer to a request as it stands, until the relay closes.
fn answer(relay: &Relay, request: &[u8]) -> Result<String> {
    let mut stream = connect(relay)?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    // A reset after the answer is as good an end.
    stream.read_to_end(&mut answer).ok();
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The status line's code for a path, with one more header.
fn code(relay: &Relay, path: &str, header: &str) -> Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{header}\r\n");
    let answer = answer(relay, request.as_bytes())?;
    Ok(answer.split(' ').nth(1).context("no answer")?.to_owned())
}

async fn history(port: u16, query: &str) -> Result<Vec<Value>> {
    Ok(serde_json::from_str(
        &http_get(port, &format!("/history{query}")).await?.body,
    )?)
}

/// Events confirmed in all samples of the last minutes.
async fn confirmed(port: u16) -> Result<u64> {
    Ok(history(port, "")
        .await?
        .iter()
        .filter_map(|sample| sample["confirmed"].as_u64())
        .sum())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_slow_clients_and_a_thousand_idle_connections_do_not_disturb_delivery() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    world.commit_events(1).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    let before = relay.peak_rss_kib()?;

    ensure!(answer(&relay, b"\x16\x03\x01 this is no HTTP \0\r\n\r\n")?.starts_with("HTTP/1.1 400"));
    let mut huge = b"GET /livez HTTP/1.1\r\nx: ".to_vec();
    huge.resize(1024 * 1024, b'x');
    ensure!(
        !answer(&relay, &huge)
            .unwrap_or_default()
            .starts_with("HTTP/1.1 200")
    );
    // Half a request each, and never the rest.
    let idle = (0..1_000)
        .map(|_| {
            let mut stream = connect(&relay)?;
            stream.write_all(b"GET /livez HT").ok();
            Ok(stream)
        })
        .collect::<Result<Vec<_>>>()?;
    world.commit_events(100).await?;
    recorder.wait_for_distinct(101, LONG).await?;
    ensure!(http_get(relay.admin_port(), "/livez").await?.status == 200);
    let grown = relay.peak_rss_kib()?.saturating_sub(before);
    ensure!(grown < 16 * 1024, "memory grew by {grown} KiB");

    // The newest of the slow ones is closed, too, though nobody pushes it out.
    let mut newest = idle.into_iter().next_back().context("none")?;
    newest.set_read_timeout(Some(LONG))?;
    let mut rest = Vec::new();
    newest.read_to_end(&mut rest).ok();
    Ok(())
}

#[tokio::test]
async fn with_a_token_only_probes_are_answered_without_it() -> Result<()> {
    let world = World::new().await?;
    let mut relay = world.relay().build()?;
    relay.folder().write("token", "s3cret\n", 0o600)?;
    let path = relay.folder().path().join("token").display().to_string();
    relay.reconfigure(|relay| relay.text("admin.token_file", &path))?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    for path in ["/livez", "/readyz"] {
        ensure!(code(&relay, path, "")? == "200", "{path}");
    }
    for path in ["/", "/metrics", "/status", "/history"] {
        ensure!(code(&relay, path, "")? == "401", "{path}");
        ensure!(
            code(&relay, path, "Authorization: Bearer wrong\r\n")? == "401",
            "{path}"
        );
        ensure!(
            code(&relay, path, "Authorization: Bearer s3cret\r\n")? == "200",
            "{path}"
        );
    }
    // A new token counts at once.
    relay.folder().write("token", "other", 0o600)?;
    ensure!(code(&relay, "/metrics", "Authorization: Bearer s3cret\r\n")? == "401");
    ensure!(code(&relay, "/metrics", "Authorization: Bearer other\r\n")? == "200");
    Ok(())
}

#[tokio::test]
async fn status_and_history_tell_what_has_happened() -> Result<()> {
    let world = World::new().await?;
    let relay = world.running().await?;
    let recorder = world.recorder().await?;
    world.commit_events(20).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    let port = relay.admin_port();
    eventually("samples with all the confirms", LONG, || async move {
        confirmed(port).await.is_ok_and(|confirmed| confirmed == 20)
    })
    .await?;
    // What is there already need not be told again.
    let samples = history(port, "").await?;
    let first = samples[0]["at"].as_u64().context("no time")?;
    let later = history(port, &format!("?since={first}")).await?;
    ensure!(later[..samples.len() - 1] == samples[1..], "{later:?}");
    ensure!(http_get(port, "/history?since=soon").await?.status == 400);
    let status = http_get(relay.admin_port(), "/status").await?;
    let status: Value = serde_json::from_str(&status.body)?;
    ensure!(status["ready"] == true && status["role"] == "active", "{status}");
    ensure!(status["totals"]["confirmed"] == 20, "{status}");
    ensure!(status["rate"]["last_60s"].as_f64() > Some(0.0), "{status}");
    ensure!(
        status["position"]["durable"]
            .as_str()
            .is_some_and(|lsn| lsn.contains('/')),
        "{status}"
    );
    let metrics = relay.metrics().await?;
    ensure!(metrics.value("walrelay_commit_to_confirm_seconds_count", &[]) == Some(20.0));
    Ok(())
}
