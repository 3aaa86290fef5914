//! What can go wrong with the broker, and which kind of fault it is.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_engine::amqp::{AmqpError, Close, EncodeError, Method};
use walrelay_engine::flow::DeliveryError;
use walrelay_engine::stream_protocol::{StreamProtocolError, code};

use super::Mechanism;
use crate::fault::FaultKind;
use crate::net::ConnectError;
use crate::net::tls::TlsError;

/// Reply codes of AMQP 0-9-1 that are told apart (<https://www.rabbitmq.com/amqp-0-9-1-reference#constants>).
mod reply_code {
    pub(super) const ACCESS_REFUSED: u16 = 403;
    pub(super) const NOT_FOUND: u16 = 404;
    pub(super) const PRECONDITION_FAILED: u16 = 406;
    pub(super) const COMMAND_INVALID: u16 = 503;
    pub(super) const NOT_ALLOWED: u16 = 530;
}

/// Why there is no link, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The password file cannot be read.
    #[error("cannot read the password in {}", path.display())]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The socket failed.
    #[error("the connection to RabbitMQ broke")]
    Io(#[from] io::Error),
    /// The broker hung up without a word.
    #[error("RabbitMQ closed the connection without a reason during {step}")]
    Eof {
        /// What was going on.
        step: &'static str,
    },
    /// Connecting took too long.
    #[error("RabbitMQ did not complete {step} within {limit:?}")]
    Deadline {
        /// What was being waited for.
        step: &'static str,
        /// The time allowed.
        limit: Duration,
    },
    /// Neither data nor heartbeat in time.
    #[error("RabbitMQ sent nothing for {silence:?}, not even a heartbeat")]
    Silent {
        /// How long.
        silence: Duration,
    },
    /// Bytes that are not AMQP.
    #[error("RabbitMQ's answer cannot be understood")]
    Protocol(#[from] AmqpError),
    /// A confirm or return that fits nothing sent.
    #[error("RabbitMQ answered for a message that it cannot mean")]
    Delivery(#[from] DeliveryError),
    /// A name in the settings that AMQP cannot carry.
    #[error("a setting cannot be sent to RabbitMQ")]
    Encode(#[from] EncodeError),
    /// A method that has no place where it came.
    #[error("RabbitMQ sent {received}, which has no place during {step}")]
    Unexpected {
        /// What came, by its name in the specification.
        received: String,
        /// What was going on.
        step: &'static str,
    },
    /// The broker offers none of our SASL mechanisms.
    #[error("RabbitMQ offers the SASL mechanisms {offered}, not {}{}", Joined(.wanted), plugin_hint(.wanted))]
    Mechanism {
        /// Those that we would take.
        wanted: Vec<Mechanism>,
        /// Those offered.
        offered: String,
    },
    /// Bytes that are not the stream protocol.
    #[error("RabbitMQ's answer cannot be understood")]
    StreamProtocol(#[from] StreamProtocolError),
    /// RabbitMQ's stream listener refused something, or gave up a stream.
    #[error("RabbitMQ ended {step} with response code {code:#04x}: {}", code::text(*.code))]
    Stream {
        /// What was going on.
        step: &'static str,
        /// One of the protocol's response codes.
        code: u16,
    },
    /// The broker closed the connection or the channel, and said why.
    #[error("RabbitMQ closed the {} (reply code {reply_code}): {reply_text}", if *.channel { "channel" } else { "connection" })]
    Closed {
        /// The channel only, or the whole connection.
        channel: bool,
        /// What was going on.
        phase: Phase,
        /// AMQP's reply code.
        reply_code: u16,
        /// The broker's words.
        reply_text: String,
    },
}

/// Mechanisms in one text.
struct Joined<'a>(&'a [Mechanism]);

impl fmt::Display for Joined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|mechanism| mechanism.as_str()).collect();
        f.write_str(&names.join(" or "))
    }
}

/// <https://www.rabbitmq.com/docs/access-control#mechanisms>
fn plugin_hint(wanted: &[Mechanism]) -> &'static str {
    match wanted.contains(&Mechanism::External) {
        true => " (EXTERNAL needs the plugin rabbitmq_auth_mechanism_ssl and a line in auth_mechanisms)",
        false => "",
    }
}

/// What was going on when the broker closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// User and password.
    Authentication,
    /// Entering the virtual host.
    Open,
    /// Declaring or looking for the exchange.
    Topology,
    /// Publishing.
    Publishing,
}

impl BrokerError {
    /// From a close method of the broker.
    pub(super) fn closed(channel: bool, phase: Phase, close: &Close<'_>) -> Self {
        Self::Closed {
            channel,
            phase,
            reply_code: close.reply_code,
            reply_text: close.reply_text_lossy().into_owned(),
        }
    }

