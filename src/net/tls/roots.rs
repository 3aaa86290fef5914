//! Whom to trust: the system's roots, or those of one file and no others.

use std::io;
use std::path::PathBuf;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{Error as RustlsError, RootCertStore};

use crate::credential;

/// Where trusted roots come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootSource {
    /// The operating system's store (`SSL_CERT_FILE` and `SSL_CERT_DIR` override it).
    System,
    /// A PEM file with one or more certificates; the system's are not trusted then.
    File(PathBuf),
}

/// Why there are no roots.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// The file with root certificates cannot be read.
    #[error("cannot read the root certificates in {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not PEM.
    #[error("{} is not a PEM file of certificates", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the PEM parser met.
        #[source]
        source: pem::Error,
    },
    /// The file holds no certificate.
    #[error("{} holds no certificate (-----BEGIN CERTIFICATE-----)", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A certificate in the file cannot serve as a root.
    #[error("certificate {number} in {} cannot be used as a root", path.display())]
    Unusable {
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
    System {
        /// The first error met while loading them.
        #[source]
        source: Option<rustls_native_certs::Error>,
    },
}

impl RootSource {
    /// Reads the roots.
    pub(super) fn load(&self) -> Result<Roots, RootsError> {
        match self {
            Self::System => system_roots(),
            Self::File(path) => file_roots(path.clone()),
        }
    }
}

/// Trusted roots.
#[derive(Debug)]
pub(super) struct Roots {
    pub(super) store: RootCertStore,
    /// The certificates of the file, where one was named.
    pub(super) named: Vec<CertificateDer<'static>>,
}

fn system_roots() -> Result<Roots, RootsError> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(loaded.certs);
    if usable == 0 {
        return Err(RootsError::System {
            source: loaded.errors.into_iter().next(),
        });
    }
    Ok(Roots {
        store,
        named: Vec::new(),
    })
}

fn file_roots(path: PathBuf) -> Result<Roots, RootsError> {
    let bytes = match credential::read(&path) {
        Ok(bytes) => bytes,
        Err(source) => return Err(RootsError::Unreadable { path, source }),
    };
    let (mut store, mut named) = (RootCertStore::empty(), Vec::new());
    for (index, certificate) in CertificateDer::pem_slice_iter(&bytes).enumerate() {
        let certificate = match certificate {
            Ok(certificate) => certificate,
            Err(source) => return Err(RootsError::Malformed { path, source }),
        };
        named.push(certificate.clone());
        if let Err(source) = store.add(certificate) {
            return Err(RootsError::Unusable {
                path,
                number: index + 1,
                source,
            });
        }
    }
    if store.is_empty() {
        return Err(RootsError::Empty { path });
    }
    Ok(Roots { store, named })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots_from(content: &str) -> Result<Roots, RootsError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root.crt");
        std::fs::write(&path, content).unwrap();
        RootSource::File(path).load()
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = RootSource::File(PathBuf::from("/nowhere/root.crt"))
            .load()
            .unwrap_err();
        assert!(matches!(error, RootsError::Unreadable { .. }), "{error:?}");
        assert!(error.to_string().contains("/nowhere/root.crt"), "{error}");
    }

    #[test]
    fn a_file_without_certificate_is_refused() {
        for content in [
            "",
            "hello\n",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            let error = roots_from(content).unwrap_err();
            assert!(
                matches!(error, RootsError::Empty { .. }),
                "{content:?}: {error:?}"
            );
        }
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let cut = roots_from("-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err();
        assert!(matches!(cut, RootsError::Malformed { .. }), "{cut:?}");
        let nonsense =
            roots_from("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap_err();
        assert!(
            matches!(nonsense, RootsError::Unusable { number: 1, .. }),
            "{nonsense:?}"
        );
    }
}
