//! TLS for both servers: how far the certificate is checked, and errors that say what is wrong with it.
//!
//! The ring provider is passed explicitly, so no process-wide default has to be installed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as RustlsError, RootCertStore,
    SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::stream::Stream;

/// How far a server's certificate is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsVerification {
    /// Encryption only: any certificate will do, as with libpq's `sslmode=require` without a root certificate.
    None,
    /// The chain must end in a known root; the name is not compared (libpq's `verify-ca`).
    Chain(RootSource),
    /// The chain must end in a known root and the certificate must be for the host (libpq's `verify-full`).
    Full(RootSource),
}

/// Where trusted roots come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// The operating system's store (`SSL_CERT_FILE` and `SSL_CERT_DIR` override it).
    System,
    /// A PEM file with one or more certificates.
    File(PathBuf),
}

/// Why there is no TLS connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file with root certificates cannot be read.
    #[error("cannot read the root certificates in {}", path.display())]
    RootFileUnreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{} is not a PEM file of certificates", path.display())]
    RootFileMalformed {
        /// The file.
        path: PathBuf,
        /// What the PEM parser met.
        #[source]
        source: pem::Error,
    },
    /// The file holds no certificate.
    #[error("{} holds no certificate (-----BEGIN CERTIFICATE-----)", path.display())]
    RootFileEmpty {
        /// The file.
        path: PathBuf,
    },
    /// A certificate in the file cannot serve as a root.
    #[error("certificate {number} in {} cannot be used as a root", path.display())]
    RootUnusable {
        /// The file.
        path: PathBuf,
        /// Which certificate of the file, counted from 1.
        number: usize,
        /// Why not.
        #[source]
        source: RustlsError,
    },
    /// The system has no root certificates.
    #[error("the system has no usable root certificates (install ca-certificates, or name a file)")]
    SystemRoots {
        /// The first error met while loading them.
        #[source]
        source: Option<rustls_native_certs::Error>,
    },
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
    /// The certificate is for another name.
    #[error("the certificate of {host} is for another name")]
    NameMismatch {
        /// The server's name.
        host: String,
        /// The verifier's error, which lists the names.
        #[source]
        source: RustlsError,
    },
    /// The certificate has run out.
    #[error("the certificate of {host} has expired")]
    Expired {
        /// The server's name.
        host: String,
        /// The verifier's error.
        #[source]
        source: RustlsError,
    },
    /// The certificate is not valid yet.
    #[error("the certificate of {host} is not valid yet (check the clock)")]
    NotYetValid {
        /// The server's name.
        host: String,
        /// The verifier's error.
        #[source]
        source: RustlsError,
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
    /// The handshake failed for another reason than the certificate.
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

/// Builds a client configuration; reads the roots.
fn client_config(verification: &TlsVerification) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let config = match verification {
        TlsVerification::Full(source) => builder
            .with_root_certificates(load_roots(source)?)
            .with_no_client_auth(),
        TlsVerification::Chain(source) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Lenient {
                provider,
                roots: Some(load_roots(source)?),
            }))
            .with_no_client_auth(),
        TlsVerification::None => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Lenient {
                provider,
                roots: None,
            }))
            .with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

/// Runs the TLS handshake over a connected socket; `host` is what the certificate is checked for. The roots are read
/// anew each time, so that a replaced file takes effect at the next connection.
///
/// Cancel safety: dropping the future closes the socket.
///
/// # Errors
/// [`TlsError`]: the roots are missing or unusable, the certificate was not accepted, or the handshake or the connection
/// failed.
pub async fn handshake(
    verification: &TlsVerification,
    host: &str,
    socket: TcpStream,
) -> Result<Stream, TlsError> {
    // The system's roots are some hundred files, too many to read on the relay's own thread.
    let verification = verification.clone();
    let built = tokio::task::spawn_blocking(move || client_config(&verification)).await;
    let config = built.map_err(|error| TlsError::Io {
        host: host.to_owned(),
        source: error.into(),
    })??;
    let name = ServerName::try_from(host.to_owned()).map_err(|source| TlsError::ServerName {
        host: host.to_owned(),
        source,
    })?;
    match TlsConnector::from(config).connect(name, socket).await {
        Ok(stream) => Ok(Stream::Tls(Box::new(stream))),
        Err(error) => Err(classify(host, error)),
    }
}

