//! What can be wrong with bytes of the broker, and with texts that we are to send.

/// Bytes from the broker that are not AMQP 0-9-1 as RabbitMQ speaks it. The connection cannot be used any
/// further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmqpError {
    /// The server answered with a protocol header, so it does not speak 0-9-1 (specification, section 4.2.2).
    #[error(
        "the server refuses AMQP 0-9-1 and offers protocol {id}, version {major}.{minor}.{revision}: check that the \
         address is RabbitMQ's AMQP port (5672, or 5671 with TLS)"
    )]
    ProtocolRefused {
        /// The protocol's number: 0 is AMQP, 2 is TLS, 3 is SASL.
        id: u8,
        /// Major version offered.
        major: u8,
        /// Minor version offered.
        minor: u8,
        /// Revision offered.
        revision: u8,
    },
    /// A frame of a type that AMQP 0-9-1 does not have; often no AMQP server at all.
    #[error(
        "unknown AMQP frame type {kind}: check that the address is RabbitMQ's AMQP port (5672, or 5671 with TLS)"
    )]
    FrameKind {
        /// The type octet received.
        kind: u8,
    },
    /// A frame larger than was negotiated.
    #[error("AMQP frame of {size} bytes exceeds the negotiated frame_max of {frame_max}")]
    FrameTooLarge {
        /// Bytes of the frame, with its overhead.
        size: u64,
        /// Bytes allowed.
        frame_max: u32,
    },
    /// The octet behind the frame's payload is not 0xCE, so the framing is lost.
    #[error("AMQP frame ends in {octet:#04x} instead of 0xce")]
    FrameEnd {
        /// The octet received.
        octet: u8,
    },
    /// A payload ends inside a field.
    #[error("AMQP frame ends inside the field {field}")]
    Truncated {
        /// The field's name in the specification.
        field: &'static str,
    },
    /// A payload goes on behind its last field.
    #[error("AMQP frame has {bytes} bytes behind its last field")]
    Trailing {
        /// Bytes left over.
        bytes: usize,
    },
    /// A field table holds a value of a type that RabbitMQ does not use.
    #[error("unknown type {kind:#04x} in an AMQP field table")]
    FieldType {
        /// The type octet received.
        kind: u8,
    },
    /// Field tables and arrays nested deeper than is of any use.
    #[error("AMQP field tables nested more than {limit} deep")]
    TooDeep {
        /// The nesting allowed.
        limit: u8,
    },
    /// A content header of another class than basic.
    #[error("AMQP content header of class {class_id} instead of 60 (basic)")]
    ContentClass {
        /// The class received.
        class_id: u16,
    },
    /// Property flags that the basic class does not define.
    #[error("unknown property flags {flags:#06x} in an AMQP content header")]
    PropertyFlags {
        /// The flags received.
        flags: u16,
    },
}

/// A text or number that AMQP 0-9-1 cannot carry. Nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A short string, so a name or a property, of more than 255 bytes.
    #[error("{field} has {length} bytes, AMQP allows 255: shorten it")]
    ShortStringTooLong {
        /// What the text is.
        field: &'static str,
        /// Its bytes.
        length: usize,
    },
    /// A long string or table of 4 GiB or more.
    #[error("{field} has {length} bytes, AMQP allows 4294967295: shorten it")]
    LongStringTooLong {
        /// What the text is.
        field: &'static str,
        /// Its bytes.
        length: usize,
    },
    /// A number above the largest signed 64-bit integer, RabbitMQ's widest.
    #[error("{field} is {value}, AMQP allows 9223372036854775807")]
    NumberTooLarge {
        /// What the number is.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}
