//! A message as RabbitMQ stores it in a stream: in the sections of AMQP 1.0.
//!
//! The layout is the one in which RabbitMQ itself stores what reaches a stream by AMQP 0-9-1, so that consumers of either
//! protocol see the same message: what AMQP 1.0 has no place for is in annotations (`x-exchange`) and application
//! properties. Type and app id are there twice: RabbitMQ 3.x looks for both among the application properties, and 4.x for
//! the type among the annotations (`x-basic-type`) and for the app id in the group id. There is no header section: RabbitMQ 3.10 ends an AMQP 0-9-1 consumer's connection over
//! one. Sections: <https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-messaging-v1.0-os.html>, types:
//! <https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-types-v1.0-os.html>.

use super::Message;
use super::content::ContentHeader;
use super::table::{FieldValue, Table};

/// Descriptors of the sections.
mod section {
    pub(super) const MESSAGE_ANNOTATIONS: u8 = 0x72;
    pub(super) const PROPERTIES: u8 = 0x73;
    pub(super) const APPLICATION_PROPERTIES: u8 = 0x74;
    pub(super) const DATA: u8 = 0x75;
}

/// Constructors of values.
mod kind {
    pub(super) const NULL: u8 = 0x40;
    pub(super) const TRUE: u8 = 0x41;
    pub(super) const FALSE: u8 = 0x42;
    pub(super) const UBYTE: u8 = 0x50;
    pub(super) const BYTE: u8 = 0x51;
    pub(super) const USHORT: u8 = 0x60;
    pub(super) const SHORT: u8 = 0x61;
    pub(super) const UINT: u8 = 0x70;
    pub(super) const INT: u8 = 0x71;
    pub(super) const FLOAT: u8 = 0x72;
    pub(super) const LONG: u8 = 0x81;
    pub(super) const DOUBLE: u8 = 0x82;
    pub(super) const TIMESTAMP: u8 = 0x83;
    pub(super) const BINARY_8: u8 = 0xa0;
    pub(super) const BINARY_32: u8 = 0xb0;
    pub(super) const STRING_8: u8 = 0xa1;
    pub(super) const STRING_32: u8 = 0xb1;
    pub(super) const SYMBOL_8: u8 = 0xa3;
    pub(super) const SYMBOL_32: u8 = 0xb3;
    pub(super) const LIST_32: u8 = 0xd0;
    pub(super) const MAP_32: u8 = 0xd1;
}

/// Fixed bytes around what a message says: descriptors, sizes, names of properties.
const OVERHEAD: usize = 512;

/// What begins a message of ours, up to the length of the mark's value: the section of annotations, whose first is ours.
/// The size and the count of the map stand where the zeros are.
const ANNOTATION: &str = "x-opt-walrelay";

impl Message {
    /// Appends the message as sections of AMQP 1.0, with `mark` as an annotation of its own, of at most 255 bytes, in front
    /// of everything, where [`mark_of`] finds it.
    ///
    /// Arrays and tables among the headers are left out, as RabbitMQ 3.x does: application properties cannot hold them.
    pub fn write_sections(&self, mark: &[u8], out: &mut Vec<u8>) {
        let (body, _, header) = self.split();
        let content = ContentHeader::decode(header);
        debug_assert!(content.is_ok(), "a content header of our own can be read");
        let parts = content.map(|content| content.properties).unwrap_or_default();
        let destination = (self.exchange(), self.routing_key());
        described(out, section::MESSAGE_ANNOTATIONS);
        compound(out, kind::MAP_32, |out| {
            symbol(out, ANNOTATION.as_bytes());
            binary(out, mark);
            let mut count = 2;
            for (name, value) in [("x-exchange", destination.0), ("x-routing-key", destination.1)] {
                count += pair(out, name, value, |out, text| string(out, text.as_bytes()));
            }
            for (name, value) in [
                ("x-basic-delivery-mode", parts.delivery_mode),
                ("x-basic-priority", parts.priority),
            ] {
                count += pair(out, name, value, |out, value| {
                    out.extend_from_slice(&[kind::UBYTE, value]);
                });
            }
            count += pair(out, "x-basic-expiration", parts.expiration, string);
            count + pair(out, "x-basic-type", parts.message_type, string)
        });
        described(out, section::PROPERTIES);
        compound(out, kind::LIST_32, |out| {
            optional(out, parts.message_id, string);
            optional(out, parts.user_id, binary);
            // to, subject
            out.extend_from_slice(&[kind::NULL, kind::NULL]);
            optional(out, parts.reply_to, string);
            optional(out, parts.correlation_id, string);
            optional(out, parts.content_type, symbol);
            optional(out, parts.content_encoding, symbol);
            // absolute-expiry-time
            out.push(kind::NULL);
            optional(out, parts.timestamp, timestamp);
            // group-id
            optional(out, parts.app_id, string);
            11
        });
        described(out, section::APPLICATION_PROPERTIES);
        compound(out, kind::MAP_32, |out| {
            let mut count = 0;
            for (name, value) in [
                ("x-basic-type", parts.message_type),
                ("x-basic-app-id", parts.app_id),
            ] {
                if let Some(value) = value {
                    string(out, name.as_bytes());
                    string(out, value);
                    count += 2;
                }
            }
            let headers = parts.headers.iter().flat_map(Table::iter);
            for (name, value) in headers.map_while(Result::ok) {
                let start = out.len();
                string(out, name);
                match field(out, value) {
                    true => count += 2,
                    false => out.truncate(start),
                }
            }
            count
        });
        described(out, section::DATA);
        binary_32(out, body);
    }

