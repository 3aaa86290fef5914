//! Content headers, as far as a returned message or a look at one of our own needs them.

use super::constants::{class, header, property};
use super::error::AmqpError;
use super::reader::Reader;
use super::table::{FieldValue, Table};
use crate::Lsn;

/// The header of a content: what a body is and how long (specification, section 4.2.6.1, "The Content
/// Header").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// Bytes of body that follow in body frames.
    pub body_size: u64,
    /// The message's properties.
    pub properties: Properties<'a>,
}

/// A message's properties; those that are never published are checked and passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties<'a> {
    headers: Option<Table<'a>>,
    message_id: Option<&'a [u8]>,
    /// The body's media type.
    pub content_type: Option<&'a [u8]>,
    /// 2 where queues keep the message on disk.
    pub delivery_mode: Option<u8>,
    /// From 0 to 255.
    pub priority: Option<u8>,
    /// What it answers or belongs to.
    pub correlation_id: Option<&'a [u8]>,
    /// Milliseconds, as text.
    pub expiration: Option<&'a [u8]>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// The message's type.
    pub message_type: Option<&'a [u8]>,
    /// The sender's name.
    pub app_id: Option<&'a [u8]>,
}

/// The commit LSN and `tx_seq` of one of our own messages, from the content header by which it came back;
/// `None` where it lacks these headers, so is not ours. A replayed message has the invalid LSN, where nothing ever
/// commits, and its `replay_seq`.
///
/// # Errors
/// A payload that is no content header of the basic class.
pub fn returned_key(header_payload: &[u8]) -> Result<Option<(Lsn, u64)>, AmqpError> {
    let content = ContentHeader::decode(header_payload)?;
    let Some(headers) = content.properties.headers() else {
        return Ok(None);
    };
    let (mut commit_lsn, mut tx_seq, mut replay_seq) = (None, None, None);
    for entry in headers.iter() {
        let (name, value) = entry?;
        if name == header::COMMIT_LSN.as_bytes() {
            commit_lsn = lsn(value);
        } else if name == header::TX_SEQ.as_bytes() {
            tx_seq = value.integer().and_then(|number| u64::try_from(number).ok());
        } else if name == header::REPLAY_SEQ.as_bytes() {
            replay_seq = value.integer().and_then(|number| u64::try_from(number).ok());
        }
    }
    Ok(replay_seq
        .map(|seq| (Lsn::INVALID, seq))
        .or(commit_lsn.zip(tx_seq)))
}

impl<'a> ContentHeader<'a> {
    /// Reads a header frame's payload.
    ///
    /// # Errors
    /// Another class than basic, unknown property flags, or a payload that is not exactly the properties it
    /// announces.
    pub fn decode(payload: &'a [u8]) -> Result<Self, AmqpError> {
        let mut reader = Reader::new(payload);
        let class_id = reader.u16("class-id")?;
        if class_id != class::BASIC {
            return Err(AmqpError::ContentClass { class_id });
        }
        reader.u16("weight")?;
        let body_size = reader.u64("body-size")?;
        let properties = Properties::read(&mut reader)?;
        reader.finish()?;
        Ok(Self {
            body_size,
            properties,
        })
    }
}

impl<'a> Properties<'a> {
    /// The `headers` table.
    #[must_use]
    pub const fn headers(&self) -> Option<Table<'a>> {
        self.headers
    }

    /// The `message-id`.
    #[must_use]
    pub const fn message_id(&self) -> Option<&'a [u8]> {
        self.message_id
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, AmqpError> {
        let flags = reader.u16("property-flags")?;
        if flags & property::UNKNOWN != 0 {
            return Err(AmqpError::PropertyFlags { flags });
        }
        let has = |flag: u16| flags & flag != 0;
        let text = |reader: &mut Reader<'a>, flag: u16, field: &'static str| {
            has(flag).then(|| reader.short_string(field)).transpose()
        };
        let content_type = text(reader, property::CONTENT_TYPE, "content-type")?;
        text(reader, property::CONTENT_ENCODING, "content-encoding")?;
        let headers = has(property::HEADERS)
            .then(|| Table::read(reader, "headers"))
            .transpose()?;
        let delivery_mode = has(property::DELIVERY_MODE)
            .then(|| reader.u8("delivery-mode"))
            .transpose()?;
        let priority = has(property::PRIORITY)
            .then(|| reader.u8("priority"))
            .transpose()?;
        let correlation_id = text(reader, property::CORRELATION_ID, "correlation-id")?;
        text(reader, property::REPLY_TO, "reply-to")?;
        let expiration = text(reader, property::EXPIRATION, "expiration")?;
        let message_id = text(reader, property::MESSAGE_ID, "message-id")?;
        let timestamp = has(property::TIMESTAMP)
            .then(|| reader.u64("timestamp"))
            .transpose()?;
        let message_type = text(reader, property::TYPE, "type")?;
        text(reader, property::USER_ID, "user-id")?;
        let app_id = text(reader, property::APP_ID, "app-id")?;
        text(reader, property::CLUSTER_ID, "cluster-id")?;
        Ok(Self {
            headers,
            message_id,
            content_type,
            delivery_mode,
            priority,
            correlation_id,
            expiration,
            timestamp,
            message_type,
            app_id,
        })
    }
}

fn lsn(value: FieldValue<'_>) -> Option<Lsn> {
    let FieldValue::Text(text) = value else {
        return None;
    };
    std::str::from_utf8(text).ok()?.parse().ok()
}
