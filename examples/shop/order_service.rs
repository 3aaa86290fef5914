//! The order service: HTTP in front of [`orders`].
//!
//! ```text
//! POST /orders              {"user_id": 7, "sku_ids": [1, 2], "idempotency_key": "…"}   201, again 200, other body 422
//! POST /orders/{id}/pay     {"idempotency_key": "…", "card": "…"}                      200, 409 with the status, 422
//! POST /orders/{id}/refund  {"idempotency_key": "…"}                                   200, 409 with the status, 422
//! GET  /orders/{id}
//! ```
//!
//! 503 and 504 mean that it is not known whether the request was carried out. So does a connection that breaks. In all
//! these cases the client sends the same request again, with the same key.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_postgres::Config;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::database::{self, Pool};
use crate::orders::{self, Action, Begun, NewOrder, Placed};
use crate::payment::{self, Answer};
use crate::state_machine::Status;

/// How long a request may take. What it did is not undone by that: its transaction is cut off, committed or not.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long to wait before the database is tried again at the start.
const PAUSE: Duration = Duration::from_millis(500);

const MAX_SKUS: usize = 100;
const MAX_KEY_LEN: usize = 200;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Creates missing tables, waiting for the database where it must, then serves until `stop` ends and the requests under way
/// are answered.
///
/// # Errors
/// When the listener breaks.
pub async fn serve(
    listener: TcpListener,
    database: &Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let mut stop = Box::pin(stop);
    loop {
        tokio::select! {
            () = &mut stop => return Ok(()),
            migrated = migrate(database) => match migrated {
                Ok(()) => break,
                Err(error) => tracing::warn!(error = %Chain(&error), "the database is tried again"),
            },
        }
        tokio::time::sleep(PAUSE).await;
    }
    let pool = Arc::new(Pool::new(database));
    let routes = Router::new()
        .route("/orders", post(place))
        .route("/orders/{id}", get(find))
        .route("/orders/{id}/pay", post(pay))
        .route("/orders/{id}/refund", post(refund))
        .with_state(pool)
        .layer(from_fn(within_the_deadline))
        .layer(from_fn(with_request_id));
    axum::serve(listener, routes).with_graceful_shutdown(stop).await?;
    Ok(())
}

async fn migrate(config: &Config) -> Result<(), tokio_postgres::Error> {
    let mut client = database::connect(&database::with_settings(config)).await?;
    database::migrate(&mut client, "orders", orders::SCHEMA).await
}

async fn place(State(pool): State<Arc<Pool>>, body: String) -> Result<Response, Error> {
    let request: NewOrder = parse(&body)?;
    check_key(&request.idempotency_key)?;
    if request.sku_ids.is_empty() || request.sku_ids.len() > MAX_SKUS {
        return Err(Error::Request(format!("sku_ids: 1 to {MAX_SKUS} are needed")));
    }
    let mut session = pool.session().await?;
    let placed = orders::place(&mut session.client, &request).await?;
    session.give_back();
    match placed {
        Placed::Now(order) => Ok(answer(StatusCode::CREATED, &json!(order))),
        Placed::Before(order) => Ok(answer(StatusCode::OK, &json!(order))),
        Placed::OtherRequest => Err(Error::OtherRequest),
    }
}

