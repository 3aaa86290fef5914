//! Why one row cannot become a message.

use crate::amqp::EncodeError;
use crate::route::{RenderError, Setting};

/// Why one row cannot become a message. Such a row is *invalid* and held.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRow {
    /// A column is NULL that must not be.
    #[error("column \"{0}\" is null")]
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
