//! Logical messages that are events: a table-less outbox beside, or in place of, the tables.

use std::sync::Arc;
use std::time::Instant;

use super::intake::{Arrival, Intake, Outbox, StreamError};
use super::prepare::{Prepared, prepare};
use super::{Flow, FlowConfig, Scratch};
use crate::emitted::{Malformed, Reader, SCHEMA, table_name};
use crate::key::EventKey;
use crate::pgoutput::{Content, LogicalMessage, Relation, Tuple, read_relation};
use crate::row::{Row, TableNames};
use crate::window::{Failure, Window};

/// How messages with the configured prefix are read.
#[derive(Debug)]
pub(super) struct Emitted {
    outbox: Outbox,
    reader: Reader,
    unreadable: Arc<TableNames>,
}

impl Emitted {
    /// The table that stands for them is bound as every other.
    pub(super) fn bind(config: &FlowConfig, prefix: &str) -> Result<Self, StreamError> {
        let unknown = || StreamError::UnknownTable {
            schema: SCHEMA.to_owned(),
            table: table_name(prefix),
        };
        let table = config.tables.last().ok_or_else(unknown)?;
        let reader = Reader::new(table);
        let (relation, of_unreadable) = (reader.relation(table), Reader::unreadable_relation(table));
        Ok(Self {
            outbox: Outbox::bind(&read_relation(&relation)?, &config.tables)?.ok_or_else(unknown)?,
            unreadable: TableNames::of(&read_relation(&of_unreadable)?),
            reader,
        })
    }

    /// As [`prepare`], for what a message says.
    pub(super) fn prepare(
        &mut self,
        config: &FlowConfig,
        window: &mut Window,
        scratch: &mut Scratch,
        content: Content<'_>,
        key: EventKey,
    ) -> Result<Prepared, usize> {
        let Self {
            outbox,
            reader,
            unreadable,
        } = self;
        let bytes = match content {
            Content::Bytes(bytes) => bytes,
            Content::Oversized { length, limit } => {
                let row = reader.oversized(length, limit);
                return prepare(config, window, scratch, outbox, &row, key);
            }
        };
        let reason = match reader.read(bytes) {
            Ok(row) => return prepare(config, window, scratch, outbox, &row, key),
            Err(reason) => reason,
        };
        let row = config.keep_rows.then(|| (&*unreadable, reader.unreadable(bytes)));
        prepare_unreadable(window, outbox, row, reason)
    }
}

impl Flow {
    /// A logical message. One with the configured prefix is an event, if it is of a transaction: another one may be of a
    /// transaction that rolled back.
    pub(super) fn message(
        &mut self,
        message: &LogicalMessage<'_>,
        now: Instant,
    ) -> Result<Intake, StreamError> {
        let is_event = self.config.messages.as_deref() == Some(message.prefix);
        if is_event && message.is_transactional() {
            return self.event(Arrival::Message(message.content), now);
        }
        self.counters.refused_messages += u64::from(is_event);
        let intake = self.logical(message);
        if intake == Intake::Taken
            && message.is_transactional()
            && let Some(session) = &mut self.session
        {
            session.stream.pass_place();
        }
        Ok(intake)
    }
}

/// As [`prepare`], for a logical message that no row can be made of; `row` is what is kept of it.
fn prepare_unreadable(
    window: &mut Window,
    outbox: &Outbox,
    row: Option<(&Arc<TableNames>, Tuple<'_>)>,
    reason: Malformed,
) -> Result<Prepared, usize> {
    let row = row.map(|(names, row)| Row::keep(names, &row, window.spare_buffer()));
    let size = row.as_ref().map_or(0, Row::len);
    if !window.has_room(size) {
        window.recycle(row.map_or_else(Vec::new, Row::into_buffer));
        return Err(size);
    }
    Ok(Prepared {
        table: outbox.table,
        message: None,
        row,
        failure: Some(Failure::Unreadable { reason }),
        // Nobody knows whose event it is.
        aggregate: 0,
        overridden: 0,
        on_unroutable: None,
    })
}

/// Whether a table of the publication has the name that stands for the messages: its rows are not theirs.
pub(super) fn is_impostor(config: &FlowConfig, relation: &Relation<'_>) -> bool {
    let prefix = config
        .messages
        .as_deref()
        .filter(|_| relation.namespace == SCHEMA);
    prefix.is_some_and(|prefix| relation.name == table_name(prefix))
}
