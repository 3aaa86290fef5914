//! RabbitMQ's management API, as far as [`reach`](super::reach) needs it. It is only read.
//!
//! <https://www.rabbitmq.com/docs/http-api-reference>

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::net::tls::{self, RootSource, TlsError, TlsSettings, TlsVerification};
use crate::net::{self, ConnectError, Stream};

/// The time for one question.
const PATIENCE: Duration = Duration::from_secs(10);

/// More than the bindings of any sensible exchange.
const MAX_ANSWER: u64 = 16 * 1024 * 1024;

/// All but what stands in a URL's path for itself.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Where the API is and who asks.
#[derive(Debug, Clone)]
pub struct Management {
    host: String,
    port: u16,
    tls: Option<TlsSettings>,
    user: String,
    password: SecretString,
    /// What stands before `/api`.
    prefix: String,
}

/// A text that is no URL of the API. The text itself is left out: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a URL such as http://host:15672")]
pub struct ManagementUrlError;

/// Why the API tells nothing.
#[derive(Debug, thiserror::Error)]
pub enum ManagementError {
    /// No connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// No TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The connection broke.
    #[error("the connection to the management API broke")]
    Io(#[from] io::Error),
    /// No answer in time.
    #[error("the management API did not answer within {PATIENCE:?}")]
    Deadline,
    /// An answer that is none of HTTP's.
    #[error("what answers is not the management API")]
    NotHttp,
    /// A refusal.
    #[error("the management API answers with status {status}{}", hint(*.status))]
    Status {
        /// HTTP's.
        status: u16,
    },
    /// JSON of another form.
    #[error("the management API's answer cannot be understood")]
    Json(#[from] serde_json::Error),
}

fn hint(status: u16) -> &'static str {
    match status {
        401 => " (the user lacks the tag `management`, or its password is wrong)",
        _ => "",
    }
}

impl Management {
    /// Reads a URL. Where it names no user, `user` and `password` are those of the broker's URI.
    ///
    /// # Errors
    /// It is no such URL.
    pub fn parse(
        text: &str,
        user: &str,
        password: Option<&SecretString>,
        roots: &RootSource,
    ) -> Result<Self, ManagementUrlError> {
        let url = Url::parse(text).map_err(|_| ManagementUrlError)?;
        let tls = match url.scheme() {
            "http" => None,
            "https" => Some(TlsVerification::Full(roots.clone()).into()),
            _ => return Err(ManagementUrlError),
        };
        let host = url.host_str().ok_or(ManagementUrlError)?;
        let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let own = !url.username().is_empty();
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port_or_known_default().ok_or(ManagementUrlError)?,
            tls,
            user: if own {
                decoded(url.username())
            } else {
                user.to_owned()
            },
            password: match (own, password) {
                (true, _) => SecretString::from(decoded(url.password().unwrap_or_default())),
                (false, Some(password)) => password.clone(),
                (false, None) => SecretString::from("guest"),
            },
            prefix: url.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Whether there is something of this path.
    pub(super) async fn exists(&self, path: &str) -> Result<bool, ManagementError> {
        match self.get::<serde_json::Value>(path).await {
            Ok(_) => Ok(true),
            Err(ManagementError::Status { status: 404 }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is at this path.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ManagementError> {
        let deadline = Instant::now() + PATIENCE;
        let answer = timeout_at(deadline, self.ask(path, deadline)).await;
        let answer = answer.map_err(|_| ManagementError::Deadline)??;
        Ok(serde_json::from_str(&answer)?)
    }

    async fn ask(&self, path: &str, deadline: Instant) -> Result<String, ManagementError> {
        let socket = net::connect_tcp(&self.host, self.port, deadline).await?;
        let mut stream = match &self.tls {
            Some(settings) => tls::handshake(settings, &self.host, socket).await?,
            None => Stream::Tcp(socket),
        };
        let login = format!("{}:{}", self.user, self.password.expose_secret());
        // HTTP/1.0: the answer ends with the connection, and comes in one piece.
        let request = format!(
            "GET {}/api/{path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Basic {}\r\nAccept: application/json\r\n\r\n",
            self.prefix,
            net::endpoint_text(&self.host, self.port),
            STANDARD.encode(login)
        );
        stream.write_all(request.as_bytes()).await?;
        stream.flush().await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, body) = answer.split_once("\r\n\r\n").ok_or(ManagementError::NotHttp)?;
        let status = head
            .strip_prefix("HTTP/1.")
            .and_then(|rest| rest.split(' ').nth(1)?.parse().ok())
            .ok_or(ManagementError::NotHttp)?;
        match status {
            200 => Ok(body.to_owned()),
            status => Err(ManagementError::Status { status }),
        }
    }
}

/// A part of a path, as a URL has it.
pub(super) fn encoded(part: &str) -> String {
    utf8_percent_encode(part, IN_PATH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Management, ManagementUrlError> {
        Management::parse(
            text,
            "relay",
            Some(&SecretString::from("s3cret")),
            &RootSource::System,
        )
    }

    #[test]
    fn the_brokers_user_asks_unless_the_url_names_one() {
        let plain = parse("http://mq:15672/").unwrap();
        assert_eq!(
            (plain.host.as_str(), plain.port, plain.user.as_str()),
            ("mq", 15672, "relay")
        );
        assert_eq!(plain.password.expose_secret(), "s3cret");
        assert!(plain.tls.is_none());
        let own = parse("https://a%40b:p%3A@mq/rabbit").unwrap();
        assert_eq!(
            (own.user.as_str(), own.port, own.prefix.as_str()),
            ("a@b", 443, "/rabbit")
        );
        assert_eq!(own.password.expose_secret(), "p:");
        assert!(own.tls.is_some());
        for wrong in ["amqp://mq", "mq:15672", "", "http://"] {
            assert_eq!(parse(wrong).unwrap_err(), ManagementUrlError, "{wrong}");
        }
    }

    #[test]
    fn names_are_encoded_in_paths() {
        assert_eq!(encoded("/"), "%2F");
        assert_eq!(encoded("shop.events-1"), "shop.events-1");
        assert_eq!(encoded("a/b?c"), "a%2Fb%3Fc");
    }
}
