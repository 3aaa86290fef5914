//! The few frames of RabbitMQ's stream protocol that a publisher needs, and those for reading back what it has published.
//!
//! Inbound, [`Frame::decode`] cuts a frame out of a read buffer and [`Command::decode`] reads it; everything borrows from
//! that buffer. A delivery may be larger than any buffer ought to be: [`chunk`] reads it piece by piece. Outbound, the
//! functions of [`encode`] append whole frames to a buffer.
//!
//! Protocol: <https://github.com/rabbitmq/rabbitmq-server/blob/v3.10.x/deps/rabbitmq_stream/docs/PROTOCOL.adoc> ("the
//! protocol" below).

pub mod chunk;
pub mod encode;

mod decode;

pub use decode::{Command, Frame, Ids, StreamProtocolError, mechanisms, property, sequence};

/// The keys of commands; a response has the highest bit set (the protocol, "Commands").
mod key {
    pub(super) const DECLARE_PUBLISHER: u16 = 0x01;
    pub(super) const PUBLISH: u16 = 0x02;
    pub(super) const PUBLISH_CONFIRM: u16 = 0x03;
    pub(super) const PUBLISH_ERROR: u16 = 0x04;
    pub(super) const QUERY_PUBLISHER_SEQUENCE: u16 = 0x05;
    pub(super) const SUBSCRIBE: u16 = 0x07;
    pub(super) const DELIVER: u16 = 0x08;
    pub(super) const CREDIT: u16 = 0x09;
    pub(super) const UNSUBSCRIBE: u16 = 0x0c;
    pub(super) const METADATA_UPDATE: u16 = 0x10;
    pub(super) const PEER_PROPERTIES: u16 = 0x11;
    pub(super) const SASL_HANDSHAKE: u16 = 0x12;
    pub(super) const SASL_AUTHENTICATE: u16 = 0x13;
    pub(super) const TUNE: u16 = 0x14;
    pub(super) const OPEN: u16 = 0x15;
    pub(super) const CLOSE: u16 = 0x16;
    pub(super) const HEARTBEAT: u16 = 0x17;
    pub(super) const RESPONSE: u16 = 0x8000;
}

/// The version of every command here.
const VERSION: u16 = 1;

/// What the broker answers with (the protocol, "Response Codes").
pub mod code {
    /// All is well.
    pub const OK: u16 = 0x01;
    /// No stream of this name.
    pub const NO_STREAM: u16 = 0x02;
    /// The stream has no leader just now.
    pub const NOT_AVAILABLE: u16 = 0x06;
    /// The mechanism is not supported.
    pub const NO_MECHANISM: u16 = 0x07;
    /// Wrong user or password.
    pub const AUTHENTICATION: u16 = 0x08;
    /// What the mechanism was told makes no sense.
    pub const SASL: u16 = 0x09;
    /// A user who may come from the broker's own host only.
    pub const LOOPBACK: u16 = 0x0b;
    /// The virtual host does not exist, or is none for this user.
    pub const VHOST: u16 = 0x0c;
    /// The user may not do that.
    pub const REFUSED: u16 = 0x10;

    /// A code in words.
    #[must_use]
    pub const fn text(code: u16) -> &'static str {
        match code {
            OK => "ok",
            NO_STREAM => "there is no stream of this name",
            NOT_AVAILABLE => "the stream is not available",
            NO_MECHANISM => "the SASL mechanism is not supported",
            AUTHENTICATION => "authentication failed",
            SASL => "SASL error",
            LOOPBACK => "this user may connect from the broker's own host only",
            VHOST => "no access to the virtual host",
            REFUSED => "access refused",
            0x0d => "unknown frame",
            0x0e => "the frame is too large",
            0x0f => "internal error",
            0x11 => "precondition failed",
            0x12 => "the publisher does not exist",
            _ => "for a reason unknown to walrelay",
        }
    }
}
