//! What frames a transaction, and messages without a table.

use std::fmt;

use super::kind;
use crate::decode::{DecodeError, Reader, Redacted};
use crate::{Lsn, PgTimestamp};

/// A committed transaction starts; everything up to the [`Commit`] belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where the commit record starts: the transaction's commit LSN.
    pub final_lsn: Lsn,
    /// When it was committed, by the server's clock.
    pub commit_time: PgTimestamp,
    /// The transaction's id.
    pub xid: u32,
}

impl Begin {
    pub(super) fn read(mut reader: Reader<'_>) -> Result<Self, DecodeError> {
        let begin = Self {
            final_lsn: reader.lsn("final LSN")?,
            commit_time: reader.timestamp("commit time")?,
            xid: reader.u32("transaction id")?,
        };
        reader.finish()?;
        Ok(begin)
    }
}

/// The transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Unused by PostgreSQL, so zero today.
    pub flags: u8,
    /// Where the commit record starts, as in [`Begin::final_lsn`].
    pub commit_lsn: Lsn,
    /// Where it ends: what to report as flushed when the transaction is settled.
    pub end_lsn: Lsn,
    /// When it was committed, by the server's clock.
    pub commit_time: PgTimestamp,
}

impl Commit {
    pub(super) fn read(mut reader: Reader<'_>) -> Result<Self, DecodeError> {
        let commit = Self {
            flags: reader.u8("flags")?,
            commit_lsn: reader.lsn("commit LSN")?,
            end_lsn: reader.lsn("end LSN")?,
            commit_time: reader.timestamp("commit time")?,
        };
        reader.finish()?;
        Ok(commit)
    }
}

/// The transaction was replicated to this server from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// The commit's position on the server it came from.
    pub commit_lsn: Lsn,
    /// The replication origin's name.
    pub name: &'a str,
}

impl<'a> Origin<'a> {
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let origin = Self {
            commit_lsn: reader.lsn("commit LSN")?,
            name: reader.cstr("name")?,
        };
        reader.finish()?;
        Ok(origin)
    }
}

/// What `pg_logical_emit_message` was given, by whichever role: any role may call it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LogicalMessage<'a> {
    /// See [`is_transactional`](Self::is_transactional).
    pub flags: u8,
    /// The message's position in the WAL.
    pub lsn: Lsn,
    /// Whom it is for.
    pub prefix: &'a str,
    /// What it says.
    pub content: Content<'a>,
}

/// What a logical message says. `Debug` shows the size of data, not the data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content<'a> {
    /// Any bytes; a text in the database's own encoding, whatever the session asks for.
    Bytes(&'a [u8]),
    /// Some that were too many to be kept; see [`Condenser`](crate::condense::Condenser).
    Oversized {
        /// How many they are.
        length: u64,
        /// How many they might have been.
        limit: u64,
    },
}

impl<'a> LogicalMessage<'a> {
    /// "1 if the logical decoding message is transactional":
    /// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
    const TRANSACTIONAL: u8 = 1;

    /// Whether it belongs to a transaction, and so stands between its Begin and Commit; others come at once.
    #[must_use]
    pub const fn is_transactional(&self) -> bool {
        self.flags & Self::TRANSACTIONAL != 0
    }

    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let flags = reader.u8("flags")?;
        let lsn = reader.lsn("LSN")?;
        let prefix = reader.cstr("prefix")?;
        let content = Content::read(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            flags,
            lsn,
            prefix,
            content,
        })
    }
}

impl fmt::Debug for LogicalMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogicalMessage")
            .field("flags", &self.flags)
            .field("lsn", &self.lsn)
            .field("prefix", &self.prefix)
            .field("content", &self.content)
            .finish()
    }
}

impl<'a> Content<'a> {
    /// The bytes, where they were kept.
    #[must_use]
    pub const fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Oversized { .. } => None,
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        const KIND: &str = "content kind";
        let kind = match reader.is_condensed() {
            true => reader.u8(KIND)?,
            false => kind::BINARY,
        };
        match kind {
            kind::BINARY => {
                let length = reader.length("content length")?;
                reader.bytes(length, "content").map(Self::Bytes)
            }
            kind::OVERSIZED => Ok(Self::Oversized {
                length: reader.u32("content length")?.into(),
                limit: reader.u32("content limit")?.into(),
            }),
            kind => Err(reader.unknown(KIND, kind)),
        }
    }
}

impl fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{:?}", Redacted(bytes)),
            Self::Oversized { length, .. } => write!(f, "Oversized({length} bytes)"),
        }
    }
}
