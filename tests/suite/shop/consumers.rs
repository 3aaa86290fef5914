//! The three consumers: one effect for each event, in the transaction that notes it, and dead letters for poison alone.

use anyhow::Result;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Connection};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio_postgres::Client;
use uuid::Uuid;
use walrelay_shop::consumer::{self, Source, Worker};
use walrelay_shop::coupons::Coupons;
use walrelay_shop::inventory::Inventory;
use walrelay_shop::orders::OrderEvent;
use walrelay_shop::risk::Risk;
use walrelay_testbed::{Database, TcpProxy, Vhost, eventually, shared_postgres, shared_rabbitmq};

use crate::world::{LONG, text, wait_true};

/// A database and a vhost, and a way to publish what a relay would.
struct Stage {
    database: Database,
    client: Client,
    vhost: Vhost,
    channel: Channel,
    _connection: Connection,
}

/// Ends with its value, as a process that dies: nothing is given back.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

const LIMIT: u32 = 3;

impl Stage {
    async fn new() -> Result<Self> {
        let database = shared_postgres().await?.database().await?;
        let vhost = shared_rabbitmq().await?.vhost().await?;
        let connection = vhost.connect().await?;
        Ok(Self {
            client: database.client().await?,
            channel: connection.create_channel().await?,
            _connection: connection,
            database,
            vhost,
        })
    }

    /// A consumer that is up: it has made its tables, and its queue is consumed.
    async fn consumer<W: Worker + Sync + Send + 'static>(&self, worker: W) -> Result<Running> {
        self.consumer_on(worker, &self.database.url()).await
    }

    async fn consumer_on<W: Worker + Sync + Send + 'static>(&self, worker: W, url: &str) -> Result<Running> {
        let source = Source {
            uri: self.vhost.uri(),
            exchange: "outbox".to_owned(),
            delivery_limit: LIMIT,
        };
        let config = url.parse()?;
        let running = async move { consumer::run(&worker, &config, &source, std::future::pending()).await };
        let running = Running(tokio::spawn(running).abort_handle());
        let table = format!(
            "select (to_regclass('{}.processed_events') is not null)::text",
            W::NAME
        );
        wait_true(&self.client, "the consumer's tables", &table).await?;
        Ok(running)
    }

    async fn publish(&self, id: Uuid, event: &Value) -> Result<()> {
        let properties = BasicProperties::default().with_message_id(id.to_string().into());
        self.channel
            .basic_publish(
                "outbox".into(),
                "order.any".into(),
                BasicPublishOptions::default(),
                event.to_string().as_bytes(),
                properties,
            )
            .await?;
        Ok(())
    }

    async fn wait(&self, sql: &str, expected: &str) -> Result<()> {
        eventually(&format!("{sql} to be {expected}"), LONG, async || {
            text(&self.client, sql).await.is_ok_and(|now| now == expected)
        })
        .await?;
        Ok(())
    }

    async fn wait_dead(&self, queue: &str, expected: u32) -> Result<()> {
        let what = format!("{expected} dead letters");
        eventually(&what, LONG, async || {
            self.vhost
                .queue_length(queue)
                .await
                .is_ok_and(|length| length == expected)
        })
        .await?;
        Ok(())
    }
}

fn event(order_id: i64, version: i32, status: &str, sku_ids: &[i64]) -> Value {
    json!(OrderEvent {
        order_id,
        user_id: 7,
        sku_ids: sku_ids.to_vec(),
        status: status.to_owned(),
        version,
    })
}

const PROCESSED: &str = "select count(*)::text from inventory.processed_events";
const TAKEN: &str = "select (100 * 1000000 - sum(on_hand))::bigint::text from inventory.stock";

#[tokio::test]
async fn events_that_come_twice_and_in_any_order_have_one_effect_at_each_consumer() -> Result<()> {
    let stage = Stage::new().await?;
    let _inventory = stage.consumer(Inventory).await?;
    let _coupons = stage.consumer(Coupons).await?;
    let _risk = stage.consumer(Risk).await?;
    let mut events = Vec::new();
    let steps = ["created", "paying", "paid", "refunding", "refunded"];
    for order in 1..=10 {
        // Orders come to stand anywhere; the second article is ordered twice.
        for (version, status) in (1..).zip(steps.into_iter().take(1 + order % 5)) {
            let event = event(i64::try_from(order)?, version, status, &[1, 2, 2]);
            events.push((Uuid::new_v4(), event));
        }
    }
    let mut random = fastrand::Rng::with_seed(7);
    let mut sent: Vec<_> = events.iter().chain(&events).chain(&events).collect();
    random.shuffle(&mut sent);
    for (id, event) in sent {
        stage.publish(*id, event).await?;
    }
    let count = events.len().to_string();
    for consumer in ["inventory", "coupons", "risk"] {
        let processed = format!("select count(*)::text from {consumer}.processed_events");
        stage.wait(&processed, &count).await?;
        let queue = format!("shop.{consumer}");
        eventually("the queue to be empty", LONG, async || {
            stage
                .vhost
                .queue_length(&queue)
                .await
                .is_ok_and(|length| length == 0)
        })
        .await?;
        stage.wait_dead(&format!("{queue}.dead"), 0).await?;
    }
    let with = |status: &str| {
        events
            .iter()
            .filter(|(_, event)| event["status"] == status)
            .count()
    };
    let (created, paid, refunded) = (with("created"), with("paid"), with("refunded"));
    assert!(
        created > paid && paid > refunded && refunded > 0,
        "{created} {paid} {refunded}"
    );
    assert_eq!(
        text(&stage.client, TAKEN).await?,
        (3 * (created - refunded)).to_string()
    );
    let coupons = text(&stage.client, "select coupons::text from coupons.balances").await?;
    assert_eq!(coupons, (paid - refunded).to_string());
    let users = "select orders || ' ' || refunded from risk.users";
    assert_eq!(text(&stage.client, users).await?, format!("{created} {refunded}"));
    // Where each order stands, although a late event came last.
    for order in 1..=10 {
        let sql = format!("select status from risk.orders where order_id = {order}");
        assert_eq!(text(&stage.client, &sql).await?, steps[order % 5]);
    }
    Ok(())
}

