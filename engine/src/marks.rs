//! Marks: what is confirmed or discarded and not yet marked in its table, and what that holds back (rules 18 to 21).
//!
//! Ids wait in a bounded queue in the order in which their events were settled. The shell takes a batch at a time
//! ([`Marks::poll_batch`]), marks its rows in one transaction together with the settled prefix, and says what came of it
//! ([`Marks::handle_marked`], [`Marks::handle_failed`]). Nothing here ever stops delivery: what finds no room is dropped
//! and counted, and left to a sweep.

mod batch;
mod done;
mod held;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use batch::{MarkBatch, Marked, SettledPrefix, TableIds};
pub use held::HOLD;

use crate::Lsn;
use batch::of_table;
use held::Held;
use queue::Queue;

/// Commit LSN and `tx_seq`. All events up to a *settled prefix* are settled, in stream order.
pub type Position = (Lsn, u64);

/// An outbox table's place in the configuration.
pub type TableNo = u16;

/// A batch is due when a position has been held back for so long: half of the time is left for the marking.
const HOLD_DUE: Duration = Duration::from_millis(500);

/// How often the settled prefix is stored while there is nothing to mark.
const PREFIX_INTERVAL: Duration = Duration::from_secs(1);

/// The queue's bounds: what a database that marks nothing for some seconds costs in memory.
const MAX_IDS: usize = 65_536;
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Longer ids are given up: none that the broker takes is.
const MAX_ID: usize = 1_024;

/// Rows that others had locked and that are tried again; further ones are left to a sweep.
const MAX_LOCKED: usize = 1_000;

/// The pauses after a failure, and between tries of locked rows: doubled up to the longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// When to mark.
#[derive(Debug, Clone, Copy)]
pub struct MarkSettings {
    /// So many ids are marked at once, `delivery.mark_batch`.
    pub batch: usize,
    /// The longest that an id waits for others, `delivery.mark_interval`.
    pub interval: Duration,
}

/// Totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MarkCounters {
    /// Rows marked or deleted.
    pub marked: u64,
    /// Ids given up, for want of room or of a right; a sweep finds their rows.
    pub dropped: u64,
    /// Ids beyond which the position was reported before they were marked, since that took too long.
    pub late: u64,
}

/// What is to be marked.
#[derive(Debug)]
pub struct Marks {
    settings: MarkSettings,
    /// So many ids make a batch due, if the settings ask for more.
    window: usize,
    tables: Vec<Wanted>,
    queue: Queue,
    locked: Vec<Locked>,
    /// When locked rows are tried again, and after how long the next time.
    locked_retry: Option<(Instant, Duration)>,
    /// Whether a batch is out.
    is_out: bool,
    /// Emptied buffers of a batch.
    spare: Vec<TableIds>,
    /// After a failure: when to try again, and after how long the next time.
    retry: Option<(Instant, Duration)>,
    /// After a failure that one row may be the reason of: ids before this number go one at a time.
    alone_before: u64,
    held: VecDeque<Held>,
    released: Lsn,
    /// Ids before this number hold nothing back any more.
    excused: u64,
    /// Ids before this number are due at once.
    urgent: u64,
    /// Ids from this number on were queued in the current session.
    session_from: u64,
    stored: Option<SettledPrefix>,
    /// Before this nothing is stored that is not stored together with marks; none without a session.
    store_from: Option<Instant>,
    seen: Option<(Lsn, u64)>,
    /// Rises with each id that is given up.
    losses: u64,
    /// So many of them a sweep has made good.
    losses_swept: u64,
    /// Rises with each event whose row will not be marked by an id that is queued.
    missed: u64,
    is_stopping: bool,
    has_given_up: bool,
    counters: MarkCounters,
}

/// Whether a table's rows are marked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Wanted {
    by_settings: bool,
    is_refused: bool,
}

/// A row that somebody had locked, or that is not to be seen yet.
#[derive(Debug)]
struct Locked {
    table: TableNo,
    id: String,
    xid: u32,
    /// Its number in the queue.
    number: u64,
}

