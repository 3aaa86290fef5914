//! Why there is no TLS connection: each cause in words of its own.

use std::fmt;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error as RustlsError};

use super::identity::IdentityError;
use super::roots::RootsError;

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The trusted roots cannot be had.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// Our own certificate or its key cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The TLS library refuses the settings.
    #[error("cannot set TLS up")]
    Setup(#[source] RustlsError),
    /// The host is neither a DNS name nor an address, so no certificate can be for it.
    #[error("`{host}` is not a host name that a certificate can be checked for")]
    ServerName {
        /// The host as configured.
        host: String,
        /// Why not.
        #[source]
        source: rustls::pki_types::InvalidDnsNameError,
    },
    /// No known root has signed the server's certificate.
    #[error("the certificate of {host} is not signed by a trusted root")]
    UnknownIssuer {
        /// The server's name.
        host: String,
        /// The verifier's error.
        #[source]
        source: RustlsError,
    },
    /// The certificate is for other names.
    #[error("the certificate of {host} is for another name: {}", Names(.names))]
    NameMismatch {
        /// The name that was looked for.
        host: String,
        /// The names in the certificate.
        names: Vec<String>,
    },
    /// The certificate has run out.
    #[error("the certificate of {host} has expired{} (renew it there; if it is valid, check the clock here)", Ended(.not_after))]
    Expired {
        /// The server's name.
        host: String,
        /// The end of its time.
        not_after: Option<UnixTime>,
    },
    /// The certificate is not valid yet.
    #[error("the certificate of {host} is not valid yet{} (check the clock)", Begins(.not_before))]
    NotYetValid {
        /// The server's name.
        host: String,
        /// The begin of its time.
        not_before: Option<UnixTime>,
    },
    /// Anything else wrong with the certificate.
    #[error("the certificate of {host} cannot be accepted")]
    Certificate {
        /// The server's name.
        host: String,
        /// The verifier's error.
        #[source]
        source: RustlsError,
    },
    /// What answers does not speak TLS.
    #[error("what answers at {host} does not speak TLS on this port")]
    NotTls {
        /// The server's name.
        host: String,
        /// What the TLS library met.
        #[source]
        source: RustlsError,
    },
    /// The server wants a certificate of ours, and we have shown none.
    #[error("{host} demands a client certificate, and none is configured")]
    ClientCertificateRequired {
        /// The server's name.
        host: String,
        /// The server's alert.
        #[source]
        source: RustlsError,
    },
    /// The server does not take the certificate that we have shown.
    #[error("{host} refuses our client certificate")]
    ClientCertificateRefused {
        /// The server's name.
        host: String,
        /// The server's alert.
        #[source]
        source: RustlsError,
    },
    /// The handshake failed for another reason than a certificate.
    #[error("TLS handshake with {host} failed")]
    Handshake {
        /// The server's name.
        host: String,
        /// The TLS library's error.
        #[source]
        source: RustlsError,
    },
    /// The connection broke during the handshake.
    #[error("the connection to {host} broke during the TLS handshake")]
    Io {
        /// The server's name.
        host: String,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

impl TlsError {
    /// Sorts what ended a handshake with `host`.
    pub(super) fn of_handshake(host: &str, error: io::Error) -> Self {
        let host = host.to_owned();
        let source = match error.downcast::<RustlsError>() {
            Ok(source) => source,
            Err(source) => return Self::Io { host, source },
        };
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is non-exhaustive and long"
        )]
        match source {
            RustlsError::InvalidCertificate(certificate) => Self::of_certificate(host, certificate),
            // A record of an unknown type: something else than TLS was said.
            RustlsError::InvalidMessage(_) => Self::NotTls { host, source },
            RustlsError::AlertReceived(alert) => Self::of_alert(host, alert, source),
            _ => Self::Handshake { host, source },
        }
    }

    /// What a server has against our certificate, where an error that came after the handshake is that: with TLS 1.3 the
    /// client has ended the handshake before the server has looked at its certificate (RFC 8446, section 4.4.2).
    ///
    /// # Errors
    /// The error itself, where it is anything else.
    pub fn of_session(host: &str, error: io::Error) -> Result<Self, io::Error> {
        let alert = match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(RustlsError::AlertReceived(alert)) => *alert,
            _ => return Err(error),
        };
        let source = RustlsError::AlertReceived(alert);
        Ok(Self::of_alert(host.to_owned(), alert, source))
    }

    /// Whether it is about our own certificate.
    #[must_use]
    pub const fn is_about_us(&self) -> bool {
        matches!(
            self,
            Self::Identity(_)
                | Self::ClientCertificateRequired { .. }
                | Self::ClientCertificateRefused { .. }
        )
    }

    fn of_certificate(host: String, certificate: CertificateError) -> Self {
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is non-exhaustive and long"
        )]
        match certificate {
            // A bad signature is how another authority of the same name shows, such as one that was made anew.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownIssuer {
                host,
                source: RustlsError::InvalidCertificate(certificate),
            },
            CertificateError::NotValidForName => Self::NameMismatch {
                host,
                names: Vec::new(),
            },
            CertificateError::NotValidForNameContext { presented, .. } => Self::NameMismatch {
                host,
                names: presented.iter().map(|name| plain_name(name)).collect(),
            },
            CertificateError::Expired => Self::Expired {
                host,
                not_after: None,
            },
            CertificateError::ExpiredContext { not_after, .. } => Self::Expired {
                host,
                not_after: Some(not_after),
            },
            CertificateError::NotValidYet => Self::NotYetValid {
                host,
                not_before: None,
            },
            CertificateError::NotValidYetContext { not_before, .. } => Self::NotYetValid {
                host,
                not_before: Some(not_before),
            },
            certificate => Self::Certificate {
                host,
                source: RustlsError::InvalidCertificate(certificate),
            },
        }
    }

    /// Alerts that mean our certificate (RFC 8446, section 6.2).
    fn of_alert(host: String, alert: AlertDescription, source: RustlsError) -> Self {
        #[allow(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is non-exhaustive and long"
        )]
        match alert {
            AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
                Self::ClientCertificateRequired { host, source }
            }
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied => Self::ClientCertificateRefused { host, source },
            _ => Self::Handshake { host, source },
        }
    }
}

