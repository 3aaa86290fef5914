//! The payload column: which types can be a body, and how they become one.

use super::invalid::InvalidRow;

/// Oids of the built-in types that a payload may have; fixed in PostgreSQL's `pg_type.dat`.
pub(super) mod type_oid {
    pub(in crate::event) const BYTEA: u32 = 17;
    pub(in crate::event) const TEXT: u32 = 25;
    pub(in crate::event) const JSON: u32 = 114;
    pub(in crate::event) const BPCHAR: u32 = 1042;
    pub(in crate::event) const VARCHAR: u32 = 1043;
    pub(in crate::event) const JSONB: u32 = 3802;
}

/// How a payload column is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadType {
    /// `json` or `jsonb`: the text as PostgreSQL sends it.
    Json,
    /// A character type: the text.
    Text,
    /// `bytea`: the bytes.
    Bytes,
}

impl PayloadType {
    /// The message's `content_type`.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Text => "text/plain",
            Self::Bytes => "application/octet-stream",
        }
    }

    /// The kind of a column of the type with this object id, where a body can be made of it.
    #[must_use]
    pub const fn of(type_oid: u32) -> Option<Self> {
        match type_oid {
            type_oid::JSON | type_oid::JSONB => Some(Self::Json),
            type_oid::TEXT | type_oid::VARCHAR | type_oid::BPCHAR => Some(Self::Text),
            type_oid::BYTEA => Some(Self::Bytes),
            _ => None,
        }
    }
}

/// A payload as the stream carries it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    /// How to understand it.
    pub payload_type: PayloadType,
    pub(super) text: &'a [u8],
    /// The column, for naming it.
    pub(super) column: &'a str,
}

/// The size only: payloads are never logged.
impl std::fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {} bytes", self.payload_type, self.text.len())
    }
}

impl Payload<'_> {
    /// The body's length in bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self.payload_type {
            PayloadType::Json | PayloadType::Text => self.text.len(),
            // Two digits a byte, after `\x`.
            PayloadType::Bytes => (self.text.len() / 2).saturating_sub(1),
        }
    }

    /// Whether there is no body.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A text or a document.
    pub(super) fn utf8(&self) -> Result<&str, InvalidRow> {
        std::str::from_utf8(self.text).map_err(|_| InvalidRow::NotUtf8(self.column.to_owned()))
    }

    /// Appends the bytes of a bytea in base64 (RFC 4648, section 4).
    pub(super) fn append_base64(&self, out: &mut Vec<u8>) -> Result<(), InvalidRow> {
        append_base64(self.text, out).ok_or(InvalidRow::NotHex(self.column.to_owned()))
    }

    /// Appends the body: the column's text byte for byte, or the bytes of a bytea.
    ///
    /// # Errors
    /// A bytea that is not in hex format; `out` may then hold a part of it.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), InvalidRow> {
        match self.payload_type {
            PayloadType::Json | PayloadType::Text => {
                out.extend_from_slice(self.text);
                Ok(())
            }
            PayloadType::Bytes => {
                append_hex(self.text, out).ok_or(InvalidRow::NotHex(self.column.to_owned()))
            }
        }
    }
}

/// Decodes bytea's hex format: `\x` and two digits a byte.
/// <https://www.postgresql.org/docs/current/datatype-binary.html>
fn append_hex(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (pairs, rest) = text.strip_prefix(b"\\x")?.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    out.reserve(pairs.len());
    for [high, low] in pairs {
        out.push(hex_digit(*high)? << 4 | hex_digit(*low)?);
    }
    Some(())
}

/// Turns bytea's hex format into base64, three bytes at a time.
fn append_base64(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (pairs, rest) = text.strip_prefix(b"\\x")?.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    out.reserve(pairs.len().div_ceil(3) * 4);
    for group in pairs.chunks(3) {
        let mut bits = 0_u32;
        for [high, low] in group {
            bits = bits << 8 | u32::from(hex_digit(*high)? << 4 | hex_digit(*low)?);
        }
        bits <<= 8 * (3 - group.len());
        for place in 0..4 {
            let sextet = usize::try_from(bits >> (18 - 6 * place) & 63).ok()?;
            out.push(match place > group.len() {
                true => b'=',
                false => *ALPHABET.get(sextet)?,
            });
        }
    }
    Some(())
}

const fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}
