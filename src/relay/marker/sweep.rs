//! A sweep in small steps, each an errand of the marker's between two batches (R21).

use std::time::{Duration, Instant};

use walrelay_engine::Lsn;

use crate::postgres::marks::TablePlan;
use crate::postgres::marks::sweep::{self, BLOCKS, Horizon, Swept};
use crate::postgres::{ControlSession, Error, Source, guard};

/// The pause between two steps: the database has other things to do.
const PAUSE: Duration = Duration::from_millis(50);

/// The pause after a sweep that failed, or met locked rows.
const RETRY: Duration = Duration::from_secs(10);

/// Longer than a process is likely to live without a new session.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// The sweep that is wanted or under way.
#[derive(Debug)]
pub(super) struct Sweep {
    not_before: Instant,
    under_way: Option<UnderWay>,
    needed: Option<Needed>,
}

/// How far sweeps must have come before losses are made good: to the transaction that came next when the first of them
/// began. While an older one was open then, rows of later ones are beyond its horizon.
#[derive(Debug, Clone, Copy)]
struct Needed {
    losses: u64,
    newest: i64,
    /// Up to its horizon the first one has done everything.
    is_swept: bool,
}

impl Needed {
    fn is_beyond(self, horizon: &Horizon) -> bool {
        i64::try_from(horizon.before).is_ok_and(|before| before < self.newest)
    }
}

#[derive(Debug, Clone)]
struct UnderWay {
    /// What had been lost when it began.
    losses: u64,
    horizon: Horizon,
    /// Places of the tables that are left, each with its number of blocks.
    tables: Vec<(usize, u64)>,
    /// The next block of the last of them.
    block: u64,
    swept: Swept,
}

/// What to do next.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// See how far it may go.
    Begin,
    /// Look at some blocks of a table.
    Blocks {
        table: usize,
        from: u64,
        horizon: Horizon,
    },
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Done {
    Begun(Option<(Horizon, Vec<(usize, u64)>)>),
    Blocks {
        /// The table's place.
        table: usize,
        swept: Swept,
    },
}

impl Done {
    /// The place of the table whose rows are unsent though they were marked, if it has some.
    pub(super) const fn endless(&self) -> Option<usize> {
        match self {
            Self::Blocks { table, swept } if swept.unsent > 0 => Some(*table),
            Self::Begun(_) | Self::Blocks { .. } => None,
        }
    }
}

impl Sweep {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            not_before: now,
            under_way: None,
            needed: None,
        }
    }

    /// The next step, if one is due: `losses` says that a sweep is wanted.
    pub(super) fn next(&self, losses: Option<u64>, durable: Option<Lsn>, now: Instant) -> Option<Step> {
        if now < self.not_before {
            return None;
        }
        let Some(sweep) = &self.under_way else {
            return losses.map(|_| Step::Begin);
        };
        let (table, _) = sweep.tables.last()?;
        (durable? >= sweep.horizon.end).then_some(Step::Blocks {
            table: *table,
            from: sweep.block,
            horizon: sweep.horizon,
        })
    }

    /// When the next step is due, if that is only a matter of time.
    pub(super) fn deadline(&self, losses: Option<u64>, durable: Option<Lsn>) -> Option<Instant> {
        self.next(losses, durable, self.not_before)
            .map(|_| self.not_before)
    }

    /// A step is over. Returns what had been lost and is made good, and which transactions' rows need no sweep any more.
    pub(super) fn done(&mut self, done: Done, losses: Option<u64>, now: Instant) -> Option<(u64, u64)> {
        self.not_before = now + PAUSE;
        match done {
            // Set-up has not said where it may begin; a later process may know.
            Done::Begun(None) => self.not_before = now + NEVER,
            Done::Begun(Some((horizon, tables))) => {
                if let Some(needed) = self.needed.filter(|needed| Some(needed.losses) == losses) {
                    // The same rows again would be all that it finds.
                    if needed.is_swept && needed.is_beyond(&horizon) {
                        self.failed(now);
                        return None;
                    }
                } else {
                    self.needed = losses.map(|losses| Needed {
                        losses,
                        newest: horizon.newest,
                        is_swept: false,
                    });
                }
                self.under_way = losses.map(|losses| UnderWay {
                    losses,
                    horizon,
                    tables,
                    block: 0,
                    swept: Swept::default(),
                });
            }
            Done::Blocks { swept, .. } => {
                let sweep = self.under_way.as_mut()?;
                sweep.swept.rows += swept.rows;
                sweep.swept.locked += swept.locked;
                sweep.swept.unsent += swept.unsent;
                sweep.block += BLOCKS;
                if sweep
                    .tables
                    .last()
                    .is_some_and(|(_, blocks)| sweep.block >= *blocks)
                {
                    sweep.tables.pop();
                    sweep.block = 0;
                }
            }
        }
        let sweep = self.under_way.take_if(|sweep| sweep.tables.is_empty())?;
        let Swept { rows, locked, unsent } = sweep.swept;
        tracing::info!(rows, locked, unsent, "rows whose marks were lost are marked");
        if locked > 0 {
            self.failed(now);
            return None;
        }
        if let Some(needed) = self
            .needed
            .as_mut()
            .filter(|needed| needed.is_beyond(&sweep.horizon))
        {
            needed.is_swept = true;
            self.failed(now);
            return None;
        }
        self.needed = None;
        Some((sweep.losses, sweep.horizon.before))
    }

    /// A step has failed, or the session is lost: it begins anew.
    pub(super) fn failed(&mut self, now: Instant) {
        self.under_way = None;
        self.not_before = now + RETRY;
    }
}

/// Carries out a step.
pub(super) async fn carry_out(
    session: &ControlSession,
    source: &Source,
    plans: &[TablePlan],
    step: Step,
) -> Result<Done, Error> {
    match step {
        Step::Begin => {
            let Some(horizon) = sweep::horizon(session, &source.slot).await? else {
                return Ok(Done::Begun(None));
            };
            // Where something else was published meanwhile, a row of before the horizon may never have come.
            guard::check(session, source).await?;
            let mut tables = Vec::new();
            for (place, plan) in plans.iter().enumerate().filter(|(_, plan)| plan.is_marked()) {
                let blocks = sweep::blocks(session, plan).await?;
                if blocks > 0 {
                    tables.push((place, blocks));
                }
            }
            Ok(Done::Begun(Some((horizon, tables))))
        }
        Step::Blocks { table, from, horizon } => {
            let Some(plan) = plans.get(table).filter(|plan| plan.is_marked()) else {
                let swept = Swept::default();
                return Ok(Done::Blocks { table, swept });
            };
            let blocks = from..from + BLOCKS;
            let swept = sweep::sweep(session, &source.slot, plan, &horizon, blocks).await?;
            Ok(Done::Blocks { table, swept })
        }
    }
}
