//! `amqp://` and `amqps://` URIs, parsed once.
//!
//! <https://www.rabbitmq.com/docs/uri-spec>. One deviation: an empty virtual host (`amqp://host/`) means `/`, since no
//! broker has a virtual host without a name and the slash is easily typed.

mod query;

use std::fmt;

use percent_encoding::percent_decode_str;
use secrecy::SecretString;
use url::Url;

pub use query::{Mechanism, UriQuery};

/// Where the broker is and who we are.
#[derive(Clone)]
pub struct BrokerUri {
    /// A host name or address, without brackets.
    pub host: String,
    /// The port; 5672, or 5671 with TLS, where the URI has none.
    pub port: u16,
    /// Whether the URI says `amqps`.
    pub tls: bool,
    /// The user; `guest` where the URI has none.
    pub user: String,
    /// The password, where the URI has one.
    pub password: Option<SecretString>,
    /// The virtual host.
    pub vhost: String,
    /// What its parameters say of TLS and authentication.
    pub query: UriQuery,
}

/// Why a text is not a broker's URI. The text itself is left out: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Not a URL at all.
    #[error("not a URI such as amqp://user@host:5672/%2f")]
    Malformed(#[source] url::ParseError),
    /// Without a scheme and `//`; what stands there may be a part of a password.
    #[error("not a URI such as amqp://user@host:5672/%2f")]
    NotHierarchical,
    /// Another scheme.
    #[error("the scheme is `{0}`, not amqp or amqps")]
    Scheme(String),
    /// No host.
    #[error("it names no host")]
    NoHost,
    /// A path of more than one part.
    #[error("the virtual host has a slash in it: write it as %2f")]
    Path,
    /// A `#`, behind which nothing would be read.
    #[error("it has a # in it: write it as %23")]
    Fragment,
    /// Percent-encoding that does not give UTF-8.
    #[error("the {0} is not UTF-8 when percent-decoded")]
    NotUtf8(&'static str),
    /// A `?` before an `@`: it belongs to the password, and what follows it must not be shown.
    #[error("it has a ? before the @: write it as %3F")]
    Question,
    /// A parameter that is not understood.
    #[error("the parameter `{0}` is unknown: heartbeat and the like are keys of [rabbitmq]")]
    Parameter(String),
    /// A parameter about TLS in a URI without it.
    #[error("the parameter `{0}` needs amqps://")]
    OnlyWithTls(&'static str),
    /// A certificate without its key, or the other way round.
    #[error("the parameters `certfile` and `keyfile` belong together: `{0}` is missing")]
    HalfIdentity(&'static str),
    /// A value that a parameter cannot have.
    #[error("the parameter `{name}` must be {expected}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// What it may be.
        expected: &'static str,
    },
}

impl BrokerUri {
    /// Parses a URI.
    ///
    /// # Errors
    /// What is wrong with it, without its text.
    pub fn parse(text: &str) -> Result<Self, UriError> {
        let url = Url::parse(text).map_err(UriError::Malformed)?;
        let (tls, default_port) = match url.scheme() {
            "amqp" => (false, 5672),
            "amqps" => (true, 5671),
            other if text.contains("://") => return Err(UriError::Scheme(other.to_owned())),
            _ => return Err(UriError::NotHierarchical),
        };
        if url.query().is_some_and(|query| query.contains('@')) {
            return Err(UriError::Question);
        }
        let query = UriQuery::read(&url, tls)?;
        if url.fragment().is_some() {
            return Err(UriError::Fragment);
        }
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or(UriError::NoHost)?;
        let host = decoded(host.trim_start_matches('[').trim_end_matches(']'), "host")?;
        let user = match url.username() {
            "" => "guest".to_owned(),
            user => decoded(user, "user")?,
        };
        let password = url
            .password()
            .map(|password| decoded(password, "password"))
            .transpose()?;
        let path = url.path().strip_prefix('/').unwrap_or_default();
        if path.contains('/') {
            return Err(UriError::Path);
        }
        let vhost = if path.is_empty() {
            "/".to_owned()
        } else {
            decoded(path, "virtual host")?
        };
        Ok(Self {
            host,
            port: url.port().unwrap_or(default_port),
            tls,
            user,
            password: password.map(SecretString::from),
            vhost,
            query,
        })
    }

    /// `host:port`, for messages.
    #[must_use]
    pub fn endpoint(&self) -> String {
        crate::net::endpoint_text(&self.host, self.port)
    }
}

/// The password is left out.
impl fmt::Debug for BrokerUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "amqps" } else { "amqp" };
        write!(
            f,
            "{scheme}://{}@{} vhost {:?}",
            self.user,
            self.endpoint(),
            self.vhost
        )
    }
}

fn decoded(text: &str, part: &'static str) -> Result<String, UriError> {
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| UriError::NotUtf8(part))?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_uri_is_read_with_its_defaults() {
        for (text, expected) in [
            ("amqp://localhost", "amqp://guest@localhost:5672 vhost \"/\""),
            ("amqp://h/", "amqp://guest@h:5672 vhost \"/\""),
            ("amqp://h/%2f", "amqp://guest@h:5672 vhost \"/\""),
            ("amqps://u:p@h:1/shop", "amqps://u@h:1 vhost \"shop\""),
            ("amqp://[::1]:5673/v", "amqp://guest@[::1]:5673 vhost \"v\""),
            (
                "amqp://a%40b:p@127.0.0.1/a%2Fb",
                "amqp://a@b@127.0.0.1:5672 vhost \"a/b\"",
            ),
        ] {
            assert_eq!(
                format!("{:?}", BrokerUri::parse(text).unwrap()),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn the_password_is_decoded_and_never_printed() {
        let uri = BrokerUri::parse("amqp://u:s%3Acret@h/").unwrap();
        assert_eq!(uri.password.as_ref().unwrap().expose_secret(), "s:cret");
        assert!(!format!("{uri:?}").contains("cret"));
    }

    #[test]
    fn a_fault_is_named_without_the_text() {
        for (text, message) in [
            ("localhost:5672", "not a URI such as amqp://user@host:5672/%2f"),
            ("secret:w@h/v", "not a URI such as amqp://user@host:5672/%2f"),
            (
                "amqp://u:1?secret@h/v",
                "it has a ? before the @: write it as %3F",
            ),
            ("secret", "not a URI such as amqp://user@host:5672/%2f"),
            ("http://h/", "the scheme is `http`, not amqp or amqps"),
            ("amqp:///v", "it names no host"),
            (
                "amqp://h/a/b",
                "the virtual host has a slash in it: write it as %2f",
            ),
            ("amqp://h/v#w", "it has a # in it: write it as %23"),
            (
                "amqp://h/%ff",
                "the virtual host is not UTF-8 when percent-decoded",
            ),
            (
                "amqp://h/v?heartbeat=5",
                "the parameter `heartbeat` is unknown: heartbeat and the like are keys of [rabbitmq]",
            ),
        ] {
            assert_eq!(BrokerUri::parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }
}
