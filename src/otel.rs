//! Spans of publishes to an OpenTelemetry collector, by OTLP over HTTP (cargo feature `otel`).
//!
//! In a thread of its own: serialising spans must not take time from the relay's loop. The queue before it is bounded.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::{Receiver as Finished, channel as finish_line};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use axum::body::{Body, to_bytes};
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use tokio::sync::mpsc;
use url::Url;
use walrelay_engine::span::{Ending, PublishSpan};

use crate::net::tls::{RootSource, TlsVerification, handshake};
use crate::net::{Stream, connect_tcp};
use crate::repeats::{Repeats, Telling};

/// Spans that wait at most, and that go in one request at most.
const QUEUE: usize = 2048;
const BATCH: usize = 512;

/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);

/// The time for one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// How long the end of the process waits for the last spans.
const FAREWELL: Duration = Duration::from_secs(2);

/// An answer is a few bytes; more is none of a collector's.
const MAX_ANSWER: usize = 64 * 1024;

/// Where the collector takes traces, below the endpoint that is configured.
/// <https://opentelemetry.io/docs/specs/otlp/#otlphttp-request>
const PATH: &str = "v1/traces";

/// Why there is no exporter.
#[derive(Debug, thiserror::Error)]
pub enum OtelError {
    /// The endpoint is no URL.
    #[error("not a URL such as http://localhost:4318")]
    Url(#[source] url::ParseError),
    /// The endpoint is of another scheme, or names no host.
    #[error("not an http:// or https:// URL with a host")]
    Scheme,
    /// The exporter refuses the settings.
    #[error("set up the OTLP exporter")]
    Build(#[source] ExporterBuildError),
    /// No thread.
    #[error("start the exporter's thread")]
    Thread(#[source] io::Error),
}

/// The running exporter; it ends once every sender is gone.
#[derive(Debug)]
pub struct Exporter {
    finished: Finished<()>,
}

/// Where traces go by an endpoint of the configuration: its path, or the standard one where it has none.
///
/// # Errors
/// It is no URL of HTTP.
pub fn traces_url(endpoint: &str) -> Result<Url, OtelError> {
    let mut url = Url::parse(endpoint).map_err(OtelError::Url)?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(OtelError::Scheme);
    }
    if url.path() == "/" {
        url.set_path(PATH);
    }
    Ok(url)
}

/// Starts the exporter, and returns where it takes spans from.
///
/// # Errors
/// See [`OtelError`]. A collector that is away is none: spans are dropped meanwhile.
pub fn start(endpoint: &str, slot: &str) -> Result<(mpsc::Sender<PublishSpan>, Exporter), OtelError> {
    let mut exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(Client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(traces_url(endpoint)?)
        .with_timeout(REQUEST_LIMIT)
        .build()
        .map_err(OtelError::Build)?;
    exporter.set_resource(
        &Resource::builder()
            .with_service_name("walrelay")
            .with_attribute(KeyValue::new("walrelay.slot", slot.to_owned()))
            .build(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(OtelError::Thread)?;
    let (sender, spans) = mpsc::channel(QUEUE);
    let (finish, finished) = finish_line();
    thread::Builder::new()
        .name("otel".to_owned())
        .spawn(move || {
            runtime.block_on(export(&exporter, spans));
            // Nobody waits any more if the process is in a hurry.
            finish.send(()).ok();
        })
        .map_err(OtelError::Thread)?;
    Ok((sender, Exporter { finished }))
}

impl Exporter {
    /// Waits until the last spans are out, but not for long.
    pub fn finish(self) {
        if self.finished.recv_timeout(FAREWELL).is_err() {
            tracing::debug!("the last spans are not exported");
        }
    }
}

async fn export(exporter: &opentelemetry_otlp::SpanExporter, mut spans: mpsc::Receiver<PublishSpan>) {
    let mut told = Repeats::default();
    while let Some(first) = spans.recv().await {
        let mut batch = vec![data(first)];
        let deadline = tokio::time::Instant::now() + LINGER;
        while batch.len() < BATCH {
            match tokio::time::timeout_at(deadline, spans.recv()).await {
                Ok(Some(span)) => batch.push(data(span)),
                Ok(None) | Err(_) => break,
            }
        }
        let count = batch.len();
        let error = match tokio::time::timeout(REQUEST_LIMIT, exporter.export(batch)).await {
            Ok(Ok(())) => {
                told.over();
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer within the time allowed".to_owned(),
        };
        match told.note((), Instant::now()) {
            Telling::News => tracing::warn!(error, spans = count, "spans are not exported"),
            Telling::Repeated { repeated, seconds } => {
                tracing::warn!(error, repeated, seconds, "spans are still not exported");
            }
            Telling::Quiet => tracing::debug!(error, spans = count, "spans are not exported, as before"),
        }
    }
}

/// A span as the exporter takes it, named after the semantic conventions.
/// <https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/>
fn data(span: PublishSpan) -> SpanData {
    let parent = span.parent;
    // What the standard does not allow is left out: the span counts without it.
    let tracestate: TraceState = span.tracestate.parse().unwrap_or_default();
    let trace_flags = TraceFlags::new(parent.flags);
    let own = SpanId::from_bytes(fastrand::u64(1..).to_be_bytes());
    let failure = match span.ending {
        Ending::Confirmed => None,
        Ending::Returned => Some("returned"),
        Ending::Nacked => Some("nacked"),
        Ending::Unanswered => Some("unanswered"),
    };
    let mut attributes = vec![
        KeyValue::new("messaging.system", "rabbitmq"),
        KeyValue::new("messaging.operation.name", "publish"),
        KeyValue::new("messaging.operation.type", "send"),
        KeyValue::new("messaging.destination.name", span.exchange.clone()),
        KeyValue::new("messaging.rabbitmq.destination.routing_key", span.routing_key),
        KeyValue::new("messaging.message.id", span.message_id),
    ];
    attributes.extend(failure.map(|kind| KeyValue::new("error.type", kind)));
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(parent.trace_id),
            own,
            trace_flags,
            false,
            tracestate,
        ),
        parent_span_id: SpanId::from_bytes(parent.span_id),
        parent_span_is_remote: true,
        span_kind: SpanKind::Producer,
        name: format!("publish {}", span.exchange).into(),
        start_time: wall_clock(span.sent),
        end_time: wall_clock(span.ended),
        attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: failure.map_or(Status::Unset, Status::error),
        instrumentation_scope: InstrumentationScope::builder("walrelay")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    }
}

fn wall_clock(instant: Instant) -> SystemTime {
    let now = SystemTime::now();
    now.checked_sub(instant.elapsed()).unwrap_or(now)
}

/// HTTP over our own sockets and TLS, so that no second TLS stack comes along.
#[derive(Debug)]
struct Client;

impl HttpClient for Client {
    fn send_bytes<'client, 'sending>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sending>>
    where
        'client: 'sending,
        Self: 'sending,
    {
        Box::pin(send(request))
    }
}

async fn send(request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let (mut parts, body) = request.into_parts();
    let uri = std::mem::take(&mut parts.uri);
    let authority = uri.authority().ok_or("no host")?;
    let is_tls = uri.scheme_str() == Some("https");
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let deadline = tokio::time::Instant::now() + REQUEST_LIMIT;
    let socket = connect_tcp(host, port, deadline).await?;
    let stream = match is_tls {
        true => handshake(&TlsVerification::Full(RootSource::System).into(), host, socket).await?,
        false => Stream::Tcp(socket),
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    parts
        .headers
        .insert(HOST, HeaderValue::from_str(authority.as_str())?);
    parts.uri = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let answer = sender
        .send_request(Request::from_parts(parts, Body::from(body)))
        .await?;
    let (parts, body) = answer.into_parts();
    let body = to_bytes(Body::new(body), MAX_ANSWER).await?;
    connection.abort();
    Ok(Response::from_parts(parts, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_without_a_path_gets_the_standard_one() {
        for (endpoint, url) in [
            ("http://localhost:4318", "http://localhost:4318/v1/traces"),
            (
                "https://collector.example/",
                "https://collector.example/v1/traces",
            ),
            ("http://h/otlp/v1/traces", "http://h/otlp/v1/traces"),
        ] {
            assert_eq!(traces_url(endpoint).unwrap().as_str(), url);
        }
        for endpoint in ["localhost:4318", "grpc://h:4317", ""] {
            assert!(traces_url(endpoint).is_err(), "{endpoint}");
        }
    }
}
