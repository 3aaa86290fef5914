//! Our own certificate and its key, shown to servers that ask for them.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error as RustlsError, InconsistentKeys};

use crate::credential;

/// Where our certificate and its key are; read at each handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A PEM file: our certificate first, then those that lead to its authority.
    pub certificate: PathBuf,
    /// A PEM file with the key, as PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key: PathBuf,
}

/// Why our certificate cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read the client {what} in {}", path.display())]
    Unreadable {
        /// Certificate or key.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// A file is not PEM, or holds nothing of its kind.
    #[error("{} holds no client {what} that can be read (-----BEGIN {label}-----)", path.display())]
    Malformed {
        /// Certificate or key.
        what: &'static str,
        /// How it would begin.
        label: &'static str,
        /// The file.
        path: PathBuf,
        /// What the PEM parser met; for a key no more than its kind.
        #[source]
        source: Option<pem::Error>,
    },
    /// The key needs a passphrase.
    #[error("the client key in {} is encrypted: decrypt it (openssl pkey -in FILE -out FILE2)", path.display())]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// Others may read the key, so it is not used. libpq's own rule.
    /// <https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-CLIENTCERT>
    #[error(
        "the client key in {} is open to others (mode {mode:04o}): chmod 0600, or 0640 where root owns it",
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The key is not the one that the certificate is for.
    #[error("the client key in {} does not fit the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
    /// The TLS library cannot use the two.
    #[error("the client certificate in {} or the key in {} cannot be used", certificate.display(), key.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        #[source]
        source: RustlsError,
    },
}

impl Identity {
    /// Reads both files and sees whether they fit each other.
    pub(super) fn load(&self, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, IdentityError> {
        let chain = self.read_chain()?;
        let key = self.read_key()?;
        match CertifiedKey::from_der(chain, key, provider) {
            Ok(certified) => Ok(Arc::new(certified)),
            Err(RustlsError::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                Err(IdentityError::Mismatch {
                    certificate: self.certificate.clone(),
                    key: self.key.clone(),
                })
            }
            Err(source) => Err(IdentityError::Unusable {
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                source,
            }),
        }
    }

    fn read_chain(&self) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
        const WHAT: &str = "certificate";
        let bytes = read(WHAT, &self.certificate)?;
        let malformed = |source| IdentityError::Malformed {
            what: WHAT,
            label: "CERTIFICATE",
            path: self.certificate.clone(),
            source,
        };
        let chain = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|source| malformed(Some(source)))?;
        match chain.is_empty() {
            true => Err(malformed(None)),
            false => Ok(chain),
        }
    }

    fn read_key(&self) -> Result<PrivateKeyDer<'static>, IdentityError> {
        const WHAT: &str = "key";
        refuse_exposed(&self.key)?;
        let bytes = read(WHAT, &self.key)?;
        if is_encrypted(&bytes) {
            return Err(IdentityError::Encrypted {
                path: self.key.clone(),
            });
        }
        // The parser's error may repeat a line of the file: it is left out.
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|_| IdentityError::Malformed {
            what: WHAT,
            label: "PRIVATE KEY",
            path: self.key.clone(),
            source: None,
        })
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, IdentityError> {
    credential::read(path).map_err(|source| IdentityError::Unreadable {
        what,
        path: path.to_owned(),
        source,
    })
}

fn refuse_exposed(path: &Path) -> Result<(), IdentityError> {
    let metadata = credential::located(path).and_then(std::fs::metadata);
    let metadata = metadata.map_err(|source| IdentityError::Unreadable {
        what: "key",
        path: path.to_owned(),
        source,
    })?;
    match is_exposed(&metadata) {
        true => Err(IdentityError::Exposed {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
        }),
        false => Ok(()),
    }
}

/// Nothing for the group and others; reading by the group where root owns the file, as secrets are mounted.
fn is_exposed(metadata: &Metadata) -> bool {
    exposes(metadata.mode(), metadata.uid())
}

