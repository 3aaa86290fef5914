//! TLS for both servers: how far the server is checked, what we show of ourselves, and errors that say what is wrong.
//!
//! The ring provider is passed explicitly, so no process-wide default has to be installed.

mod end_point;
mod error;
mod identity;
mod roots;
mod verifier;

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::stream::Stream;

pub(super) use self::end_point::server_end_point;
pub use error::TlsError;
pub use identity::{Identity, IdentityError};
pub use roots::{RootSource, RootsError};
use verifier::Verifier;

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

/// How TLS is spoken with a server. Only places are kept: every file is read anew at each handshake, so that a replaced
/// one takes effect at the next connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// How far its certificate is checked.
    pub verification: TlsVerification,
    /// What is shown where the server asks for a certificate.
    pub identity: Option<Identity>,
    /// The name that its certificate is checked for and that it is told (SNI), where that is not the host.
    pub server_name: Option<String>,
}

impl From<TlsVerification> for TlsSettings {
    /// With nothing to show.
    fn from(verification: TlsVerification) -> Self {
        Self {
            verification,
            identity: None,
            server_name: None,
        }
    }
}

/// Runs the TLS handshake over a connected socket; `host` is what the certificate is checked for unless the settings
/// name another one.
///
/// Cancel safety: dropping the future closes the socket.
///
/// # Errors
/// [`TlsError`]: a file is missing or unusable, a certificate was not accepted, or the handshake or the connection failed.
pub async fn handshake(settings: &TlsSettings, host: &str, socket: TcpStream) -> Result<Stream, TlsError> {
    // The system's roots are some hundred files, too many to read on the relay's own thread.
    let read = settings.clone();
    let built = tokio::task::spawn_blocking(move || client_config(&read)).await;
    let config = built.map_err(|error| TlsError::Io {
        host: host.to_owned(),
        source: error.into(),
    })??;
    let host = settings.server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(host.to_owned()).map_err(|source| TlsError::ServerName {
        host: host.to_owned(),
        source,
    })?;
    match TlsConnector::from(config).connect(name, socket).await {
        Ok(stream) => Ok(Stream::Tls(Box::new(stream))),
        Err(error) => Err(TlsError::of_handshake(host, error)),
    }
}

/// Builds a client configuration; reads all files.
fn client_config(settings: &TlsSettings) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Setup)?;
    let (roots, checks_name) = match &settings.verification {
        TlsVerification::None => (None, false),
        TlsVerification::Chain(source) => (Some(source.load()?), false),
        TlsVerification::Full(source) => (Some(source.load()?), true),
    };
    let builder = builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier {
            provider: Arc::clone(&provider),
            roots,
            checks_name,
        }));
    let config = match &settings.identity {
        Some(identity) => {
            let certified = identity.load(&provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn encryption_without_verification_needs_no_root() {
        client_config(&TlsVerification::None.into()).unwrap();
    }

    #[test]
    fn verification_reads_its_roots() {
        let source = RootSource::File(PathBuf::from("/nowhere/root.crt"));
        for verification in [
            TlsVerification::Full(source.clone()),
            TlsVerification::Chain(source.clone()),
        ] {
            let error = client_config(&verification.into()).unwrap_err();
            assert!(
                matches!(error, TlsError::Roots(RootsError::Unreadable { .. })),
                "{error:?}"
            );
        }
    }
}
