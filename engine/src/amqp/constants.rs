//! The numbers of the wire, each with its place in the specification
//! (<https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf>).

/// What a client sends first: `AMQP`, a zero and the version 0-9-1 (section 4.2.2, "Protocol Header").
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\x00\x00\x09\x01";

/// Bytes of a frame around its payload: type, channel, size and the end octet (section 4.2.3, "General Frame
/// Format").
pub const FRAME_OVERHEAD: u32 = 8;

/// The frame size, in bytes with overhead, that both peers accept whatever was negotiated
/// (`frame-min-size`, section 4.2.3 and the constants of <https://www.rabbitmq.com/amqp-0-9-1-reference>).
pub const FRAME_MIN_SIZE: u32 = 4096;

/// The largest frame that we ask for, in bytes with overhead: RabbitMQ's own default,
/// <https://www.rabbitmq.com/docs/configure>.
pub const FRAME_MAX: u32 = 131_072;

/// The octet behind every frame (`frame-end`, section 4.2.3).
pub(super) const FRAME_END: u8 = 0xCE;

/// Frame types (section 4.2.3, but for heartbeat: there it is 4, in the grammar of section 4.2.1, among the
/// constants of <https://www.rabbitmq.com/amqp-0-9-1-reference#constants> and on RabbitMQ's wire it is 8).
pub(super) mod frame_kind {
    pub(in crate::amqp) const METHOD: u8 = 1;
    pub(in crate::amqp) const HEADER: u8 = 2;
    pub(in crate::amqp) const BODY: u8 = 3;
    pub(in crate::amqp) const HEARTBEAT: u8 = 8;
}

/// Class ids (<https://www.rabbitmq.com/amqp-0-9-1-reference>).
pub(super) mod class {
    pub(in crate::amqp) const CONNECTION: u16 = 10;
    pub(in crate::amqp) const CHANNEL: u16 = 20;
    pub(in crate::amqp) const EXCHANGE: u16 = 40;
    pub(in crate::amqp) const BASIC: u16 = 60;
    /// RabbitMQ's extension: <https://www.rabbitmq.com/docs/confirms#publisher-confirms>.
    pub(in crate::amqp) const CONFIRM: u16 = 85;
}

/// Method ids, as pairs of class and method (<https://www.rabbitmq.com/amqp-0-9-1-reference>).
pub(super) mod method {
    use super::class::{BASIC, CHANNEL, CONFIRM, CONNECTION, EXCHANGE};

    pub(in crate::amqp) const CONNECTION_START: (u16, u16) = (CONNECTION, 10);
    pub(in crate::amqp) const CONNECTION_START_OK: (u16, u16) = (CONNECTION, 11);
    pub(in crate::amqp) const CONNECTION_SECURE: (u16, u16) = (CONNECTION, 20);
    pub(in crate::amqp) const CONNECTION_TUNE: (u16, u16) = (CONNECTION, 30);
    pub(in crate::amqp) const CONNECTION_TUNE_OK: (u16, u16) = (CONNECTION, 31);
    pub(in crate::amqp) const CONNECTION_OPEN: (u16, u16) = (CONNECTION, 40);
    pub(in crate::amqp) const CONNECTION_OPEN_OK: (u16, u16) = (CONNECTION, 41);
    pub(in crate::amqp) const CONNECTION_CLOSE: (u16, u16) = (CONNECTION, 50);
    pub(in crate::amqp) const CONNECTION_CLOSE_OK: (u16, u16) = (CONNECTION, 51);
    /// RabbitMQ's extension, as is unblocked: <https://www.rabbitmq.com/docs/connection-blocked>.
    pub(in crate::amqp) const CONNECTION_BLOCKED: (u16, u16) = (CONNECTION, 60);
    pub(in crate::amqp) const CONNECTION_UNBLOCKED: (u16, u16) = (CONNECTION, 61);
    pub(in crate::amqp) const CHANNEL_OPEN: (u16, u16) = (CHANNEL, 10);
    pub(in crate::amqp) const CHANNEL_OPEN_OK: (u16, u16) = (CHANNEL, 11);
    pub(in crate::amqp) const CHANNEL_FLOW: (u16, u16) = (CHANNEL, 20);
    pub(in crate::amqp) const CHANNEL_FLOW_OK: (u16, u16) = (CHANNEL, 21);
    pub(in crate::amqp) const CHANNEL_CLOSE: (u16, u16) = (CHANNEL, 40);
    pub(in crate::amqp) const CHANNEL_CLOSE_OK: (u16, u16) = (CHANNEL, 41);
    pub(in crate::amqp) const EXCHANGE_DECLARE: (u16, u16) = (EXCHANGE, 10);
    pub(in crate::amqp) const EXCHANGE_DECLARE_OK: (u16, u16) = (EXCHANGE, 11);
    pub(in crate::amqp) const BASIC_PUBLISH: (u16, u16) = (BASIC, 40);
    pub(in crate::amqp) const BASIC_RETURN: (u16, u16) = (BASIC, 50);
    pub(in crate::amqp) const BASIC_ACK: (u16, u16) = (BASIC, 80);
    /// RabbitMQ's extension: <https://www.rabbitmq.com/docs/nack>.
    pub(in crate::amqp) const BASIC_NACK: (u16, u16) = (BASIC, 120);
    pub(in crate::amqp) const CONFIRM_SELECT: (u16, u16) = (CONFIRM, 10);
    pub(in crate::amqp) const CONFIRM_SELECT_OK: (u16, u16) = (CONFIRM, 11);
}

