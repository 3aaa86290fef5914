//! The parameters behind the `?` of a broker's URI.
//!
//! <https://www.rabbitmq.com/docs/uri-query-parameters>; those that are keys of `[rabbitmq]` here are not read.

use std::path::PathBuf;

use url::Url;

use super::UriError;

/// How we tell who we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// By user and password (RFC 4616).
    Plain,
    /// By the certificate that the TLS handshake has shown (RFC 4422, appendix A).
    External,
}

impl Mechanism {
    /// Its name in SASL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::External => "EXTERNAL",
        }
    }
}

/// What a URI says of TLS and authentication; it wins over the keys of `[rabbitmq]` for this broker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UriQuery {
    /// `cacertfile`: the authorities to trust, and no others.
    pub ca_file: Option<PathBuf>,
    /// `certfile`: our certificate.
    pub cert_file: Option<PathBuf>,
    /// `keyfile`: its key.
    pub key_file: Option<PathBuf>,
    /// `verify`: whether the broker's certificate is checked at all (`verify_peer`), or not (`verify_none`).
    pub verify: Option<bool>,
    /// `server_name_indication`: the name that the broker's certificate is for, where that is not the host.
    pub server_name: Option<String>,
    /// `auth_mechanism`, which may come several times: the first that the broker offers is taken. Empty where it is not
    /// given.
    pub mechanisms: Vec<Mechanism>,
}

impl UriQuery {
    /// Reads the parameters of a URI with or without TLS.
    pub(super) fn read(url: &Url, tls: bool) -> Result<Self, UriError> {
        let mut query = Self::default();
        for (name, value) in url.query_pairs() {
            let known = match &*name {
                "cacertfile" => "cacertfile",
                "certfile" => "certfile",
                "keyfile" => "keyfile",
                "verify" => "verify",
                "server_name_indication" => "server_name_indication",
                "auth_mechanism" => "auth_mechanism",
                _ => return Err(UriError::Parameter(name.into_owned())),
            };
            if !tls && known != "auth_mechanism" {
                return Err(UriError::OnlyWithTls(known));
            }
            query.set(known, value.into_owned())?;
        }
        if query.mechanisms.contains(&Mechanism::External) && !tls {
            return Err(UriError::OnlyWithTls("auth_mechanism=external"));
        }
        match (&query.cert_file, &query.key_file) {
            (Some(_), None) => Err(UriError::HalfIdentity("keyfile")),
            (None, Some(_)) => Err(UriError::HalfIdentity("certfile")),
            _ => Ok(query),
        }
    }

    fn set(&mut self, name: &'static str, value: String) -> Result<(), UriError> {
        let bad = |expected| UriError::Value { name, expected };
        if value.is_empty() {
            return Err(bad("not empty"));
        }
        match name {
            "cacertfile" => self.ca_file = Some(value.into()),
            "certfile" => self.cert_file = Some(value.into()),
            "keyfile" => self.key_file = Some(value.into()),
            "verify" => {
                self.verify = Some(match &*value {
                    "verify_peer" => true,
                    "verify_none" => false,
                    _ => return Err(bad("verify_peer or verify_none")),
                });
            }
            "server_name_indication" => {
                // Erlang's word for not checking the name, which is nothing to turn on by the way.
                if value == "disable" {
                    return Err(bad("the name in the broker's certificate"));
                }
                self.server_name = Some(value);
            }
            _ => self.mechanisms.push(match &*value.to_ascii_lowercase() {
                "plain" => Mechanism::Plain,
                "external" => Mechanism::External,
                _ => return Err(bad("plain or external")),
            }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::BrokerUri;
    use super::*;

    fn query(text: &str) -> Result<UriQuery, UriError> {
        BrokerUri::parse(text).map(|uri| uri.query)
    }

    #[test]
    fn tls_and_mechanism_are_read() {
        let read = query(
            "amqps://h/v?cacertfile=/etc/ca%20a.pem&certfile=c.pem&keyfile=credential%3Aamqp-key&verify=verify_none\
             &server_name_indication=broker.example&auth_mechanism=external&auth_mechanism=PLAIN",
        );
        assert_eq!(
            read.unwrap(),
            UriQuery {
                ca_file: Some("/etc/ca a.pem".into()),
                cert_file: Some("c.pem".into()),
                key_file: Some("credential:amqp-key".into()),
                verify: Some(false),
                server_name: Some("broker.example".to_owned()),
                mechanisms: vec![Mechanism::External, Mechanism::Plain],
            }
        );
        assert_eq!(
            query("amqp://h/?auth_mechanism=plain").unwrap().mechanisms,
            [Mechanism::Plain]
        );
    }

    #[test]
    fn what_would_have_no_effect_is_refused() {
        for (text, message) in [
            (
                "amqp://h/?cacertfile=ca.pem",
                "the parameter `cacertfile` needs amqps://",
            ),
            (
                "amqp://h/?auth_mechanism=external",
                "the parameter `auth_mechanism=external` needs amqps://",
            ),
            (
                "amqps://h/?certfile=c.pem",
                "the parameters `certfile` and `keyfile` belong together: `keyfile` is missing",
            ),
            (
                "amqps://h/?verify=peer",
                "the parameter `verify` must be verify_peer or verify_none",
            ),
            ("amqps://h/?verify=", "the parameter `verify` must be not empty"),
            (
                "amqps://h/?server_name_indication=disable",
                "the parameter `server_name_indication` must be the name in the broker's certificate",
            ),
            (
                "amqps://h/?auth_mechanism=amqplain",
                "the parameter `auth_mechanism` must be plain or external",
            ),
        ] {
            assert_eq!(query(text).unwrap_err().to_string(), message, "{text}");
        }
    }
}
