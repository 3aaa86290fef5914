//! Methods that a broker sends to a publisher.

use std::borrow::Cow;

use super::constants::method as id;
use super::error::AmqpError;
use super::reader::Reader;
use super::table::Table;

/// An inbound method; fields are named as in <https://www.rabbitmq.com/amqp-0-9-1-reference>.
///
/// Texts are bytes, for the broker cuts some in mid-character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method<'a> {
    /// `connection.start`: the server's first frame.
    ConnectionStart {
        /// 0 for AMQP 0-9-1.
        version_major: u8,
        /// 9 for AMQP 0-9-1.
        version_minor: u8,
        /// Product, version, capabilities and so on.
        server_properties: Table<'a>,
        /// SASL mechanisms, separated by spaces.
        mechanisms: &'a [u8],
        /// Locales, separated by spaces.
        locales: &'a [u8],
    },
    /// `connection.secure`: a further challenge of the SASL mechanism, which PLAIN does not have.
    ConnectionSecure {
        /// What the mechanism asks.
        challenge: &'a [u8],
    },
    /// `connection.tune`: the server's limits.
    ConnectionTune {
        /// Highest channel number, 0 for no limit.
        channel_max: u16,
        /// Largest frame in bytes with overhead, 0 for no limit.
        frame_max: u32,
        /// Heartbeat interval in seconds, 0 for none.
        heartbeat: u16,
    },
    /// `connection.open-ok`.
    ConnectionOpenOk,
    /// `connection.close`: the server ends the connection and waits for close-ok.
    ConnectionClose(Close<'a>),
    /// `connection.close-ok`.
    ConnectionCloseOk,
    /// `connection.blocked`: the server reads no further publishes, by an alarm
    /// (<https://www.rabbitmq.com/docs/connection-blocked>).
    ConnectionBlocked {
        /// Such as `low on memory`.
        reason: &'a [u8],
    },
    /// `connection.unblocked`.
    ConnectionUnblocked,
    /// `channel.open-ok`.
    ChannelOpenOk,
    /// `channel.flow`: the server asks to pause or to go on.
    ChannelFlow {
        /// Whether messages may be sent.
        active: bool,
    },
    /// `channel.close`: the server ends the channel and waits for close-ok.
    ChannelClose(Close<'a>),
    /// `channel.close-ok`.
    ChannelCloseOk,
    /// `confirm.select-ok`.
    ConfirmSelectOk,
    /// `exchange.declare-ok`.
    ExchangeDeclareOk,
    /// `basic.return`: an unroutable message comes back; its content header and body follow, its ack comes
    /// later.
    BasicReturn(Return<'a>),
    /// `basic.ack` (<https://www.rabbitmq.com/docs/confirms#publisher-confirms>).
    BasicAck {
        /// The message's number in the channel.
        delivery_tag: u64,
        /// Whether all up to the tag are meant.
        multiple: bool,
    },
    /// `basic.nack`: the server could not take the message (<https://www.rabbitmq.com/docs/nack>).
    BasicNack {
        /// The message's number in the channel.
        delivery_tag: u64,
        /// Whether all up to the tag are meant.
        multiple: bool,
        /// Without meaning for a publisher.
        requeue: bool,
    },
    /// Any other method, whose arguments were not read.
    Other {
        /// Its class.
        class_id: u16,
        /// Its number in the class.
        method_id: u16,
    },
}

/// Why the server closes a connection or a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close<'a> {
    /// The reply code, such as 404 (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
    pub reply_code: u16,
    /// The reason, of at most 255 bytes, maybe cut in mid-character.
    pub reply_text: &'a [u8],
    /// The class of the method that failed, or 0.
    pub class_id: u16,
    /// The method that failed, or 0.
    pub method_id: u16,
}

/// An unroutable message that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Return<'a> {
    /// The reply code: 312 for no route.
    pub reply_code: u16,
    /// The reason, maybe cut in mid-character.
    pub reply_text: &'a [u8],
    /// The exchange that it was published to.
    pub exchange: &'a [u8],
    /// The routing key that led nowhere.
    pub routing_key: &'a [u8],
}

