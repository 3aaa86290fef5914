//! Tests against lapin's codec, amq-protocol, as an independent reading of the specification.

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};

use super::{Frame, FrameKind};

mod content;
mod headers;
mod inbound;
mod outbound;

/// The bytes that amq-protocol makes of a frame.
fn generate(frame: &AMQPFrame) -> Vec<u8> {
    let (bytes, _) = gen_frame(frame)(WriteContext::from(Vec::new()))
        .unwrap()
        .into_inner();
    bytes
}

/// The frames that amq-protocol finds in `bytes`, which hold nothing else.
fn parse(mut bytes: &[u8]) -> Vec<AMQPFrame> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let (rest, frame) = parse_frame(bytes).unwrap();
        frames.push(frame);
        bytes = rest;
    }
    frames
}

/// The payload of the one frame in `bytes`, cut out by our own decoder.
fn payload(bytes: &[u8], kind: FrameKind, channel: u16) -> &[u8] {
    let (frame, used) = Frame::decode(bytes, 131_072).unwrap().unwrap();
    assert_eq!((frame.kind, frame.channel, used), (kind, channel, bytes.len()));
    frame.payload
}
