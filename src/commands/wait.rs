//! `walrelay wait`: until the slot has confirmed a position (rule 24).

use std::fmt;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use walrelay_engine::Lsn;

use super::{Exit, block_on, in_session, print, progress, resolve, say, with_remedy};
use crate::cli::WaitArgs;
use crate::config::Loaded;
use crate::fault::{Class, chain};
use crate::postgres::slot::{SlotState, explain_missing};
use crate::postgres::{
    self, Connector, ControlSession, SlotName, Unfit, backfill, commit_marker, written_position,
};

/// How often the slot is looked at.
const INTERVAL: Duration = Duration::from_millis(200);
/// After this a session is closed and another one opened, so that no shutdown of the server waits longer.
const SESSION_LIFE: Duration = Duration::from_secs(25);

pub(super) fn execute(args: &WaitArgs, loaded: &Loaded) -> anyhow::Result<Exit> {
    let (connector, source) = resolve::database(&loaded.config)?;
    if let Some(lsn) = args.lsn {
        let written = block_on(in_session(&connector, &source.slot, async |session| {
            written_position(session).await
        }))?;
        let written = written.map_err(with_remedy)?;
        anyhow::ensure!(
            lsn <= written,
            "the server's log ends at {written}, before {lsn}: correct --lsn, or check that postgres.url names the right server"
        );
    }
    let deadline = Instant::now() + args.timeout;
    let mut watch = Watch {
        connector: &connector,
        slot: &source.slot,
        session: None,
        target: args.lsn,
        seen: Seen::default(),
        shown: None,
    };
    let reached = block_on(async {
        let reached = watch.until(deadline).await;
        watch.close().await;
        if let Some((_, shown)) = &mut watch.shown {
            shown.clear();
        }
        reached
    })?;
    if let Some(target) = reached.map_err(with_remedy)? {
        print(&format!("settled up to {target}\n"))?;
        return Ok(Exit::Clean);
    }
    let timeout = humantime::format_duration(args.timeout);
    say(&format!(
        "walrelay: not settled within {timeout}: {}",
        Progress(&watch)
    ));
    Ok(Exit::Failed)
}

/// A wait in progress.
struct Watch<'a> {
    connector: &'a Connector,
    slot: &'a SlotName,
    session: Option<(ControlSession, Instant)>,
    /// Where to; `None` until the write of our own has been committed.
    target: Option<Lsn>,
    seen: Seen,
    /// From where on the way is shown.
    shown: Option<(Lsn, progress::Progress)>,
}

/// What was seen last.
#[derive(Default)]
struct Seen {
    confirmed: Option<Lsn>,
    streaming: bool,
    backfill_left: u64,
    error: Option<postgres::Error>,
}

impl Watch<'_> {
    /// Looks until the target is confirmed, which it returns, or the deadline has passed.
    ///
    /// An outage of the server is waited out once the slot has been seen; before, it is an error, since it may be a
    /// wrong address.
    async fn until(&mut self, deadline: Instant) -> Result<Option<Lsn>, postgres::Error> {
        loop {
            match timeout_at(deadline, self.look()).await {
                Err(_elapsed) => return Ok(None),
                Ok(Ok(Some(target))) => return Ok(Some(target)),
                Ok(Ok(None)) => self.seen.error = None,
                Ok(Err(error)) => {
                    self.session = None;
                    let heals = error.kind().class() == Class::Unavailable;
                    if !heals || self.seen.confirmed.is_none() {
                        return Err(error);
                    }
                    self.seen.error = Some(error);
                }
            }
            let next = Instant::now() + INTERVAL;
            sleep_until(next.min(deadline)).await;
        }
    }

    /// One look; the target, if it is confirmed.
    async fn look(&mut self) -> Result<Option<Lsn>, postgres::Error> {
        let name = self.slot;
        let state = SlotState::read(self.session().await?, name).await?;
        let slot = || name.clone();
        let Some(state) = state else {
            let missing = Unfit::SlotMissing { slot: slot() };
            return Err(explain_missing(self.session().await?, missing).await.into());
        };
        if state.is_lost() {
            return Err(Unfit::SlotLost { slot: slot() }.into());
        }
        let confirmed = state
            .confirmed_flush_lsn
            .ok_or_else(|| Unfit::SlotPhysical { slot: slot() })?;
        self.seen.confirmed = Some(confirmed);
        self.seen.streaming = state.active_pid.is_some();
        let target = match (self.target, &self.session) {
            (Some(target), _) => target,
            (None, Some((session, _))) => *self.target.insert(commit_marker(session).await?),
            (None, None) => return Ok(None),
        };
        let (from, shown) = self.shown.get_or_insert_with(|| {
            let way = target.bytes_since(confirmed);
            (confirmed, progress::Progress::new("bytes of log", Some(way)))
        });
        shown.show(confirmed.bytes_since(*from));
        // What is to be sent before the stream may have been committed before the target, too.
        self.seen.backfill_left = match &self.session {
            Some((session, _)) => backfill::rows_left(session, name).await?,
            None => return Ok(None),
        };
        Ok((confirmed >= target && self.seen.backfill_left == 0).then_some(target))
    }

    /// The open session, a new one where it is too old.
    async fn session(&mut self) -> Result<&ControlSession, postgres::Error> {
        if let Some((_, opened)) = &self.session
            && opened.elapsed() >= SESSION_LIFE
        {
            self.close().await;
        }
        let (session, opened) = match self.session.take() {
            Some(open) => open,
            None => (
                ControlSession::open(self.connector, self.slot).await?,
                Instant::now(),
            ),
        };
        Ok(&self.session.insert((session, opened)).0)
    }

    async fn close(&mut self) {
        if let Some((session, _)) = self.session.take() {
            session.close().await;
        }
    }
}

/// How far it came, in words.
struct Progress<'a>(&'a Watch<'a>);

impl fmt::Display for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Watch {
            slot, target, seen, ..
        } = self.0;
        let (Some(target), Some(confirmed)) = (target, seen.confirmed) else {
            return write!(f, "slot {slot} could not be looked at");
        };
        let behind = bytesize::ByteSize(target.bytes_since(confirmed));
        write!(
            f,
            "slot {slot} has confirmed {confirmed}, {behind} before {target}"
        )?;
        if seen.backfill_left > 0 {
            write!(f, ", and has {} rows to be sent before", seen.backfill_left)?;
        }
        match &seen.error {
            Some(error) => write!(f, "; {}", chain(error)),
            None if seen.streaming => f.write_str("; the relay streams, see its /readyz for what holds it"),
            None => f.write_str("; no relay streams from it"),
        }
    }
}
