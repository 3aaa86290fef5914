//! Frames: the outer cut of the byte stream.

use super::constants::{FRAME_END, FRAME_MIN_SIZE, FRAME_OVERHEAD, PROTOCOL_HEADER, frame_kind};
use super::error::AmqpError;

/// One frame, borrowed from the read buffer (specification, section 4.2.3, "General Frame Format").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the payload is.
    pub kind: FrameKind,
    /// The channel, 0 for the connection itself.
    pub channel: u16,
    /// The bytes between size and end octet.
    pub payload: &'a [u8],
}

/// What a frame's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A method, read by [`Method::decode`](super::Method::decode).
    Method,
    /// A content header, read by [`ContentHeader::decode`](super::ContentHeader::decode).
    Header,
    /// A piece of a content's body.
    Body,
    /// A sign of life.
    Heartbeat,
}

impl<'a> Frame<'a> {
    /// Cuts the first frame off `buffer`: the frame and the number of bytes to drop from the buffer, or
    /// `None` where more bytes are needed.
    ///
    /// `frame_max` is in bytes with the overhead, as negotiated. A value under [`FRAME_MIN_SIZE`] counts as
    /// that, which both peers accept in any case; a negotiated 0 ("no limit") is for the caller to replace by
    /// a limit of its own. The size is checked before the payload is waited for, so a caller never buffers
    /// more than `frame_max`.
    ///
    /// # Errors
    /// An unknown frame type, a frame above `frame_max`, a wrong end octet, or a protocol header in place of
    /// a frame: the framing is lost, and the connection with it.
    pub fn decode(buffer: &'a [u8], frame_max: u32) -> Result<Option<(Self, usize)>, AmqpError> {
        let Some(&first) = buffer.first() else {
            return Ok(None);
        };
        let Some(kind) = FrameKind::from_octet(first) else {
            return refused(buffer, first);
        };
        let Some((&[_, channel_high, channel_low, s3, s2, s1, s0], behind)) = buffer.split_first_chunk::<7>()
        else {
            return Ok(None);
        };
        let size = u32::from_be_bytes([s3, s2, s1, s0]);
        let whole = u64::from(size) + u64::from(FRAME_OVERHEAD);
        let frame_max = at_least_min(frame_max);
        let too_large = AmqpError::FrameTooLarge {
            size: whole,
            frame_max,
        };
        if whole > u64::from(frame_max) {
            return Err(too_large);
        }
        let (Ok(size), Ok(whole)) = (usize::try_from(size), usize::try_from(whole)) else {
            return Err(too_large);
        };
        let Some((payload, [end, ..])) = behind.split_at_checked(size) else {
            return Ok(None);
        };
        if *end != FRAME_END {
            return Err(AmqpError::FrameEnd { octet: *end });
        }
        let channel = u16::from_be_bytes([channel_high, channel_low]);
        Ok(Some((
            Self {
                kind,
                channel,
                payload,
            },
            whole,
        )))
    }
}

impl FrameKind {
    const fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            frame_kind::METHOD => Some(Self::Method),
            frame_kind::HEADER => Some(Self::Header),
            frame_kind::BODY => Some(Self::Body),
            frame_kind::HEARTBEAT => Some(Self::Heartbeat),
            _ => None,
        }
    }

    pub(super) const fn octet(self) -> u8 {
        match self {
            Self::Method => frame_kind::METHOD,
            Self::Header => frame_kind::HEADER,
            Self::Body => frame_kind::BODY,
            Self::Heartbeat => frame_kind::HEARTBEAT,
        }
    }
}

/// Both peers accept frames of [`FRAME_MIN_SIZE`]; this also keeps a body's pieces from being empty.
pub(super) fn at_least_min(frame_max: u32) -> u32 {
    frame_max.max(FRAME_MIN_SIZE)
}