    /// From a method that has no place where it came. Its arguments are left out: they may be long, and are not ours.
    pub(super) fn unexpected(method: &Method<'_>, step: &'static str) -> Self {
        let received = match method {
            Method::ConnectionStart { .. } => "connection.start",
            Method::ConnectionSecure { .. } => "connection.secure",
            Method::ConnectionTune { .. } => "connection.tune",
            Method::ConnectionOpenOk => "connection.open-ok",
            Method::ConnectionClose(_) => "connection.close",
            Method::ConnectionCloseOk => "connection.close-ok",
            Method::ConnectionBlocked { .. } => "connection.blocked",
            Method::ConnectionUnblocked => "connection.unblocked",
            Method::ChannelOpenOk => "channel.open-ok",
            Method::ChannelFlow { .. } => "channel.flow",
            Method::ChannelClose(_) => "channel.close",
            Method::ChannelCloseOk => "channel.close-ok",
            Method::ConfirmSelectOk => "confirm.select-ok",
            Method::ExchangeDeclareOk => "exchange.declare-ok",
            Method::BasicReturn(_) => "basic.return",
            Method::BasicAck { .. } => "basic.ack",
            Method::BasicNack { .. } => "basic.nack",
            Method::Other { class_id, method_id } => {
                return Self::Unexpected {
                    received: format!("method {method_id} of class {class_id}"),
                    step,
                };
            }
        };
        Self::Unexpected {
            received: received.to_owned(),
            step,
        }
    }

    /// Which kind of fault it is.
    #[must_use]
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Connect(_)
            | Self::Io(_)
            | Self::Eof { .. }
            | Self::Deadline { .. }
            // It went away during the handshake, which says nothing about the certificate.
            | Self::Tls(TlsError::Io { .. }) => FaultKind::BrokerUnreachable,
            Self::Tls(error) if error.is_about_us() => FaultKind::BrokerClientCertificate,
            Self::Tls(_) => FaultKind::BrokerTls,
            Self::PasswordFile { .. } | Self::Mechanism { .. } => FaultKind::BrokerAuthentication,
            Self::Silent { .. } => FaultKind::BrokerSilent,
            Self::Protocol(_) | Self::Delivery(_) | Self::Unexpected { .. } => FaultKind::BrokerProtocol,
            Self::StreamProtocol(_) => FaultKind::BrokerProtocol,
            Self::Stream { code, .. } => stream_kind(*code),
            Self::Encode(_) => FaultKind::Configuration,
            Self::Closed {
                phase, reply_code, ..
            } => closed_kind(*phase, *reply_code),
        }
    }
}

/// The kind of why an event is held over which the broker closed with this code.
pub(crate) const fn refused_kind(code: u16) -> FaultKind {
    match code {
        reply_code::NOT_FOUND | reply_code::ACCESS_REFUSED => closed_kind(Phase::Publishing, code),
        _ => FaultKind::MessageRefused,
    }
}

const fn closed_kind(phase: Phase, code: u16) -> FaultKind {
    match (phase, code) {
        (Phase::Authentication, reply_code::ACCESS_REFUSED) => FaultKind::BrokerAuthentication,
        (Phase::Open, reply_code::NOT_ALLOWED | reply_code::ACCESS_REFUSED | reply_code::NOT_FOUND) => {
            FaultKind::BrokerVhost
        }
        (_, reply_code::NOT_FOUND) => FaultKind::ExchangeMissing,
        (_, reply_code::ACCESS_REFUSED) => FaultKind::ExchangeForbidden,
        // 503: a type of exchange that the broker does not know; from 4.0 on 406.
        (
            Phase::Topology,
            reply_code::PRECONDITION_FAILED | reply_code::NOT_ALLOWED | reply_code::COMMAND_INVALID,
        ) => FaultKind::ExchangeMismatch,
        (_, reply_code::PRECONDITION_FAILED) => FaultKind::MessageRefused,
        _ => FaultKind::BrokerClosed,
    }
}

/// The kind of why RabbitMQ's stream listener ends something.
const fn stream_kind(code: u16) -> FaultKind {
    match code {
        code::NO_STREAM => FaultKind::StreamMissing,
        code::REFUSED => FaultKind::StreamForbidden,
        code::VHOST => FaultKind::BrokerVhost,
        code::AUTHENTICATION | code::LOOPBACK | code::SASL | code::NO_MECHANISM => {
            FaultKind::BrokerAuthentication
        }
        _ => FaultKind::BrokerClosed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_code_means_what_was_going_on_at_the_time() {
        for (phase, code, kind) in [
            (Phase::Authentication, 403, FaultKind::BrokerAuthentication),
            (Phase::Open, 530, FaultKind::BrokerVhost),
            (Phase::Topology, 404, FaultKind::ExchangeMissing),
            (Phase::Topology, 403, FaultKind::ExchangeForbidden),
            (Phase::Topology, 406, FaultKind::ExchangeMismatch),
            (Phase::Topology, 503, FaultKind::ExchangeMismatch),
            (Phase::Publishing, 404, FaultKind::ExchangeMissing),
            (Phase::Publishing, 406, FaultKind::MessageRefused),
            (Phase::Publishing, 320, FaultKind::BrokerClosed),
            (Phase::Publishing, 541, FaultKind::BrokerClosed),
        ] {
            assert_eq!(closed_kind(phase, code), kind, "{phase:?} {code}");
        }
    }
}
