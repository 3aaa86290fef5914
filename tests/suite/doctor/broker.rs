//! Broken ways to the broker, and brokers that will not take messages.

use anyhow::{Context as _, Result};
use lapin::ExchangeKind;
use walrelay_testbed::{Certificates, RabbitMq, RabbitMqOptions, free_port, shared_rabbitmq};

use super::{said, server, set_up};
use crate::world::{EXCHANGE, World};

/// The lines from the first broker on.
fn of_brokers(said: &str) -> &str {
    said.find("RabbitMQ ")
        .and_then(|at| said.get(at..))
        .unwrap_or(said)
}

#[tokio::test]
async fn nobody_listens_at_the_first_broker_s_port() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let port = free_port();
    let uris = format!(
        "[\"amqp://guest:guest@127.0.0.1:{port}/\", \"{}\"]",
        world.vhost.uri()
    );
    relay.reconfigure(|relay| relay.set("rabbitmq.uri", &uris))?;
    let said = said(&world, &relay, &[])
        .await?
        .replace(&format!(":{port}"), ":NOBODY");
    insta::assert_snapshot!("broker_unreachable", of_brokers(&said));
    Ok(())
}

#[tokio::test]
async fn the_broker_refuses_the_password() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let uri = world.vhost.uri().replace("guest:guest", "guest:wrong");
    relay.reconfigure(|relay| relay.rabbitmq_uri(&uri))?;
    insta::assert_snapshot!("broker_password", of_brokers(&said(&world, &relay, &[]).await?));
    Ok(())
}

#[tokio::test]
async fn the_virtual_host_does_not_exist() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let uri = format!("{}-other", world.vhost.uri());
    relay.reconfigure(|relay| relay.rabbitmq_uri(&uri))?;
    insta::assert_snapshot!("broker_vhost", of_brokers(&said(&world, &relay, &[]).await?));
    Ok(())
}

#[tokio::test]
async fn the_exchange_does_not_exist_and_is_not_made() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    relay.reconfigure(|relay| {
        relay
            .text("rabbitmq.exchange", "nowhere")
            .text("rabbitmq.heartbeat", "0s")
    })?;
    insta::assert_snapshot!(
        "exchange_missing",
        of_brokers(&said(&world, &relay, &["--probe"]).await?)
    );
    relay.reconfigure(|relay| relay.text("rabbitmq.declare.exchange_type", "topic"))?;
    insta::assert_snapshot!(
        "exchange_undeclared",
        of_brokers(&said(&world, &relay, &[]).await?)
    );
    // It was only looked for.
    let again = said(&world, &relay, &[]).await?;
    assert!(again.contains("is not there yet"), "{again}");
    Ok(())
}

#[tokio::test]
async fn the_user_may_not_publish() -> Result<()> {
    let (world, mut relay) = set_up().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name());
    let user = format!("user-{}", world.database.name());
    broker.ctl(&["add_user", &user, "right"]).await?;
    broker
        .ctl(&["set_permissions", "-p", vhost, &user, "", "", ".*"])
        .await?;
    let uri = world.vhost.uri().replace("guest:guest", &format!("{user}:right"));
    relay.reconfigure(|relay| relay.rabbitmq_uri(&uri))?;
    insta::assert_snapshot!(
        "exchange_forbidden",
        of_brokers(&said(&world, &relay, &["--probe"]).await?)
    );
    Ok(())
}

#[tokio::test]
async fn a_probe_comes_back_where_no_queue_expects_it() -> Result<()> {
    let world = super::world().await?;
    world
        .vhost
        .declare_exchange("events", ExchangeKind::Topic)
        .await?;
    world.vhost.bind(crate::world::QUEUE, "events", "order.#").await?;
    let relay = world.relay().text("rabbitmq.exchange", "events").build()?;
    relay.setup().await?;
    insta::assert_snapshot!("probe", of_brokers(&said(&world, &relay, &["--probe"]).await?));
    Ok(())
}

#[tokio::test]
async fn a_fanout_exchange_gives_the_probe_to_its_queue() -> Result<()> {
    let world = super::world().await?;
    world
        .vhost
        .declare_exchange("events", ExchangeKind::Fanout)
        .await?;
    world.vhost.bind(crate::world::QUEUE, "events", "").await?;
    let relay = world.relay().text("rabbitmq.exchange", "events").build()?;
    relay.setup().await?;
    insta::assert_snapshot!(
        "probe_taken",
        of_brokers(&said(&world, &relay, &["--probe"]).await?)
    );
    Ok(())
}

#[tokio::test]
async fn an_alarm_is_seen_by_the_probe() -> Result<()> {
    let certificates = Certificates::for_names(&["localhost"])?;
    let mut broker = RabbitMq::start(RabbitMqOptions::default().tls(&certificates)).await?;
    let world = World::on(server().await?, &broker).await?;
    let uri = world.vhost.tls_uri().context("no TLS listener")?;
    let relay = world
        .relay()
        .text("rabbitmq.exchange", EXCHANGE)
        .rabbitmq_uri(&uri)
        .text("rabbitmq.ca_file", &certificates.ca_path().display().to_string())
        .build()?;
    relay.setup().await?;
    broker.raise_memory_alarm().await?;
    let said = said(&world, &relay, &["--probe"]).await?;
    let port = format!(":{}", broker.tls_port().context("no TLS listener")?);
    insta::assert_snapshot!("broker_alarm", of_brokers(&said.replace(&port, ":MQPORT")));
    Ok(())
}
