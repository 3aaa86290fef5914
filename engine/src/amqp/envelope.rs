//! Reading back from an encoded message where it goes and which it is: for naming a message that failed.

use super::Message;
use super::content::{ContentHeader, Properties};
use super::reader::Reader;
use super::table::FieldValue;

impl Message {
    /// The exchange it is published to.
    #[must_use]
    pub fn exchange(&self) -> Option<&str> {
        self.destination().map(|(exchange, _)| exchange)
    }

    /// The routing key it is published with.
    #[must_use]
    pub fn routing_key(&self) -> Option<&str> {
        self.destination().map(|(_, routing_key)| routing_key)
    }

    /// Its message id.
    #[must_use]
    pub fn message_id(&self) -> Option<&str> {
        let (_, _, header) = self.split();
        std::str::from_utf8(ContentHeader::decode(header).ok()?.properties.message_id()?).ok()
    }

    /// Its properties.
    #[must_use]
    pub fn properties(&self) -> Option<Properties<'_>> {
        let (_, _, header) = self.split();
        Some(ContentHeader::decode(header).ok()?.properties)
    }

    /// A text among its headers.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, _, header) = self.split();
        let headers = ContentHeader::decode(header).ok()?.properties.headers()?;
        let FieldValue::Text(text) = headers.find(name)? else {
            return None;
        };
        std::str::from_utf8(text).ok()
    }

    /// Exchange and routing key out of the `basic.publish`, behind its class and method ids and a reserved number.
    fn destination(&self) -> Option<(&str, &str)> {
        let (_, method, _) = self.split();
        let mut reader = Reader::new(method);
        reader.array::<6>("basic.publish").ok()?;
        let exchange = reader.short_string("exchange").ok()?;
        let routing_key = reader.short_string("routing key").ok()?;
        Some((
            std::str::from_utf8(exchange).ok()?,
            std::str::from_utf8(routing_key).ok()?,
        ))
    }
}
