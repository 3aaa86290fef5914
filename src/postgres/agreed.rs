//! A stream whose TLS is agreed on already, as tokio-postgres takes it: with what a login can be bound to.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{self, SslMode, SslNegotiation};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};

use super::url;
use crate::net::Stream;

/// "Connects" by taking the stream as it is.
pub(super) struct Agreed;

/// The stream and its `tls-server-end-point`.
pub(super) struct AgreedStream {
    stream: Stream,
    end_point: Option<Vec<u8>>,
}

impl Agreed {
    /// Has tokio-postgres ask for a connector's TLS without negotiating about it, and bind to it as the URL says.
    pub(super) fn configure(config: &mut tokio_postgres::Config, binding: url::ChannelBinding) {
        config
            .ssl_mode(SslMode::Require)
            .ssl_negotiation(SslNegotiation::Direct)
            .channel_binding(match binding {
                url::ChannelBinding::Disable => config::ChannelBinding::Disable,
                url::ChannelBinding::Prefer => config::ChannelBinding::Prefer,
                url::ChannelBinding::Require => config::ChannelBinding::Require,
            });
    }
}

impl TlsConnect<Stream> for Agreed {
    type Stream = AgreedStream;
    type Error = Infallible;
    type Future = Ready<Result<AgreedStream, Infallible>>;

    fn connect(self, stream: Stream) -> Self::Future {
        let end_point = stream.server_end_point();
        ready(Ok(AgreedStream { stream, end_point }))
    }
}

impl TlsStream for AgreedStream {
    fn channel_binding(&self) -> ChannelBinding {
        match &self.end_point {
            Some(end_point) => ChannelBinding::tls_server_end_point(end_point.clone()),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for AgreedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for AgreedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