    /// No more bytes than this does [`write_sections`](Self::write_sections) append, but for the mark.
    #[must_use]
    pub const fn max_sections_len(&self) -> usize {
        // A constructor and a length of up to five bytes replace at least two; a short header's value grows the most.
        self.body_len() + (self.len() - self.body_len()) * 3 + OVERHEAD
    }
}

/// The mark of a message that [`Message::write_sections`] has written, from its first bytes: 320 are enough. None where it
/// is anyone else's.
#[must_use]
pub fn mark_of(message: &[u8]) -> Option<&[u8]> {
    let rest = message.strip_prefix(&[0, 0x53, section::MESSAGE_ANNOTATIONS, kind::MAP_32])?;
    let (_size_and_count, rest) = rest.split_at_checked(8)?;
    let rest = rest.strip_prefix(&[kind::SYMBOL_8, u8::try_from(ANNOTATION.len()).ok()?])?;
    let rest = rest.strip_prefix(ANNOTATION.as_bytes())?;
    let rest = rest.strip_prefix(&[kind::BINARY_8])?;
    let (length, rest) = rest.split_first()?;
    rest.get(..usize::from(*length))
}

/// Appends a header's value; `false`, and nothing, where an application property cannot hold it.
fn field(out: &mut Vec<u8>, value: FieldValue<'_>) -> bool {
    match value {
        FieldValue::Bool(value) => out.push(if value { kind::TRUE } else { kind::FALSE }),
        FieldValue::I8(value) => fixed(out, kind::BYTE, &value.to_be_bytes()),
        FieldValue::U8(value) => fixed(out, kind::UBYTE, &value.to_be_bytes()),
        FieldValue::I16(value) => fixed(out, kind::SHORT, &value.to_be_bytes()),
        FieldValue::U16(value) => fixed(out, kind::USHORT, &value.to_be_bytes()),
        FieldValue::I32(value) => fixed(out, kind::INT, &value.to_be_bytes()),
        FieldValue::U32(value) => fixed(out, kind::UINT, &value.to_be_bytes()),
        FieldValue::I64(value) => fixed(out, kind::LONG, &value.to_be_bytes()),
        FieldValue::F32(value) => fixed(out, kind::FLOAT, &value.to_be_bytes()),
        FieldValue::F64(value) => fixed(out, kind::DOUBLE, &value.to_be_bytes()),
        FieldValue::Text(text) => match std::str::from_utf8(text) {
            Ok(_) => string(out, text),
            Err(_) => binary(out, text),
        },
        FieldValue::Bytes(bytes) => binary(out, bytes),
        FieldValue::Timestamp(seconds) => timestamp(out, seconds),
        FieldValue::Void => out.push(kind::NULL),
        FieldValue::Decimal { .. } | FieldValue::Array(_) | FieldValue::Table(_) => return false,
    }
    true
}

fn described(out: &mut Vec<u8>, section: u8) {
    // A described value, its descriptor a small ulong.
    out.extend_from_slice(&[0, 0x53, section]);
}

/// A list or map: its size, which counts from behind itself, and how many values it has, which `content` returns.
fn compound(out: &mut Vec<u8>, kind: u8, content: impl FnOnce(&mut Vec<u8>) -> u32) {
    out.push(kind);
    let at = out.len();
    out.extend_from_slice(&[0; 8]);
    let count = content(out);
    let size = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(at..at + 8) {
        let (sizes, counts) = place.split_at_mut(4);
        sizes.copy_from_slice(&size.to_be_bytes());
        counts.copy_from_slice(&count.to_be_bytes());
    }
}

