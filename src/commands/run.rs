//! `walrelay run`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::{Exit, block_on, resolve};
use crate::admin;
use crate::cli::RunArgs;
use crate::config::{Config, Loaded};
use crate::fault::chain;
use crate::relay::{self, Ending, RelaySettings, Status};
use crate::systemd;

pub(super) fn execute(args: &RunArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let config = &loaded.config;
    let settings = resolve::relay(config, args.auto_setup, args.exit_on_halt)?;
    exporting_spans(config, settings, |settings| {
        block_on(async {
            let listen = config.admin.listen;
            let token_file = config.admin.token_file.clone();
            tracing::info!(version = env!("CARGO_PKG_VERSION"), slot = config.postgres.slot, shard = config.postgres.shard, admin = %listen, "starting");
            Box::pin(serve(settings, listen, token_file)).await
        })
    })?
}

/// Runs the relay with its spans going to the collector that is configured, if one is.
#[cfg(feature = "otel")]
fn exporting_spans<T>(
    config: &Config,
    mut settings: RelaySettings,
    run: impl FnOnce(RelaySettings) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(endpoint) = &config.otel.endpoint else {
        return run(settings);
    };
    let (sender, exporter) = crate::otel::start(endpoint, &config.postgres.slot)?;
    settings.spans = Some(sender);
    let result = run(settings);
    exporter.finish();
    result
}

/// Without the feature there is no collector.
#[cfg(not(feature = "otel"))]
fn exporting_spans<T>(
    _config: &Config,
    settings: RelaySettings,
    run: impl FnOnce(RelaySettings) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    run(settings)
}

async fn serve(
    settings: RelaySettings,
    listen: SocketAddr,
    token_file: Option<PathBuf>,
) -> anyhow::Result<Exit> {
    let (status, watched) = watch::channel(Status {
        sink: settings.sink.kind(),
        ..Status::new(settings.database.source.slot.to_string())
    });
    let manager = watched.clone();
    let (stop, stopped) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    // Without a handler it would end the process at once, in the middle of everything.
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let mut relay = std::pin::pin!(relay::run(settings, status, stopped));
    // A task of its own: tokio lets a task do only so much at a time, and a busy relay would leave nothing of that.
    let mut admin =
        tokio::spawn(async move { admin::serve(admin::listen(listen).await, watched, token_file).await });
    tokio::spawn(systemd::report(manager));
    loop {
        let signal = tokio::select! {
            biased;
            _ = terminate.recv() => SignalKind::terminate(),
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = hangup.recv() => {
                tracing::warn!("hang-up signal ignored: the configuration is read at the start, secrets at every connect");
                continue;
            }
            ending = &mut relay => return Ok(match ending {
                Ending::Stopped => {
                    tracing::info!("stopped");
                    Exit::Clean
                }
                Ending::Halted(kind) => {
                    tracing::error!(cause = kind.label(), remedy = kind.remedy(), "exiting on a halt");
                    Exit::Halted
                }
            }),
            ended = &mut admin => {
                let error = ended.map_err(io::Error::from).flatten();
                // Delivery must not depend on the health endpoint, but a relay that cannot be watched is half-alive.
                let error = error.err().map_or_else(|| "it ended".to_owned(), |error| chain(&error));
                anyhow::bail!("the HTTP endpoint failed: {error}");
            }
        };
        systemd::tell_stopping();
        if stop.send_replace(true) {
            tracing::warn!("second signal: exiting at once");
            return Ok(Exit::CutShort(
                signal.as_raw_value().try_into().unwrap_or_default(),
            ));
        }
    }
}