/// `DnsName("db.example")` and `IpAddress(10.0.0.1)` of the verifier as people write them.
fn plain_name(presented: &str) -> String {
    let inner = presented
        .split_once('(')
        .and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(presented).trim_matches('"').to_owned()
}

struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("it names none among its subject alternative names"),
            names => write!(f, "it names {}", names.join(", ")),
        }
    }
}

struct Ended<'a>(&'a Option<UnixTime>);

impl fmt::Display for Ended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .map_or(Ok(()), |time| write!(f, ": it was valid until {}", At(time)))
    }
}

struct Begins<'a>(&'a Option<UnixTime>);

impl fmt::Display for Begins<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .map_or(Ok(()), |time| write!(f, ": it begins at {}", At(time)))
    }
}

struct At(UnixTime);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNIX_EPOCH.checked_add(Duration::from_secs(self.0.as_secs())) {
            Some(time) => humantime::format_rfc3339_seconds(time).fmt(f),
            None => write!(f, "second {}", self.0.as_secs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::chain;

    fn said(error: RustlsError) -> String {
        chain(&TlsError::of_handshake("db", io::Error::other(error)))
    }

    #[test]
    fn certificate_errors_are_told_apart() {
        let of = |certificate| said(RustlsError::InvalidCertificate(certificate));
        for unknown in [CertificateError::UnknownIssuer, CertificateError::BadSignature] {
            let text = of(unknown);
            assert!(
                text.starts_with("the certificate of db is not signed by a trusted root"),
                "{text}"
            );
        }
        assert_eq!(
            of(CertificateError::NotValidForNameContext {
                expected: "db".try_into().unwrap(),
                presented: vec!["DnsName(\"a.example\")".into(), "IpAddress(10.0.0.1)".into()],
            }),
            "the certificate of db is for another name: it names a.example, 10.0.0.1"
        );
        assert_eq!(
            of(CertificateError::NotValidForName),
            "the certificate of db is for another name: it names none among its subject alternative names"
        );
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        assert_eq!(
            of(CertificateError::ExpiredContext {
                time: at(2_000_000_000),
                not_after: at(1_700_000_000),
            }),
            "the certificate of db has expired: it was valid until 2023-11-14T22:13:20Z (renew it there; if it is valid, \
             check the clock here)"
        );
        assert_eq!(
            of(CertificateError::NotValidYetContext {
                time: at(0),
                not_before: at(1_700_000_000),
            }),
            "the certificate of db is not valid yet: it begins at 2023-11-14T22:13:20Z (check the clock)"
        );
        assert!(of(CertificateError::Revoked).starts_with("the certificate of db cannot be accepted: "));
    }

    #[test]
    fn other_failures_of_a_handshake_keep_their_cause() {
        let text = said(RustlsError::AlertReceived(AlertDescription::ProtocolVersion));
        assert!(text.starts_with("TLS handshake with db failed: "), "{text}");
        let text = said(RustlsError::InvalidMessage(
            rustls::InvalidMessage::InvalidContentType,
        ));
        assert!(
            text.starts_with("what answers at db does not speak TLS"),
            "{text}"
        );
        let broken = TlsError::of_handshake("db", io::ErrorKind::ConnectionReset.into());
        assert!(matches!(broken, TlsError::Io { .. }), "{broken:?}");
    }

    #[test]
    fn an_alert_after_the_handshake_is_about_our_certificate() {
        let alert = |alert| io::Error::other(RustlsError::AlertReceived(alert));
        let required = TlsError::of_session("db", alert(AlertDescription::CertificateRequired)).unwrap();
        assert!(matches!(required, TlsError::ClientCertificateRequired { .. }));
        let refused = TlsError::of_session("db", alert(AlertDescription::UnknownCA)).unwrap();
        assert!(matches!(refused, TlsError::ClientCertificateRefused { .. }) && refused.is_about_us());
        let other = TlsError::of_session("db", io::ErrorKind::BrokenPipe.into()).unwrap_err();
        assert_eq!(other.kind(), io::ErrorKind::BrokenPipe);
    }
}
