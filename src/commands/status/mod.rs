//! `walrelay status`.

mod relay;
mod screen;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use walrelay_engine::Lsn;

use super::{Exit, block_on, print, resolve};
use crate::cli::StatusArgs;
use crate::config::Loaded;
use crate::fault::Fault;
use crate::postgres::{Connector, Overview, Source};

use relay::Relay;
use screen::Screen;

/// Moves to the top and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

pub(super) fn execute(args: &StatusArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    let mut looks = Looks {
        loaded,
        connector: &connector,
        source: &source,
        last: None,
    };
    block_on(async {
        if args.watch {
            return looks.watch(args.interval).await;
        }
        let look = looks.look().await;
        print(&if args.json { look.json()? } else { look.text() })?;
        Ok(if look.is_well() { Exit::Clean } else { Exit::Failed })
    })?
}

/// Looks at the relay and the database, one after another.
struct Looks<'a> {
    loaded: &'a Loaded,
    connector: &'a Connector,
    source: &'a Source,
    /// When the slot was last looked at, and how far it was.
    last: Option<(Instant, Lsn)>,
}

impl Looks<'_> {
    async fn look(&mut self) -> Screen {
        let relay = Relay::ask(self.loaded).await;
        let database = Overview::read(self.connector, self.source)
            .await
            .map_err(|error| Fault::new(error.kind(), &error));
        let rate = database.as_ref().ok().and_then(|overview| self.rate(overview));
        Screen {
            slot: self.source.slot.to_string(),
            relay,
            database,
            rate,
        }
    }

    /// Bytes of the log confirmed in a second, since the last look.
    fn rate(&mut self, overview: &Overview) -> Option<u64> {
        let confirmed = overview.slot.confirmed_flush_lsn?;
        let now = Instant::now();
        let (since, from) = self.last.replace((now, confirmed))?;
        let millis = u64::try_from((now - since).as_millis())
            .unwrap_or(u64::MAX)
            .max(1);
        let bytes = confirmed.get().saturating_sub(from.get());
        Some(bytes.saturating_mul(1000) / millis)
    }

    async fn watch(&mut self, interval: Duration) -> anyhow::Result<Exit> {
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
        let clear = if io::stdout().is_terminal() { CLEAR } else { "" };
        loop {
            let next = async {
                let look = self.look().await;
                print(&format!("{clear}{}\n", look.text()))?;
                tokio::time::sleep(interval).await;
                anyhow::Ok(())
            };
            tokio::select! {
                biased;
                _ = terminate.recv() => return Ok(Exit::Clean),
                _ = interrupt.recv() => return Ok(Exit::Clean),
                shown = next => shown?,
            }
        }
    }
}
