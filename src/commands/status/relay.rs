//! What the running relay says of itself.

use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::Value;

use crate::admin::client::{Answer, ask};
use crate::config::Loaded;

/// The time for an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// `/status`, as it came and as far as the screen shows it.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) json: Value,
    pub(super) said: Said,
}

/// What the screen shows. What an older relay does not say is left out.
#[derive(Debug, Deserialize)]
pub(super) struct Said {
    pub(super) version: String,
    pub(super) ready: bool,
    pub(super) role: String,
    pub(super) slot: String,
    /// What `broker` is about, if that is none.
    pub(super) sink: Option<String>,
    pub(super) database: Part,
    pub(super) broker: Part,
    pub(super) delivery: Part,
    #[serde(default)]
    pub(super) risks: Vec<Part>,
    #[serde(default)]
    pub(super) degraded: Vec<Part>,
    pub(super) in_flight: InFlight,
    pub(super) rate: Rate,
    pub(super) position: Position,
    pub(super) totals: Totals,
    pub(super) last_progress: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Part {
    pub(super) state: Option<String>,
    pub(super) since: Option<String>,
    pub(super) cause: Option<String>,
    pub(super) error: Option<String>,
    pub(super) remedy: Option<String>,
    pub(super) rows_left: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct InFlight {
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) held: u64,
    pub(super) oldest_seconds: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rate {
    pub(super) last_10s: f64,
    pub(super) last_60s: f64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Position {
    pub(super) durable: Option<String>,
    pub(super) unacknowledged_bytes: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Totals {
    pub(super) confirmed: u64,
    pub(super) returned: u64,
    pub(super) nacked: u64,
    pub(super) dead_lettered: u64,
    pub(super) discarded: u64,
    pub(super) skipped: u64,
}

impl Relay {
    /// Asks the relay of this configuration.
    ///
    /// # Errors
    /// Why it says nothing, in one line.
    pub(super) async fn ask(loaded: &Loaded) -> Result<Self, String> {
        let admin = &loaded.config.admin;
        let (listen, token_file) = (admin.listen, admin.token_file.clone());
        let asked = tokio::task::spawn_blocking(move || -> anyhow::Result<Answer> {
            let token = token_file.map(std::fs::read_to_string).transpose();
            let token = token.context("read admin.token_file")?;
            let token = token.as_deref().map(str::trim_end);
            Ok(ask(listen, "/status", token, PATIENCE)?)
        });
        let read = async {
            let answer = asked.await??;
            anyhow::ensure!(
                answer.status == 200,
                "{listen} answers with status {}",
                answer.status
            );
            let what = || format!("{listen} answers, but not as a walrelay");
            let json: Value = serde_json::from_str(&answer.body).with_context(what)?;
            let said = Said::deserialize(&json).with_context(what)?;
            anyhow::Ok(Self { json, said })
        };
        read.await.map_err(|error| format!("{error:#}"))
    }
}