fn classify(host: &str, error: io::Error) -> TlsError {
    let host = host.to_owned();
    let source = match error.downcast::<RustlsError>() {
        Ok(source) => source,
        Err(source) => return TlsError::Io { host, source },
    };
    let RustlsError::InvalidCertificate(certificate) = &source else {
        return TlsError::Handshake { host, source };
    };
    #[allow(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is non-exhaustive and long"
    )]
    match certificate {
        // A bad signature is how another authority of the same name shows, such as one that was made anew.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            TlsError::UnknownIssuer { host, source }
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsError::NameMismatch { host, source }
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            TlsError::Expired { host, source }
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsError::NotYetValid { host, source }
        }
        _ => TlsError::Certificate { host, source },
    }
}

fn load_roots(source: &RootSource) -> Result<RootCertStore, TlsError> {
    match source {
        RootSource::System => system_roots(),
        RootSource::File(path) => file_roots(path.clone()),
    }
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (usable, _) = roots.add_parsable_certificates(loaded.certs);
    if usable == 0 {
        return Err(TlsError::SystemRoots {
            source: loaded.errors.into_iter().next(),
        });
    }
    Ok(roots)
}

fn file_roots(path: PathBuf) -> Result<RootCertStore, TlsError> {
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(TlsError::RootFileUnreadable { path, source }),
    };
    let mut roots = RootCertStore::empty();
    for (index, certificate) in CertificateDer::pem_slice_iter(&bytes).enumerate() {
        let certificate = match certificate {
            Ok(certificate) => certificate,
            Err(source) => return Err(TlsError::RootFileMalformed { path, source }),
        };
        if let Err(source) = roots.add(certificate) {
            return Err(TlsError::RootUnusable {
                path,
                number: index + 1,
                source,
            });
        }
    }
    if roots.is_empty() {
        return Err(TlsError::RootFileEmpty { path });
    }
    Ok(roots)
}

/// Checks less than rustls would: the chain only, or nothing. The handshake's signatures are always checked, so
/// the peer at least holds the key of the certificate it shows.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    roots: Option<RootCertStore>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        if let Some(roots) = &self.roots {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(end_entity)?,
                roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots_from(content: &str) -> Result<RootCertStore, TlsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root.crt");
        std::fs::write(&path, content).unwrap();
        load_roots(&RootSource::File(path))
    }

    #[test]
    fn encryption_without_verification_needs_no_root() {
        client_config(&TlsVerification::None).unwrap();
    }

    #[test]
    fn a_missing_root_file_is_named() {
        let source = RootSource::File(PathBuf::from("/nowhere/root.crt"));
        for verification in [
            TlsVerification::Full(source.clone()),
            TlsVerification::Chain(source.clone()),
        ] {
            let error = client_config(&verification).unwrap_err();
            assert!(matches!(error, TlsError::RootFileUnreadable { .. }), "{error:?}");
            assert!(error.to_string().contains("/nowhere/root.crt"), "{error}");
        }
    }

    #[test]
    fn a_root_file_without_certificate_is_refused() {
        for content in [
            "",
            "hello\n",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let error = roots_from(content).unwrap_err();
            assert!(
                matches!(error, TlsError::RootFileEmpty { .. }),
                "{content:?}: {error:?}"
            );
        }
    }

    #[test]
    fn a_damaged_root_file_is_refused() {
        let cut = roots_from("-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err();
        assert!(matches!(cut, TlsError::RootFileMalformed { .. }), "{cut:?}");
        let nonsense =
            roots_from("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap_err();
        assert!(
            matches!(nonsense, TlsError::RootUnusable { number: 1, .. }),
            "{nonsense:?}"
        );
    }

    #[test]
    fn certificate_errors_are_told_apart() {
        let of = |certificate| {
            classify(
                "db",
                io::Error::other(RustlsError::InvalidCertificate(certificate)),
            )
            .to_string()
        };
        assert_eq!(
            of(CertificateError::UnknownIssuer),
            "the certificate of db is not signed by a trusted root"
        );
        assert_eq!(
            of(CertificateError::BadSignature),
            "the certificate of db is not signed by a trusted root"
        );
        assert_eq!(
            of(CertificateError::NotValidForName),
            "the certificate of db is for another name"
        );
        assert_eq!(of(CertificateError::Expired), "the certificate of db has expired");
        assert_eq!(
            of(CertificateError::NotValidYet),
            "the certificate of db is not valid yet (check the clock)"
        );
        assert_eq!(
            of(CertificateError::BadEncoding),
            "the certificate of db cannot be accepted"
        );
        let broken = classify("db", io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(broken, TlsError::Io { .. }), "{broken:?}");
    }
}
