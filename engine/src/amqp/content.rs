//! Content headers: of a message that comes back, or of one that is read before it is sent.

use std::fmt;

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

/// A message's properties.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Properties<'a> {
    pub(super) content_type: Option<&'a [u8]>,
    pub(super) content_encoding: Option<&'a [u8]>,
    pub(super) headers: Option<Table<'a>>,
    pub(super) delivery_mode: Option<u8>,
    pub(super) priority: Option<u8>,
    pub(super) correlation_id: Option<&'a [u8]>,
    pub(super) reply_to: Option<&'a [u8]>,
    pub(super) expiration: Option<&'a [u8]>,
    pub(super) message_id: Option<&'a [u8]>,
    pub(super) timestamp: Option<u64>,
    pub(super) message_type: Option<&'a [u8]>,
    pub(super) user_id: Option<&'a [u8]>,
    pub(super) app_id: Option<&'a [u8]>,
    pub(super) cluster_id: Option<&'a [u8]>,
}

/// The value of a property that is no table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropertyValue<'a> {
    /// A short string, mostly of UTF-8 but not always.
    Text(&'a [u8]),
    /// An octet, or the timestamp in seconds since 1970.
    Number(u64),
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

    /// The `content-type`.
    #[must_use]
    pub const fn content_type(&self) -> Option<&'a [u8]> {
        self.content_type
    }

    /// Those that are set, but for the `headers` table, in the order of the wire and by their names in
    /// <https://www.rabbitmq.com/amqp-0-9-1-reference>, with underscores.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, PropertyValue<'a>)> + use<'a> {
        let text = |value: Option<&'a [u8]>| value.map(PropertyValue::Text);
        let octet = |value: Option<u8>| value.map(|value| PropertyValue::Number(value.into()));
        let all = [
            ("content_type", text(self.content_type)),
            ("content_encoding", text(self.content_encoding)),
            ("delivery_mode", octet(self.delivery_mode)),
            ("priority", octet(self.priority)),
            ("correlation_id", text(self.correlation_id)),
            ("reply_to", text(self.reply_to)),
            ("expiration", text(self.expiration)),
            ("message_id", text(self.message_id)),
            ("timestamp", self.timestamp.map(PropertyValue::Number)),
            ("type", text(self.message_type)),
            ("user_id", text(self.user_id)),
            ("app_id", text(self.app_id)),
            ("cluster_id", text(self.cluster_id)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
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
        // Fields are evaluated in the order in which they are written: that of the wire.
        Ok(Self {
            content_type: text(reader, property::CONTENT_TYPE, "content-type")?,
            content_encoding: text(reader, property::CONTENT_ENCODING, "content-encoding")?,
            headers: has(property::HEADERS)
                .then(|| Table::read(reader, "headers"))
                .transpose()?,
            delivery_mode: has(property::DELIVERY_MODE)
                .then(|| reader.u8("delivery-mode"))
                .transpose()?,
            priority: has(property::PRIORITY)
                .then(|| reader.u8("priority"))
                .transpose()?,
            correlation_id: text(reader, property::CORRELATION_ID, "correlation-id")?,
            reply_to: text(reader, property::REPLY_TO, "reply-to")?,
            expiration: text(reader, property::EXPIRATION, "expiration")?,
            message_id: text(reader, property::MESSAGE_ID, "message-id")?,
            timestamp: has(property::TIMESTAMP)
                .then(|| reader.u64("timestamp"))
                .transpose()?,
            message_type: text(reader, property::TYPE, "type")?,
            user_id: text(reader, property::USER_ID, "user-id")?,
            app_id: text(reader, property::APP_ID, "app-id")?,
            cluster_id: text(reader, property::CLUSTER_ID, "cluster-id")?,
        })
    }
}

/// The id and how large the headers are: other properties may hold what must not reach a log.
impl fmt::Debug for Properties<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Properties")
            .field("message_id", &self.message_id.map(String::from_utf8_lossy))
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

fn lsn(value: FieldValue<'_>) -> Option<Lsn> {
    let FieldValue::Text(text) = value else {
        return None;
    };
    std::str::from_utf8(text).ok()?.parse().ok()
}
