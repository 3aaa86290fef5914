//! A throwaway certification authority and a server certificate of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::error::Result;
use crate::folder::Folder;

/// A certification authority of its own, and a server certificate with its key, as PEM.
#[derive(Debug, Clone)]
pub struct Certificates(Arc<Files>);

#[derive(Debug)]
struct Files {
    _folder: Folder,
    ca_path: PathBuf,
    cert_path: PathBuf,
    key_path: PathBuf,
    cert: String,
    key: String,
}

impl Certificates {
    /// Makes an authority and a certificate for `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    /// When a key cannot be made or a file not be written.
    pub fn generate() -> Result<Certificates> {
        Certificates::for_names(&["localhost", "127.0.0.1"])
    }

    /// Makes an authority and a certificate for the given host names or addresses, for tests of name checks.
    ///
    /// # Errors
    /// When a name is malformed, a key cannot be made or a file not be written.
    pub fn for_names(names: &[&str]) -> Result<Certificates> {
        let ca_key = KeyPair::generate()?;
        let mut ca = CertificateParams::new(Vec::new())?;
        ca.distinguished_name
            .push(DnType::CommonName, "walrelay test authority");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let ca_cert = ca.self_signed(&ca_key)?;
        let issuer = Issuer::from_params(&ca, ca_key);

        let server_key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut server = CertificateParams::new(names)?;
        server
            .distinguished_name
            .push(DnType::CommonName, "walrelay test server");
        let server_cert = server.signed_by(&server_key, &issuer)?;

        let folder = Folder::new("certificates-")?;
        let (cert, key) = (server_cert.pem(), server_key.serialize_pem());
        Ok(Certificates(Arc::new(Files {
            ca_path: folder.write("ca.pem", &ca_cert.pem(), 0o644)?,
            cert_path: folder.write("server.pem", &cert, 0o644)?,
            key_path: folder.write("server.key", &key, 0o600)?,
            cert,
            key,
            _folder: folder,
        })))
    }

    /// The authority's certificate: for `sslrootcert` and the like.
    pub fn ca_path(&self) -> &Path {
        &self.0.ca_path
    }

    /// The server's certificate.
    pub fn server_cert_path(&self) -> &Path {
        &self.0.cert_path
    }

    /// The server's private key, readable by the tests' user only.
    pub fn server_key_path(&self) -> &Path {
        &self.0.key_path
    }

    pub(crate) fn server_cert(&self) -> &str {
        &self.0.cert
    }

    pub(crate) fn server_key(&self) -> &str {
        &self.0.key
    }
}
