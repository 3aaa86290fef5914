//! Reads frames of the broker.

use super::key;

/// A frame: a command or a response, with what follows its key and version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    key: u16,
    content: &'a [u8],
}

/// Bytes that are not the stream protocol as RabbitMQ speaks it. The connection cannot be used any further.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamProtocolError {
    /// Often no stream listener at all.
    #[error(
        "a frame of {size} bytes is larger than {limit}: check that the port is that of RabbitMQ's stream listener (5552, or \
         5551 with TLS)"
    )]
    TooLarge {
        /// Bytes of the frame.
        size: u32,
        /// Bytes allowed.
        limit: u32,
    },
    /// A frame ends within a field.
    #[error("a frame of the stream protocol (key {key:#06x}) ends inside a field")]
    Truncated {
        /// The frame's key.
        key: u16,
    },
}

/// What the broker sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// The answer to a request of ours.
    Response {
        /// The request's number.
        correlation: u32,
        /// One of [`code`](super::code).
        code: u16,
        /// What else it says, by the request.
        rest: &'a [u8],
    },
    /// What the broker proposes.
    Tune {
        /// The largest frame in bytes; none if zero.
        frame_max: u32,
        /// The heartbeat in seconds; none if zero.
        heartbeat: u32,
    },
    /// Messages are stored, or were before.
    Confirm {
        /// Our number for the publisher.
        publisher: u8,
        /// The messages.
        ids: Ids<'a>,
    },
    /// Messages are not stored.
    PublishError {
        /// Our number for the publisher.
        publisher: u8,
        /// Why the first of them was not.
        code: u16,
    },
    /// The stream is gone, or has another leader: all publishers are forgotten.
    MetadataUpdate {
        /// One of [`code`](super::code).
        code: u16,
    },
    /// `Deliver`, not decoded.
    Deliver,
    /// Nothing but that the broker is there.
    Heartbeat,
    /// The broker closes the connection.
    Close {
        /// The number to answer to.
        correlation: u32,
        /// Why.
        code: u16,
        /// Why, in the broker's words.
        reason: &'a [u8],
    },
    /// Something else.
    Other {
        /// Its key.
        key: u16,
    },
}

/// Publishing ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ids<'a>(&'a [u8]);

impl<'a> Ids<'a> {
    /// The `index`-th one.
    #[must_use]
    pub fn get(self, index: usize) -> Option<u64> {
        let (ids, _) = self.0.as_chunks::<8>();
        ids.get(index).map(|id| u64::from_be_bytes(*id))
    }

    /// One by one.
    pub fn iter(self) -> impl Iterator<Item = u64> + use<'a> {
        let (ids, _) = self.0.as_chunks::<8>();
        ids.iter().map(|id| u64::from_be_bytes(*id))
    }
}

impl<'a> Frame<'a> {
    /// Cuts a frame off the front of `input`; returns it with the bytes it takes, or nothing while there is no whole one.
    ///
    /// # Errors
    /// A frame of more than `limit` bytes.
    pub fn decode(input: &'a [u8], limit: u32) -> Result<Option<(Self, usize)>, StreamProtocolError> {
        let Some((size, rest)) = input.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let size = u32::from_be_bytes(*size);
        if size > limit {
            return Err(StreamProtocolError::TooLarge { size, limit });
        }
        let Some(frame) = usize::try_from(size).ok().and_then(|size| rest.get(..size)) else {
            return Ok(None);
        };
        let mut reader = Reader { key: 0, rest: frame };
        let key = reader.u16()?;
        // version
        reader.u16()?;
        let frame = Self {
            key,
            content: reader.rest,
        };
        Ok(Some((frame, 4 + frame.content.len() + 4)))
    }
}

impl<'a> Command<'a> {
    /// Reads a frame's content.
    ///
    /// # Errors
    /// It ends within a field.
    pub fn decode(frame: Frame<'a>) -> Result<Self, StreamProtocolError> {
        let mut reader = Reader {
            key: frame.key,
            rest: frame.content,
        };
        Ok(match frame.key {
            key::TUNE => Self::Tune {
                frame_max: reader.u32()?,
                heartbeat: reader.u32()?,
            },
            key::PUBLISH_CONFIRM => {
                let publisher = reader.u8()?;
                let count = reader.u32()?;
                let length = usize::try_from(count).ok().and_then(|count| count.checked_mul(8));
                let ids = length.and_then(|length| reader.rest.get(..length));
                let ids = Ids(ids.ok_or(StreamProtocolError::Truncated { key: frame.key })?);
                Self::Confirm { publisher, ids }
            }
            key::PUBLISH_ERROR => {
                let publisher = reader.u8()?;
                // count, and the first one's id
                reader.u32()?;
                reader.u64()?;
                Self::PublishError {
                    publisher,
                    code: reader.u16()?,
                }
            }
            key::METADATA_UPDATE => Self::MetadataUpdate { code: reader.u16()? },
            key::DELIVER => Self::Deliver,
            key::HEARTBEAT => Self::Heartbeat,
            key::CLOSE => Self::Close {
                correlation: reader.u32()?,
                code: reader.u16()?,
                reason: reader.string()?,
            },
            key if key & key::RESPONSE != 0 && key != key::CREDIT | key::RESPONSE => Self::Response {
                correlation: reader.u32()?,
                code: reader.u16()?,
                rest: reader.rest,
            },
            key => Self::Other { key },
        })
    }
}

