//! An order service within the test, on a database of its own with an outbox table and no relay.

use anyhow::Result;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_postgres::Client;
use walrelay_shop::order_service;
use walrelay_testbed::{Database, eventually, shared_postgres};

use super::client::{Answer, post, send};
use crate::world::{LONG, text};

const OUTBOX_TABLE: &str = include_str!("../../../migrations/outbox_table.sql");

pub(super) struct Service {
    pub(super) database: Database,
    pub(super) client: Client,
    pub(super) port: u16,
    task: AbortHandle,
}

impl Service {
    pub(super) async fn start() -> Result<Self> {
        let database = shared_postgres().await?.database().await?;
        let url = database.url();
        Self::on(database, &url).await
    }

    /// One that reaches its database by another way.
    pub(super) async fn on(database: Database, url: &str) -> Result<Self> {
        let client = database.client().await?;
        client.batch_execute(OUTBOX_TABLE).await?;
        let service = Self::begin(database, client, url).await?;
        service.wait_up().await?;
        Ok(service)
    }

    /// One that may not be up yet.
    pub(super) async fn begin(database: Database, client: Client, url: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let config = url.parse()?;
        let serving = async move { order_service::serve(listener, &config, std::future::pending()).await };
        let task = tokio::spawn(serving).abort_handle();
        Ok(Self {
            database,
            client,
            port,
            task,
        })
    }

    pub(super) async fn wait_up(&self) -> Result<()> {
        eventually("an answer of the order service", LONG, async || {
            self.get(1).await.is_ok_and(|answer| answer.status == 404)
        })
        .await?;
        Ok(())
    }

    pub(super) async fn place(&self, order: &Value) -> Result<Answer> {
        Ok(post(self.port, "/orders", order).await?)
    }

    pub(super) async fn get(&self, order_id: i64) -> Result<Answer> {
        Ok(send(self.port, "GET", &format!("/orders/{order_id}"), "", "").await?)
    }

    /// A new order.
    pub(super) async fn order(&self) -> Result<i64> {
        let key = uuid::Uuid::new_v4().to_string();
        let answer = self
            .place(&json!({ "user_id": 7, "sku_ids": [1, 2], "idempotency_key": key }))
            .await?;
        answer
            .order_id()
            .ok_or_else(|| anyhow::anyhow!("no order: {answer:?}"))
    }

    pub(super) async fn orders(&self) -> Result<String> {
        text(&self.client, "select count(*)::text from orders").await
    }

    /// The types of an order's events, in their order.
    pub(super) async fn events(&self, order_id: i64) -> Result<String> {
        let sql = format!(
            "select coalesce(string_agg(event_type, ' ' order by created_at), '') from outbox_events
             where aggregate_id = {order_id}"
        );
        text(&self.client, &sql).await
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}
