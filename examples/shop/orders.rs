//! The transactions of the order service. In each of them a unique constraint or a condition on the status decides, and
//! nothing is looked up before it is written.

use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Error, Row, Transaction};
use uuid::Uuid;
use walrelay_outbox::{Event, Outbox};

use crate::state_machine::Status;

/// The tables, for a migration that can be run again.
pub const SCHEMA: &str = include_str!("schema/orders.sql");

/// A request to place an order. The key is a part of it: it stands for the intent to buy, over all tries to tell it.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NewOrder {
    /// Who buys. Keys are the user's own: another's cannot collide with them.
    pub user_id: i64,
    /// What.
    pub sku_ids: Vec<i64>,
    /// Chosen by the client once for each intent, and kept until there is an answer.
    pub idempotency_key: String,
}

/// An order as it was placed: what does not change later, so that each retry gets the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Order {
    /// Its number.
    pub order_id: i64,
    /// Who bought.
    pub user_id: i64,
    /// What.
    pub sku_ids: Vec<i64>,
    /// When, as PostgreSQL prints it.
    pub created_at: String,
}

/// What became of a request to place an order.
#[derive(Debug, PartialEq, Eq)]
pub enum Placed {
    /// It was placed now.
    Now(Order),
    /// It had been placed before, by the same request.
    Before(Order),
    /// Its key was used before, for another request.
    OtherRequest,
}

/// Places an order, unless it is there already.
///
/// # Errors
/// What PostgreSQL says. **The order may have been placed all the same** when the commit's answer is lost: that is what the
/// retry is for.
pub async fn place(client: &mut Client, request: &NewOrder) -> Result<Placed, Error> {
    let fingerprint = fingerprint(&request.sku_ids);
    let transaction = client.transaction().await?;
    // While another transaction inserts the same key, this waits for its end. Had we looked before, both would have found
    // nothing.
    let inserted = transaction
        .query_opt(
            "insert into orders (user_id, idempotency_key, sku_ids, fingerprint)
             values ($1, $2, $3, encode(sha256(convert_to($4, 'UTF8')), 'hex'))
             on conflict (user_id, idempotency_key) do nothing
             returning id, user_id, sku_ids, created_at::text",
            &[
                &request.user_id,
                &request.idempotency_key,
                &request.sku_ids,
                &fingerprint,
            ],
        )
        .await?;
    if let Some(row) = inserted {
        let order = order(&row)?;
        write_event(&transaction, order.order_id, Status::Created).await?;
        transaction.commit().await?;
        return Ok(Placed::Now(order));
    }
    let there = transaction
        .query_one(
            "select id, user_id, sku_ids, created_at::text, fingerprint = encode(sha256(convert_to($3, 'UTF8')), 'hex')
             from orders where user_id = $1 and idempotency_key = $2",
            &[&request.user_id, &request.idempotency_key, &fingerprint],
        )
        .await?;
    transaction.rollback().await?;
    Ok(if there.try_get(4)? {
        Placed::Before(order(&there)?)
    } else {
        Placed::OtherRequest
    })
}

/// An order and where it stands.
///
/// # Errors
/// What PostgreSQL says.
pub async fn find(client: &Client, order_id: i64) -> Result<Option<(Order, String)>, Error> {
    let sql = "select id, user_id, sku_ids, created_at::text, status from orders where id = $1";
    let found = client.query_opt(sql, &[&order_id]).await?;
    found
        .map(|row| Ok((order(&row)?, row.try_get("status")?)))
        .transpose()
}

/// What a client can ask for once an order is placed. Each is done at most once for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Charge the card.
    Pay,
    /// Give the money back.
    Refund,
}

impl Action {
    /// Its name in the column `order_actions.action` and in paths.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Pay => "pay",
            Action::Refund => "refund",
        }
    }

    /// Where the order stands while the action is under way.
    const fn under_way(self) -> Status {
        match self {
            Action::Pay => Status::Paying,
            Action::Refund => Status::Refunding,
        }
    }
}

/// What became of a request for an action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// It was asked for now and is under way: the caller has to bring it to its end. So it has where an earlier try under the
    /// same key was cut short.
    UnderWay,
    /// The same request had been made, and brought to its end: the order's status now.
    Before(String),
    /// Its key was used before, for another request.
    OtherRequest,
    /// The order stands where that cannot be asked for. Nothing was changed.
    Refused(String),
    /// There is no such order.
    NoOrder,
}

