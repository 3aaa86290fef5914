//! The HTTP endpoint: `/livez`, `/readyz`, `/metrics`, `/status` and the status page. It only reads the relay's status.

mod access;
pub mod client;
mod health;
mod history;
pub(crate) mod metrics;
mod overview;
mod server;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use url::form_urlencoded;

use access::Access;
use history::History;

use crate::fault::FaultKind;
use crate::relay::Status;

/// The pause before the next try to get the address.
const RETRY: Duration = Duration::from_secs(1);

const JSON: [(header::HeaderName, &str); 1] = [(header::CONTENT_TYPE, "application/json")];

type Watched = watch::Receiver<Status>;

/// Binds the address, trying for as long as it takes: during a restart the predecessor may still hold it, and events
/// flow without an endpoint. Cancel safe.
pub async fn listen(address: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => error,
        };
        let kind = FaultKind::AdminUnbound;
        let (cause, remedy) = (kind.label(), kind.remedy());
        if told {
            tracing::debug!(cause, listen = %address, error = %error, "as before");
        } else {
            tracing::warn!(cause, listen = %address, error = %error, remedy, "no health endpoint");
            told = true;
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Serves for ever.
///
/// # Errors
/// None today: what a connection does is its own affair.
pub async fn serve(listener: TcpListener, status: Watched, token_file: Option<PathBuf>) -> io::Result<()> {
    let (history, samples) = watch::channel(History::default());
    tokio::spawn(history::sample(status.clone(), history));
    let guard = middleware::from_fn_with_state(Access::new(token_file), access::guard);
    let router = Router::new()
        .route("/", get(page))
        .route("/status", get(status_json))
        .route("/history", get(history_json))
        .route("/metrics", get(metrics_text))
        .route_layer(guard)
        // Whoever probes has no token, and learns no more than how things stand.
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(Sources { status, samples });
    server::serve(listener, router).await
}

/// What the answers are made of.
#[derive(Debug, Clone)]
struct Sources {
    status: Watched,
    samples: watch::Receiver<History>,
}

async fn livez(State(sources): State<Sources>) -> Response {
    let alive = health::is_alive(&sources.status.borrow());
    if alive {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the relay's loop stands still\n")
    }
    .into_response()
}

async fn readyz(State(sources): State<Sources>) -> Response {
    let status = sources.status.borrow();
    let readiness = health::readiness(&status);
    let body = overview::json(&readiness);
    let code = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, JSON, body).into_response()
}

async fn status_json(State(sources): State<Sources>) -> Response {
    let body = overview::overview(&sources.status.borrow(), &sources.samples.borrow());
    (JSON, body).into_response()
}

/// With `?since=` and a sample's `at`, only what came after it: the page asks for no sample twice.
async fn history_json(State(sources): State<Sources>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let since = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "since");
    let Ok(since) = since.map(|(_, since)| since.parse()).transpose() else {
        return (StatusCode::BAD_REQUEST, "since is no number of seconds\n").into_response();
    };
    (JSON, overview::samples(&sources.samples.borrow(), since)).into_response()
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        // Nothing from elsewhere, whatever a message from a server may contain.
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'",
        ),
    ];
    (headers, include_str!("page.html")).into_response()
}

async fn metrics_text(State(sources): State<Sources>) -> Response {
    match metrics::encode(&sources.status.borrow()) {
        Ok(body) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], body).into_response(),
        Err(error) => {
            tracing::error!(error = %error, "cannot write metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