const fn exposes(mode: u32, owner: u32) -> bool {
    let forbidden = if owner == 0 { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

/// PKCS#8's own form, and OpenSSL's older header within the two others.
fn is_encrypted(pem: &[u8]) -> bool {
    let has = |needle: &[u8]| pem.windows(needle.len()).any(|window| window == needle);
    has(b"BEGIN ENCRYPTED PRIVATE KEY") || has(b"Proc-Type: 4,ENCRYPTED")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use tempfile::TempDir;
    use walrelay_testbed::Authority;

    use super::*;

    /// A certificate and its key as PKCS#8, in a folder of their own.
    fn identity() -> (TempDir, Identity) {
        let folder = tempfile::tempdir().unwrap();
        let issued = Authority::new("clients").unwrap().client("walrelay").unwrap();
        let identity = Identity {
            certificate: folder.path().join("client.pem"),
            key: folder.path().join("client.key"),
        };
        std::fs::write(&identity.certificate, issued.certificate_pem()).unwrap();
        write_key(&identity, issued.key_pem());
        (folder, identity)
    }

    fn write_key(identity: &Identity, pem: &str) {
        std::fs::write(&identity.key, pem).unwrap();
        std::fs::set_permissions(&identity.key, PermissionsExt::from_mode(0o600)).unwrap();
    }

    fn load(identity: &Identity) -> Result<Arc<CertifiedKey>, IdentityError> {
        identity.load(&rustls::crypto::ring::default_provider())
    }

    #[test]
    fn a_key_is_read_in_each_of_its_forms() {
        let (_folder, identity) = identity();
        load(&identity).unwrap();
        // SEC1 is what PKCS#8 wraps: behind version, algorithm and the octet string's header.
        let pkcs8 = std::fs::read(&identity.key).unwrap();
        let PrivateKeyDer::Pkcs8(der) = PrivateKeyDer::from_pem_slice(&pkcs8).unwrap() else {
            panic!("not PKCS#8");
        };
        let der = der.secret_pkcs8_der();
        let inner = der
            .windows(5)
            .rposition(|w| w[0] == 0x30 && w[2..] == [0x02, 0x01, 0x01])
            .unwrap();
        let sec1 = STANDARD.encode(&der[inner..]);
        write_key(
            &identity,
            &format!("-----BEGIN EC PRIVATE KEY-----\n{sec1}\n-----END EC PRIVATE KEY-----\n"),
        );
        load(&identity).unwrap();
    }

    #[test]
    fn an_rsa_key_is_read_as_pkcs1() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity {
            certificate: folder.path().join("client.pem"),
            key: folder.path().join("client.key"),
        };
        std::fs::write(&identity.certificate, include_str!("testdata/rsa.pem")).unwrap();
        write_key(&identity, include_str!("testdata/rsa-pkcs1.key"));
        load(&identity).unwrap();
    }

    #[test]
    fn a_key_of_another_certificate_is_told() {
        let (_folder, identity) = identity();
        let (_other_folder, other) = self::identity();
        write_key(&identity, &std::fs::read_to_string(&other.key).unwrap());
        let error = load(&identity).unwrap_err();
        assert!(matches!(error, IdentityError::Mismatch { .. }), "{error:?}");
        assert!(error.to_string().contains("client.key"), "{error}");
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let (_folder, identity) = identity();
        std::fs::set_permissions(&identity.key, PermissionsExt::from_mode(0o644)).unwrap();
        let error = load(&identity).unwrap_err();
        assert!(error.to_string().contains("(mode 0644)"), "{error}");
        for (mode, owner, exposed) in [
            (0o100_600, 1000, false),
            (0o100_400, 1000, false),
            (0o100_640, 1000, true),
            (0o100_640, 0, false),
            (0o100_440, 0, false),
            (0o100_660, 0, true),
            (0o100_604, 0, true),
        ] {
            assert_eq!(exposes(mode, owner), exposed, "{mode:o} of {owner}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told() {
        let (_folder, identity) = identity();
        for (pem, words) in [
            (
                "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n",
                "is encrypted",
            ),
            (
                "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n-----END RSA PRIVATE KEY-----\n",
                "is encrypted",
            ),
            ("hunter2\n", "holds no client key"),
            (
                "-----BEGIN PRIVATE KEY-----\n!hunter2\n-----END PRIVATE KEY-----\n",
                "holds no client key",
            ),
            (
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                "cannot be used",
            ),
        ] {
            write_key(&identity, pem);
            let text = crate::fault::chain(&load(&identity).unwrap_err());
            assert!(text.contains(words) && !text.contains("hunter2"), "{text}");
        }
        std::fs::remove_file(&identity.key).unwrap();
        let error = load(&identity).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot read the client key"),
            "{error}"
        );
        std::fs::write(&identity.certificate, "hello").unwrap();
        let error = load(&identity).unwrap_err();
        assert!(
            error.to_string().contains("holds no client certificate"),
            "{error}"
        );
    }
}