impl Marks {
    /// Nothing to mark, and no table whose rows are. A batch is due after `window` settled events at the latest: so many
    /// more may be sent again after a crash.
    #[must_use]
    pub fn new(settings: MarkSettings, window: usize, tables: usize) -> Self {
        Self {
            settings,
            window,
            tables: vec![Wanted::default(); tables],
            queue: Queue::default(),
            locked: Vec::new(),
            locked_retry: None,
            is_out: false,
            spare: Vec::new(),
            retry: None,
            alone_before: 0,
            held: VecDeque::new(),
            released: Lsn::INVALID,
            excused: 0,
            urgent: 0,
            session_from: 0,
            stored: None,
            store_from: None,
            seen: None,
            losses: 0,
            losses_swept: 0,
            missed: 0,
            is_stopping: false,
            has_given_up: false,
            counters: MarkCounters::default(),
        }
    }

    /// Whether rows of this table are to be marked, by the settings and the table's columns.
    pub fn want(&mut self, table: TableNo, wanted: bool) {
        if let Some(known) = self.tables.get_mut(usize::from(table)) {
            known.by_settings = wanted;
        }
    }

    /// Whether rows of this table cannot be marked: a right or an index is missing (rule 20).
    pub fn refuse(&mut self, table: TableNo, refused: bool) {
        if let Some(known) = self.tables.get_mut(usize::from(table)) {
            // What came while it was refused is for a sweep.
            self.losses += u64::from(known.is_refused && !refused);
            known.is_refused = refused;
        }
    }

    /// Whether a settled event of this table is to be [queued](Self::queue).
    #[must_use]
    pub fn wants(&self, table: TableNo) -> bool {
        self.tables.get(usize::from(table)).is_some_and(Wanted::holds)
    }

    /// An event of a table is settled that is not [wanted](Self::wants).
    pub(crate) fn pass(&mut self, table: TableNo) {
        let known = self.tables.get(usize::from(table));
        self.missed += u64::from(known.is_some_and(|known| known.by_settings));
    }

    /// An event is confirmed or discarded, and its row is to be marked. `xid` is the transaction that wrote it, 0 where that
    /// is long ago; `prefix` is what the current session has settled before it.
    pub fn queue(&mut self, table: TableNo, (id, xid): (&str, u32), prefix: Option<Position>, now: Instant) {
        let prefix = prefix.unwrap_or_default();
        if id.len() > MAX_ID
            || !self
                .queue
                .push((table, id, xid), prefix, now, (MAX_IDS, MAX_BYTES))
        {
            self.give_up();
        }
    }

    /// The next batch, if one is due and none is out. `prefix` is what the current session has settled in stream order;
    /// `is_idle` says that no event is unsettled. What comes of it must be said, with
    /// [`handle_marked`](Self::handle_marked) or [`handle_failed`](Self::handle_failed).
    pub fn poll_batch(&mut self, prefix: Option<Position>, is_idle: bool, now: Instant) -> Option<MarkBatch> {
        if self.is_out || self.due(prefix, is_idle).is_none_or(|due| now < due) {
            return None;
        }
        self.is_out = true;
        let is_alone = self.queue.first() < self.alone_before;
        let count = self
            .queue
            .len()
            .min(if is_alone { 1 } else { self.settings.batch });
        let mut tables = Vec::new();
        let (wanted, spare, mut given_up) = (&self.tables, &mut self.spare, 0);
        self.queue.oldest_ids(count, |entry, first, second| {
            if wanted.get(usize::from(entry.table)).is_some_and(Wanted::holds) {
                of_table(&mut tables, spare, entry.table).push(first, second, entry.xid);
            } else {
                given_up += 1;
            }
        });
        let are_locked_due = !is_alone && self.locked_retry.is_some_and(|(at, _)| now >= at);
        if are_locked_due {
            for locked in &self.locked {
                of_table(&mut tables, spare, locked.table).push(locked.id.as_bytes(), &[], locked.xid);
            }
        }
        Some(MarkBatch {
            prefix: self.to_store(count, prefix, is_idle),
            tables,
            are_locked_due,
            given_up,
            through: self.queue.first() + u64::try_from(count).unwrap_or(u64::MAX),
        })
    }

