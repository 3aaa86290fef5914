//! A publish, read back out of its own frames by whatever takes messages in RabbitMQ's place.

use super::constants::method;
use super::error::AmqpError;
use super::reader::Reader;

/// `basic.publish` (<https://www.rabbitmq.com/amqp-0-9-1-reference#basic.publish>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Publish<'a> {
    /// The exchange.
    pub exchange: &'a [u8],
    /// The routing key.
    pub routing_key: &'a [u8],
    /// Whether the broker is to return the message where no queue takes it.
    pub mandatory: bool,
}

impl<'a> Publish<'a> {
    /// Reads a method frame's payload; `None` where that is another method.
    ///
    /// # Errors
    /// [`AmqpError::Truncated`] or [`AmqpError::Trailing`] where the payload is not exactly the method's
    /// arguments.
    pub fn decode(payload: &'a [u8]) -> Result<Option<Self>, AmqpError> {
        let mut reader = Reader::new(payload);
        if (reader.u16("class-id")?, reader.u16("method-id")?) != method::BASIC_PUBLISH {
            return Ok(None);
        }
        reader.u16("reserved-1")?;
        let (exchange, routing_key) = (
            reader.short_string("exchange")?,
            reader.short_string("routing-key")?,
        );
        let bits = reader.u8("mandatory")?;
        reader.finish()?;
        Ok(Some(Self {
            exchange,
            routing_key,
            mandatory: bits & 1 == 1,
        }))
    }
}
