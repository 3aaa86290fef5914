//! Why one row cannot become a message.

use crate::amqp::{EncodeError, HeadersFault};
use crate::route::{RenderError, Setting};

/// Why one row cannot become a message. Such a row is *invalid* and held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRow {
    /// A column is NULL that must not be.
    #[error("\"{0}\" is null or missing")]
    Null(String),
    /// A column is empty that must not be.
    #[error("column \"{0}\" is empty")]
    Empty(String),
    /// A column's text is not UTF-8.
    #[error("column \"{0}\" is not UTF-8")]
    NotUtf8(String),
    /// A bytea column did not come in the `hex` format that the session asks for.
    #[error("column \"{0}\" is not in PostgreSQL's hex format of bytea")]
    NotHex(String),
    /// A template or a rule asks for a value that the row has not, or that cannot stand in a text.
    #[error("{error}, which {setting} asks for")]
    Template {
        /// The setting that asks.
        setting: Setting,
        /// For what, and why there is none.
        error: RenderError,
    },
    /// A column's value was too large to be kept while the row was read.
    #[error("column \"{column}\" has {length} bytes; there is room for {limit} (delivery.max_event_bytes)")]
    ColumnTooLarge {
        /// The column.
        column: String,
        /// Its length in bytes, as PostgreSQL sends it.
        length: u64,
        /// How long it might have been: the limit, or what the row's columns before it left of twice that.
        limit: u64,
    },
    /// What should be headers cannot be such, or RabbitMQ would close the channel at them.
    #[error("column \"{column}\" cannot become headers: {fault}")]
    Headers {
        /// The column.
        column: String,
        /// Why not.
        fault: HeadersFault,
    },
    /// What should be a property of the message cannot be it: RabbitMQ would close the channel.
    #[error("{from} cannot become the message's {property}: it must be {rule}")]
    Property {
        /// The column, or the setting.
        from: String,
        /// The property.
        property: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// What should be an attribute of the CloudEvent cannot be it.
    #[error("the CloudEvents attribute {attribute} {fault}")]
    Attribute {
        /// The attribute.
        attribute: &'static str,
        /// Why not.
        fault: AttributeFault,
    },
    /// A payload of a character type is said to be JSON and should go into a document, but is none.
    #[error("column \"{column}\" is no JSON from byte {at} on, though its content type is {content_type}")]
    PayloadNotJson {
        /// The column.
        column: String,
        /// Bytes before the fault.
        at: usize,
        /// The content type.
        content_type: String,
    },
    /// What AMQP cannot carry, such as a routing key over 255 bytes.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The headers do not fit into one frame.
    #[error("the message's properties and headers do not fit into a frame of {frame_max} bytes")]
    HeadersTooLarge {
        /// The negotiated maximum in bytes.
        frame_max: u32,
    },
    /// The body is larger than the broker takes.
    #[error("the body has {length} bytes; the limit is {limit} (delivery.max_message_bytes)")]
    BodyTooLarge {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

/// Why a text cannot be an attribute of a CloudEvent
/// (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md>).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttributeFault {
    /// It is empty.
    #[error("is empty")]
    Empty,
    /// It has characters that a string must not have (section "Type System").
    #[error("has control characters or code points that are no characters")]
    Characters,
    /// It is no URI-reference (RFC 3986, section 4.1).
    #[error("is no URI-reference: a character in it must be percent-encoded")]
    NotUriReference,
}
