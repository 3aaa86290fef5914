//! The values of one row.

use std::fmt;

use crate::decode::{DecodeError, Reader, Redacted};

/// The values of one row (PostgreSQL's "`TupleData`"), in the order of its Relation's columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Tuple<'a> {
    count: u16,
    values: &'a [u8],
}

/// Byte1 before a new row, and before each value.
/// <https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>
pub(crate) mod kind {
    pub(crate) const NEW_ROW: u8 = b'N';
    pub(crate) const NULL: u8 = b'n';
    pub(crate) const UNCHANGED: u8 = b'u';
    pub(crate) const TEXT: u8 = b't';
    pub(crate) const BINARY: u8 = b'b';
    /// Of our own, in condensed messages only: Int32 length, Int32 limit.
    pub(crate) const OVERSIZED: u8 = 0xFF;
}

impl<'a> Tuple<'a> {
    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none: a table may have no columns.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order.
    #[inline]
    #[must_use]
    pub const fn values(&self) -> Values<'a> {
        Values {
            // `Tuple::read` has let no marker pass that should not be there.
            reader: Reader::new("tuple", self.values).condensed(),
            left: self.count,
        }
    }

    /// The value of the column `index`, counted from zero; walks over those before it.
    #[must_use]
    pub fn value(&self, index: usize) -> Option<Value<'a>> {
        let mut values = self.values;
        // Stepping costs a fraction of reading, and this is asked several times for each row.
        for _ in 0..index.min(self.len()) {
            values = behind_first(values)?;
        }
        // Past the last one nothing is left to read.
        Value::read(&mut Reader::new("tuple", values).condensed()).ok()
    }

    #[inline]
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let count = reader.u16("column count")?;
        let values = reader.span(|reader| (0..count).try_for_each(|_| Value::read(reader).map(drop)))?;
        Ok(Self { count, values })
    }
}

impl fmt::Debug for Tuple<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.values()).finish()
    }
}

/// One value of a row. `Debug` shows the size of data, not the data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// SQL's NULL.
    Null,
    /// An out-of-line value that an update did not change, and which is not sent.
    Unchanged,
    /// The type's text form, in the session's `client_encoding`.
    Text(&'a [u8]),
    /// The type's binary form, sent only where `binary` was asked for.
    Binary(&'a [u8]),
    /// A value that was too large to be kept; see [`Condenser`](crate::condense::Condenser).
    Oversized {
        /// Its length in bytes.
        length: u64,
        /// How long it might have been.
        limit: u64,
    },
}

impl<'a> Value<'a> {
    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.u8("value kind")? {
            kind::TEXT => data(reader).map(Self::Text),
            kind::NULL => Ok(Self::Null),
            kind::UNCHANGED => Ok(Self::Unchanged),
            kind::BINARY => data(reader).map(Self::Binary),
            kind::OVERSIZED if reader.is_condensed() => Ok(Self::Oversized {
                length: reader.u32("value length")?.into(),
                limit: reader.u32("value limit")?.into(),
            }),
            kind => Err(reader.unknown("value kind", kind)),
        }
    }
}

/// What follows the first of these values, which [`Tuple::read`] has found to be well formed.
#[inline]
fn behind_first(values: &[u8]) -> Option<&[u8]> {
    let (&kind, rest) = values.split_first()?;
    match kind {
        kind::TEXT | kind::BINARY => {
            let (length, rest) = rest.split_first_chunk()?;
            rest.get(usize::try_from(u32::from_be_bytes(*length)).ok()?..)
        }
        kind::OVERSIZED => rest.get(8..),
        _ => Some(rest),
    }
}

#[inline]
fn data<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let length = reader.length("value length")?;
    reader.bytes(length, "value")
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::Text(data) => f.debug_tuple("Text").field(&Redacted(data)).finish(),
            Self::Binary(data) => f.debug_tuple("Binary").field(&Redacted(data)).finish(),
            Self::Oversized { length, .. } => write!(f, "Oversized({length} bytes)"),
        }
    }
}

/// Iterates over the values of a [`Tuple`].
#[derive(Debug, Clone)]
pub struct Values<'a> {
    reader: Reader<'a>,
    left: u16,
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // Never an error: `Tuple::read` has been here.
        Value::read(&mut self.reader).ok()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

impl ExactSizeIterator for Values<'_> {}

impl<'a> Tuple<'a> {
    /// The count of values, and all of them as the message has them.
    pub(crate) const fn raw(&self) -> (u16, &'a [u8]) {
        (self.count, self.values)
    }

    /// A tuple of what [`raw`](Self::raw) returned.
    pub(crate) const fn from_raw(count: u16, values: &'a [u8]) -> Self {
        Self { count, values }
    }
}