impl<'a> Method<'a> {
    /// Reads a method frame's payload.
    ///
    /// # Errors
    /// [`AmqpError::Truncated`] or [`AmqpError::Trailing`] where the payload is not exactly the method's
    /// arguments.
    pub fn decode(payload: &'a [u8]) -> Result<Self, AmqpError> {
        let mut reader = Reader::new(payload);
        let (class_id, method_id) = (reader.u16("class-id")?, reader.u16("method-id")?);
        let method = match (class_id, method_id) {
            id::CONNECTION_START => Self::ConnectionStart {
                version_major: reader.u8("version-major")?,
                version_minor: reader.u8("version-minor")?,
                server_properties: Table::read(&mut reader, "server-properties")?,
                mechanisms: reader.long_string("mechanisms")?,
                locales: reader.long_string("locales")?,
            },
            id::CONNECTION_SECURE => Self::ConnectionSecure {
                challenge: reader.long_string("challenge")?,
            },
            id::CONNECTION_TUNE => Self::ConnectionTune {
                channel_max: reader.u16("channel-max")?,
                frame_max: reader.u32("frame-max")?,
                heartbeat: reader.u16("heartbeat")?,
            },
            id::CONNECTION_OPEN_OK => {
                reader.short_string("reserved-1")?;
                Self::ConnectionOpenOk
            }
            id::CONNECTION_CLOSE => Self::ConnectionClose(Close::read(&mut reader)?),
            id::CONNECTION_CLOSE_OK => Self::ConnectionCloseOk,
            id::CONNECTION_BLOCKED => Self::ConnectionBlocked {
                reason: reader.short_string("reason")?,
            },
            id::CONNECTION_UNBLOCKED => Self::ConnectionUnblocked,
            id::CHANNEL_OPEN_OK => {
                reader.long_string("reserved-1")?;
                Self::ChannelOpenOk
            }
            id::CHANNEL_FLOW => Self::ChannelFlow {
                active: bit(reader.u8("active")?, 0),
            },
            id::CHANNEL_CLOSE => Self::ChannelClose(Close::read(&mut reader)?),
            id::CHANNEL_CLOSE_OK => Self::ChannelCloseOk,
            id::CONFIRM_SELECT_OK => Self::ConfirmSelectOk,
            id::EXCHANGE_DECLARE_OK => Self::ExchangeDeclareOk,
            id::BASIC_RETURN => Self::BasicReturn(Return::read(&mut reader)?),
            id::BASIC_ACK => {
                let delivery_tag = reader.u64("delivery-tag")?;
                Self::BasicAck {
                    delivery_tag,
                    multiple: bit(reader.u8("multiple")?, 0),
                }
            }
            id::BASIC_NACK => {
                let delivery_tag = reader.u64("delivery-tag")?;
                let bits = reader.u8("multiple")?;
                Self::BasicNack {
                    delivery_tag,
                    multiple: bit(bits, 0),
                    requeue: bit(bits, 1),
                }
            }
            _ => return Ok(Self::Other { class_id, method_id }),
        };
        reader.finish()?;
        Ok(method)
    }
}

impl<'a> Close<'a> {
    /// The reason as text, what is no UTF-8 replaced.
    #[must_use]
    pub fn reply_text_lossy(&self) -> Cow<'a, str> {
        String::from_utf8_lossy(self.reply_text)
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, AmqpError> {
        Ok(Self {
            reply_code: reader.u16("reply-code")?,
            reply_text: reader.short_string("reply-text")?,
            class_id: reader.u16("class-id")?,
            method_id: reader.u16("method-id")?,
        })
    }
}

impl<'a> Return<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Self, AmqpError> {
        Ok(Self {
            reply_code: reader.u16("reply-code")?,
            reply_text: reader.short_string("reply-text")?,
            exchange: reader.short_string("exchange")?,
            routing_key: reader.short_string("routing-key")?,
        })
    }
}

/// Neighbouring bits share an octet, the first in the lowest place (specification, section 4.2.5.2).
const fn bit(octet: u8, place: u8) -> bool {
    octet >> place & 1 == 1
}
