//! Rows that the stream does not bring, on their way from the database to the flow (R22): which are loaded, which are
//! settled and to be struck out, and when none is left.

use std::collections::VecDeque;
use std::time::Instant;

use walrelay_engine::flow::{BackfillTable, Flow, Intake, Unbound};
use walrelay_engine::key::{EventKey, TransactionKey};
use walrelay_engine::marks::HOLD;

use super::faults;
use crate::fault::{Fault, FaultKind};
use crate::postgres::backfill::{Batch, Item};

/// With fewer rows loaded than these, the next batch is fetched, so that the window does not run dry meanwhile.
const LOW: usize = 500;
/// So many settled rows are struck out at once; fewer only with the next batch, or at the end.
const STRIKE: u64 = 1000;

/// What is to be asked of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    /// The session that it is for.
    session: u64,
    /// Strike out the rows up to this number, if it is not 0.
    pub(super) settled: u64,
    /// Some of those may have no mark yet.
    pub(super) are_unmarked: bool,
    /// Load rows behind this number.
    pub(super) after: Option<u64>,
    /// Count the rows that are left.
    pub(super) count: bool,
}

/// What the database said.
#[derive(Debug)]
pub(super) struct Answer {
    /// To what.
    pub(super) request: Request,
    /// How many rows were struck out.
    pub(super) struck_out: u64,
    /// How many are left after that, if that was asked.
    pub(super) left: Option<u64>,
    /// The rows that were asked for; none where no row is left.
    pub(super) batch: Option<Batch>,
}

/// The backfill of the current session.
#[derive(Debug, Default)]
pub(super) struct Backfill {
    /// Which session this is, counted from the start of the process.
    session: u64,
    loaded: VecDeque<Loaded>,
    /// How many rows those are.
    rows: usize,
    /// Everything up to this number has been loaded, in this session or one before.
    through: u64,
    struck_out: u64,
    /// The rows to be struck out next.
    strike: Option<Strike>,
    /// So many events had missed their mark when the rows struck out last were settled.
    missed: u64,
    is_all_loaded: bool,
    left: Option<u64>,
    /// Since the start of the process.
    totals: Totals,
}

/// Settled rows whose notes go once they have their marks, or have waited for them for long enough.
#[derive(Debug, Clone, Copy)]
struct Strike {
    through: u64,
    /// Their ids come before this number in the queue of marks.
    marks: u64,
    /// So many events had missed their mark before.
    missed: u64,
    since: Instant,
}

/// What became of rows that were not sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows deleted since they were noted.
    pub deleted: u64,
    /// Rows marked as sent since they were noted.
    pub marked: u64,
}

#[derive(Debug)]
struct Loaded {
    /// None where no row of the batch is to be sent.
    table: Option<BackfillTable>,
    copy: TransactionKey,
    items: VecDeque<Item>,
}

impl Backfill {
    /// A session has started; with `waits`, rows go out before its stream.
    pub(super) fn session_started(&mut self, flow: &mut Flow, waits: bool) {
        *self = Self {
            session: self.session + 1,
            through: flow.backfill_through(),
            totals: self.totals,
            missed: self.strike.map_or(self.missed, |strike| strike.missed),
            ..Self::default()
        };
        if waits {
            flow.backfill_begins();
        }
    }

    /// How many rows are left, as far as that is known; none where none waits.
    pub(super) fn left(&self, flow: &Flow) -> Option<u64> {
        self.left.filter(|_| flow.is_backfilling())
    }

    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Hands loaded rows to the flow for as long as it has room.
    ///
    /// # Errors
    /// A row is none.
    pub(super) fn admit(&mut self, flow: &mut Flow, now: Instant) -> Result<(), Fault> {
        while flow.is_backfilling()
            && let Some(front) = self.loaded.front_mut()
        {
            let Some(item) = front.items.front() else {
                self.loaded.pop_front();
                continue;
            };
            match item {
                Item::Row(row) => {
                    let Some(table) = &front.table else { break };
                    let intake = flow.handle_backfilled(table, row.key, &row.insert, now);
                    let unread = |error| Fault::new(FaultKind::DatabaseProtocol, &error);
                    if intake.map_err(unread)? == Intake::NoRoom {
                        break;
                    }
                }
                Item::Deleted { .. } => self.totals.deleted += 1,
                Item::Marked { .. } => self.totals.marked += 1,
            }
            if !matches!(item, Item::Row(_)) {
                flow.pass_backfilled(EventKey {
                    transaction: front.copy,
                    tx_seq: item.number(),
                });
            }
            front.items.pop_front();
            self.rows -= 1;
        }
        self.end_if_over(flow, now);
        Ok(())
    }