/// Property flags of the basic class, the first property in the highest bit, values in this order (section
/// 4.2.6.1, "The Content Header"; order in <https://www.rabbitmq.com/amqp-0-9-1-reference>, class basic).
pub(super) mod property {
    pub(in crate::amqp) const CONTENT_TYPE: u16 = 1 << 15;
    pub(in crate::amqp) const CONTENT_ENCODING: u16 = 1 << 14;
    pub(in crate::amqp) const HEADERS: u16 = 1 << 13;
    pub(in crate::amqp) const DELIVERY_MODE: u16 = 1 << 12;
    pub(in crate::amqp) const PRIORITY: u16 = 1 << 11;
    pub(in crate::amqp) const CORRELATION_ID: u16 = 1 << 10;
    pub(in crate::amqp) const REPLY_TO: u16 = 1 << 9;
    pub(in crate::amqp) const EXPIRATION: u16 = 1 << 8;
    pub(in crate::amqp) const MESSAGE_ID: u16 = 1 << 7;
    pub(in crate::amqp) const TIMESTAMP: u16 = 1 << 6;
    pub(in crate::amqp) const TYPE: u16 = 1 << 5;
    pub(in crate::amqp) const USER_ID: u16 = 1 << 4;
    pub(in crate::amqp) const APP_ID: u16 = 1 << 3;
    pub(in crate::amqp) const CLUSTER_ID: u16 = 1 << 2;
    /// The bits behind the 14 properties: 1 is unused, 0 says that more flags follow, which the basic class
    /// never needs.
    pub(in crate::amqp) const UNKNOWN: u16 = 0b11;
}

/// The headers of our own messages, without `x-`, which a headers exchange would ignore.
pub(super) mod header {
    pub(in crate::amqp) const AGGREGATE_TYPE: &str = "aggregate_type";
    pub(in crate::amqp) const AGGREGATE_ID: &str = "aggregate_id";
    pub(in crate::amqp) const COMMIT_LSN: &str = "commit_lsn";
    pub(in crate::amqp) const TX_SEQ: &str = "tx_seq";
    pub(in crate::amqp) const BACKFILL: &str = "backfill";
    pub(in crate::amqp) const TRACEPARENT: &str = "traceparent";
    pub(in crate::amqp) const TRACESTATE: &str = "tracestate";
    pub(in crate::amqp) const REPLAYED: &str = "replayed";
    pub(in crate::amqp) const REPLAY_SEQ: &str = "replay_seq";

    /// Those that say what a message is and how it came about.
    pub(in crate::amqp) const OWN: [&str; 7] = [
        AGGREGATE_TYPE,
        AGGREGATE_ID,
        COMMIT_LSN,
        TX_SEQ,
        BACKFILL,
        REPLAYED,
        REPLAY_SEQ,
    ];
    /// Those that are passed on by themselves.
    pub(in crate::amqp) const TRACE: [&str; 2] = [TRACEPARENT, TRACESTATE];

    /// Further routing keys; at another type than an array RabbitMQ closes the channel (406), and it ignores what is no
    /// string in it: <https://www.rabbitmq.com/docs/sender-selected>.
    pub(in crate::amqp) const ROUTES: [&str; 2] = ["CC", "BCC"];
}