async fn find(State(pool): State<Arc<Pool>>, Path(id): Path<i64>) -> Result<Response, Error> {
    let session = pool.session().await?;
    let found = orders::find(&session.client, id).await?;
    session.give_back();
    let (order, status) = found.ok_or(Error::NoOrder)?;
    Ok(answer(
        StatusCode::OK,
        &json!({ "order": order, "status": status }),
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Payment {
    idempotency_key: String,
    card: String,
}

async fn pay(State(pool): State<Arc<Pool>>, Path(id): Path<i64>, body: String) -> Result<Response, Error> {
    let request: Payment = parse(&body)?;
    let charge = |key: &str| match payment::charge(key, &request.card) {
        Answer::Charged => Status::Paid,
        Answer::Declined => Status::Failed,
    };
    act(
        &pool,
        id,
        Action::Pay,
        &request.idempotency_key,
        &request.card,
        charge,
    )
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Refund {
    idempotency_key: String,
}

async fn refund(State(pool): State<Arc<Pool>>, Path(id): Path<i64>, body: String) -> Result<Response, Error> {
    let request: Refund = parse(&body)?;
    let pay_back = |key: &str| {
        payment::pay_back(key);
        Status::Refunded
    };
    act(&pool, id, Action::Refund, &request.idempotency_key, "", pay_back).await
}

/// Begin, call the provider, finish: the call is outside of both transactions, since neither could take it back. A service
/// that dies after the first leaves the order under way, and the retry goes on from there. Several at the same time call the
/// provider under one key, and the order moves once.
async fn act(
    pool: &Pool,
    id: i64,
    action: Action,
    idempotency_key: &str,
    request: &str,
    call: impl FnOnce(&str) -> Status,
) -> Result<Response, Error> {
    check_key(idempotency_key)?;
    let mut session = pool.session().await?;
    let begun = orders::begin(&mut session.client, id, action, idempotency_key, request).await?;
    let status = match begun {
        Begun::UnderWay => {
            let outcome = call(&format!("order/{id}/{}", action.name()));
            let status = orders::finish(&mut session.client, id, outcome).await?;
            status.ok_or(Error::NoOrder)
        }
        Begun::Before(status) => Ok(status),
        Begun::Refused(status) => Err(Error::Refused { action, status }),
        Begun::OtherRequest => Err(Error::OtherRequest),
        Begun::NoOrder => Err(Error::NoOrder),
    };
    session.give_back();
    let status = status?;
    Ok(answer(
        StatusCode::OK,
        &json!({ "order_id": id, "status": status }),
    ))
}

/// Why a request has no better answer.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Request(String),
    #[error("no such order")]
    NoOrder,
    #[error("this idempotency_key was used before, with another request; take a new key for a new request")]
    OtherRequest,
    #[error("cannot {} an order that is {status}", .action.name())]
    Refused { action: Action, status: String },
    #[error("not known whether this was done: send it again with the same idempotency_key")]
    Database(#[from] tokio_postgres::Error),
    #[error("not known yet whether this was done: send it again with the same idempotency_key")]
    Late,
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut body = json!({ "error": self.to_string() });
        let code = match self {
            Error::Request(_) => StatusCode::BAD_REQUEST,
            Error::NoOrder => StatusCode::NOT_FOUND,
            Error::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
            Error::Refused { status, .. } => {
                body["status"] = status.into();
                StatusCode::CONFLICT
            }
            Error::Database(error) => {
                tracing::warn!(error = %Chain(&error), "the database failed");
                StatusCode::SERVICE_UNAVAILABLE
            }
            Error::Late => StatusCode::GATEWAY_TIMEOUT,
        };
        answer(code, &body)
    }
}

/// An error with its sources.
struct Chain<'a>(&'a tokio_postgres::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut source = std::error::Error::source(self.0);
        while let Some(error) = source {
            write!(formatter, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

/// Unknown fields are an error: one that is in no fingerprint could differ unseen.
fn parse<T: DeserializeOwned>(body: &str) -> Result<T, Error> {
    serde_json::from_str(body).map_err(|error| Error::Request(format!("the body: {error}")))
}

fn check_key(key: &str) -> Result<(), Error> {
    if key.is_empty() || key.len() > MAX_KEY_LEN || key.contains('\0') {
        let text = format!("idempotency_key: 1 to {MAX_KEY_LEN} bytes are needed");
        return Err(Error::Request(text));
    }
    Ok(())
}

fn answer(code: StatusCode, body: &Value) -> Response {
    (
        code,
        [(header::CONTENT_TYPE, "application/json")],
        body.to_string(),
    )
        .into_response()
}

async fn within_the_deadline(request: Request, next: Next) -> Response {
    match tokio::time::timeout(DEADLINE, next.run(request)).await {
        Ok(response) => response,
        Err(_elapsed) => Error::Late.into_response(),
    }
}

/// The request id tells the tries apart, in logs and traces. It decides nothing: a retry has another one.
async fn with_request_id(request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID);
    let given = given.and_then(|id| id.to_str().ok()).filter(|id| id.len() <= 100);
    let id = given.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned);
    let span = tracing::info_span!("request", id, method = %request.method(), path = request.uri().path());
    let answered = async {
        let response = next.run(request).await;
        tracing::info!(status = response.status().as_u16(), "answered");
        response
    };
    let mut response = answered.instrument(span).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID.clone(), id);
    }
    response
}
