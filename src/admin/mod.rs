//! The HTTP endpoint: `/livez`, `/readyz` and `/metrics`. It only reads the relay's status.

pub mod client;
mod health;
mod metrics;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::fault::FaultKind;
use crate::relay::Status;

/// The pause before the next try to get the address.
const RETRY: Duration = Duration::from_secs(1);

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

/// Serves until the listener fails.
///
/// # Errors
/// What the listener reports.
pub async fn serve(listener: TcpListener, status: Watched) -> io::Result<()> {
    let router = Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(status);
    axum::serve(listener, router).await
}

async fn livez(State(status): State<Watched>) -> Response {
    let alive = health::is_alive(&status.borrow());
    if alive {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the relay's loop stands still\n")
    }
    .into_response()
}

async fn readyz(State(status): State<Watched>) -> Response {
    let (ready, body) = health::readiness(&status.borrow());
    let code = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (code, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn metrics_text(State(status): State<Watched>) -> Response {
    match metrics::encode(&status.borrow()) {
        Ok(body) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], body).into_response(),
        Err(error) => {
            tracing::error!(error = %error, "cannot write metrics");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
