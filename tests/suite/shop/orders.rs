//! Placing orders: whatever becomes of a try, the retry gets the one order.

use anyhow::Result;
use serde_json::{Value, json};
use tokio_postgres::Client;
use walrelay_testbed::{Direction, TcpProxy, eventually, shared_postgres};

use super::client::{post, send};
use super::service::Service;
use crate::world::{LONG, text};

fn order(key: &str) -> Value {
    json!({ "user_id": 7, "sku_ids": [1, 2], "idempotency_key": key })
}

#[tokio::test]
async fn concurrent_duplicates_get_the_one_order_with_the_same_body() -> Result<()> {
    const TRIES: usize = 20;
    let service = Service::start().await?;
    for key in ["a", "b", "c"] {
        let port = service.port;
        let mut tries = tokio::task::JoinSet::new();
        for _ in 0..TRIES {
            tries.spawn(async move { post(port, "/orders", &order(key)).await });
        }
        let mut answers = Vec::new();
        while let Some(answer) = tries.join_next().await {
            answers.push(answer??);
        }
        let count = |status| answers.iter().filter(|answer| answer.status == status).count();
        assert_eq!((count(201), count(200)), (1, TRIES - 1), "{answers:?}");
        assert!(answers.iter().all(|answer| answer.body == answers[0].body));
        let id = answers[0].order_id().unwrap();
        assert_eq!(service.events(id).await?, "OrderCreated");
    }
    assert_eq!(service.orders().await?, "3");
    Ok(())
}

#[tokio::test]
async fn the_same_key_with_another_body_is_refused_and_says_so() -> Result<()> {
    let service = Service::start().await?;
    let placed = service.place(&order("a")).await?;
    assert_eq!(placed.status, 201);
    let other = json!({ "user_id": 7, "sku_ids": [1, 3], "idempotency_key": "a" });
    let refused = service.place(&other).await?;
    assert_eq!(refused.status, 422);
    let error = refused.field("error").to_string();
    assert!(error.contains("was used before, with another request"), "{error}");

    // Spacing and the order of fields make no other body, and another user's key is another key.
    let same = r#"{ "idempotency_key":"a", "sku_ids":[1,2],  "user_id":7 }"#;
    let again = send(service.port, "POST", "/orders", "", same).await?;
    assert_eq!((again.status, &again.body), (200, &placed.body));
    let others = json!({ "user_id": 8, "sku_ids": [1, 3], "idempotency_key": "a" });
    assert_eq!(service.place(&others).await?.status, 201);
    assert_eq!(service.orders().await?, "2");
    Ok(())
}

/// The request id is for logs. It tells tries apart, not orders.
#[tokio::test]
async fn the_request_id_decides_nothing() -> Result<()> {
    let service = Service::start().await?;
    let send = async |id: &str, key: &str| {
        let head = format!("X-Request-Id: {id}\r\n");
        send(service.port, "POST", "/orders", &head, &order(key).to_string()).await
    };
    let first = send("one", "a").await?;
    assert!(first.head.contains("x-request-id: one"), "{}", first.head);
    assert_eq!(first.status, 201);
    assert_eq!(send("two", "a").await?.status, 200);
    assert_eq!(send("one", "b").await?.status, 201);
    assert_eq!(service.orders().await?, "2");
    Ok(())
}

#[tokio::test]
async fn what_is_no_order_is_refused_and_writes_nothing() -> Result<()> {
    let service = Service::start().await?;
    for body in [
        json!([]),
        json!({ "user_id": 7, "sku_ids": [1] }),
        json!({ "user_id": 7, "sku_ids": [], "idempotency_key": "a" }),
        json!({ "user_id": 7, "sku_ids": [1], "idempotency_key": "" }),
        json!({ "user_id": 7, "sku_ids": [1], "idempotency_key": "a\0" }),
        json!({ "user_id": 7, "sku_ids": [1], "idempotency_key": "k".repeat(201) }),
        json!({ "user_id": 7, "sku_ids": vec![1; 101], "idempotency_key": "a" }),
        // It would be in no fingerprint.
        json!({ "user_id": 7, "sku_ids": [1], "idempotency_key": "a", "coupon": 1 }),
    ] {
        let answer = service.place(&body).await?;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
    }
    assert_eq!(service.get(1).await?.status, 404);
    assert_eq!(service.orders().await?, "0");
    Ok(())
}

/// Makes every new order wait at a point of its transaction while `holder` has the lock.
async fn hold_orders(service: &Service, trigger: &str) -> Result<Client> {
    service
        .client
        .batch_execute(&format!(
            "create function wait() returns trigger language plpgsql as
               $$ begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
             {trigger} for each row execute function wait()"
        ))
        .await?;
    let holder = service.database.client().await?;
    holder.batch_execute("select pg_advisory_lock(1)").await?;
    Ok(holder)
}

