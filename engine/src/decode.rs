//! What the PostgreSQL decoders share: the checked cursor and the one error.

use std::ffi::CStr;
use std::fmt;
use std::str::Utf8Error;

use crate::{Lsn, PgTimestamp};

/// Bytes from the server that are not the message they claim to be.
///
/// `message` names the message (as PostgreSQL's documentation does) and `field` the part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end before the field does.
    #[error("{message}: cut off in {field}")]
    Truncated {
        /// The message.
        message: &'static str,
        /// The part of it.
        field: &'static str,
    },
    /// The message is complete, and more bytes follow.
    #[error("{message}: trailing bytes: {count}")]
    TrailingBytes {
        /// The message.
        message: &'static str,
        /// How many bytes follow.
        count: usize,
    },
    /// A byte that should tell what follows tells nothing known.
    #[error("{message}: unknown {field} '{}' (0x{tag:02X})", .tag.escape_ascii())]
    UnknownTag {
        /// The message.
        message: &'static str,
        /// The part of it.
        field: &'static str,
        /// The byte.
        tag: u8,
    },
    /// A length or count is below zero.
    #[error("{message}: {field} is {length}")]
    NegativeLength {
        /// The message.
        message: &'static str,
        /// The part of it.
        field: &'static str,
        /// What stands there.
        length: i32,
    },
    /// A name is not UTF-8, though the session asks for `client_encoding=UTF8`.
    #[error("{message}: {field} is not UTF-8")]
    NotUtf8 {
        /// The message.
        message: &'static str,
        /// The part of it.
        field: &'static str,
        /// Where in the name.
        #[source]
        source: Utf8Error,
    },
}

/// A cursor over one message; every read is checked and names what it reads.
///
/// Integers are big-endian: <https://www.postgresql.org/docs/current/protocol-message-types.html>
#[derive(Debug, Clone)]
pub(crate) struct Reader<'a> {
    message: &'static str,
    rest: &'a [u8],
    condensed: bool,
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`; `message` is the name that errors give.
    #[inline]
    pub(crate) const fn new(message: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            message,
            rest: bytes,
            condensed: false,
        }
    }

    /// Goes on in a message that was condensed: markers may stand in it.
    #[inline]
    pub(crate) const fn condensed(self) -> Self {
        Self {
            condensed: true,
            ..self
        }
    }

    /// Whether the message was condensed.
    #[inline]
    pub(crate) const fn is_condensed(&self) -> bool {
        self.condensed
    }

    /// Goes on under another name: the tag has told what the message is.
    #[inline]
    pub(crate) const fn named(self, message: &'static str) -> Self {
        Self { message, ..self }
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array(field).map(u8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.array(field).map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.array(field).map(|bytes| Lsn::new(u64::from_be_bytes(bytes)))
    }

    #[inline]
    pub(crate) fn timestamp(&mut self, field: &'static str) -> Result<PgTimestamp, DecodeError> {
        self.array(field)
            .map(|bytes| PgTimestamp::new(i64::from_be_bytes(bytes)))
    }

    /// An Int32 that counts something.
    #[inline]
    pub(crate) fn length(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let length = self.i32(field)?;
        usize::try_from(length).map_err(|_| DecodeError::NegativeLength {
            message: self.message,
            field,
            length,
        })
    }

    #[inline]
    pub(crate) fn bytes(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(count)
            .ok_or_else(|| self.truncated(field))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// A String: bytes up to a NUL, which is read too and not returned.
    pub(crate) fn cstr(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        let text = CStr::from_bytes_until_nul(self.rest).map_err(|_| self.truncated(field))?;
        self.bytes(text.count_bytes() + 1, field)?;
        text.to_str().map_err(|source| DecodeError::NotUtf8 {
            message: self.message,
            field,
            source,
        })
    }

    /// The bytes that `walk` reads, which thereby are known to be well formed.
    #[inline]
    pub(crate) fn span(
        &mut self,
        walk: impl FnOnce(&mut Self) -> Result<(), DecodeError>,
    ) -> Result<&'a [u8], DecodeError> {
        let before = self.rest;
        walk(self)?;
        Ok(before.get(..before.len() - self.rest.len()).unwrap_or_default())
    }

    /// Everything that is left.
    #[inline]
    pub(crate) const fn remainder(self) -> &'a [u8] {
        self.rest
    }

    /// Ends the message: nothing may be left.
    #[inline]
    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes {
                message: self.message,
                count,
            }),
        }
    }

    /// The error for a byte that `field` cannot have.
    #[cold]
    pub(crate) const fn unknown(&self, field: &'static str, tag: u8) -> DecodeError {
        DecodeError::UnknownTag {
            message: self.message,
            field,
            tag,
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let (array, rest) = self
            .rest
            .split_first_chunk()
            .ok_or_else(|| self.truncated(field))?;
        self.rest = rest;
        Ok(*array)
    }

    #[cold]
    const fn truncated(&self, field: &'static str) -> DecodeError {
        DecodeError::Truncated {
            message: self.message,
            field,
        }
    }
}

/// Stands for data in `Debug`: a payload must not reach a log by way of `{:?}`.
pub(crate) struct Redacted<'a>(pub(crate) &'a [u8]);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn an_error_names_the_message_the_field_and_the_fault() {
        let reader = |bytes| Reader::new("Relation", bytes);
        let texts = [
            reader(&[0; 3]).u32("oid").unwrap_err(),
            reader(b"a").cstr("name").unwrap_err(),
            reader(b"\xFF\0").cstr("name").unwrap_err(),
            reader(&[0xFF; 4]).length("length").unwrap_err(),
            reader(b"ab").finish().unwrap_err(),
            reader(b"").unknown("tag", b'x'),
            reader(b"").unknown("tag", 0),
        ]
        .map(|error| error.to_string());
        assert_eq!(
            texts,
            [
                "Relation: cut off in oid",
                "Relation: cut off in name",
                "Relation: name is not UTF-8",
                "Relation: length is -1",
                "Relation: trailing bytes: 2",
                r"Relation: unknown tag 'x' (0x78)",
                r"Relation: unknown tag '\x00' (0x00)",
            ]
        );
    }

    #[test]
    fn a_name_that_is_not_utf8_tells_where() {
        let error = Reader::new("Relation", b"ok\xFF\0").cstr("name").unwrap_err();
        let source = error
            .source()
            .and_then(|source| source.downcast_ref::<Utf8Error>());
        assert_eq!(source.map(Utf8Error::valid_up_to), Some(2));
    }

    #[test]
    fn a_failed_read_moves_nothing() {
        let mut reader = Reader::new("Begin", &[0, 7]);
        assert!(reader.u32("xid").is_err());
        assert!(reader.bytes(3, "data").is_err());
        assert_eq!(reader.u16("count"), Ok(7));
    }
}