/// The mechanisms in the rest of the response to `SaslHandshake`.
pub fn mechanisms(rest: &[u8]) -> Vec<&[u8]> {
    let mut reader = Reader { key: 0, rest };
    let count = reader.u32().unwrap_or_default();
    (0..count).map_while(|_| reader.string().ok()).collect()
}

/// The value of a property in the rest of the response to `PeerProperties`.
pub fn property<'a>(rest: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut reader = Reader { key: 0, rest };
    let count = reader.u32().ok()?;
    (0..count)
        .map_while(|_| Some((reader.string().ok()?, reader.string().ok()?)))
        .find(|(key, _)| *key == name.as_bytes())
        .map(|(_, value)| value)
}

/// The publishing id in the rest of the response to `QueryPublisherSequence`.
pub fn sequence(rest: &[u8]) -> Option<u64> {
    rest.first_chunk::<8>().map(|id| u64::from_be_bytes(*id))
}

struct Reader<'a> {
    key: u16,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn u8(&mut self) -> Result<u8, StreamProtocolError> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Result<u16, StreamProtocolError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, StreamProtocolError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, StreamProtocolError> {
        self.array().map(u64::from_be_bytes)
    }

    /// A length of 16 bits, of which -1 means none at all, and the text.
    fn string(&mut self) -> Result<&'a [u8], StreamProtocolError> {
        let length = self.u16()?;
        let length = if length == u16::MAX {
            0
        } else {
            usize::from(length)
        };
        let (text, rest) = self.rest.split_at_checked(length).ok_or(self.truncated())?;
        self.rest = rest;
        Ok(text)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StreamProtocolError> {
        let (value, rest) = self.rest.split_first_chunk::<N>().ok_or(self.truncated())?;
        self.rest = rest;
        Ok(*value)
    }

    const fn truncated(&self) -> StreamProtocolError {
        StreamProtocolError::Truncated { key: self.key }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encode;
    use super::*;

    fn decoded(bytes: &[u8]) -> Command<'_> {
        let (frame, size) = Frame::decode(bytes, 1 << 20).expect("sound").expect("whole");
        assert_eq!(size, bytes.len());
        Command::decode(frame).expect("sound")
    }

    #[test]
    fn what_rabbitmq_3_10_sends_is_read() {
        // Written down from a connection with 3.10.8.
        let confirm = b"\0\0\0\x21\x00\x03\x00\x01\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x05";
        let Command::Confirm { publisher: 0, ids } = decoded(confirm) else {
            panic!("a confirm");
        };
        assert_eq!(ids.iter().collect::<Vec<_>>(), [1, 2, 5]);
        let error = b"\0\0\0\x13\x00\x04\x00\x01\t\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00M\x00\x12";
        assert_eq!(
            decoded(error),
            Command::PublishError {
                publisher: 9,
                code: 0x12
            }
        );
        let tune = b"\0\0\0\x0c\x00\x14\x00\x01\x00\x10\x00\x00\x00\x00\x00<";
        assert_eq!(
            decoded(tune),
            Command::Tune {
                frame_max: 1 << 20,
                heartbeat: 60
            }
        );
        let mechanisms_of_broker = b"\x00\x00\x00\x02\x00\x08AMQPLAIN\x00\x05PLAIN";
        assert_eq!(mechanisms(mechanisms_of_broker), [&b"AMQPLAIN"[..], b"PLAIN"]);
        assert_eq!(sequence(b"\0\0\0\0\0\0\0\x06"), Some(6));
    }

    #[test]
    fn a_frame_that_is_not_whole_is_waited_for_and_a_senseless_one_refused() {
        let mut bytes = Vec::new();
        encode::close(&mut bytes, 7, "bye");
        for length in 0..bytes.len() {
            assert_eq!(Frame::decode(&bytes[..length], 1 << 20), Ok(None));
        }
        assert!(matches!(
            decoded(&bytes),
            Command::Close {
                correlation: 7,
                code: 1,
                reason: b"bye"
            }
        ));
        // What an AMQP listener answers with.
        let error = Frame::decode(b"AMQP\0\0\x09\x01", 1 << 20).expect_err("no frame");
        assert!(error.to_string().contains("5552"), "{error}");
        let empty = Frame::decode(b"\0\0\0\x02\0\x03", 1 << 20);
        assert_eq!(empty, Err(StreamProtocolError::Truncated { key: 0 }));
        let (frame, _) = Frame::decode(b"\0\0\0\x09\x00\x03\x00\x01\x00\x00\x00\x00\x03", 99)
            .expect("sound")
            .expect("whole");
        assert_eq!(
            Command::decode(frame),
            Err(StreamProtocolError::Truncated { key: 3 })
        );
    }
}
