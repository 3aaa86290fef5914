//! Connections to the endpoint: few, short, and small, so that whoever is on the port cannot disturb delivery.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// More at once than probes and scrapers ever open. One more, and the oldest is closed: it is idle or slow, since an
/// answer takes no time.
const MAX_CONNECTIONS: usize = 64;

/// A request's first line and headers have to be complete by then.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection ends after this time, whatever it does.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a request's first line and headers, and of what is buffered of an answer; hyper takes no less.
const BUFFER: usize = 8 * 1024;

/// The pause after a connection could not be accepted, for lack of descriptors most likely.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves for ever.
pub(super) async fn serve(listener: TcpListener, router: Router) -> io::Result<()> {
    let mut connections: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(error = %error, "cannot accept a connection to the health endpoint");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let task = tokio::spawn(converse(stream, router.clone()));
        connections.push_back(task.abort_handle());
    }
}

async fn converse(stream: TcpStream, router: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BUFFER)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        // Garbage and hang-ups are the client's affair.
        Ok(Err(error)) => tracing::trace!(error = %error, "connection to the health endpoint failed"),
        Err(_) => tracing::trace!("connection to the health endpoint took too long"),
    }
}
