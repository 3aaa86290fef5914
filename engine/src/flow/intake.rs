//! The stream's side of the flow: transactions, relations and rows in, events admitted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::emitted::{Emitted, is_impostor};
use super::prepare::{Prepared, prepare};
use super::{Flow, HISTORY};
use crate::decode::DecodeError;
use crate::event::{Mapping, MappingError, OutboxTable};
use crate::key::{EventKey, TransactionKey};
use crate::ledger::TransactionNo;
use crate::marks::TableNo;
use crate::pgoutput::{self, Content, Insert, Relation, Tuple};
use crate::row::TableNames;
use crate::walsender::{Keepalive, ServerMessage, XLogData};
use crate::window::{Admission, Located};

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intake {
    /// It has been taken: the next one may follow.
    Taken,
    /// It must be handed in again once something has been settled; nothing else may be handed in before.
    NoRoom,
}

/// What in the stream needs a person: nothing of the frame has been taken, and the durable LSN lies before its
/// transaction.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The frame is not what the protocol says.
    #[error("the replication stream cannot be understood")]
    Decode(#[from] DecodeError),
    /// The table's rows cannot become events.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A row of a table that is not configured; ignoring it could lose events (rule 4).
    #[error(
        "table {schema}.{table} is in the publication but not in the configuration, and a row was inserted into it"
    )]
    UnknownTable {
        /// The table's schema.
        schema: String,
        /// The table's name.
        table: String,
    },
    /// A row of a table that no Relation message described.
    #[error("a row refers to the table with oid {oid}, which the stream has not described")]
    UnknownRelation {
        /// The table's oid.
        oid: u32,
    },
    /// A row or Commit that no Begin came before.
    #[error("the stream has a {message} message outside of a transaction")]
    OutsideTransaction {
        /// The message's name.
        message: &'static str,
    },
    /// The log is not the one that was read before, although system id and timeline are.
    #[error("the log at {key} differs from what was read before: was the database restored?")]
    Diverged {
        /// The event that was not expected.
        key: EventKey,
    },
    /// No session has been started.
    #[error("a frame of the stream came without a session")]
    NoSession,
}

/// What is known of one session's stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    relations: HashMap<u32, Table>,
    transaction: Option<OpenTransaction>,
}

#[derive(Debug)]
enum Table {
    Outbox(Box<Outbox>),
    Ignored,
    Unknown { schema: String, table: String },
}

/// How the rows of one table are read.
#[derive(Debug)]
pub(super) struct Outbox {
    pub(super) mapping: Mapping,
    pub(super) names: Arc<TableNames>,
    /// Its place in the configuration.
    pub(super) table: TableNo,
}

impl Outbox {
    /// For rows of this table, if it is an outbox.
    pub(super) fn bind(
        relation: &Relation<'_>,
        tables: &[OutboxTable],
    ) -> Result<Option<Self>, MappingError> {
        let configured = tables
            .iter()
            .zip(0..)
            .find(|(table, _)| table.schema == relation.namespace && table.name == relation.name);
        let Some((table, place)) = configured else {
            return Ok(None);
        };
        Ok(Some(Self {
            table: place,
            mapping: Mapping::bind(relation, table)?,
            names: TableNames::of(relation),
        }))
    }
}

#[derive(Debug, Clone, Copy)]
struct OpenTransaction {
    key: TransactionKey,
    /// Insert and logical messages so far, relayed or not (rule 1).
    places: u64,
}

/// What may bring an event.
#[derive(Clone, Copy)]
pub(super) enum Arrival<'a> {
    Row(&'a Insert<'a>),
    Message(Content<'a>),
}

/// The same, once it is known how to read it.
enum Readable<'a> {
    Row(&'a Outbox, &'a Tuple<'a>),
    Message(&'a mut Emitted, Content<'a>),
}

impl Stream {
    /// Which transaction is open.
    pub(super) fn transaction_key(&self) -> Option<TransactionKey> {
        self.transaction.map(|transaction| transaction.key)
    }

    /// What has come is no event, and has its place all the same (rule 1).
    pub(super) fn pass_place(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.places += 1;
        }
    }
}

