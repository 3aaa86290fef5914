//! Rows that the stream does not bring: those older than the slot, and those that a lost slot missed (R22, R23).
//!
//! They go out before the session's stream is read, through the same window, policies and pace. The ledger does not know
//! them, since the database keeps each until the shell has heard that it is settled
//! ([`Flow::backfill_settled`]): the durable LSN may pass it.
//!
//! Call order: [`Flow::backfill_begins`] after [`Flow::session_started`]; [`Flow::handle_backfilled`] or
//! [`Flow::pass_backfilled`] for each row, by rising numbers; [`Flow::backfill_over`].

use std::time::Instant;

use super::Flow;
use super::intake::{Intake, Outbox};
use super::prepare::prepare;
use crate::decode::DecodeError;
use crate::event::MappingError;
use crate::key::{EventKey, TransactionKey};
use crate::pgoutput::{read_insert, read_relation};

/// What is known of the rows that the stream does not bring.
#[derive(Debug, Default)]
pub(super) struct Backfill {
    /// The current session's stream waits.
    is_active: bool,
    /// All rows up to this number have been admitted or passed over.
    through: u64,
    /// Of which copies they were noted, and the newest number of each.
    copies: Vec<(TransactionKey, u64)>,
    /// So many bytes the next row takes, where it waits for them.
    waiting_bytes: usize,
}

impl Backfill {
    pub(super) const fn is_active(&self) -> bool {
        self.is_active
    }

    pub(super) const fn session_lost(&mut self) {
        self.is_active = false;
        self.waiting_bytes = 0;
    }

    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    fn pass(&mut self, key: EventKey) {
        self.through = key.tx_seq;
        self.waiting_bytes = 0;
        match self.copies.last_mut() {
            Some((copy, through)) if *copy == key.transaction => *through = key.tx_seq,
            Some(_) | None => self.copies.push((key.transaction, key.tx_seq)),
        }
    }
}

/// How rows of one table become events.
#[derive(Debug)]
pub struct BackfillTable(Outbox);

/// Why a table's rows cannot become events.
#[derive(Debug, thiserror::Error)]
pub enum Unbound {
    /// It is not among the outbox tables.
    #[error("rows of table {schema}.{table} wait to be backfilled, but it is not in the configuration")]
    UnknownTable {
        /// The table's schema.
        schema: String,
        /// The table's name.
        table: String,
    },
    /// Its columns do not fit.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// Its names are none of PostgreSQL.
    #[error("the names of a table cannot be understood")]
    Names(#[from] DecodeError),
}

impl Flow {
    /// Rows wait that go out before the stream of the session that has just started: until
    /// [`backfill_over`](Self::backfill_over) nothing of it is taken.
    pub const fn backfill_begins(&mut self) {
        if let Some(session) = &mut self.session {
            session.paused = true;
            self.backfill.is_active = true;
        }
    }

    /// No such row is left: the stream may be read.
    pub const fn backfill_over(&mut self, now: Instant) {
        self.backfill.is_active = false;
        if let Some(session) = &mut self.session {
            session.paused = false;
            session.heard = now;
        }
    }

    /// Whether the stream waits for such rows.
    #[must_use]
    pub const fn is_backfilling(&self) -> bool {
        self.backfill.is_active
    }

    /// The number up to which all rows have been admitted or passed over. It outlives sessions, and is 0 again once
    /// everything was [forgotten](Self::forget).
    #[must_use]
    pub const fn backfill_through(&self) -> u64 {
        self.backfill.through
    }

    /// Whether the row noted under this key is one that was admitted or passed over, if its number says so. Numbers start
    /// over where the notes were lost and made anew; then everything is to be [forgotten](Self::forget), or rows that
    /// were never sent would count as settled.
    #[must_use]
    pub fn knows_noted(&self, key: EventKey) -> bool {
        let mut copies = self.backfill.copies.iter();
        let copy = copies.find(|(_, through)| key.tx_seq <= *through);
        copy.is_none_or(|(copy, _)| *copy == key.transaction)
    }

    /// The number up to which all rows are settled or passed over.
    #[must_use]
    pub fn backfill_settled(&self) -> u64 {
        match self.window.oldest().map(|entry| entry.key) {
            Some(key) if key.transaction.is_backfill() => key.tx_seq.saturating_sub(1),
            Some(_) | None => self.backfill.through,
        }
    }

    /// How rows of a table are read, from the Relation message that the stream would send before them.
    ///
    /// # Errors
    /// They cannot become events.
    pub fn backfill_table(&mut self, relation: &[u8]) -> Result<BackfillTable, Unbound> {
        let relation = read_relation(relation)?;
        let outbox = Outbox::bind(&relation, &self.config.tables)?.ok_or_else(|| Unbound::UnknownTable {
            schema: relation.namespace.to_owned(),
            table: relation.name.to_owned(),
        })?;
        self.want_marks(outbox.table, outbox.mapping.has_sent_at());
        Ok(BackfillTable(outbox))
    }

    /// Takes the next row, if there is room for it: else it must be handed in again once something has been settled.
    /// `key` is of what stands for a transaction ([`TransactionKey::backfill`](crate::key::TransactionKey::backfill)),
    /// with the row's number; `insert` is the Insert message that the stream would have brought.
    ///
    /// What an earlier session brought from the stream is settled first: such a row is older.
    ///
    /// # Errors
    /// The message is none.
    pub fn handle_backfilled(
        &mut self,
        table: &BackfillTable,
        key: EventKey,
        insert: &[u8],
        now: Instant,
    ) -> Result<Intake, DecodeError> {
        let is_behind_stream = self
            .window
            .oldest()
            .is_some_and(|entry| !entry.key.transaction.is_backfill());
        let has_room = self.window.failed() == 0 && self.window.has_room(self.backfill.waiting_bytes);
        if !self.backfill.is_active || self.stopping || is_behind_stream || !has_room {
            return Ok(Intake::NoRoom);
        }
        let row = read_insert(insert)?.new;
        let (window, scratch) = (&mut self.window, &mut self.scratch);
        let prepared = match prepare(&self.config, window, scratch, &table.0, &row, key) {
            Ok(prepared) => prepared,
            Err(bytes) => {
                self.backfill.waiting_bytes = bytes;
                return Ok(Intake::NoRoom);
            }
        };
        self.counters.backfilled += 1;
        self.backfill.pass(key);
        self.admit(key, None, prepared, now);
        Ok(Intake::Taken)
    }

    /// The next row need not be sent: it was deleted, or marked as sent, since it was noted. Without effect while no
    /// session waits for such rows: what came before may have been forgotten.
    pub fn pass_backfilled(&mut self, key: EventKey) {
        if self.backfill.is_active {
            self.backfill.pass(key);
        }
    }
}
