//! Changes of rows.

use super::tuple::Tuple;
use crate::decode::{DecodeError, Reader};

/// Byte1 before a tuple: the old row's key, the old row, the new row.
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
const OLD_KEY: u8 = b'K';
const OLD_ROW: u8 = b'O';
const NEW: u8 = super::kind::NEW_ROW;

/// What the fields that several messages have are called in errors.
const RELATION_OID: &str = "relation oid";
const TUPLE_KIND: &str = "tuple kind";

/// A row was inserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The [`Relation`](super::Relation) that tells the columns.
    pub relation_oid: u32,
    /// The row.
    pub new: Tuple<'a>,
}

impl<'a> Insert<'a> {
    #[inline]
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let relation_oid = reader.u32(RELATION_OID)?;
        let new = match reader.u8(TUPLE_KIND)? {
            NEW => Tuple::read(&mut reader)?,
            kind => return Err(reader.unknown(TUPLE_KIND, kind)),
        };
        reader.finish()?;
        Ok(Self { relation_oid, new })
    }
}

/// A row was updated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update<'a> {
    /// The [`Relation`](super::Relation) that tells the columns.
    pub relation_oid: u32,
    /// What the row was, where the replica identity has it sent.
    pub old: Option<OldTuple<'a>>,
    /// What the row is now.
    pub new: Tuple<'a>,
}

impl<'a> Update<'a> {
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let relation_oid = reader.u32(RELATION_OID)?;
        let mut old = None;
        let mut kind = reader.u8(TUPLE_KIND)?;
        if kind != NEW {
            old = Some(OldTuple::read(kind, &mut reader)?);
            kind = reader.u8(TUPLE_KIND)?;
        }
        if kind != NEW {
            return Err(reader.unknown(TUPLE_KIND, kind));
        }
        let new = Tuple::read(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            relation_oid,
            old,
            new,
        })
    }
}

/// A row was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delete<'a> {
    /// The [`Relation`](super::Relation) that tells the columns.
    pub relation_oid: u32,
    /// What the row was.
    pub old: OldTuple<'a>,
}

impl<'a> Delete<'a> {
    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let relation_oid = reader.u32(RELATION_OID)?;
        let kind = reader.u8(TUPLE_KIND)?;
        let old = OldTuple::read(kind, &mut reader)?;
        reader.finish()?;
        Ok(Self { relation_oid, old })
    }
}

/// A row as it was before a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OldTuple<'a> {
    /// Its replica identity's key; the other columns are NULL.
    Key(Tuple<'a>),
    /// All of it, under `REPLICA IDENTITY FULL`.
    Row(Tuple<'a>),
}

impl<'a> OldTuple<'a> {
    fn read(kind: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match kind {
            OLD_KEY => Tuple::read(reader).map(Self::Key),
            OLD_ROW => Tuple::read(reader).map(Self::Row),
            kind => Err(reader.unknown(TUPLE_KIND, kind)),
        }
    }
}

/// Tables were truncated, in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Truncate<'a> {
    /// Bit 1 for `CASCADE`, bit 2 for `RESTART IDENTITY`.
    pub options: u8,
    oids: &'a [[u8; 4]],
}

impl<'a> Truncate<'a> {
    /// The tables' oids, as in [`Relation::oid`](super::Relation::oid).
    pub fn oids(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.oids.iter().map(|oid| u32::from_be_bytes(*oid))
    }

    pub(super) fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.length("relation count")?;
        let options = reader.u8("options")?;
        // Saturation is no size that a message can have, so it is too short, as it should be.
        let (oids, _) = reader
            .bytes(count.saturating_mul(size_of::<u32>()), RELATION_OID)?
            .as_chunks();
        reader.finish()?;
        Ok(Self { options, oids })
    }
}
