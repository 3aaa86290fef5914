//! How a server wants to know us: its first answer to a startup packet. The connection ends before any secret is sent,
//! as that of a client which has to ask for the password first, so the server's log stays quiet.

use std::fmt;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::time::Instant;

use super::super::connect::Connector;
use super::super::error::{Error, Step};
use super::super::frame;
use super::super::walsender::within;
use crate::net::{Stream, Wire};

/// What the server asks for.
/// <https://www.postgresql.org/docs/current/protocol-message-formats.html#PROTOCOL-MESSAGE-FORMATS-AUTHENTICATIONOK>
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Method {
    /// Nothing: `trust`, `peer`, or a certificate.
    Nothing,
    /// The password itself.
    Clear,
    /// An MD5 hash.
    Md5,
    /// One of these SASL mechanisms.
    Sasl(Vec<String>),
    /// Something else, by its code.
    Other(u32),
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("without a password (trust, peer or a certificate)"),
            Self::Clear => f.write_str("by its password, sent as it is"),
            Self::Md5 => f.write_str("by md5"),
            Self::Sasl(mechanisms) => write!(f, "by {}", mechanisms.join(" or ")),
            Self::Other(code) => write!(f, "by method {code}"),
        }
    }
}

impl Method {
    fn read(body: &[u8]) -> Option<Self> {
        let (code, data) = body.split_first_chunk::<4>()?;
        Some(match u32::from_be_bytes(*code) {
            0 => Self::Nothing,
            3 => Self::Clear,
            5 => Self::Md5,
            10 => Self::Sasl(
                data.split(|byte| *byte == 0)
                    .filter(|name| !name.is_empty())
                    .map(|name| String::from_utf8_lossy(name).into_owned())
                    .collect(),
            ),
            other => Self::Other(other),
        })
    }
}

/// Asks; `None` where the server refuses us before that, which the session will tell better.
pub(super) async fn ask(
    stream: Stream,
    connector: &Connector,
    application_name: &str,
    deadline: Instant,
) -> Result<Option<Method>, Error> {
    const STEP: Step = Step::OpenControl;
    let failed = |source| Error::Io { step: STEP, source };
    let parameters = [
        ("user", connector.target().user.as_str()),
        ("database", connector.target().dbname.as_str()),
        ("application_name", application_name),
    ];
    let mut packet = BytesMut::new();
    frontend::startup_message(parameters, &mut packet).map_err(failed)?;
    let mut wire = Wire::new(stream);
    wire.output().extend_from_slice(&packet);
    within(deadline, STEP, async {
        let (tag, body) = frame::read_reply(&mut wire, STEP).await?;
        let method = (tag == b'R').then(|| Method::read(&body)).flatten();
        if method == Some(Method::Nothing) {
            // We are in: leave in good order.
            frame::write(wire.output(), b'X', &[]);
        }
        wire.flush().await.map_err(failed)?;
        wire.shutdown().await.map_err(failed)?;
        Ok(method)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_named_as_people_know_them() {
        for (body, expected) in [
            (
                b"\0\0\0\0".as_slice(),
                "without a password (trust, peer or a certificate)",
            ),
            (b"\0\0\0\x03", "by its password, sent as it is"),
            (b"\0\0\0\x05salt", "by md5"),
            (
                b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0",
                "by SCRAM-SHA-256-PLUS or SCRAM-SHA-256",
            ),
            (b"\0\0\0\x07", "by method 7"),
        ] {
            assert_eq!(Method::read(body).unwrap().to_string(), expected);
        }
        assert_eq!(Method::read(b"\0\0"), None);
    }
}
