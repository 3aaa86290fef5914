//! Opening a session: set-up where it was asked for, the look before streaming, then the stream.

use super::standby::{self, Waits};
use crate::fault::Fault;
use crate::postgres::{
    self, Candidate, Connector, ControlSession, Error, Preflight, RecoverOptions, Replication, Source,
    StartOptions, Started, Unfit, backfill, guard,
};

/// What a session is opened with.
#[derive(Debug, Clone)]
pub struct DatabaseSettings {
    /// Where and as whom.
    pub connector: Connector,
    /// Slot, publication and tables.
    pub source: Source,
    /// How to stream.
    pub start: StartOptions,
    /// Run set-up before the first session (`--auto-setup`).
    pub auto_setup: bool,
    /// Recover by itself where the slot is lost, in this way.
    pub rescan: Option<RecoverOptions>,
}

/// A session that streams.
#[derive(Debug)]
pub(super) struct Opened {
    /// The stream.
    pub(super) session: Replication,
    /// Whether rows go out before it (R22).
    pub(super) has_backfill: bool,
}

/// Opens a session, waiting for as long as another process streams from the slot. Every other step has the connector's
/// deadline. `waits` is told who it is that has the slot.
///
/// # Errors
/// Why there is none, as an operator must see it.
pub(super) async fn open(settings: DatabaseSettings, waits: Waits) -> Result<Opened, Fault> {
    start(&settings, &waits)
        .await
        .map_err(|error| Fault::new(error.kind(), &error))
}

async fn start(settings: &DatabaseSettings, waits: &Waits) -> Result<Opened, Error> {
    if settings.auto_setup {
        let report = postgres::setup(&settings.connector, &settings.source).await?;
        for step in &report.steps {
            tracing::info!(what = step.what, outcome = %step.outcome, "set-up");
        }
    }
    let mut has_backfill = look_and_recover(settings).await?;
    let mut candidate = Candidate::open(&settings.connector, &settings.start).await?;
    loop {
        if standby::wait_for_slot(&mut candidate, settings, waits).await? {
            // Days may have passed.
            has_backfill = look(settings).await?;
        }
        let deadline = settings.connector.deadline();
        candidate = match candidate.start(&settings.start, deadline).await? {
            Started::Streaming(session) => {
                return Ok(Opened {
                    session,
                    has_backfill,
                });
            }
            Started::SlotInUse(candidate) => candidate,
        };
    }
}

/// Checks that everything fits. A slot that is lost is made anew where that was asked for (R23).
async fn look_and_recover(settings: &DatabaseSettings) -> Result<bool, Error> {
    match look(settings).await {
        Err(Error::Unfit(error @ (Unfit::SlotLost { .. } | Unfit::SlotMissing { .. })))
            if settings.rescan.is_some() =>
        {
            tracing::warn!(error = %error, "the slot is lost: it is made anew, and what it may have missed is sent");
            rescan(settings, error).await?;
            look(settings).await
        }
        other => other,
    }
}

async fn rescan(settings: &DatabaseSettings, lost: Unfit) -> Result<(), Error> {
    let Some(options) = &settings.rescan else {
        return Err(lost.into());
    };
    let report = postgres::recover(&settings.connector, &settings.source, options).await?;
    for line in report.to_string().lines() {
        tracing::warn!(line, "recovery");
    }
    Ok(())
}

/// Checks that everything fits, and whether rows are to be backfilled. The SQL session ends before the stream starts: an idle one would hold up a smart shutdown
/// (I8).
async fn look(settings: &DatabaseSettings) -> Result<bool, Error> {
    let control = ControlSession::open(&settings.connector, &settings.source.slot).await?;
    let found = check(&control, &settings.source).await;
    control.close().await;
    let (found, has_backfill) = found?;
    for table in found.others {
        tracing::warn!(table = %table, "the publication has a table that is not configured: a row in it will halt delivery");
    }
    Ok(has_backfill)
}

/// Is everything there, and as it was left (R5)?
async fn check(control: &ControlSession, source: &Source) -> Result<(Preflight, bool), Error> {
    let found = postgres::preflight(control, source).await?;
    guard::check(control, source).await?;
    Ok((found, backfill::waits(control, &source.slot).await?))
}