impl Flow {
    /// Takes a CopyData payload of the walsender.
    ///
    /// # Errors
    /// What in the stream needs a person; the session must be given up.
    pub fn handle_stream(&mut self, payload: &[u8], now: Instant) -> Result<Intake, StreamError> {
        let session = self.session.as_mut().ok_or(StreamError::NoSession)?;
        session.heard = now;
        if self.backfill.is_active() {
            return Ok(Intake::NoRoom);
        }
        let intake = match ServerMessage::decode(payload)? {
            ServerMessage::Keepalive(keepalive) => {
                self.keepalive(&keepalive);
                Intake::Taken
            }
            ServerMessage::XLogData(XLogData { data, .. }) => self.xlog_data(data, now)?,
        };
        if let Some(session) = &mut self.session {
            session.paused = intake == Intake::NoRoom;
        }
        Ok(intake)
    }

    fn keepalive(&mut self, keepalive: &Keepalive) {
        let Some(session) = &mut self.session else { return };
        if keepalive.reply_requested {
            session.report.reply_requested();
        }
        session.received = session.received.max(keepalive.wal_end);
        session.ledger.keepalive(keepalive.wal_end);
    }

    fn xlog_data(&mut self, data: &[u8], now: Instant) -> Result<Intake, StreamError> {
        let session = self.session.as_mut().ok_or(StreamError::NoSession)?;
        match pgoutput::Message::decode(data)? {
            pgoutput::Message::Insert(insert) => return self.event(Arrival::Row(&insert), now),
            pgoutput::Message::Logical(message) => return self.message(&message, now),
            pgoutput::Message::Begin(_) if self.stopping => return Ok(Intake::NoRoom),
            pgoutput::Message::Begin(begin) => {
                session.ledger.begin();
                session.stream.transaction = Some(OpenTransaction {
                    key: TransactionKey {
                        commit_lsn: begin.final_lsn,
                        xid: begin.xid,
                        commit_time: begin.commit_time,
                    },
                    places: 0,
                });
            }
            pgoutput::Message::Commit(commit) => {
                if session.stream.transaction.take().is_none() {
                    return Err(StreamError::OutsideTransaction { message: "Commit" });
                }
                session.received = session.received.max(commit.end_lsn);
                session.ledger.commit(commit.end_lsn);
                self.counters.transactions += 1;
            }
            pgoutput::Message::Relation(relation) => self.relation(&relation)?,
            // The publication publishes inserts only; what else is in the stream carries no event.
            pgoutput::Message::Origin(_)
            | pgoutput::Message::Type(_)
            | pgoutput::Message::Update(_)
            | pgoutput::Message::Delete(_)
            | pgoutput::Message::Truncate(_) => {}
        }
        Ok(Intake::Taken)
    }

    fn relation(&mut self, relation: &Relation<'_>) -> Result<(), StreamError> {
        let outbox = match is_impostor(&self.config, relation) {
            true => None,
            false => Outbox::bind(relation, &self.config.tables)?,
        };
        let table = match outbox {
            Some(outbox) => {
                self.want_marks(outbox.table, outbox.mapping.has_sent_at());
                Table::Outbox(Box::new(outbox))
            }
            None if self.ignores(relation) => Table::Ignored,
            None => Table::Unknown {
                schema: relation.namespace.to_owned(),
                table: relation.name.to_owned(),
            },
        };
        if let Some(session) = &mut self.session {
            session.stream.relations.insert(relation.oid, table);
        }
        Ok(())
    }

    fn ignores(&self, relation: &Relation<'_>) -> bool {
        let mut ignored = self.config.ignore_tables.iter();
        ignored.any(|table| table.schema == relation.namespace && table.name == relation.name)
    }

