//! Large CopyData payloads, condensed while they are read: a value over the limit is passed over, never buffered.
//!
//! One row may have up to 1 GiB, and nothing can say beforehand which of its columns are the large ones. So the
//! payload is fed in pieces as they come from the socket, and what comes out is a payload of the same kind in which a
//! marker stands for every value that is too large ([`Value::Oversized`](crate::pgoutput::Value::Oversized)). Of
//! everything else each byte is as the server sent it, and is checked where every payload is: by its decoder.

use crate::decode::{DecodeError, Reader};
use crate::pgoutput::{CONDENSED, kind, tag};
use crate::walsender::XLOG_DATA;

/// A logical message with a longer prefix is nobody's word to us: whoever sends it, and any role may, has its content passed
/// over together with the prefix.
pub const PREFIX_MAX: usize = 64;

/// What is no row and no logical message may always have so many bytes. The largest of them is the Relation of a table
/// of 1,600 columns, with less than 128 KiB; a TRUNCATE may name 250,000 tables.
const OTHER_MAX: usize = 1024 * 1024;

/// Reads one payload that is larger than one would buffer.
///
/// Call order: [`feed`](Self::feed) until [`payload`](Self::payload) is there. After an error it is of no further use.
#[derive(Debug)]
pub struct Condenser {
    limit: usize,
    /// Bytes that the values of this row may still have.
    room: usize,
    size: usize,
    /// Bytes of the payload that have not been fed.
    left: usize,
    state: State,
    /// As much as has come of a [`State::Part`].
    part: Vec<u8>,
    message: &'static str,
    tag: u8,
    /// Columns of the current tuple that have not begun.
    columns: u16,
    /// Whether the current tuple is an old row, which a new one follows.
    old: bool,
    out: Vec<u8>,
}

/// Why a payload cannot be condensed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CondenseError {
    /// It is not what the protocol says.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It is neither a row nor a logical message, and nothing in it can be passed over.
    #[error("a message of the stream has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Something short, to be looked at whole.
    Part(Part),
    /// The prefix of a logical message, up to its NUL.
    Prefix,
    /// Data that is copied or passed over.
    Data { left: usize, keep: bool, then: Then },
    /// The message is complete.
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Column,
    End,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// XLogData's fields and the message's tag.
    Head,
    /// Flags and position of a logical message.
    Logical,
    /// The length of its content.
    Content,
    /// The table's oid.
    Oid,
    /// A tuple's kind and its number of columns.
    Tuple,
    /// A value's kind.
    Kind,
    /// A value's length.
    Length { kind: u8 },
}

impl Part {
    const fn size(self) -> usize {
        match self {
            Self::Head => 26,
            Self::Logical => 9,
            Self::Oid | Self::Length { .. } | Self::Content => 4,
            Self::Tuple => 3,
            Self::Kind => 1,
        }
    }
}

impl Condenser {
    /// For a payload of `size` bytes. A value of more than `limit` bytes is passed over, and so is one with which the
    /// values kept of its row would have more than twice that.
    #[must_use]
    pub fn new(size: usize, limit: usize) -> Self {
        let mut condenser = Self {
            limit,
            room: limit.saturating_mul(2),
            size,
            left: size,
            state: State::Part(Part::Head),
            part: Vec::with_capacity(Part::Head.size()),
            message: "XLogData",
            tag: 0,
            columns: 0,
            old: false,
            out: Vec::new(),
        };
        if size < Part::Head.size() {
            // Too short for any message, so its decoder says what is wrong with it.
            condenser.data(size, true, Then::End);
        }
        condenser
    }

