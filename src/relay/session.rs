//! Opening a session: set-up where it was asked for, the look before streaming, then the stream.

use super::news::{News, Tell};
use super::standby;
use crate::fault::Fault;
use crate::postgres::{
    self, Candidate, Connector, ControlSession, Error, Preflight, QualifiedTable, RecoverOptions,
    Replication, SlotName, Source, StartOptions, Started, Unfit, backfill, backfill::Noted, guard, settled,
    shard,
};

/// What a session is opened with.
#[derive(Debug, Clone)]
pub struct DatabaseSettings {
    /// Where and as whom.
    pub connector: Connector,
    /// Slot, publication and tables.
    pub source: Source,
    /// Tables of the publication whose rows are passed over.
    pub ignore_tables: Vec<QualifiedTable>,
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
    /// Rows that go out before it (R22), or were sent and may have no mark.
    pub(super) noted: Noted,
}

/// The server that was looked at, and which rows are noted.
type Looked = (Connector, Noted);

impl DatabaseSettings {
    /// The same, but with the server that this connector is for.
    pub(super) fn at(&self, connector: &Connector) -> Self {
        Self {
            connector: connector.clone(),
            ..self.clone()
        }
    }
}

/// Opens a session, waiting for as long as another process streams from the slot. Every other step has the connector's
/// deadline. `news` is told who it is that has the slot, and what is at risk.
///
/// # Errors
/// Why there is none, as an operator must see it.
pub(super) async fn open(settings: DatabaseSettings, news: Tell) -> Result<Opened, Fault> {
    start(&settings, &news)
        .await
        .map_err(|error| Fault::new(error.kind(), &error))
}

async fn start(settings: &DatabaseSettings, news: &Tell) -> Result<Opened, Error> {
    if settings.auto_setup {
        match postgres::setup(&settings.connector, &settings.source).await {
            Ok(report) => {
                for step in &report.steps {
                    tracing::info!(what = step.what, outcome = %step.outcome, "set-up");
                }
            }
            // The look finds that too, and may recover.
            Err(error)
                if matches!(
                    error.unfit(),
                    Some(Unfit::SlotGone { .. } | Unfit::SlotLost { .. })
                ) => {}
            Err(error) => return Err(error),
        }
    }
    let (server, mut noted) = look_and_recover(settings, news).await?;
    let mut candidate = Candidate::open(&server, &settings.start).await?;
    loop {
        if standby::wait_for_slot(&mut candidate, settings, news).await? {
            // Days may have passed.
            (_, noted) = look(&server, settings, news).await?;
        }
        let deadline = settings.connector.deadline();
        candidate = match candidate.start(&settings.start, deadline).await? {
            Started::Streaming(session) => {
                let session = with_settled(session, &settings.source.slot).await?;
                return Ok(Opened { session, noted });
            }
            Started::SlotInUse(candidate) => candidate,
        };
        // Its holder may not be told for a while.
        tokio::time::sleep(standby::LOOK_INTERVAL).await;
    }
}

/// As [`look`]. A slot that is lost is made anew where that was asked for (R23).
async fn look_and_recover(settings: &DatabaseSettings, news: &Tell) -> Result<Looked, Error> {
    let error = match look(&settings.connector, settings, news).await {
        Ok(found) => return Ok(found),
        Err(error) => error,
    };
    let is_lost = matches!(
        error.unfit(),
        Some(Unfit::SlotLost { .. } | Unfit::SlotMissing { .. } | Unfit::RecoveryInterrupted { .. })
    );
    let Some(options) = settings.rescan.as_ref().filter(|_| is_lost) else {
        return Err(error);
    };
    tracing::warn!(error = %error, "the slot is lost: it is made anew, and what it may have missed is sent");
    let report = postgres::recover(&settings.connector, &settings.source, options).await?;
    for line in report.to_string().lines() {
        tracing::warn!(line, "recovery");
    }
    look(&settings.connector, settings, news).await
}

/// Reads what is settled on record, now that nobody else can add to it (R19).
async fn with_settled(session: Replication, slot: &SlotName) -> Result<Replication, Error> {
    let control = ControlSession::open(session.connector(), slot).await?;
    let settled = settled::load(&control, slot, session.identity(), session.process_id()).await;
    control.close().await;
    Ok(session.with_settled(settled?))
}

/// Checks that everything fits, and tells what is at risk all the same. The SQL session ends before the stream starts: an
/// idle one would hold up a smart shutdown (I8). Returns a connector to the server that was looked at, so that the stream
/// comes from no other; and whether rows are to be backfilled.
async fn look(connector: &Connector, settings: &DatabaseSettings, news: &Tell) -> Result<Looked, Error> {
    let control = ControlSession::open(connector, &settings.source.slot).await?;
    let server = control.connector().clone();
    let found = check(&control, &settings.source).await;
    control.close().await;
    let (found, noted) = found.map_err(|error| error.at(&server))?;
    let risks = found
        .risks(&settings.source.slot)
        .map(|risk| Fault::new(risk.kind(), &risk));
    // An error means that the relay ends.
    news.send(News::AtRisk(risks.collect())).await.ok();
    let others = found.others.into_iter();
    for table in others.filter(|table| !settings.ignore_tables.contains(table)) {
        tracing::warn!(table = %table, "the publication has a table that is not configured: a row in it will halt delivery");
    }
    Ok((server, noted))
}

/// Is everything there, and as it was left (R5)? And are rows to be backfilled?
async fn check(control: &ControlSession, source: &Source) -> Result<(Preflight, Noted), Error> {
    let found = postgres::preflight(control, source).await?;
    guard::check(control, source).await?;
    let noted = backfill::noted(control, &source.slot).await?;
    shard::check_turn(control, source, &found.server, &found.slot).await?;
    Ok((found, noted))
}