    /// An event is admitted, recognised, or passed over.
    pub(super) fn event(&mut self, arrival: Arrival<'_>, now: Instant) -> Result<Intake, StreamError> {
        let session = self.session.as_mut().ok_or(StreamError::NoSession)?;
        let Some(transaction) = &mut session.stream.transaction else {
            let message = match arrival {
                Arrival::Row(_) => "Insert",
                Arrival::Message(_) => "Message",
            };
            return Err(StreamError::OutsideTransaction { message });
        };
        let readable = match arrival {
            Arrival::Message(content) => {
                let emitted = match (&mut self.emitted, &self.config.messages) {
                    (Some(emitted), _) => emitted,
                    (unbound @ None, prefix) => {
                        let prefix = prefix.as_deref().unwrap_or_default();
                        unbound.insert(Box::new(Emitted::bind(&self.config, prefix)?))
                    }
                };
                Readable::Message(emitted, content)
            }
            Arrival::Row(insert) => match session.stream.relations.get(&insert.relation_oid) {
                Some(Table::Outbox(outbox)) => Readable::Row(outbox, &insert.new),
                Some(Table::Ignored) => {
                    transaction.places += 1;
                    self.counters.ignored += 1;
                    return Ok(Intake::Taken);
                }
                Some(Table::Unknown { schema, table }) => {
                    return Err(StreamError::UnknownTable {
                        schema: schema.clone(),
                        table: table.clone(),
                    });
                }
                None => {
                    return Err(StreamError::UnknownRelation {
                        oid: insert.relation_oid,
                    });
                }
            },
        };
        let key = EventKey {
            transaction: transaction.key,
            tx_seq: transaction.places,
        };
        if let Readable::Row(outbox, row) = &readable
            && outbox.mapping.is_sent(row)
        {
            transaction.places += 1;
            self.counters.already_sent += 1;
            return Ok(Intake::Taken);
        }
        // A new session brings again what was not acknowledged: it may be settled or in flight already (rule 2).
        let is_passed = self.passed.is_some_and(|passed| key.position() <= passed);
        let known = if is_passed || self.history.contains(&key) {
            Located::Settled
        } else {
            self.window.locate(&key)
        };
        match known {
            Located::Settled => self.counters.recognised += 1,
            Located::Unsettled(seq) => {
                self.window.attach(seq, session.ledger.admit());
                self.counters.recognised += 1;
            }
            // Published again rather than lost, once nothing is left that it would be out of order with.
            Located::Earlier => return Ok(Intake::NoRoom),
            Located::Diverged => return Err(StreamError::Diverged { key }),
            Located::New => {
                // A retry that waits must not let the ledger grow with what is settled behind it, nor let it be forgotten
                // (rule 12).
                let is_too_far = !self.retries.is_empty()
                    && session.ledger.transactions() > self.config.limits.events.max(HISTORY / 2);
                if is_too_far || self.window.failed() > 0 || !self.window.has_room(session.waiting_bytes) {
                    return Ok(Intake::NoRoom);
                }
                let (window, scratch) = (&mut self.window, &mut self.scratch);
                let prepared = match readable {
                    Readable::Row(outbox, row) => prepare(&self.config, window, scratch, outbox, row, key),
                    Readable::Message(emitted, content) => {
                        emitted.prepare(&self.config, window, scratch, content, key)
                    }
                };
                let prepared = match prepared {
                    Ok(prepared) => prepared,
                    Err(bytes) => {
                        session.waiting_bytes = bytes;
                        return Ok(Intake::NoRoom);
                    }
                };
                session.waiting_bytes = 0;
                transaction.places += 1;
                self.counters.read += 1;
                let transaction = Some(session.ledger.admit());
                self.admit(key, transaction, prepared, now);
                return Ok(Intake::Taken);
            }
        }
        transaction.places += 1;
        Ok(Intake::Taken)
    }

    /// Admits a row behind all others. One that cannot become a message fails at once.
    pub(super) fn admit(
        &mut self,
        key: EventKey,
        transaction: Option<TransactionNo>,
        prepared: Prepared,
        now: Instant,
    ) {
        self.counters.headers_overridden += prepared.overridden;
        let seq = self.window.admit(Admission {
            key,
            transaction,
            message: prepared.message,
            row: prepared.row,
            aggregate: prepared.aggregate,
            table: prepared.table,
            on_unroutable: prepared.on_unroutable,
        });
        if let Some(failure) = prepared.failure {
            self.fail(seq, failure, now);
        }
    }
}
