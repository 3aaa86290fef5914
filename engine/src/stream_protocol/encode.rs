//! Appends frames to a buffer. `correlation` is the caller's number for a request, which its response repeats. Texts are
//! cut at 32,767 bytes, which none of ours reaches.

use super::{VERSION, code, key};

/// Bytes of a `Publish` frame with one message, but for the message.
pub const PUBLISH_OVERHEAD: usize = 25;

/// The longest text, in bytes: its length is signed.
const MAX_STRING: usize = 0x7fff;

/// Where a subscription begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At the newest chunk.
    Last,
    /// At the chunk that has this offset.
    Offset(u64),
}

/// `PeerProperties`: who we are.
pub fn peer_properties(out: &mut Vec<u8>, correlation: u32, properties: &[(&str, &str)]) {
    request(out, key::PEER_PROPERTIES, correlation, |out| {
        put_u32(out, u32::try_from(properties.len()).unwrap_or(u32::MAX));
        for (name, value) in properties {
            string(out, name);
            string(out, value);
        }
    });
}

/// `SaslHandshake`: which mechanisms are there?
pub fn sasl_handshake(out: &mut Vec<u8>, correlation: u32) {
    request(out, key::SASL_HANDSHAKE, correlation, |_| {});
}

/// `SaslAuthenticate`: who we are, by a mechanism's own means.
pub fn sasl_authenticate(out: &mut Vec<u8>, correlation: u32, mechanism: &str, response: &[u8]) {
    request(out, key::SASL_AUTHENTICATE, correlation, |out| {
        string(out, mechanism);
        bytes(out, response);
    });
}

/// `Tune`: the largest frame in bytes and the heartbeat in seconds that we agree to.
pub fn tune(out: &mut Vec<u8>, frame_max: u32, heartbeat: u32) {
    frame(out, key::TUNE, |out| {
        put_u32(out, frame_max);
        put_u32(out, heartbeat);
    });
}

/// `Open`: the virtual host.
pub fn open(out: &mut Vec<u8>, correlation: u32, vhost: &str) {
    request(out, key::OPEN, correlation, |out| string(out, vhost));
}

/// `DeclarePublisher`, by a number of ours; with an empty `reference` its messages are not compared with earlier ones.
pub fn declare_publisher(out: &mut Vec<u8>, correlation: u32, publisher: u8, reference: &str, stream: &str) {
    request(out, key::DECLARE_PUBLISHER, correlation, |out| {
        out.push(publisher);
        string(out, reference);
        string(out, stream);
    });
}

/// `QueryPublisherSequence`: the highest publishing id that the stream has of this reference, 0 for none.
pub fn query_publisher_sequence(out: &mut Vec<u8>, correlation: u32, reference: &str, stream: &str) {
    request(out, key::QUERY_PUBLISHER_SEQUENCE, correlation, |out| {
        string(out, reference);
        string(out, stream);
    });
}

/// `Subscribe`, by a number of ours, for one chunk to begin with.
pub fn subscribe(
    out: &mut Vec<u8>,
    correlation: u32,
    subscription: u8,
    stream: &str,
    from: From,
    credit: u16,
) {
    request(out, key::SUBSCRIBE, correlation, |out| {
        out.push(subscription);
        string(out, stream);
        match from {
            From::Last => put_u16(out, 2),
            From::Offset(offset) => {
                put_u16(out, 4);
                put_u64(out, offset);
            }
        }
        put_u16(out, credit);
        // no properties
        put_u32(out, 0);
    });
}

/// `Credit`: so many more chunks.
pub fn credit(out: &mut Vec<u8>, subscription: u8, chunks: u16) {
    frame(out, key::CREDIT, |out| {
        out.push(subscription);
        put_u16(out, chunks);
    });
}

/// `Unsubscribe`.
pub fn unsubscribe(out: &mut Vec<u8>, correlation: u32, subscription: u8) {
    request(out, key::UNSUBSCRIBE, correlation, |out| out.push(subscription));
}

/// `Publish` with one message, which `message` appends.
pub fn publish(out: &mut Vec<u8>, publisher: u8, id: u64, message: impl FnOnce(&mut Vec<u8>)) {
    frame(out, key::PUBLISH, |out| {
        out.push(publisher);
        put_u32(out, 1);
        put_u64(out, id);
        with_length(out, message);
    });
}

/// `Heartbeat`.
pub fn heartbeat(out: &mut Vec<u8>) {
    frame(out, key::HEARTBEAT, |_| {});
}

/// `Close`, as a plain good-bye.
pub fn close(out: &mut Vec<u8>, correlation: u32, reason: &str) {
    request(out, key::CLOSE, correlation, |out| {
        put_u16(out, code::OK);
        string(out, reason);
    });
}

/// The answer to the broker's `Close`.
pub fn close_ok(out: &mut Vec<u8>, correlation: u32) {
    request(out, key::CLOSE | key::RESPONSE, correlation, |out| {
        put_u16(out, code::OK)
    });
}

fn request(out: &mut Vec<u8>, key: u16, correlation: u32, content: impl FnOnce(&mut Vec<u8>)) {
    frame(out, key, |out| {
        put_u32(out, correlation);
        content(out);
    });
}

fn frame(out: &mut Vec<u8>, key: u16, content: impl FnOnce(&mut Vec<u8>)) {
    with_length(out, |out| {
        put_u16(out, key);
        put_u16(out, VERSION);
        content(out);
    });
}

/// A 32-bit length, which does not count itself, and then `content`.
fn with_length(out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    put_u32(out, 0);
    let start = out.len();
    content(out);
    let length = u32::try_from(out.len().saturating_sub(start)).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(at..start) {
        place.copy_from_slice(&length.to_be_bytes());
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    let bytes = text.as_bytes();
    let bytes = bytes.get(..MAX_STRING).unwrap_or(bytes);
    put_u16(out, u16::try_from(bytes.len()).unwrap_or_default());
    out.extend_from_slice(bytes);
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    with_length(out, |out| out.extend_from_slice(bytes));
}

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes());
}