const AT_INSERT: &str = "create trigger held before insert on orders";
const AT_COMMIT: &str = "create constraint trigger held after insert on orders deferrable initially deferred";

async fn wait_held(service: &Service, sessions: i64) -> Result<()> {
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'";
    eventually("the order to be held", LONG, async || {
        let held = service.client.query_one(sql, &[]).await;
        held.is_ok_and(|row| row.get::<_, i64>(0) == sessions)
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_commit_gets_its_order_by_the_retry() -> Result<()> {
    let service = Service::start().await?;
    let holder = hold_orders(&service, AT_INSERT).await?;
    let port = service.port;
    let cancelled = tokio::spawn(async move { post(port, "/orders", &order("a")).await });
    wait_held(&service, 1).await?;
    cancelled.abort();
    assert!(cancelled.await.is_err_and(|error| error.is_cancelled()));
    holder.batch_execute("select pg_advisory_unlock(1)").await?;
    wait_held(&service, 0).await?;

    let answer = service.place(&order("a")).await?;
    assert!([200, 201].contains(&answer.status), "{answer:?}");
    assert_eq!(service.orders().await?, "1");
    assert_eq!(service.events(answer.order_id().unwrap()).await?, "OrderCreated");
    Ok(())
}

#[tokio::test]
async fn a_client_that_hangs_up_in_mid_commit_gets_its_order_by_the_retry() -> Result<()> {
    let service = Service::start().await?;
    let holder = hold_orders(&service, AT_COMMIT).await?;
    let port = service.port;
    let cancelled = tokio::spawn(async move { post(port, "/orders", &order("a")).await });
    wait_held(&service, 1).await?;
    cancelled.abort();
    assert!(cancelled.await.is_err_and(|error| error.is_cancelled()));
    // The retry comes before the first try has ended, and waits for it.
    let retry = tokio::spawn(async move { post(port, "/orders", &order("a")).await });
    let blocked = "select count(*) from pg_stat_activity
                   where datname = current_database() and wait_event_type = 'Lock' and wait_event <> 'advisory'";
    eventually("the retry to wait", LONG, async || {
        let waiting = service.client.query_one(blocked, &[]).await;
        waiting.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    })
    .await?;
    holder.batch_execute("select pg_advisory_unlock(1)").await?;

    let answer = retry.await??;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(service.orders().await?, "1");
    assert_eq!(service.events(answer.order_id().unwrap()).await?, "OrderCreated");
    Ok(())
}

/// The transaction is committed, and nobody hears of it: the answer is on its way when the connection breaks.
#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_by_the_retry() -> Result<()> {
    let database = shared_postgres().await?.database().await?;
    let proxy = TcpProxy::start(database.port()).await?;
    let url = database.url_through(proxy.port());
    let service = Service::on(database, &url).await?;
    let holder = hold_orders(&service, AT_COMMIT).await?;
    let port = service.port;
    let lost = tokio::spawn(async move { post(port, "/orders", &order("a")).await });
    wait_held(&service, 1).await?;
    proxy.stall_one_way(Direction::ToClient);
    holder.batch_execute("select pg_advisory_unlock(1)").await?;
    eventually("the order to be committed", LONG, async || {
        service.orders().await.is_ok_and(|orders| orders == "1")
    })
    .await?;
    proxy.cut().await;
    let answer = lost.await??;
    assert_eq!(answer.status, 503, "{answer:?}");
    let error = answer.field("error").to_string();
    assert!(error.contains("not known whether this was done"), "{error}");

    proxy.resume();
    let answer = service.place(&order("a")).await?;
    assert_eq!(answer.status, 200, "{answer:?}");
    let id = text(&service.client, "select id::text from orders").await?;
    assert_eq!(answer.field("order_id").to_string(), id);
    assert_eq!(service.events(answer.order_id().unwrap()).await?, "OrderCreated");
    Ok(())
}

#[tokio::test]
async fn a_service_that_starts_before_its_database_waits_for_it() -> Result<()> {
    let postgres = shared_postgres().await?;
    let database = postgres.database().await?;
    let proxy = TcpProxy::start(database.port()).await?;
    let (name, client) = (database.name().to_owned(), database.client().await?);
    let elsewhere = postgres.client("postgres").await?;
    let refuse = format!("alter database {name} allow_connections false");
    elsewhere.batch_execute(&refuse).await?;
    let url = database.url_through(proxy.port());
    let service = Service::begin(database, client, &url).await?;
    eventually("more than one try", LONG, || {
        std::future::ready(proxy.reached() > 1)
    })
    .await?;
    let admit = format!("alter database {name} allow_connections true");
    elsewhere.batch_execute(&admit).await?;
    service.wait_up().await?;
    Ok(())
}
