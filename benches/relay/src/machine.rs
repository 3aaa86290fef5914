//! Where and of what a run was: for the reader who compares.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use crate::stage::{POSTGRES_SETTINGS, Stage};

/// Processor, memory and system; never the machine's name.
pub(crate) fn machine() -> Value {
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = read("/proc/meminfo");
    let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = kib.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    let system = read("/etc/os-release");
    let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    json!({
        "processor": model.map(|(_, model)| model),
        "cores": std::thread::available_parallelism().map(usize::from).ok(),
        "memory_gib": kib.map(|kib| kib / 1024 / 1024),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "system": system.map(|name| name.trim_matches('"')),
    })
}

/// What else runs: the load average of the last minute.
pub(crate) fn load() -> Option<f64> {
    read("/proc/loadavg").split_whitespace().next()?.parse().ok()
}

/// The versions of everything that took part.
pub(crate) async fn versions(stage: &Stage, walrelay: &Path) -> Result<Value> {
    let client = stage.postgres.client("postgres").await?;
    let postgres: String = client.query_one("show server_version", &[]).await?.get(0);
    // As rabbitmqctl says it: its own, which is the broker's.
    let broker = stage.broker.ctl(&["version"]).await?;
    let erlang = stage
        .broker
        .ctl(&["eval", "io:format(erlang:system_info(otp_release))."])
        .await?;
    let erlang: String = erlang.chars().take_while(char::is_ascii_digit).collect();
    Ok(json!({
        "walrelay": said_by(walrelay.as_os_str(), &["--version"]),
        "commit": said_by("git".as_ref(), &["describe", "--always", "--dirty"]),
        "rustc": said_by("rustc".as_ref(), &["--version"]),
        "postgresql": postgres,
        "rabbitmq": broker.trim(),
        "erlang": erlang,
    }))
}

/// The servers' settings that differ from their defaults.
pub(crate) fn settings() -> Value {
    let postgres: serde_json::Map<String, Value> = POSTGRES_SETTINGS
        .into_iter()
        .chain([
            ("wal_level", "logical"),
            ("max_replication_slots", "1000"),
            ("max_wal_senders", "100"),
        ])
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    json!({
        "postgresql": postgres,
        "rabbitmq": {"plugins": [], "log.console.level": "info", "disk_free_limit.absolute": "1MB"},
        "walrelay": {"log.level": "warn", "outbox.after_publish": "keep, where not said otherwise"},
    })
}

/// The moment as UTC, to the second.
pub(crate) fn date() -> Option<String> {
    said_by("date".as_ref(), &["--utc", "+%Y-%m-%dT%H:%M:%SZ"])
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The first line of a program's output, if it has any.
fn said_by(program: &std::ffi::OsStr, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned)
}
