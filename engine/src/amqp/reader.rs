//! Reads fields off the front of a payload, without ever reaching behind its end.

use super::error::AmqpError;

/// The unread rest of a payload. Every method names the field that it reads, for the error.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, AmqpError> {
        self.array(field).map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, AmqpError> {
        self.array(field).map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, AmqpError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, AmqpError> {
        self.array(field).map(u64::from_be_bytes)
    }

    /// A short string: a length octet, then the bytes (specification, section 4.2.5.3).
    pub(super) fn short_string(&mut self, field: &'static str) -> Result<&'a [u8], AmqpError> {
        let length = self.u8(field)?;
        self.take(usize::from(length), field)
    }

    /// A long string: a 32-bit length, then the bytes (section 4.2.5.3); tables and arrays are framed alike.
    pub(super) fn long_string(&mut self, field: &'static str) -> Result<&'a [u8], AmqpError> {
        let length = self.u32(field)?;
        let length = usize::try_from(length).map_err(|_| AmqpError::Truncated { field })?;
        self.take(length, field)
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], AmqpError> {
        let (value, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(AmqpError::Truncated { field })?;
        self.rest = rest;
        Ok(*value)
    }

    /// Checks that nothing is left.
    pub(super) const fn finish(self) -> Result<(), AmqpError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(AmqpError::Trailing { bytes }),
        }
    }

    fn take(&mut self, length: usize, field: &'static str) -> Result<&'a [u8], AmqpError> {
        let (value, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(AmqpError::Truncated { field })?;
        self.rest = rest;
        Ok(value)
    }
}
