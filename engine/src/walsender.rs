//! What a walsender session sends and is sent inside `CopyData` frames.
//!
//! <https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-START-REPLICATION>

use std::fmt;

use crate::decode::{DecodeError, Reader, Redacted};
use crate::{Lsn, PgTimestamp};

/// Byte1 of [`XLogData`], of [`Keepalive`] and of [`StatusUpdate`] ("Standby status update").
/// <https://www.postgresql.org/docs/current/protocol-replication.html>
pub(crate) const XLOG_DATA: u8 = b'w';
const KEEPALIVE: u8 = b'k';
const STATUS_UPDATE: u8 = b'r';

/// The payload of one `CopyData` frame from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerMessage<'a> {
    /// A piece of the stream.
    XLogData(XLogData<'a>),
    /// A sign of life, which may ask for one in return.
    Keepalive(Keepalive),
}

/// A piece of the stream: one message of the output plugin.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct XLogData<'a> {
    /// Where the data stands in the WAL; `0/0` on Relation and Type messages, so never a position to keep.
    pub start: Lsn,
    /// The end of the server's WAL as it was sent.
    pub end: Lsn,
    /// The server's clock as it was sent.
    pub sent_at: PgTimestamp,
    /// The plugin's message, for [`pgoutput::Message::decode`](crate::pgoutput::Message::decode).
    pub data: &'a [u8],
}

/// A sign of life of the server ("Primary keepalive message").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Up to where the server has read the WAL; everything before it that is ours has been sent.
    pub wal_end: Lsn,
    /// The server's clock as it was sent.
    pub sent_at: PgTimestamp,
    /// Whether the server wants a status update at once, and may end the session without one.
    pub reply_requested: bool,
}

impl<'a> ServerMessage<'a> {
    /// Decodes the payload of one `CopyData` frame, borrowing from it.
    ///
    /// # Errors
    /// When the payload is no such message: another tag, too short, too long.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("walsender message", payload);
        match reader.u8("tag")? {
            XLOG_DATA => XLogData::read(reader.named("XLogData")).map(Self::XLogData),
            KEEPALIVE => Keepalive::read(reader.named("Keepalive")).map(Self::Keepalive),
            tag => Err(reader.unknown("tag", tag)),
        }
    }
}

impl<'a> XLogData<'a> {
    #[inline]
    fn read(mut reader: Reader<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            start: reader.lsn("start")?,
            end: reader.lsn("end")?,
            sent_at: reader.timestamp("time")?,
            data: reader.remainder(),
        })
    }
}

impl fmt::Debug for XLogData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XLogData")
            .field("start", &self.start)
            .field("end", &self.end)
            .field("sent_at", &self.sent_at)
            .field("data", &Redacted(self.data))
            .finish()
    }
}

impl Keepalive {
    fn read(mut reader: Reader<'_>) -> Result<Self, DecodeError> {
        let keepalive = Self {
            wal_end: reader.lsn("WAL end")?,
            sent_at: reader.timestamp("time")?,
            reply_requested: reader.u8("reply request")? != 0,
        };
        reader.finish()?;
        Ok(keepalive)
    }
}

/// How far the client has come ("Standby status update").
///
/// Positions are those of the last byte **plus one**, so a Commit's end LSN says that the commit is included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusUpdate {
    /// Up to where the WAL has been received.
    pub written: Lsn,
    /// Up to where the WAL is safe with the client: the server may forget it, and the slot moves here.
    pub flushed: Lsn,
    /// Up to where the WAL has been applied.
    pub applied: Lsn,
    /// The client's clock.
    pub sent_at: PgTimestamp,
    /// Whether the server should answer at once.
    pub reply_requested: bool,
}

impl StatusUpdate {
    /// The size of the encoded update in bytes.
    pub const SIZE: usize = 34;

    /// Encodes the payload of one `CopyData` frame to the server.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::SIZE] {
        let mut payload = [0; Self::SIZE];
        let [tag, words @ .., reply] = &mut payload;
        *tag = STATUS_UPDATE;
        let (words, _) = words.as_chunks_mut();
        let values = [
            self.written.get().to_be_bytes(),
            self.flushed.get().to_be_bytes(),
            self.applied.get().to_be_bytes(),
            self.sent_at.micros().to_be_bytes(),
        ];
        for (word, value) in words.iter_mut().zip(values) {
            *word = value;
        }
        *reply = u8::from(self.reply_requested);
        payload
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::property;

