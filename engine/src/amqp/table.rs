//! Field tables and arrays, read lazily.

use std::fmt;

use super::error::AmqpError;
use super::reader::Reader;

/// How deep tables and arrays may be nested; RabbitMQ's own nest twice (server properties, capabilities).
pub(super) const MAX_DEPTH: u8 = 16;

/// A field table: names with values (specification, section 4.2.5.5). It is checked only as far as it is
/// read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Table<'a> {
    bytes: &'a [u8],
    depth: u8,
}

/// A field array: values without names (specification, section 4.2.5.5).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FieldArray<'a> {
    bytes: &'a [u8],
    depth: u8,
}

/// A value of a table or array, of the types that RabbitMQ uses
/// (<https://www.rabbitmq.com/amqp-0-9-1-errata>, section "Field types", where it differs from the
/// specification).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FieldValue<'a> {
    /// `t`.
    Bool(bool),
    /// `b`.
    I8(i8),
    /// `B`.
    U8(u8),
    /// `s`, a short string in the specification, but a number in RabbitMQ.
    I16(i16),
    /// `u`.
    U16(u16),
    /// `I`.
    I32(i32),
    /// `i`.
    U32(u32),
    /// `l`, and `L`, which RabbitMQ reads as signed as well: there is no unsigned 64-bit number.
    I64(i64),
    /// `f`.
    F32(f32),
    /// `d`.
    F64(f64),
    /// `D`: `value` divided by ten to the power of `scale`.
    Decimal {
        /// Digits behind the point.
        scale: u8,
        /// All digits.
        value: u32,
    },
    /// `S`, a long string, mostly of UTF-8 but not always.
    Text(&'a [u8]),
    /// `x`.
    Bytes(&'a [u8]),
    /// `T`: seconds since 1970.
    Timestamp(u64),
    /// `A`.
    Array(FieldArray<'a>),
    /// `F`.
    Table(Table<'a>),
    /// `V`.
    Void,
}

impl<'a> Table<'a> {
    /// The entries in their order. An error ends the iteration.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&'a [u8], FieldValue<'a>), AmqpError>> + use<'a> {
        let depth = self.depth;
        entries(self.bytes, move |reader| {
            let name = reader.short_string("field-name")?;
            Ok((name, FieldValue::read(reader, depth)?))
        })
    }

    /// The first value of this name; `None` also where the table is malformed before it, which
    /// [`Table::iter`] tells apart.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<FieldValue<'a>> {
        self.iter()
            .map_while(Result::ok)
            .find(|(key, _)| *key == name.as_bytes())
            .map(|(_, value)| value)
    }

    pub(super) fn read(reader: &mut Reader<'a>, field: &'static str) -> Result<Self, AmqpError> {
        Ok(Self {
            bytes: reader.long_string(field)?,
            depth: 0,
        })
    }
}

impl<'a> FieldArray<'a> {
    /// The values in their order. An error ends the iteration.
    pub fn iter(&self) -> impl Iterator<Item = Result<FieldValue<'a>, AmqpError>> + use<'a> {
        let depth = self.depth;
        entries(self.bytes, move |reader| FieldValue::read(reader, depth))
    }
}

impl<'a> FieldValue<'a> {
    /// The value as a number, where it is a whole one.
    #[must_use]
    pub fn integer(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::U8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I64(value) => Some(value),
            Self::Bool(_)
            | Self::F32(_)
            | Self::F64(_)
            | Self::Decimal { .. }
            | Self::Text(_)
            | Self::Bytes(_)
            | Self::Timestamp(_)
            | Self::Array(_)
            | Self::Table(_)
            | Self::Void => None,
        }
    }

    /// Reads a type octet and its value; `depth` is that of the table or array around it.
    fn read(reader: &mut Reader<'a>, depth: u8) -> Result<Self, AmqpError> {
        let field = "field-value";
        Ok(match reader.u8(field)? {
            b't' => Self::Bool(reader.u8(field)? != 0),
            b'b' => Self::I8(i8::from_be_bytes(reader.array(field)?)),
            b'B' => Self::U8(reader.u8(field)?),
            b's' => Self::I16(i16::from_be_bytes(reader.array(field)?)),
            b'u' => Self::U16(reader.u16(field)?),
            b'I' => Self::I32(i32::from_be_bytes(reader.array(field)?)),
            b'i' => Self::U32(reader.u32(field)?),
            b'l' | b'L' => Self::I64(i64::from_be_bytes(reader.array(field)?)),
            b'f' => Self::F32(f32::from_be_bytes(reader.array(field)?)),
            b'd' => Self::F64(f64::from_be_bytes(reader.array(field)?)),
            b'D' => Self::Decimal {
                scale: reader.u8(field)?,
                value: reader.u32(field)?,
            },
            b'S' => Self::Text(reader.long_string(field)?),
            b'x' => Self::Bytes(reader.long_string(field)?),
            b'T' => Self::Timestamp(reader.u64(field)?),
            b'A' => Self::Array(FieldArray {
                bytes: reader.long_string(field)?,
                depth: deeper(depth)?,
            }),
            b'F' => Self::Table(Table {
                bytes: reader.long_string(field)?,
                depth: deeper(depth)?,
            }),
            b'V' => Self::Void,
            kind => return Err(AmqpError::FieldType { kind }),
        })
    }
}

/// Reads entries until the bytes end or one is malformed.
fn entries<'a, T>(
    bytes: &'a [u8],
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T, AmqpError>,
) -> impl Iterator<Item = Result<T, AmqpError>> {
    let mut reader = Reader::new(bytes);
    std::iter::from_fn(move || {
        if reader.is_empty() {
            return None;
        }
        let entry = read(&mut reader);
        if entry.is_err() {
            reader = Reader::new(&[]);
        }
        Some(entry)
    })
}

/// A bound for callers that walk down: reading itself does not recurse.
const fn deeper(depth: u8) -> Result<u8, AmqpError> {
    if depth < MAX_DEPTH {
        Ok(depth + 1)
    } else {
        Err(AmqpError::TooDeep { limit: MAX_DEPTH })
    }
}

/// Sizes only: headers may hold what must not reach a log.
impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Table({} bytes)", self.bytes.len())
    }
}

impl fmt::Debug for FieldArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FieldArray({} bytes)", self.bytes.len())
    }
}