    /// A batch has been committed.
    pub fn handle_marked(&mut self, batch: MarkBatch, marked: Marked, now: Instant) {
        self.is_out = false;
        self.retry = None;
        self.counters.marked += marked.rows;
        let marked_all = marked.is_whole();
        self.note_locked(marked.locked, &batch, now);
        self.queue.drop_before(batch.through);
        self.counters.dropped += batch.given_up + marked.given_up;
        self.losses += batch.given_up + marked.given_up;
        self.missed += batch.given_up + marked.given_up;
        if let Some(prefix) = batch.prefix {
            self.stored = Some(prefix.with(marked_all));
            self.store_from = Some(if self.is_stopping {
                now
            } else {
                now + PREFIX_INTERVAL
            });
        }
        let was_used = batch.prefix.is_some_and(|prefix| prefix.swept_before.is_some()) && marked_all;
        if was_used || self.seen.is_none() {
            self.seen = marked.seen;
        }
        self.recycle(batch.tables);
    }

    /// A batch has failed over one of its rows, by the look of it: its ids are tried again one by one, and one that fails alone
    /// is given up, so that it keeps no other from its mark.
    pub fn handle_row_failed(&mut self, batch: MarkBatch, now: Instant) {
        let count = batch.through.saturating_sub(self.queue.first());
        if count == 0 && !batch.are_locked_due {
            return self.handle_failed(batch, now);
        }
        self.is_out = false;
        self.retry = None;
        self.stored = None;
        if count == 1 && !batch.are_locked_due {
            self.queue.drop_before(batch.through);
            self.give_up();
        } else {
            self.alone_before = batch.through;
        }
        if batch.are_locked_due {
            // Any of them may be the one.
            for _ in 0..std::mem::take(&mut self.locked).len() {
                self.give_up();
            }
            self.locked_retry = None;
        }
        self.recycle(batch.tables);
    }

    /// A batch has failed: its ids stay queued and are tried again.
    pub fn handle_failed(&mut self, batch: MarkBatch, now: Instant) {
        self.is_out = false;
        let pause = self.retry.map_or(RETRY.0, |(_, pause)| pause);
        self.retry = Some((now + pause, pause.saturating_mul(2).min(RETRY.1)));
        self.has_given_up |= self.is_stopping;
        // It may have been stored, or something else meanwhile.
        self.stored = None;
        self.recycle(batch.tables);
    }

    /// When [`poll_batch`](Self::poll_batch) has something to do, if nothing else happens.
    #[must_use]
    pub fn deadline(&self, prefix: Option<Position>, is_idle: bool) -> Option<Instant> {
        if self.is_out {
            None
        } else {
            self.due(prefix, is_idle)
        }
    }

    /// A session has started: what it settles will be stored.
    pub const fn session_started(&mut self, now: Instant) {
        self.store_from = Some(now);
    }

    /// The session is lost: positions and the prefix are of the next one. What is queued stays so.
    pub fn session_lost(&mut self) {
        self.held.clear();
        self.released = Lsn::INVALID;
        self.session_from = self.queue.next();
        self.store_from = None;
        self.seen = None;
    }

    /// What is queued is of another log than the current one.
    pub fn forget(&mut self) {
        self.session_lost();
        let lost = u64::try_from(self.queue.len() + self.locked.len()).unwrap_or(u64::MAX);
        self.counters.dropped += lost;
        self.losses += lost;
        self.missed += lost;
        self.queue.drop_before(self.queue.next());
        self.locked.clear();
        self.locked_retry = None;
        self.stored = None;
    }

    /// No more events come: what is queued is due at once.
    pub fn stop(&mut self, now: Instant) {
        self.is_stopping = true;
        self.store_from = self.store_from.map(|from| from.min(now));
        self.retry = None;
    }

    /// Whether nothing is left to be marked or stored, or that has been given up.
    #[must_use]
    pub fn is_drained(&self, prefix: Option<Position>, is_idle: bool) -> bool {
        self.has_given_up
            || (!self.is_out && self.queue.len() == 0 && self.to_store(0, prefix, is_idle).is_none())
    }

    /// Totals since the start.
    #[must_use]
    pub const fn counters(&self) -> &MarkCounters {
        &self.counters
    }

    /// Whether ids have been given up that no sweep has made good; the number is for [`swept`](Self::swept).
    #[must_use]
    pub fn wants_sweep(&self) -> Option<u64> {
        (self.losses > self.losses_swept).then_some(self.losses)
    }

    /// The process before this one may have left rows unmarked.
    pub const fn suspect_losses(&mut self) {
        self.losses += 1;
    }

