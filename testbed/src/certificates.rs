//! Throwaway certification authorities and certificates of theirs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SignatureAlgorithm,
    date_time_ymd,
};

use crate::error::Result;
use crate::folder::Folder;

/// A certification authority of its own.
#[derive(Debug)]
pub struct Authority {
    folder: Arc<Folder>,
    issuer: Issuer<'static, KeyPair>,
    ca_path: PathBuf,
}

/// What an authority's key is, and so by which algorithm its certificates are signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA on P-256 with SHA-256.
    P256,
    /// ECDSA on P-384 with SHA-384.
    P384,
    /// Ed25519.
    Ed25519,
}

/// When a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// Now, and for long.
    Now,
    /// Until the end of 2020.
    Past,
    /// From 2100 on.
    Future,
}

/// A certificate and its key, as PEM files.
#[derive(Debug, Clone)]
pub struct Issued {
    _folder: Arc<Folder>,
    cert_path: PathBuf,
    key_path: PathBuf,
    cert: String,
    key: String,
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Errors
    /// When a key cannot be made or a file not be written.
    pub fn new(name: &str) -> Result<Authority> {
        Authority::of_kind(name, KeyKind::P256)
    }

    /// Makes an authority that signs in another way.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_kind(name: &str, kind: KeyKind) -> Result<Authority> {
        let algorithm: &SignatureAlgorithm = match kind {
            KeyKind::P256 => &PKCS_ECDSA_P256_SHA256,
            KeyKind::P384 => &PKCS_ECDSA_P384_SHA384,
            KeyKind::Ed25519 => &PKCS_ED25519,
        };
        let key = KeyPair::generate_for(algorithm)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        let folder = Folder::new("certificates-")?;
        Ok(Authority {
            ca_path: folder.write("ca.pem", &certificate.pem(), 0o644)?,
            issuer: Issuer::new(params, key),
            folder: Arc::new(folder),
        })
    }

    /// The authority's certificate: for `sslrootcert` and the like.
    pub fn ca_path(&self) -> &Path {
        &self.ca_path
    }

    /// Issues a server certificate for host names or addresses.
    ///
    /// # Errors
    /// When a name is malformed, a key cannot be made or a file not be written.
    pub fn server(&self, names: &[&str]) -> Result<Issued> {
        self.server_valid(names, Validity::Now)
    }

    /// Issues a server certificate that may be out of its time.
    ///
    /// # Errors
    /// As [`server`](Self::server).
    pub fn server_valid(&self, names: &[&str], validity: Validity) -> Result<Issued> {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        match validity {
            Validity::Now => {}
            Validity::Past => {
                params.not_before = date_time_ymd(2020, 1, 1);
                params.not_after = date_time_ymd(2020, 12, 31);
            }
            Validity::Future => {
                params.not_before = date_time_ymd(2100, 1, 1);
                params.not_after = date_time_ymd(2100, 12, 31);
            }
        }
        params
            .distinguished_name
            .push(DnType::CommonName, "walrelay test server");
        self.issue(params)
    }

    /// Issues a client certificate whose common name is `user`.
    ///
    /// # Errors
    /// When a key cannot be made or a file not be written.
    pub fn client(&self, user: &str) -> Result<Issued> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    /// As [`client`](Self::client), with an organisation in the subject, by which a server's list tells it from another.
    ///
    /// # Errors
    /// As [`client`](Self::client).
    pub fn client_of(&self, organisation: &str, user: &str) -> Result<Issued> {
        let mut params = CertificateParams::new(Vec::new())?;
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, organisation);
        name.push(DnType::CommonName, user);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Result<Issued> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let (cert, key) = (certificate.pem(), key.serialize_pem());
        let name = uuid::Uuid::new_v4().simple().to_string();
        Ok(Issued {
            cert_path: self.folder.write(&format!("{name}.pem"), &cert, 0o644)?,
            key_path: self.folder.write(&format!("{name}.key"), &key, 0o600)?,
            cert,
            key,
            _folder: Arc::clone(&self.folder),
        })
    }
}

impl Issued {
    /// The certificate's file.
    pub fn certificate_path(&self) -> &Path {
        &self.cert_path
    }

    /// The key's file, readable by the tests' user only.
    pub fn key_path(&self) -> &Path {
        &self.key_path
    }

    /// The certificate.
    pub fn certificate_pem(&self) -> &str {
        &self.cert
    }

    /// The key, as PKCS#8.
    pub fn key_pem(&self) -> &str {
        &self.key
    }
}

/// A certification authority of its own, and a server certificate of it.
#[derive(Debug, Clone)]
pub struct Certificates {
    authority: Arc<Authority>,
    server: Issued,
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
        Certificates::of(Authority::new("walrelay test authority")?, names)
    }

    /// A server certificate of an authority's.
    ///
    /// # Errors
    /// As [`for_names`](Self::for_names).
    pub fn of(authority: Authority, names: &[&str]) -> Result<Certificates> {
        let server = authority.server(names)?;
        Ok(Certificates {
            authority: Arc::new(authority),
            server,
        })
    }

    /// The authority, for further certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The authority's certificate: for `sslrootcert` and the like.
    pub fn ca_path(&self) -> &Path {
        self.authority.ca_path()
    }

    /// The server's certificate.
    pub fn server_cert_path(&self) -> &Path {
        self.server.certificate_path()
    }

    /// The server's private key, readable by the tests' user only.
    pub fn server_key_path(&self) -> &Path {
        self.server.key_path()
    }

    pub(crate) fn server(&self) -> &Issued {
        &self.server
    }
}
