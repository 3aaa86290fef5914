//! Opening a session: set-up where it was asked for, the look before streaming, then the stream.

use crate::fault::Fault;
use crate::postgres::{
    self, Connector, ControlSession, Error, Preflight, Replication, Source, StartOptions, guard,
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
}

/// Opens a session. Every step has the connector's deadline.
///
/// # Errors
/// Why there is none, as an operator must see it.
pub(super) async fn open(settings: DatabaseSettings) -> Result<Replication, Fault> {
    start(&settings)
        .await
        .map_err(|error| Fault::new(error.kind(), &error))
}

async fn start(settings: &DatabaseSettings) -> Result<Replication, Error> {
    if settings.auto_setup {
        let report = postgres::setup(&settings.connector, &settings.source).await?;
        for step in &report.steps {
            tracing::info!(what = step.what, outcome = %step.outcome, "set-up");
        }
    }
    // The SQL session ends before the stream starts: an idle one would hold up a smart shutdown (I8).
    let control = ControlSession::open(&settings.connector, &settings.source.slot).await?;
    let found = look(&control, &settings.source).await;
    control.close().await;
    for table in found?.others {
        tracing::warn!(table = %table, "the publication has a table that is not configured: a row in it will halt delivery");
    }
    Replication::start(&settings.connector, &settings.start).await
}

/// Is everything there, and as it was left (R5)?
async fn look(control: &ControlSession, source: &Source) -> Result<Preflight, Error> {
    let found = postgres::preflight(control, source).await?;
    guard::check(control, source).await?;
    Ok(found)
}
