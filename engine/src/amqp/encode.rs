//! The frames that a publisher sends, but for messages ([`Message`](super::Message)): each function appends
//! one whole frame to `out`, or nothing where it fails. Arguments are in the order of
//! <https://www.rabbitmq.com/amqp-0-9-1-reference>.
//!
//! # Errors
//! [`EncodeError::ShortStringTooLong`] for a name or text of more than 255 bytes, wherever a `Result` is
//! returned.

use super::constants::method as id;
use super::error::EncodeError;
use super::frame::FrameKind;
use super::writer::{frame, long_string, method_frame, plain_method_frame, put_u16, short_string, table};

/// The channel of the connection's own methods (specification, section 4.2.3).
const CONNECTION: u16 = 0;

/// How a client introduces itself in [`connection_start_ok`].
#[derive(Debug, Clone, Copy)]
pub struct ClientProperties<'a> {
    /// The version of walrelay.
    pub version: &'a str,
    /// The name by which RabbitMQ lists the connection
    /// (<https://www.rabbitmq.com/docs/connections#client-provided-names>).
    pub connection_name: &'a str,
}

/// `connection.start-ok`, with the capabilities of <https://www.rabbitmq.com/docs/connections#capabilities>:
/// without `connection.blocked` the server would not send blocked and unblocked, without
/// `authentication_failure_close` it would drop the socket on a wrong password.
///
/// # Errors
/// A mechanism's name of more than 255 bytes.
pub fn connection_start_ok(
    out: &mut Vec<u8>,
    mechanism: &str,
    response: &[u8],
    client: &ClientProperties<'_>,
) -> Result<(), EncodeError> {
    method_frame(out, CONNECTION, id::CONNECTION_START_OK, |out| {
        table(out, "client-properties", |properties| {
            properties.text("product", "walrelay")?;
            properties.text("version", client.version)?;
            properties.text("platform", "Rust")?;
            properties.text("connection_name", client.connection_name)?;
            properties.table("capabilities", |capabilities| {
                capabilities.bool("publisher_confirms", true)?;
                capabilities.bool("connection.blocked", true)?;
                capabilities.bool("authentication_failure_close", true)?;
                capabilities.bool("consumer_cancel_notify", true)
            })
        })?;
        short_string(out, "mechanism", mechanism)?;
        long_string(out, "response", response)?;
        short_string(out, "locale", "en_US")
    })
}

/// The response of the SASL mechanism PLAIN, without an authorization identity
/// (<https://www.rfc-editor.org/rfc/rfc4616>). It holds the password: keep it out of logs.
#[must_use]
pub fn sasl_plain(user: &str, password: &str) -> Vec<u8> {
    [b"\0", user.as_bytes(), b"\0", password.as_bytes()].concat()
}

/// `connection.tune-ok`: the limits agreed on; `frame_max` in bytes, `heartbeat` in seconds.
pub fn connection_tune_ok(out: &mut Vec<u8>, channel_max: u16, frame_max: u32, heartbeat: u16) {
    let [c1, c0] = channel_max.to_be_bytes();
    let [f3, f2, f1, f0] = frame_max.to_be_bytes();
    let [h1, h0] = heartbeat.to_be_bytes();
    plain_method_frame(
        out,
        CONNECTION,
        id::CONNECTION_TUNE_OK,
        &[c1, c0, f3, f2, f1, f0, h1, h0],
    );
}

/// `connection.open`.
///
/// # Errors
/// A virtual host's name of more than 255 bytes.
pub fn connection_open(out: &mut Vec<u8>, vhost: &str) -> Result<(), EncodeError> {
    method_frame(out, CONNECTION, id::CONNECTION_OPEN, |out| {
        short_string(out, "virtual host", vhost)?;
        // reserved-1, a short string, and reserved-2, a bit
        out.extend_from_slice(&[0, 0]);
        Ok(())
    })
}

/// `connection.close`: 200 is a plain good-bye.
///
/// # Errors
/// A text of more than 255 bytes.
pub fn connection_close(out: &mut Vec<u8>, reply_code: u16, reply_text: &str) -> Result<(), EncodeError> {
    close(out, CONNECTION, id::CONNECTION_CLOSE, reply_code, reply_text)
}

/// `connection.close-ok`.
pub fn connection_close_ok(out: &mut Vec<u8>) {
    plain_method_frame(out, CONNECTION, id::CONNECTION_CLOSE_OK, &[]);
}

/// `channel.open`.
pub fn channel_open(out: &mut Vec<u8>, channel: u16) {
    // reserved-1, a short string
    plain_method_frame(out, channel, id::CHANNEL_OPEN, &[0]);
}

/// `channel.close`: 200 is a plain good-bye.
///
/// # Errors
/// A text of more than 255 bytes.
pub fn channel_close(
    out: &mut Vec<u8>,
    channel: u16,
    reply_code: u16,
    reply_text: &str,
) -> Result<(), EncodeError> {
    close(out, channel, id::CHANNEL_CLOSE, reply_code, reply_text)
}

/// `channel.close-ok`.
pub fn channel_close_ok(out: &mut Vec<u8>, channel: u16) {
    plain_method_frame(out, channel, id::CHANNEL_CLOSE_OK, &[]);
}

/// `channel.flow-ok`: repeats what `channel.flow` asked for.
pub fn channel_flow_ok(out: &mut Vec<u8>, channel: u16, active: bool) {
    plain_method_frame(out, channel, id::CHANNEL_FLOW_OK, &[u8::from(active)]);
}

/// `confirm.select`, answered by select-ok: from here on publishes are numbered from 1 and confirmed.
pub fn confirm_select(out: &mut Vec<u8>, channel: u16) {
    // no-wait, a bit
    plain_method_frame(out, channel, id::CONFIRM_SELECT, &[0]);
}

/// `exchange.declare`, answered by declare-ok; `passive` only asks whether the exchange exists.
///
/// # Errors
/// A name or type of more than 255 bytes.
pub fn exchange_declare(
    out: &mut Vec<u8>,
    channel: u16,
    name: &str,
    kind: &str,
    passive: bool,
    durable: bool,
) -> Result<(), EncodeError> {
    method_frame(out, channel, id::EXCHANGE_DECLARE, |out| {
        // reserved-1
        put_u16(out, 0);
        short_string(out, "exchange", name)?;
        short_string(out, "exchange type", kind)?;
        // then auto-delete, internal and no-wait, all off
        out.push(u8::from(passive) | u8::from(durable) << 1);
        table(out, "arguments", |_| Ok(()))
    })
}

/// A heartbeat (specification, section 4.2.7, "Heartbeat Frames").
pub fn heartbeat(out: &mut Vec<u8>) {
    frame(out, FrameKind::Heartbeat, CONNECTION, &[]);
}

fn close(
    out: &mut Vec<u8>,
    channel: u16,
    method: (u16, u16),
    reply_code: u16,
    reply_text: &str,
) -> Result<(), EncodeError> {
    method_frame(out, channel, method, |out| {
        put_u16(out, reply_code);
        short_string(out, "reply text", reply_text)?;
        // class-id and method-id of what failed: nothing did
        out.extend_from_slice(&[0; 4]);
        Ok(())
    })
}
