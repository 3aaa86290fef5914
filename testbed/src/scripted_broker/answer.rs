//! What a broker may say, as whole frames.

use super::{BODY, HEADER, HEARTBEAT, METHOD, Published};

/// The channel of a client that has only one.
const CHANNEL: u16 = 1;

/// `connection.start` of a RabbitMQ 3.10 with these SASL mechanisms, separated by spaces.
pub fn start(mechanisms: &str) -> Vec<u8> {
    let mut properties = short("version");
    properties.push(b'S');
    properties.extend(long("3.10.8"));
    let mut arguments = vec![0, 9];
    arguments.extend(long_bytes(&properties));
    arguments.extend(long(mechanisms));
    arguments.extend(long("en_US"));
    method(0, (10, 10), &arguments)
}

/// `connection.tune`.
pub fn tune(frame_max: u32, heartbeat: u16) -> Vec<u8> {
    let arguments = [
        &2047u16.to_be_bytes()[..],
        &frame_max.to_be_bytes(),
        &heartbeat.to_be_bytes(),
    ];
    method(0, (10, 30), &arguments.concat())
}

/// `connection.open-ok`.
pub fn open_ok() -> Vec<u8> {
    method(0, (10, 41), &[0])
}

/// `connection.close`.
pub fn connection_close(reply_code: u16, reply_text: &str) -> Vec<u8> {
    method(0, (10, 50), &reason(reply_code, reply_text))
}

/// `connection.close-ok`.
pub fn connection_close_ok() -> Vec<u8> {
    method(0, (10, 51), &[])
}

/// `connection.blocked`.
pub fn blocked(reason: &str) -> Vec<u8> {
    method(0, (10, 60), &short(reason))
}

/// `connection.unblocked`.
pub fn unblocked() -> Vec<u8> {
    method(0, (10, 61), &[])
}

/// `channel.open-ok`.
pub fn channel_open_ok() -> Vec<u8> {
    method(CHANNEL, (20, 11), &long(""))
}

/// `channel.close`.
pub fn channel_close(reply_code: u16, reply_text: &str) -> Vec<u8> {
    method(CHANNEL, (20, 40), &reason(reply_code, reply_text))
}

/// `exchange.declare-ok`.
pub fn declare_ok() -> Vec<u8> {
    method(CHANNEL, (40, 11), &[])
}

/// `confirm.select-ok`.
pub fn select_ok() -> Vec<u8> {
    method(CHANNEL, (85, 11), &[])
}

/// `basic.ack`.
pub fn ack(tag: u64, multiple: bool) -> Vec<u8> {
    let arguments = [&tag.to_be_bytes()[..], &[u8::from(multiple)]].concat();
    method(CHANNEL, (60, 80), &arguments)
}

/// `basic.nack`.
pub fn nack(tag: u64, multiple: bool) -> Vec<u8> {
    let arguments = [&tag.to_be_bytes()[..], &[u8::from(multiple)]].concat();
    method(CHANNEL, (60, 120), &arguments)
}

/// `basic.return` of a message with code 312, its body in frames of at most `chunk` bytes.
pub fn returned(message: &Published, chunk: usize) -> Vec<u8> {
    let arguments = [
        &312u16.to_be_bytes()[..],
        &short("NO_ROUTE"),
        &short("outbox"),
        &short("key"),
    ]
    .concat();
    let mut frames = method(CHANNEL, (60, 50), &arguments);
    frames.extend(frame(HEADER, CHANNEL, &message.header));
    for part in message.body.chunks(chunk) {
        frames.extend(frame(BODY, CHANNEL, part));
    }
    frames
}

/// A heartbeat.
pub fn heartbeat() -> Vec<u8> {
    frame(HEARTBEAT, 0, &[])
}

fn reason(reply_code: u16, reply_text: &str) -> Vec<u8> {
    [&reply_code.to_be_bytes()[..], &short(reply_text), &[0; 4]].concat()
}

fn method(channel: u16, (class_id, method_id): (u16, u16), arguments: &[u8]) -> Vec<u8> {
    let payload = [&class_id.to_be_bytes()[..], &method_id.to_be_bytes(), arguments];
    frame(METHOD, channel, &payload.concat())
}

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u32;
    [
        &[kind][..],
        &channel.to_be_bytes(),
        &length.to_be_bytes(),
        payload,
        &[0xCE],
    ]
    .concat()
}

/// A short string; what a test says is shorter than 256 bytes.
fn short(text: &str) -> Vec<u8> {
    let mut bytes = vec![text.len() as u8];
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn long(text: &str) -> Vec<u8> {
    long_bytes(text.as_bytes())
}

fn long_bytes(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}
