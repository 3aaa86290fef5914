//! Checks as much of the server's certificate as is asked for, as libpq would.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error as RustlsError, SignatureScheme};

use super::roots::Roots;

/// The chain is checked where there are roots, the name on demand. The handshake's signatures always are, so the peer at
/// least holds the key of the certificate it shows.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) roots: Option<Roots>,
    pub(super) checks_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let verified = verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &roots.store,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            );
            match verified {
                // The very certificate is trusted by name, as that of PostgreSQL's own instructions for a self-signed one
                // is: `openssl req -x509` calls it an authority. All that is checked of it before has held, its time too.
                Err(error) if is_authority(&error) && roots.named.contains(end_entity) => {}
                verified => verified?,
            }
            if self.checks_name {
                verify_server_name(&certificate, server_name)?;
            }
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

/// Whether a certificate is refused for the one reason that it is an authority's. The verifier's own error is not among
/// the TLS library's: it is told by its text.
fn is_authority(error: &RustlsError) -> bool {
    matches!(
        error,
        RustlsError::InvalidCertificate(CertificateError::Other(other)) if other.0.to_string() == "CaUsedAsEndEntity"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::pem::PemObject as _;
    use walrelay_testbed::Authority;

    use super::super::RootSource;
    use super::*;

    /// What is said of a server that shows an authority's own certificate.
    fn shown(
        authority: &Authority,
        trusted: &Authority,
        checks_name: bool,
        now: UnixTime,
    ) -> Result<(), RustlsError> {
        let certificate = CertificateDer::from_pem_file(authority.ca_path()).unwrap();
        let verifier = Verifier {
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            roots: Some(RootSource::File(trusted.ca_path().to_owned()).load().unwrap()),
            checks_name,
        };
        let name = ServerName::try_from("localhost").unwrap();
        verifier
            .verify_server_cert(&certificate, &[], &name, &[], now)
            .map(drop)
    }

    #[test]
    fn a_self_signed_certificate_is_trusted_where_it_is_named_itself() {
        let (own, other) = (Authority::new("own").unwrap(), Authority::new("own").unwrap());
        let now = UnixTime::now();
        shown(&own, &own, false, now).unwrap();
        assert!(shown(&own, &other, false, now).is_err());
        let for_no_host = shown(&own, &own, true, now).unwrap_err();
        assert!(
            matches!(
                for_no_host,
                RustlsError::InvalidCertificate(CertificateError::NotValidForNameContext { .. })
            ),
            "{for_no_host}"
        );
        let expired = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));
        assert!(shown(&own, &own, false, expired).is_err());
    }
}