    const XLOG_DATA_BYTES: &[u8] = b"w\
        \x00\x00\x00\x16\xB3\x74\xD8\x48\
        \x00\x00\x00\x16\xB3\x74\xD8\x50\
        \x00\x00\x00\x00\x00\x00\x00\x2A\
        data";

    const KEEPALIVE_BYTES: &[u8] = b"k\
        \x00\x00\x00\x16\xB3\x74\xD8\x48\
        \xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\
        \x01";

    #[test]
    fn xlog_data_is_decoded() {
        let expected = XLogData {
            start: Lsn::new(0x16_B374_D848),
            end: Lsn::new(0x16_B374_D850),
            sent_at: PgTimestamp::new(42),
            data: b"data",
        };
        assert_eq!(
            ServerMessage::decode(XLOG_DATA_BYTES),
            Ok(ServerMessage::XLogData(expected))
        );
    }

    #[test]
    fn a_keepalive_is_decoded() {
        let expected = Keepalive {
            wal_end: Lsn::new(0x16_B374_D848),
            sent_at: PgTimestamp::new(-1),
            reply_requested: true,
        };
        assert_eq!(
            ServerMessage::decode(KEEPALIVE_BYTES),
            Ok(ServerMessage::Keepalive(expected))
        );
    }

    #[test]
    fn a_status_update_is_encoded() {
        let update = StatusUpdate {
            written: Lsn::new(0x16_B374_D850),
            flushed: Lsn::new(0x16_B374_D848),
            applied: Lsn::new(1),
            sent_at: PgTimestamp::new(-2),
            reply_requested: true,
        };
        let expected = b"r\
            \x00\x00\x00\x16\xB3\x74\xD8\x50\
            \x00\x00\x00\x16\xB3\x74\xD8\x48\
            \x00\x00\x00\x00\x00\x00\x00\x01\
            \xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE\
            \x01";
        assert_eq!(&update.encode(), expected);
        let quiet = StatusUpdate {
            reply_requested: false,
            ..update
        };
        assert_eq!(quiet.encode().last(), Some(&0));
    }

    #[test]
    fn a_truncated_header_is_an_error_not_a_panic() {
        for bytes in [&XLOG_DATA_BYTES[..25], KEEPALIVE_BYTES] {
            for end in 0..bytes.len() {
                let error = ServerMessage::decode(&bytes[..end]).unwrap_err();
                assert!(matches!(error, DecodeError::Truncated { .. }), "{end}: {error}");
            }
        }
        assert!(
            ServerMessage::decode(&XLOG_DATA_BYTES[..25]).is_ok(),
            "data may be empty"
        );
    }

    #[test]
    fn a_keepalive_with_more_behind_it_is_an_error() {
        let payload = [KEEPALIVE_BYTES, b"x"].concat();
        assert_eq!(
            ServerMessage::decode(&payload),
            Err(DecodeError::TrailingBytes {
                message: "Keepalive",
                count: 1
            })
        );
    }

    #[test]
    fn an_unknown_tag_is_an_error_that_names_it() {
        let error = ServerMessage::decode(b"z").unwrap_err();
        assert_eq!(error.to_string(), "walsender message: unknown tag 'z' (0x7A)");
    }

    #[test]
    fn debug_does_not_show_the_data() {
        let message = ServerMessage::decode(XLOG_DATA_BYTES).unwrap();
        let text = format!("{message:?}");
        assert!(text.contains("data: 4 bytes"), "{text}");
    }

    proptest! {
        #![proptest_config(property::config())]

        #[test]
        fn arbitrary_bytes_never_panic(
            tag in prop_oneof![Just(XLOG_DATA), Just(KEEPALIVE), any::<u8>()],
            rest in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let payload = [&[tag], rest.as_slice()].concat();
            if let Ok(ServerMessage::XLogData(data)) = ServerMessage::decode(&payload) {
                prop_assert_eq!(data.data, &payload[25..]);
            }
        }
    }
}