/// No ack before the commit: a consumer that dies in its commit leaves the message to the next one.
#[tokio::test]
async fn a_consumer_that_dies_in_mid_commit_has_done_it_once_in_the_end() -> Result<()> {
    let stage = Stage::new().await?;
    let dying = stage.consumer(Inventory).await?;
    stage
        .client
        .batch_execute(
            "create function wait() returns trigger language plpgsql as
               $$ begin perform pg_advisory_xact_lock_shared(1); return new; end $$;
             create constraint trigger held after insert on inventory.processed_events
               deferrable initially deferred for each row execute function wait();
             select pg_advisory_lock(1)",
        )
        .await?;
    stage
        .publish(Uuid::new_v4(), &event(1, 1, "created", &[1]))
        .await?;
    let observer = stage.database.client().await?;
    let held = "select count(*)::text from pg_stat_activity
                where datname = current_database() and wait_event = 'advisory'";
    eventually("the commit to be held", LONG, async || {
        text(&observer, held).await.is_ok_and(|count| count == "1")
    })
    .await?;
    drop(dying);
    let _next = stage.consumer(Inventory).await?;
    // It has the message too, and waits for the one that died.
    let waiting = "select count(*)::text from pg_stat_activity
                   where datname = current_database() and wait_event in ('transactionid', 'speculative token')";
    eventually("the message to come again", LONG, async || {
        text(&observer, waiting).await.is_ok_and(|count| count == "1")
    })
    .await?;
    assert_eq!(text(&observer, TAKEN).await?, "0", "no effect before the commit");
    stage.client.batch_execute("select pg_advisory_unlock(1)").await?;
    stage.wait(TAKEN, "1").await?;
    eventually("the queue to be empty", LONG, async || {
        stage
            .vhost
            .queue_length("shop.inventory")
            .await
            .is_ok_and(|length| length == 0)
    })
    .await?;
    assert_eq!(text(&stage.client, TAKEN).await?, "1");
    Ok(())
}

#[tokio::test]
async fn poison_goes_to_the_dead_letters_after_so_many_deliveries_and_the_rest_goes_on() -> Result<()> {
    let stage = Stage::new().await?;
    let _inventory = stage.consumer(Inventory).await?;
    // A sequence does not roll back.
    stage
        .client
        .batch_execute(
            "create sequence tries;
             create function note_try() returns trigger language plpgsql as
               $$ begin perform nextval('public.tries'); return new; end $$;
             create trigger tries before insert on inventory.processed_events
               for each row execute function note_try()",
        )
        .await?;
    stage
        .publish(Uuid::new_v4(), &event(1, 1, "created", &[1, 999]))
        .await?;
    stage.wait_dead("shop.inventory.dead", 1).await?;
    let tries = text(&stage.client, "select last_value::text from tries").await?;
    assert_eq!(
        tries,
        (LIMIT + 1).to_string(),
        "the first delivery, and as many again"
    );
    stage.publish(Uuid::new_v4(), &json!({ "order_id": 2 })).await?;
    stage
        .publish(Uuid::new_v4(), &event(3, 1, "created", &[1, 2]))
        .await?;
    stage.wait_dead("shop.inventory.dead", 2).await?;
    stage.wait(PROCESSED, "1").await?;
    // Not a part of the first one: its known article stays.
    stage.wait(TAKEN, "2").await?;
    Ok(())
}

#[tokio::test]
async fn a_database_that_is_away_makes_no_dead_letters() -> Result<()> {
    let stage = Stage::new().await?;
    let proxy = TcpProxy::start(stage.database.port()).await?;
    let url = stage.database.url_through(proxy.port());
    let _inventory = stage.consumer_on(Inventory, &url).await?;
    let name = stage.database.name();
    let refuse = format!("alter database {name} allow_connections false");
    let elsewhere = shared_postgres().await?.client("postgres").await?;
    elsewhere.batch_execute(&refuse).await?;
    let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()";
    stage.client.query_one(end, &[]).await?;
    for order in 1..=3 {
        stage
            .publish(Uuid::new_v4(), &event(order, 1, "created", &[1]))
            .await?;
    }
    let before = proxy.reached();
    eventually("more tries than deliveries are allowed", LONG, || {
        std::future::ready(proxy.reached() > before + u64::from(LIMIT))
    })
    .await?;
    let admit = format!("alter database {name} allow_connections true");
    elsewhere.batch_execute(&admit).await?;
    stage.wait(PROCESSED, "3").await?;
    stage.wait(TAKEN, "3").await?;
    assert_eq!(stage.vhost.queue_length("shop.inventory.dead").await?, 0);
    Ok(())
}