    /// Takes the next bytes and returns how many: all of them, but for those that follow the payload.
    ///
    /// # Errors
    /// The payload cannot be condensed.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<usize, CondenseError> {
        let bytes = bytes.get(..self.left).unwrap_or(bytes);
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.take(rest)?;
            rest = rest.get(taken..).unwrap_or_default();
        }
        if self.left == 0 && self.state != State::End {
            return Err(self.truncated("row").into());
        }
        Ok(bytes.len())
    }

    /// Bytes of the payload that have not been fed yet.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// The condensed payload, once all has been fed; for
    /// [`ServerMessage::decode`](crate::walsender::ServerMessage::decode).
    #[must_use]
    pub fn payload(&self) -> Option<&[u8]> {
        (self.left == 0 && self.state == State::End).then_some(&self.out)
    }

    /// Takes some of `bytes`, which are neither none nor more than the payload has.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, CondenseError> {
        let wanted = match self.state {
            State::Part(part) => part.size().saturating_sub(self.part.len()),
            State::Prefix => {
                let wanted = (PREFIX_MAX + 1).saturating_sub(self.part.len());
                let end = bytes.iter().take(wanted).position(|byte| *byte == 0);
                end.map_or(wanted, |end| end + 1)
            }
            State::Data { left, .. } => left,
            State::End => return Err(self.trailing().into()),
        };
        let taken = bytes.get(..wanted).unwrap_or(bytes);
        self.left = self.left.saturating_sub(taken.len());
        match self.state {
            State::Part(part) => {
                self.part.extend_from_slice(taken);
                if self.part.len() == part.size() {
                    let mut bytes = std::mem::take(&mut self.part);
                    self.read(part, &bytes)?;
                    bytes.clear();
                    self.part = bytes;
                }
            }
            State::Prefix => {
                self.part.extend_from_slice(taken);
                self.end_prefix();
            }
            State::Data { left, keep, then } => {
                if keep {
                    self.out.extend_from_slice(taken);
                }
                self.data(left.saturating_sub(taken.len()), keep, then);
            }
            State::End => {}
        }
        Ok(taken.len())
    }

    /// Looks at a part that has come whole.
    fn read(&mut self, part: Part, bytes: &[u8]) -> Result<(), CondenseError> {
        let mut reader = Reader::new(self.message, bytes);
        match part {
            Part::Head => self.head(bytes)?,
            Part::Logical => {
                self.out.extend_from_slice(bytes);
                self.state = State::Prefix;
            }
            Part::Content => {
                let length = reader.length("content length")?;
                if length > self.left {
                    return Err(self.truncated("content").into());
                }
                let keep = self.value(kind::BINARY, length, self.limit, bytes);
                self.data(length, keep, Then::End);
            }
            Part::Oid => {
                self.out.extend_from_slice(bytes);
                self.state = State::Part(Part::Tuple);
            }
            Part::Tuple => {
                self.out.extend_from_slice(bytes);
                let kind = reader.u8("tuple kind")?;
                if self.old && kind != kind::NEW_ROW {
                    return Err(reader.unknown("tuple kind", kind).into());
                }
                self.old = self.tag == tag::UPDATE && kind != kind::NEW_ROW;
                self.columns = reader.u16("column count")?;
                self.next_column();
            }
            Part::Kind => match reader.u8("value kind")? {
                kind @ (kind::TEXT | kind::BINARY) => self.state = State::Part(Part::Length { kind }),
                kind @ (kind::NULL | kind::UNCHANGED) => {
                    self.out.push(kind);
                    self.next_column();
                }
                kind => return Err(reader.unknown("value kind", kind).into()),
            },
            Part::Length { kind } => {
                let length = reader.length("value length")?;
                if length > self.left {
                    return Err(self.truncated("value").into());
                }
                let keep = self.value(kind, length, self.limit.min(self.room), bytes);
                if keep {
                    self.room = self.room.saturating_sub(length);
                }
                self.data(length, keep, Then::Column);
            }
        }
        Ok(())
    }

    /// Begins a value of `length`, which `bytes` are; where it is longer than `limit`, a marker stands for it. Returns
    /// whether it is kept.
    fn value(&mut self, kind: u8, length: usize, limit: usize, bytes: &[u8]) -> bool {
        let keep = length <= limit;
        if keep {
            self.out.reserve(length.saturating_add(1 + size_of::<u32>()));
            self.out.push(kind);
            self.out.extend_from_slice(bytes);
        } else {
            self.out.push(kind::OVERSIZED);
            self.out.extend_from_slice(bytes);
            // Below the length, which fits.
            let limit = u32::try_from(limit).unwrap_or(u32::MAX);
            self.out.extend_from_slice(&limit.to_be_bytes());
        }
        keep
    }

    /// Looks whether the prefix has come whole.
    fn end_prefix(&mut self) {
        if self.part.last() == Some(&0) {
            self.out.append(&mut self.part);
            self.state = State::Part(Part::Content);
        } else if self.part.len() > PREFIX_MAX {
            self.part.clear();
            self.out.extend_from_slice(&[0, kind::BINARY]);
            self.out.extend_from_slice(&[0; size_of::<u32>()]);
            self.data(self.left, false, Then::End);
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<(), CondenseError> {
        let message = match bytes {
            [XLOG_DATA, .., message] => *message,
            _ => 0,
        };
        let (name, next) = match message {
            tag::INSERT => ("Insert", Part::Oid),
            tag::UPDATE => ("Update", Part::Oid),
            tag::DELETE => ("Delete", Part::Oid),
            tag::MESSAGE => ("Message", Part::Logical),
            _ => {
                let limit = self.limit.max(OTHER_MAX);
                if self.size > limit {
                    let size = self.size;
                    return Err(CondenseError::TooLarge { size, limit });
                }
                self.out.extend_from_slice(bytes);
                self.data(self.left, true, Then::End);
                return Ok(());
            }
        };
        (self.tag, self.message) = (message, name);
        let (_, fields) = bytes.split_last().unwrap_or((&0, bytes));
        self.out.extend_from_slice(fields);
        self.out.extend_from_slice(&[CONDENSED, message]);
        self.state = State::Part(next);
        Ok(())
    }

    fn data(&mut self, left: usize, keep: bool, then: Then) {
        match then {
            _ if left > 0 => self.state = State::Data { left, keep, then },
            Then::Column => self.next_column(),
            Then::End => self.state = State::End,
        }
    }

    fn next_column(&mut self) {
        self.state = match self.columns.checked_sub(1) {
            Some(columns) => {
                self.columns = columns;
                State::Part(Part::Kind)
            }
            None if self.old => State::Part(Part::Tuple),
            None => State::End,
        };
    }

    const fn truncated(&self, field: &'static str) -> DecodeError {
        DecodeError::Truncated {
            message: self.message,
            field,
        }
    }

    const fn trailing(&self) -> DecodeError {
        DecodeError::TrailingBytes {
            message: self.message,
            count: self.left,
        }
    }
}

#[cfg(test)]
mod tests;
