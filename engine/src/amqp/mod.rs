//! The few frames of AMQP 0-9-1 that a connection with one publishing channel needs, encoded and decoded by
//! hand.
//!
//! Inbound, [`Frame::decode`] cuts a frame out of a read buffer and [`Method::decode`] or
//! [`ContentHeader::decode`] reads its payload; everything borrows from that buffer, is bounded by
//! `frame_max`, and may hold text that is no UTF-8 (the broker cuts long texts in mid-character). Outbound,
//! the functions of [`encode`] append whole frames to a buffer, and [`Message`] holds one publish, encoded
//! once and sent as often as needed.
//!
//! Specification: <https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf> ("the specification" below), its
//! reference by class and method: <https://www.rabbitmq.com/amqp-0-9-1-reference>, and RabbitMQ's errata,
//! which count where the two differ: <https://www.rabbitmq.com/amqp-0-9-1-errata>.

pub mod encode;

mod constants;
mod content;
mod envelope;
mod error;
mod frame;
mod headers;
mod message;
mod method;
mod numbers;
mod publish;
mod reader;
mod sections;
mod table;
mod writer;

#[cfg(test)]
mod oracle;

pub use constants::{FRAME_MAX, FRAME_MIN_SIZE, FRAME_OVERHEAD, PROTOCOL_HEADER};
pub use content::{ContentHeader, Properties, PropertyValue, returned_key};
pub use error::{AmqpError, EncodeError};
pub use frame::{Frame, FrameKind};
pub use headers::{EncodedHeaders, HeaderEntries, HeadersFault, NameUse};
pub use message::{HeaderParts, Message, MessageParts, Origin};
pub use method::{Close, Method, Return};
pub use publish::Publish;
pub use sections::mark_of;
pub use table::{FieldArray, FieldValue, Table};