    /// What is to be asked of the database now; a relay that `stops` loads nothing more.
    pub(super) fn request(&self, flow: &Flow, stops: bool, now: Instant) -> Option<Request> {
        if !flow.is_backfilling() {
            return None;
        }
        let after = self.to_load(stops);
        let strike = self.strike.filter(|strike| strike.is_due(flow, now));
        (after.is_some() || strike.is_some()).then_some(Request {
            session: self.session,
            settled: strike.map_or(0, |strike| strike.through),
            are_unmarked: strike.is_some_and(|strike| !strike.is_marked(flow)),
            after,
            count: self.left.is_none(),
        })
    }

    /// When settled rows have waited for their marks for long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.strike.map(|strike| strike.since + HOLD)
    }

    /// Thinks of the next strike, if there is something to be struck out. Its marks have as long as a position waits for
    /// them (R18).
    pub(super) fn plan_strike(&mut self, flow: &mut Flow, stops: bool, now: Instant) {
        let settled = flow.backfill_settled();
        let unstruck = settled.saturating_sub(self.struck_out);
        let is_last = (self.is_all_loaded && self.rows == 0 || stops) && settled == flow.backfill_through();
        let is_wanted = unstruck >= STRIKE || (unstruck > 0 && (is_last || self.to_load(stops).is_some()));
        if self.strike.is_none() && flow.is_backfilling() && is_wanted {
            let missed = flow.marks().missed();
            self.strike = Some(Strike {
                through: settled,
                marks: flow.urge_marks(),
                missed: std::mem::replace(&mut self.missed, missed),
                since: now,
            });
        }
    }

    fn to_load(&self, stops: bool) -> Option<u64> {
        (!stops && !self.is_all_loaded && self.rows < LOW).then_some(self.through)
    }

    /// Whether settled rows are still to be struck out, lest they be sent again after the next start.
    pub(super) fn owes(&self, flow: &Flow) -> bool {
        flow.is_backfilling() && flow.backfill_settled() > self.struck_out
    }

    /// Takes the answer in.
    ///
    /// # Errors
    /// The rows' table does not fit, or is not configured.
    pub(super) fn answered(&mut self, flow: &mut Flow, answer: Answer, now: Instant) -> Result<(), Fault> {
        let Answer {
            request,
            struck_out,
            left,
            batch,
        } = answer;
        // An earlier session may have been with another server.
        if !flow.is_backfilling() || request.session != self.session {
            return Ok(());
        }
        if request.settled > 0 {
            self.struck_out = self.struck_out.max(request.settled);
            self.strike = None;
        }
        self.left = left.or(self.left.map(|left| left.saturating_sub(struck_out)));
        match batch {
            None => self.is_all_loaded |= request.after.is_some(),
            Some(batch) => self.load(flow, batch)?,
        }
        self.end_if_over(flow, now);
        Ok(())
    }

    fn load(&mut self, flow: &mut Flow, batch: Batch) -> Result<(), Fault> {
        let Batch {
            relation,
            copy,
            items,
        } = batch;
        let unfit = |error: Unbound| Fault::new(faults::unbound_kind(&error), &error);
        let has_rows = items.iter().any(|item| matches!(item, Item::Row(_)));
        // A table that has been changed need not fit where none of its rows is to be sent.
        let table = match relation.filter(|_| has_rows) {
            Some(relation) => Some(flow.backfill_table(&relation).map_err(unfit)?),
            None => None,
        };
        if let Some(last) = items.last() {
            self.through = last.number();
        }
        self.rows += items.len();
        self.loaded.push_back(Loaded {
            table,
            copy,
            items: items.into(),
        });
        Ok(())
    }

    fn end_if_over(&self, flow: &mut Flow, now: Instant) {
        let is_over = flow.is_backfilling()
            && self.is_all_loaded
            && self.rows == 0
            && !self.owes(flow)
            && flow.backfill_settled() == flow.backfill_through();
        if is_over {
            flow.backfill_over(now);
            tracing::info!(
                sent = flow.counters().backfilled,
                deleted = self.totals.deleted,
                marked = self.totals.marked,
                "backfill is over: the stream is read"
            );
        }
    }
}

impl Strike {
    fn is_due(&self, flow: &Flow, now: Instant) -> bool {
        self.has_ended(flow) || now >= self.since + HOLD
    }

    /// Whether nothing of it waits for its mark.
    fn has_ended(&self, flow: &Flow) -> bool {
        flow.marks().marked_before() >= self.marks
    }

    fn is_marked(&self, flow: &Flow) -> bool {
        self.has_ended(flow) && flow.marks().missed() == self.missed
    }
}
