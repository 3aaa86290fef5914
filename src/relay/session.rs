//! Opening a session: set-up where it was asked for, the look before streaming, then the stream.

use super::standby::{self, Waits};
use crate::fault::Fault;
use crate::postgres::{
    self, Candidate, Connector, ControlSession, Error, Preflight, Replication, Source, StartOptions, Started,
    guard, settled,
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

/// Opens a session, waiting for as long as another process streams from the slot. Every other step has the connector's
/// deadline. `waits` is told who it is that has the slot.
///
/// # Errors
/// Why there is none, as an operator must see it.
pub(super) async fn open(settings: DatabaseSettings, waits: Waits) -> Result<Replication, Fault> {
    start(&settings, &waits)
        .await
        .map_err(|error| Fault::new(error.kind(), &error))
}

async fn start(settings: &DatabaseSettings, waits: &Waits) -> Result<Replication, Error> {
    if settings.auto_setup {
        let report = postgres::setup(&settings.connector, &settings.source).await?;
        for step in &report.steps {
            tracing::info!(what = step.what, outcome = %step.outcome, "set-up");
        }
    }
    look(settings).await?;
    let mut candidate = Candidate::open(&settings.connector, &settings.start).await?;
    loop {
        if standby::wait_for_slot(&mut candidate, settings, waits).await? {
            // Days may have passed.
            look(settings).await?;
        }
        let deadline = settings.connector.deadline();
        candidate = match candidate.start(&settings.start, deadline).await? {
            Started::Streaming(session) => return with_settled(session, settings).await,
            Started::SlotInUse(candidate) => candidate,
        };
    }
}

/// Reads what is settled on record, now that nobody else can add to it (R19). Where our process id is unknown, another
/// server could not be told from ours, so nothing is passed over.
async fn with_settled(session: Replication, settings: &DatabaseSettings) -> Result<Replication, Error> {
    let Some(process_id) = session.process_id() else {
        return Ok(session);
    };
    let (slot, identity) = (&settings.source.slot, session.identity());
    let control = ControlSession::open(&settings.connector, slot).await?;
    let settled = settled::load(&control, slot, identity, process_id).await;
    control.close().await;
    Ok(session.with_settled(settled?))
}

/// Checks that everything fits. The SQL session ends before the stream starts: an idle one would hold up a smart shutdown
/// (I8).
async fn look(settings: &DatabaseSettings) -> Result<(), Error> {
    let control = ControlSession::open(&settings.connector, &settings.source.slot).await?;
    let found = check(&control, &settings.source).await;
    control.close().await;
    for table in found?.others {
        tracing::warn!(table = %table, "the publication has a table that is not configured: a row in it will halt delivery");
    }
    Ok(())
}

/// Is everything there, and as it was left (R5)?
async fn check(control: &ControlSession, source: &Source) -> Result<Preflight, Error> {
    let found = postgres::preflight(control, source).await?;
    guard::check(control, source).await?;
    Ok(found)
}
