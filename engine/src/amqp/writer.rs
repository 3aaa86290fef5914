//! Appends fields, tables and frames to a buffer.

use std::fmt::Display;
use std::io::Write as _;

use super::constants::FRAME_END;
use super::error::EncodeError;
use super::frame::FrameKind;

/// Appends a method frame; where `arguments` fails, nothing.
pub(super) fn method_frame(
    out: &mut Vec<u8>,
    channel: u16,
    method: (u16, u16),
    arguments: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let start = out.len();
    open_frame(out, FrameKind::Method, channel);
    let written = with_length(out, "method", |out| {
        method_id(out, method);
        arguments(out)
    });
    match written {
        Ok(()) => out.push(FRAME_END),
        Err(_) => out.truncate(start),
    }
    written
}

/// Appends a method frame whose arguments are a few fixed bytes.
pub(super) fn plain_method_frame(
    out: &mut Vec<u8>,
    channel: u16,
    (class_id, method_id): (u16, u16),
    arguments: &[u8],
) {
    open_frame(out, FrameKind::Method, channel);
    put_u32(out, length_of(arguments).saturating_add(4));
    put_u16(out, class_id);
    put_u16(out, method_id);
    out.extend_from_slice(arguments);
    out.push(FRAME_END);
}

/// Appends a frame of this payload, which has at most `frame_max` - 8 bytes.
pub(super) fn frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16, payload: &[u8]) {
    let [channel_high, channel_low] = channel.to_be_bytes();
    let [s3, s2, s1, s0] = length_of(payload).to_be_bytes();
    // Room for all at once: three of these go out for each message.
    out.reserve(payload.len().saturating_add(8));
    out.extend_from_slice(&[kind.octet(), channel_high, channel_low, s3, s2, s1, s0]);
    out.extend_from_slice(payload);
    out.push(FRAME_END);
}

pub(super) fn method_id(out: &mut Vec<u8>, (class_id, method_id): (u16, u16)) {
    put_u16(out, class_id);
    put_u16(out, method_id);
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// A short string: a length octet, then the bytes (specification, section 4.2.5.3).
pub(super) fn short_string(out: &mut Vec<u8>, field: &'static str, text: &str) -> Result<(), EncodeError> {
    let length = u8::try_from(text.len()).map_err(|_| EncodeError::ShortStringTooLong {
        field,
        length: text.len(),
    })?;
    out.reserve(text.len().saturating_add(1));
    out.push(length);
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// A long string: a 32-bit length, then the bytes (section 4.2.5.3).
pub(super) fn long_string(out: &mut Vec<u8>, field: &'static str, bytes: &[u8]) -> Result<(), EncodeError> {
    with_length(out, field, |out| {
        out.extend_from_slice(bytes);
        Ok(())
    })
}

/// A field table (section 4.2.5.5), its entries written by `entries`.
pub(super) fn table(
    out: &mut Vec<u8>,
    field: &'static str,
    entries: impl FnOnce(&mut TableWriter<'_>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    with_length(out, field, |out| entries(&mut TableWriter { out }))
}

/// Writes the entries of one table. Texts are always long strings (`S`): at a short string in a table
/// RabbitMQ closes the connection (<https://www.rabbitmq.com/amqp-0-9-1-errata>).
pub(super) struct TableWriter<'a> {
    out: &'a mut Vec<u8>,
}

impl TableWriter<'_> {
    pub(super) fn text(&mut self, name: &'static str, text: &str) -> Result<(), EncodeError> {
        self.entry(name, b'S')?;
        long_string(self.out, name, text.as_bytes())
    }

    /// A text as `value` prints itself, without a String in between.
    pub(super) fn display(&mut self, name: &'static str, value: impl Display) -> Result<(), EncodeError> {
        self.entry(name, b'S')?;
        with_length(self.out, name, |out| {
            let written = write!(out, "{value}");
            debug_assert!(written.is_ok(), "a Vec takes whatever is written");
            Ok(())
        })
    }

    /// A whole number, as the signed 64 bits (`l`) that are RabbitMQ's widest.
    pub(super) fn number(&mut self, name: &'static str, value: u64) -> Result<(), EncodeError> {
        let signed = i64::try_from(value).map_err(|_| EncodeError::NumberTooLarge { field: name, value })?;
        self.entry(name, b'l')?;
        self.out.extend_from_slice(&signed.to_be_bytes());
        Ok(())
    }

    pub(super) fn bool(&mut self, name: &'static str, value: bool) -> Result<(), EncodeError> {
        self.entry(name, b't')?;
        self.out.push(u8::from(value));
        Ok(())
    }

    /// Entries that are encoded already.
    pub(super) fn encoded(&mut self, entries: &[u8]) {
        self.out.extend_from_slice(entries);
    }

    pub(super) fn table(
        &mut self,
        name: &'static str,
        entries: impl FnOnce(&mut TableWriter<'_>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.entry(name, b'F')?;
        table(self.out, name, entries)
    }

    fn entry(&mut self, name: &'static str, kind: u8) -> Result<(), EncodeError> {
        short_string(self.out, name, name)?;
        self.out.push(kind);
        Ok(())
    }
}

fn open_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16) {
    out.push(kind.octet());
    put_u16(out, channel);
}

/// Writes a 32-bit length and then `content`, filling the length in afterwards.
pub(super) fn with_length(
    out: &mut Vec<u8>,
    field: &'static str,
    content: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
) -> Result<(), EncodeError> {
    let at = out.len();
    put_u32(out, 0);
    let start = out.len();
    content(out)?;
    let length = out.len().saturating_sub(start);
    let length = u32::try_from(length).map_err(|_| EncodeError::LongStringTooLong { field, length })?;
    if let Some(place) = out.get_mut(at..start) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

/// The length of what is known to be no longer than a frame.
fn length_of(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}
