//! Somebody in between who holds a certificate that we trust, ends our TLS and speaks TLS of its own with PostgreSQL.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use walrelay::net::tls::{TlsVerification, handshake};
use walrelay_testbed::Issued;

/// SSLRequest (<https://www.postgresql.org/docs/current/protocol-message-formats.html>).
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];

/// Passes everything on, decrypted in between; ends on drop.
pub(super) struct Impostor {
    port: u16,
    task: JoinHandle<()>,
}

impl Impostor {
    /// Stands before the server at `target`, with a certificate of its own.
    pub(super) async fn start(target: u16, certificate: &Issued) -> Result<Self> {
        let chain = CertificateDer::pem_slice_iter(certificate.certificate_pem().as_bytes());
        let key = PrivateKeyDer::from_pem_slice(certificate.key_pem().as_bytes())?;
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain.collect::<Result<_, _>>()?, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(pass_on(socket, target, acceptor.clone()));
            }
        });
        Ok(Self { port, task })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(mut ours: TcpStream, target: u16, acceptor: TlsAcceptor) -> Result<()> {
    let mut request = [0; 8];
    ours.read_exact(&mut request).await?;
    ours.write_all(b"S").await?;
    let mut ours = acceptor.accept(ours).await?;

    let mut theirs = TcpStream::connect(("127.0.0.1", target)).await?;
    theirs.write_all(&SSL_REQUEST).await?;
    let answer = theirs.read_u8().await?;
    (answer == b'S').then_some(()).context("no TLS")?;
    let mut theirs = handshake(&TlsVerification::None.into(), "localhost", theirs).await?;
    copy_bidirectional(&mut ours, &mut theirs).await?;
    Ok(())
}
