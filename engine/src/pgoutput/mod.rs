//! The messages of PostgreSQL's output plugin `pgoutput`, protocol version 1 without streaming.
//!
//! Decoding borrows from the frame and allocates nothing: what repeats (columns, values, relations) is checked
//! once by [`Message::decode`] and then iterated without errors.
//!
//! Sources: <https://www.postgresql.org/docs/current/protocol-logical-replication.html> and
//! <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>.

mod relation;
mod row;
mod text;
mod transaction;
mod tuple;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

pub use relation::{Column, Columns, Relation, Type};
pub use row::{Delete, Insert, OldTuple, Truncate, Update};
pub use text::{TextValue, insert_of, read_insert, read_relation, relation_of};
pub use transaction::{Begin, Commit, Content, LogicalMessage, Origin};
pub(crate) use tuple::kind;
pub use tuple::{Tuple, Value, Values};

use crate::decode::{DecodeError, Reader};

/// Byte1 of each message.
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
pub(crate) mod tag {
    pub(crate) const BEGIN: u8 = b'B';
    pub(crate) const COMMIT: u8 = b'C';
    pub(crate) const ORIGIN: u8 = b'O';
    pub(crate) const RELATION: u8 = b'R';
    pub(crate) const TYPE: u8 = b'Y';
    pub(crate) const INSERT: u8 = b'I';
    pub(crate) const UPDATE: u8 = b'U';
    pub(crate) const DELETE: u8 = b'D';
    pub(crate) const TRUNCATE: u8 = b'T';
    pub(crate) const MESSAGE: u8 = b'M';
}

/// Byte1 before a message that [`Condenser`](crate::condense::Condenser) has been through. PostgreSQL's tags and kinds
/// are ASCII letters, so no server ever sends it.
pub(crate) const CONDENSED: u8 = 0xFF;

/// One message of the stream: the data of one [`XLogData`](crate::walsender::XLogData).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A committed transaction starts.
    Begin(Begin),
    /// The transaction ends.
    Commit(Commit),
    /// The transaction came from another server.
    Origin(Origin<'a>),
    /// What a table looks like, sent before its first row and again after it has changed.
    Relation(Relation<'a>),
    /// The name of a data type that is not built in, sent before a relation that uses it.
    Type(Type<'a>),
    /// A row was inserted.
    Insert(Insert<'a>),
    /// A row was updated.
    Update(Update<'a>),
    /// A row was deleted.
    Delete(Delete<'a>),
    /// Tables were truncated.
    Truncate(Truncate<'a>),
    /// `pg_logical_emit_message` was called (PostgreSQL's "Message").
    Logical(LogicalMessage<'a>),
}

impl<'a> Message<'a> {
    /// Decodes one message, borrowing from `data`.
    ///
    /// # Errors
    /// When `data` is not exactly one message of protocol 1: unknown tag, too short, too long, an impossible
    /// length, a name that is not UTF-8. Values are not looked into.
    #[inline]
    pub fn decode(data: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("pgoutput message", data);
        let mut tag = reader.u8("tag")?;
        if tag == CONDENSED {
            reader = reader.condensed();
            tag = reader.u8("tag")?;
        }
        match tag {
            tag::INSERT => Insert::read(reader.named("Insert")).map(Self::Insert),
            tag::BEGIN => Begin::read(reader.named("Begin")).map(Self::Begin),
            tag::COMMIT => Commit::read(reader.named("Commit")).map(Self::Commit),
            tag::ORIGIN => Origin::read(reader.named("Origin")).map(Self::Origin),
            tag::RELATION => Relation::read(reader.named("Relation")).map(Self::Relation),
            tag::TYPE => Type::read(reader.named("Type")).map(Self::Type),
            tag::UPDATE => Update::read(reader.named("Update")).map(Self::Update),
            tag::DELETE => Delete::read(reader.named("Delete")).map(Self::Delete),
            tag::TRUNCATE => Truncate::read(reader.named("Truncate")).map(Self::Truncate),
            tag::MESSAGE => LogicalMessage::read(reader.named("Message")).map(Self::Logical),
            tag => Err(reader.unknown("tag", tag)),
        }
    }
}