/// No frame: the header by which a server refuses our version, its beginning, or noise.
fn refused<'a>(buffer: &[u8], kind: u8) -> Result<Option<(Frame<'a>, usize)>, AmqpError> {
    let (name, _version) = PROTOCOL_HEADER.split_at(4);
    let same = buffer.iter().zip(name).all(|(got, want)| got == want);
    match buffer {
        _ if !same => Err(AmqpError::FrameKind { kind }),
        [_, _, _, _, id, major, minor, revision, ..] => Err(AmqpError::ProtocolRefused {
            id: *id,
            major: *major,
            minor: *minor,
            revision: *revision,
        }),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xCE];

    fn body(size: u32) -> Vec<u8> {
        let mut bytes = vec![3, 0, 1];
        bytes.extend_from_slice(&size.to_be_bytes());
        bytes.resize(bytes.len() + usize::try_from(size).unwrap(), b'x');
        bytes.push(0xCE);
        bytes
    }

    #[test]
    fn a_truncated_frame_asks_for_more_and_a_whole_one_leaves_the_next() {
        let mut bytes = body(300);
        let whole = bytes.len();
        for cut in 0..whole {
            assert_eq!(Frame::decode(&bytes[..cut], 4096), Ok(None), "{cut}");
        }
        bytes.extend_from_slice(&HEARTBEAT);
        let (frame, used) = Frame::decode(&bytes, 4096).unwrap().unwrap();
        assert_eq!(
            (frame.kind, frame.channel, frame.payload.len(), used),
            (FrameKind::Body, 1, 300, whole)
        );
        let (frame, used) = Frame::decode(&bytes[used..], 4096).unwrap().unwrap();
        assert_eq!(
            (frame.kind, frame.channel, frame.payload, used),
            (FrameKind::Heartbeat, 0, &[][..], 8)
        );
    }

    #[test]
    fn a_frame_above_frame_max_is_refused_before_its_payload_arrives() {
        let bytes = body(8192 - 8);
        assert!(matches!(Frame::decode(&bytes, 8192), Ok(Some(_))));
        let refusal = AmqpError::FrameTooLarge {
            size: 8192,
            frame_max: 8191,
        };
        assert_eq!(Frame::decode(&bytes[..7], 8191), Err(refusal));
        let size = u64::from(u32::MAX) + 8;
        let refusal = AmqpError::FrameTooLarge {
            size,
            frame_max: u32::MAX,
        };
        assert_eq!(
            Frame::decode(&[1, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF], u32::MAX),
            Err(refusal)
        );
    }

    #[test]
    fn a_frame_max_below_the_specified_minimum_counts_as_the_minimum() {
        assert!(matches!(Frame::decode(&body(4088), 0), Ok(Some(_))));
        assert!(matches!(
            Frame::decode(&body(4089), 0),
            Err(AmqpError::FrameTooLarge { frame_max: 4096, .. })
        ));
    }

    #[test]
    fn a_wrong_end_octet_or_frame_type_is_an_error() {
        let mut bytes = body(1);
        bytes[8] = 0xCF;
        assert_eq!(
            Frame::decode(&bytes, 4096),
            Err(AmqpError::FrameEnd { octet: 0xCF })
        );
        for kind in [0, 4, 7, 9, b'H', 0x15, 0xFF] {
            assert_eq!(Frame::decode(&[kind], 4096), Err(AmqpError::FrameKind { kind }));
        }
    }

    #[test]
    fn a_server_that_refuses_the_version_is_named_as_such() {
        let answer = *b"AMQP\x03\x01\x00\x00";
        for cut in 0..8 {
            assert_eq!(Frame::decode(&answer[..cut], 4096), Ok(None), "{cut}");
        }
        let refusal = AmqpError::ProtocolRefused {
            id: 3,
            major: 1,
            minor: 0,
            revision: 0,
        };
        assert_eq!(Frame::decode(&answer, 4096), Err(refusal.clone()));
        assert!(refusal.to_string().contains("refuses AMQP 0-9-1"));
        assert_eq!(
            Frame::decode(b"AMPLE", 4096),
            Err(AmqpError::FrameKind { kind: b'A' })
        );
    }
}