/// A name and a value in a map of annotations, where there is a value; how many that are.
fn pair<T>(out: &mut Vec<u8>, name: &str, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) -> u32 {
    let Some(value) = value else { return 0 };
    symbol(out, name.as_bytes());
    write(out, value);
    2
}

fn optional<T>(out: &mut Vec<u8>, value: Option<T>, write: impl FnOnce(&mut Vec<u8>, T)) {
    match value {
        Some(value) => write(out, value),
        None => out.push(kind::NULL),
    }
}

fn fixed(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    out.push(kind);
    out.extend_from_slice(value);
}

/// Milliseconds since 1970, from seconds.
fn timestamp(out: &mut Vec<u8>, seconds: u64) {
    let millis = i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX);
    fixed(out, kind::TIMESTAMP, &millis.to_be_bytes());
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    variable(out, kind::STRING_8, kind::STRING_32, text);
}

fn symbol(out: &mut Vec<u8>, text: &[u8]) {
    variable(out, kind::SYMBOL_8, kind::SYMBOL_32, text);
}

fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    variable(out, kind::BINARY_8, kind::BINARY_32, bytes);
}

fn binary_32(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(kind::BINARY_32);
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn variable(out: &mut Vec<u8>, short: u8, long: u8, bytes: &[u8]) {
    match u8::try_from(bytes.len()) {
        Ok(length) => out.extend_from_slice(&[short, length]),
        Err(_) => {
            out.push(long);
            out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lsn;
    use crate::amqp::{EncodedHeaders, HeaderParts, MessageParts, Origin};
    use crate::trace::TraceContext;

    fn message(exchange: &str, body: &[u8]) -> Message {
        let parts = MessageParts {
            exchange,
            routing_key: "order.placed",
            mandatory: true,
            persistent: true,
            message_id: "id-1",
            message_type: "OrderPlaced",
            content_type: "application/json",
            correlation_id: "",
            expiration: "",
            priority: None,
            timestamp: 1_700_000_000,
            app_id: "walrelay",
            headers: HeaderParts {
                aggregate_type: "order",
                aggregate_id: "42",
                origin: Origin::Stream {
                    commit_lsn: Lsn::new(77),
                    tx_seq: 3,
                    backfill: false,
                },
                trace: TraceContext::default(),
                more: EncodedHeaders::default(),
            },
        };
        Message::encode(&mut Vec::new(), &parts, body).expect("a message")
    }

    fn sections(message: &Message, mark: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        message.write_sections(mark, &mut out);
        out
    }

    #[test]
    fn the_mark_is_found_within_320_bytes_and_in_nobody_elses_message() {
        let mark = [7; 255];
        let written = sections(&message(&"e".repeat(255), b"{}"), &mark);
        assert_eq!(written.get(..320).and_then(mark_of), Some(&mark[..]));
        assert_eq!(mark_of(b"\x00\x53\x75\xa0\x02{}"), None);
        for length in 0..40 {
            assert_eq!(written.get(..length).and_then(mark_of), None);
        }
    }

    #[test]
    fn everything_has_the_place_that_rabbitmq_gives_it() {
        let written = sections(&message("outbox", b"{\"a\":1}"), b"m");
        let has = |bytes: &[u8]| written.windows(bytes.len()).any(|window| window == bytes);
        for expected in [
            &b"\xa3\x0ax-exchange\xa1\x06outbox"[..],
            b"\xa3\x0dx-routing-key\xa1\x0corder.placed",
            b"\xa3\x15x-basic-delivery-mode\x50\x02",
            b"\xa3\x0cx-basic-type\xa1\x0bOrderPlaced",
            b"\xa1\x0cx-basic-type\xa1\x0bOrderPlaced",
            b"\xa1\x0ex-basic-app-id\xa1\x08walrelay",
            b"\xa1\x04id-1\x40\x40\x40\x40\x40\xa3\x10application/json\x40\x40\x83",
            b"\xa1\x06tx_seq\x81\0\0\0\0\0\0\0\x03",
        ] {
            assert!(has(expected), "{}", String::from_utf8_lossy(expected));
        }
        assert!(written.ends_with(b"\x00\x53\x75\xb0\0\0\0\x07{\"a\":1}"));
    }

    #[test]
    fn a_message_is_never_longer_than_foretold() {
        for length in [0, 1, 255] {
            let message = message(&"e".repeat(length), b"body");
            assert!(sections(&message, &[]).len() <= message.max_sections_len());
        }
    }
}
