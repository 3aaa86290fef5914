//! The exchange: declared where that was asked for, otherwise looked for, before anything is published.

use walrelay_engine::amqp::{EncodeError, encode};

/// What to do about one exchange when a link opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// Declare it durable and of this type; without one it is only looked for, and never created.
    pub declare: Option<String>,
}

impl Exchange {
    /// Appends the method that declares or looks for it. The default exchange always exists and may not be declared.
    pub(super) fn append_declare(&self, out: &mut Vec<u8>, channel: u16) -> Result<bool, EncodeError> {
        if self.name.is_empty() {
            return Ok(false);
        }
        let kind = self.declare.as_deref();
        // A passive declare names no type: RabbitMQ does not look at it.
        encode::exchange_declare(
            out,
            channel,
            &self.name,
            kind.unwrap_or_default(),
            kind.is_none(),
            true,
        )?;
        Ok(true)
    }
}
