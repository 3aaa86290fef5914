//! Frames of the wire protocol: a tag, a length that counts itself, a body.
//!
//! <https://www.postgresql.org/docs/current/protocol-overview.html#PROTOCOL-MESSAGE-CONCEPTS>

use super::error::{Error, Step};
use crate::net::{Stream, Wire};

/// The largest frame of the stream that is no CopyData, in bytes: a larger announcement is refused before it costs
/// memory. CopyData of any size is read, [condensed](walrelay_engine::condense) where it is large.
pub const MAX_FRAME: u64 = 256 * 1024 * 1024;

/// The largest frame outside the stream: answers to startup and commands are short.
const MAX_REPLY: u64 = 1024 * 1024;

/// Tag and length.
pub(super) const HEADER: usize = 5;

/// A complete frame at the start of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    /// What kind of message it is.
    pub(super) tag: u8,
    /// What follows the length.
    pub(super) body: &'a [u8],
    /// Bytes from the tag to the end of the body.
    pub(super) size: usize,
}

/// Looks at the header of the first frame of `input`: its tag, and the frame's size in bytes with the header; `None`
/// until it is complete.
pub(super) fn peek_header(input: &[u8], step: Step) -> Result<Option<(u8, u64)>, Error> {
    let Some(([tag, a, b, c, d], _)) = input.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([*a, *b, *c, *d]);
    if length < 4 || i32::try_from(length).is_err() {
        return Err(Error::Protocol {
            step,
            what: "a frame with an impossible length",
        });
    }
    Ok(Some((*tag, u64::from(length) + 1)))
}

/// Looks at the first frame of `input`; `None` until it is complete. A length above `cap` is an error as soon
/// as the header is there.
pub(super) fn peek(input: &[u8], cap: u64, step: Step) -> Result<Option<Frame<'_>>, Error> {
    let Some((tag, size)) = peek_header(input, step)? else {
        return Ok(None);
    };
    if size > cap {
        // Outside the stream a long frame is no big row, but somebody else's protocol.
        return Err(if cap == MAX_FRAME {
            Error::FrameTooLarge { size, cap }
        } else {
            Error::Protocol {
                step,
                what: "an answer that is too long",
            }
        });
    }
    let Ok(size) = usize::try_from(size) else {
        return Err(Error::FrameTooLarge { size, cap });
    };
    Ok(input.get(HEADER..size).map(|body| Frame { tag, body, size }))
}

/// Reads one frame of a reply, outside the stream.
///
/// Cancel safe: a frame read in part stays in the wire.
pub(super) async fn read_reply(wire: &mut Wire<Stream>, step: Step) -> Result<(u8, Vec<u8>), Error> {
    loop {
        if let Some(frame) = peek(wire.input(), MAX_REPLY, step)? {
            let (tag, body, size) = (frame.tag, frame.body.to_vec(), frame.size);
            wire.consume(size);
            return Ok((tag, body));
        }
        if wire.fill().await.map_err(|source| Error::Io { step, source })? == 0 {
            return Err(Error::Closed { step });
        }
    }
}

/// Appends one frame.
pub(super) fn write(output: &mut Vec<u8>, tag: u8, body: &[u8]) {
    output.push(tag);
    write_untagged(output, body);
}

/// Appends a frame without a tag, as a startup packet is.
pub(super) fn write_untagged(output: &mut Vec<u8>, body: &[u8]) {
    // What we send is far below 4 GiB: commands, passwords, status updates.
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    output.extend_from_slice(&length.to_be_bytes());
    output.extend_from_slice(body);
}

/// The text up to the first zero byte, and what follows it.
pub(super) fn split_text(body: &[u8]) -> Option<(&str, &[u8])> {
    let end = body.iter().position(|byte| *byte == 0)?;
    let (text, rest) = body.split_at_checked(end)?;
    Some((std::str::from_utf8(text).ok()?, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_is_seen_once_it_is_complete() {
        let mut bytes = Vec::new();
        write(&mut bytes, b'd', b"abc");
        write(&mut bytes, b'c', b"");
        for end in 0..8 {
            assert_eq!(peek(&bytes[..end], MAX_FRAME, Step::Stream).unwrap(), None);
        }
        let frame = peek(&bytes, MAX_FRAME, Step::Stream).unwrap().unwrap();
        assert_eq!(
            frame,
            Frame {
                tag: b'd',
                body: b"abc",
                size: 8
            }
        );
        let frame = peek(&bytes[8..], MAX_FRAME, Step::Stream).unwrap().unwrap();
        assert_eq!(
            frame,
            Frame {
                tag: b'c',
                body: b"",
                size: 5
            }
        );
    }

    #[test]
    fn a_frame_beyond_the_cap_is_refused_by_its_header() {
        let header = [b'd', 0x10, 0, 0, 0];
        assert!(matches!(
            peek(&header, MAX_FRAME, Step::Stream),
            Err(Error::FrameTooLarge { size, cap: MAX_FRAME }) if size == 0x1000_0001
        ));
        assert!(matches!(
            peek(&header, MAX_REPLY, Step::OpenReplication),
            Err(Error::Protocol { .. })
        ));
    }

    #[test]
    fn an_impossible_length_is_an_error() {
        for length in [0u32, 3, 0x8000_0000, u32::MAX] {
            let [a, b, c, d] = length.to_be_bytes();
            let header = [b'd', a, b, c, d];
            let result = peek(&header, MAX_FRAME, Step::Stream);
            assert!(matches!(result, Err(Error::Protocol { .. })), "{length}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            drop(peek(&bytes, MAX_FRAME, Step::Stream));
            split_text(&bytes);
        }
    }
}