/// Begins an action on an order, unless it was begun already.
///
/// # Errors
/// What PostgreSQL says; as with [`place`], it may have been begun all the same.
pub async fn begin(
    client: &mut Client,
    order_id: i64,
    action: Action,
    idempotency_key: &str,
    request: &str,
) -> Result<Begun, Error> {
    let transaction = client.transaction().await?;
    let inserted = transaction
        .execute(
            "insert into order_actions (order_id, action, idempotency_key, fingerprint)
             select id, $2, $3, encode(sha256(convert_to($4, 'UTF8')), 'hex') from orders where id = $1
             on conflict (order_id, action) do nothing",
            &[&order_id, &action.name(), &idempotency_key, &request],
        )
        .await?;
    if inserted == 1 {
        return match advance(&transaction, order_id, action.under_way()).await? {
            Advance::Moved => {
                transaction.commit().await?;
                Ok(Begun::UnderWay)
            }
            Advance::Stays(status) => {
                transaction.rollback().await?;
                Ok(Begun::Refused(status))
            }
            Advance::NoOrder => Ok(Begun::NoOrder),
        };
    }
    let row = transaction
        .query_opt(
            "select status, action.idempotency_key = $3,
                    action.fingerprint = encode(sha256(convert_to($4, 'UTF8')), 'hex')
             from orders join order_actions action on action.order_id = orders.id and action.action = $2
             where orders.id = $1",
            &[&order_id, &action.name(), &idempotency_key, &request],
        )
        .await?;
    transaction.rollback().await?;
    let Some(row) = row else {
        return Ok(Begun::NoOrder);
    };
    let (status, same_key, same_request): (String, bool, bool) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(match (same_key, same_request) {
        (false, _) => Begun::Refused(status),
        (true, false) => Begun::OtherRequest,
        (true, true) if status == action.under_way().name() => Begun::UnderWay,
        (true, true) => Begun::Before(status),
    })
}

/// Brings an action to its end. Returns where the order stands then, which somebody else may have decided meanwhile.
///
/// # Errors
/// What PostgreSQL says.
pub async fn finish(client: &mut Client, order_id: i64, to: Status) -> Result<Option<String>, Error> {
    let transaction = client.transaction().await?;
    let advance = advance(&transaction, order_id, to).await?;
    transaction.commit().await?;
    Ok(match advance {
        Advance::Moved => Some(to.name().to_owned()),
        Advance::Stays(status) => Some(status),
        Advance::NoOrder => None,
    })
}

/// What became of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advance {
    /// The order stands there now, and the event is written.
    Moved,
    /// The step is none from where the order stands, or was made before. Nothing was changed.
    Stays(String),
    /// There is no such order.
    NoOrder,
}

/// Moves an order to a status and writes the event of that, in this transaction, if the order stands where that is legal.
/// The update's own condition decides: of two that try at the same time one finds it no longer true.
///
/// # Errors
/// What PostgreSQL says.
pub async fn advance(transaction: &Transaction<'_>, order_id: i64, to: Status) -> Result<Advance, Error> {
    let sources: Vec<&str> = to.sources().map(Status::name).collect();
    let moved = transaction
        .execute(
            "update orders set status = $2, version = version + 1 where id = $1 and status = any($3)",
            &[&order_id, &to.name(), &sources],
        )
        .await?;
    if moved == 1 {
        write_event(transaction, order_id, to).await?;
        return Ok(Advance::Moved);
    }
    let row = transaction
        .query_opt("select status from orders where id = $1", &[&order_id])
        .await?;
    Ok(match row {
        Some(row) => Advance::Stays(row.try_get(0)?),
        None => Advance::NoOrder,
    })
}

/// What an event of an order says, to those who did not see the order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderEvent {
    /// Which order.
    pub order_id: i64,
    /// Who bought.
    pub user_id: i64,
    /// What.
    pub sku_ids: Vec<i64>,
    /// Where the order stands by this event.
    pub status: String,
    /// The how manyth step of the order it is, from 1.
    pub version: i32,
}

async fn write_event(transaction: &Transaction<'_>, order_id: i64, status: Status) -> Result<(), Error> {
    let row = transaction
        .query_one(
            "select user_id, sku_ids, version from orders where id = $1",
            &[&order_id],
        )
        .await?;
    let event = OrderEvent {
        order_id,
        user_id: row.try_get(0)?,
        sku_ids: row.try_get(1)?,
        status: status.name().to_owned(),
        version: row.try_get(2)?,
    };
    let event = Event {
        id: Uuid::new_v4(),
        aggregate_type: "order",
        aggregate_id: order_id,
        event_type: status.event_type(),
        payload: &serde_json::json!(event).to_string(),
    };
    Outbox::insert(transaction, event).await
}

/// Of what must not differ between two requests with the same key. Printed from the parsed request, so that spacing and
/// the order of fields do not count; hashed by the database.
fn fingerprint(sku_ids: &[i64]) -> String {
    serde_json::json!({ "sku_ids": sku_ids }).to_string()
}

fn order(row: &Row) -> Result<Order, Error> {
    Ok(Order {
        order_id: row.try_get(0)?,
        user_id: row.try_get(1)?,
        sku_ids: row.try_get(2)?,
        created_at: row.try_get(3)?,
    })
}
