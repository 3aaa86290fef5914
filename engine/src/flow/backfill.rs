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
use super::intake::{Intake, Outbox, prepare};
use crate::decode::DecodeError;
use crate::event::MappingError;
use crate::key::{EventKey, TransactionKey};
use crate::pgoutput::{self, Tuple, kind, relation_of};

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

/// A row as a query brought it: each column as the text that pgoutput would send.
#[derive(Clone, PartialEq, Eq)]
pub struct BackfilledRow {
    /// Its key: what stands for a transaction ([`TransactionKey::backfill`](crate::key::TransactionKey::backfill)), and
    /// the row's number.
    pub key: EventKey,
    count: u16,
    /// As in a tuple of pgoutput.
    values: Vec<u8>,
}

/// The key only: rows are never logged.
impl std::fmt::Debug for BackfilledRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackfilledRow")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl BackfilledRow {
    /// A row without columns.
    #[must_use]
    pub const fn new(key: EventKey) -> Self {
        Self {
            key,
            count: 0,
            values: Vec::new(),
        }
    }

    /// Adds the next column: its text, or none for NULL.
    pub fn push(&mut self, text: Option<&str>) {
        self.count = self.count.saturating_add(1);
        put_value(&mut self.values, text);
    }

    /// Adds a column whose text of `length` bytes was passed over, since there is room for `limit`.
    pub fn push_oversized(&mut self, length: u64, limit: u64) {
        self.count = self.count.saturating_add(1);
        self.values.push(kind::OVERSIZED);
        for number in [length, limit] {
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            self.values.extend_from_slice(&number.to_be_bytes());
        }
    }

    /// Bytes held.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it has no columns.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
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

    /// How rows of a table are read, from its columns' names and types.
    ///
    /// # Errors
    /// They cannot become events.
    pub fn backfill_table(
        &mut self,
        schema: &str,
        name: &str,
        columns: &[(String, u32)],
    ) -> Result<BackfillTable, Unbound> {
        let columns = columns.iter().map(|(name, type_oid)| (name.as_str(), *type_oid));
        let relation = relation_of(schema, name, columns);
        let unknown = || Unbound::UnknownTable {
            schema: schema.to_owned(),
            table: name.to_owned(),
        };
        let pgoutput::Message::Relation(relation) = pgoutput::Message::decode(&relation)? else {
            return Err(unknown());
        };
        let outbox = Outbox::bind(&relation, &self.config.tables)?.ok_or_else(unknown)?;
        self.want_marks(outbox.table, outbox.mapping.has_sent_at());
        Ok(BackfillTable(outbox))
    }

    /// Takes the next row, if there is room for it: else it must be handed in again once something has been settled.
    ///
    /// What an earlier session brought from the stream is settled first: such a row is older.
    pub fn handle_backfilled(&mut self, table: &BackfillTable, row: &BackfilledRow, now: Instant) -> Intake {
        let is_behind_stream = self
            .window
            .oldest()
            .is_some_and(|entry| !entry.key.transaction.is_backfill());
        let has_room = self.window.failed() == 0 && self.window.has_room(self.backfill.waiting_bytes);
        if !self.backfill.is_active || self.stopping || is_behind_stream || !has_room {
            return Intake::NoRoom;
        }
        let tuple = Tuple::from_raw(row.count, &row.values);
        let (window, scratch) = (&mut self.window, &mut self.scratch);
        let prepared = match prepare(&self.config, window, scratch, &table.0, &tuple, row.key) {
            Ok(prepared) => prepared,
            Err(bytes) => {
                self.backfill.waiting_bytes = bytes;
                return Intake::NoRoom;
            }
        };
        self.counters.backfilled += 1;
        self.backfill.pass(row.key);
        self.admit(row.key, None, prepared, now);
        Intake::Taken
    }

    /// The next row need not be sent: it was deleted, or marked as sent, since it was noted. Without effect while no
    /// session waits for such rows: what came before may have been forgotten.
    pub fn pass_backfilled(&mut self, key: EventKey) {
        if self.backfill.is_active {
            self.backfill.pass(key);
        }
    }
}

/// One value of a tuple.
fn put_value(out: &mut Vec<u8>, value: Option<&str>) {
    match value {
        None => out.push(kind::NULL),
        Some(text) => {
            out.push(kind::TEXT);
            // A longer one is cut off for the decoder, which says so.
            let length = i32::try_from(text.len()).unwrap_or(i32::MAX);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
    }
}