    /// A sweep has marked what was lost when [`wants_sweep`](Self::wants_sweep) said `losses`: all rows that were written
    /// by transactions before this one.
    pub const fn swept(&mut self, losses: u64, before: u64) {
        self.losses_swept = losses;
        self.seen = Some((Lsn::INVALID, before));
    }

    /// When the next batch is due.
    fn due(&self, prefix: Option<Position>, is_idle: bool) -> Option<Instant> {
        let oldest = self.queue.oldest();
        let is_urgent = self.is_stopping || self.queue.first() < self.urgent;
        let is_full = self.queue.len() >= self.settings.batch.min(self.window) || is_urgent;
        let queued = oldest.map(|oldest| {
            if is_full {
                oldest
            } else {
                oldest + self.settings.interval
            }
        });
        let held = self.held.front().filter(|held| held.through > self.queue.first());
        let held = held
            .filter(|_| oldest.is_some())
            .map(|held| held.since + HOLD_DUE);
        let locked = self.locked_retry.map(|(at, _)| at);
        let prefix = self.to_store(0, prefix, is_idle).and(self.store_from);
        let due = [queued, held, locked, prefix].into_iter().flatten().min()?;
        Some(self.retry.map_or(due, |(at, _)| due.max(at)))
    }

    /// What to store together with the oldest `count` ids, if it is new. Their prefix is what was settled when the last of
    /// them came, since ids behind them are unmarked; but not what an earlier session had settled.
    fn to_store(&self, count: usize, prefix: Option<Position>, is_idle: bool) -> Option<SettledPrefix> {
        let is_emptied = count == self.queue.len();
        let position = match is_emptied {
            true => prefix?,
            false => {
                let (prefix, number) = self.queue.prefix_of(count)?;
                Some(prefix).filter(|prefix| number >= self.session_from && *prefix != Position::default())?
            }
        };
        // Ids of a table that is refused are given up together with the batch.
        let is_refused = self.queue.tables(count).any(|table| !self.wants(table));
        let is_marked = self.locked.is_empty() && self.wants_sweep().is_none() && !is_refused;
        let is_complete = is_emptied && is_idle && is_marked;
        let stored = self.stored.map(|stored| (stored.position, stored.is_complete));
        if stored == Some((position, is_complete)) {
            return None;
        }
        let seen = self.seen.filter(|(end, _)| is_marked && *end < position.0);
        Some(SettledPrefix {
            position,
            is_complete,
            swept_before: seen.map(|(_, transaction)| transaction),
        })
    }

    /// Keeps the ids of rows that somebody had locked, and of those tried again the ones that somebody still has.
    fn note_locked(&mut self, locked: Vec<(TableNo, String, u32)>, batch: &MarkBatch, now: Instant) {
        let were_retried = batch.are_locked_due;
        let known = match were_retried {
            true => std::mem::take(&mut self.locked),
            false => Vec::new(),
        };
        for (table, id, xid) in locked {
            if self.locked.len() >= MAX_LOCKED {
                self.give_up();
                continue;
            }
            let same = known.iter().find(|known| known.table == table && known.id == id);
            let number = same
                .map(|known| known.number)
                .or_else(|| self.queue.number_of((table, &id), batch.through))
                .unwrap_or(self.queue.first());
            self.locked.push(Locked {
                table,
                id,
                xid,
                number,
            });
        }
        let pause = match self.locked_retry {
            Some((_, pause)) if were_retried => Some(pause),
            Some(_) => None,
            None => Some(RETRY.0),
        };
        if self.locked.is_empty() {
            self.locked_retry = None;
        } else if let Some(pause) = pause {
            self.locked_retry = Some((now + pause, pause.saturating_mul(2).min(RETRY.1)));
        }
    }

    const fn give_up(&mut self) {
        self.counters.dropped += 1;
        self.losses += 1;
        self.missed += 1;
    }

    fn recycle(&mut self, tables: Vec<TableIds>) {
        for mut ids in tables {
            if self.spare.len() < self.tables.len() {
                ids.text.clear();
                ids.ends.clear();
                ids.xids.clear();
                self.spare.push(ids);
            }
        }
    }
}

impl Wanted {
    const fn holds(&self) -> bool {
        self.by_settings && !self.is_refused
    }
}
