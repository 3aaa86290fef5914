//! RabbitMQ: the way to it, the virtual host, the exchange.

use anyhow::Result;
use walrelay_testbed::{free_port, shared_rabbitmq};

use super::{SECRET, stays_unready};
use crate::complaint::{Part, complains, tells_no};
use crate::world::{EXCHANGE, LONG, World};

#[tokio::test]
async fn a_wrong_password_of_rabbitmq_heals_when_the_file_is_corrected() -> Result<()> {
    let world = World::new().await?;
    let uri = format!(
        "amqp://guest@127.0.0.1:{}/{}",
        world.vhost.port(),
        world.vhost.name()
    );
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.setup().await?;
    let file = relay.folder().path().join("password");
    relay.reconfigure(|relay| relay.text("rabbitmq.password_file", &file.to_string_lossy()))?;
    relay.start()?;
    let words = [&*file.to_string_lossy(), "No such file"];
    complains(&mut relay, Part::Broker, "broker_authentication", &words).await?;

    relay.folder().write("password", &format!("{SECRET}\n"), 0o600)?;
    let told = |line: &str| line.contains("broker_authentication") && line.contains("403");
    relay.wait_for_log("the refusal", LONG, told).await?;
    relay.folder().write("password", "guest\n", 0o600)?;
    relay.wait_ready(LONG).await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_wrong_user_of_rabbitmq_is_named() -> Result<()> {
    let world = World::new().await?;
    let uri = format!(
        "amqp://nobody:{SECRET}@127.0.0.1:{}/{}",
        world.vhost.port(),
        world.vhost.name()
    );
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_authentication",
        &["403", "PLAIN"],
    )
    .await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_wrong_host_or_port_of_rabbitmq_is_named() -> Result<()> {
    let world = World::without_exchange().await?;
    let uri = format!("amqp://guest:{SECRET}@no-such-host.invalid/v");
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_unreachable",
        &["no-such-host.invalid"],
    )
    .await?;
    tells_no(SECRET, &relay).await?;

    let endpoint = format!("127.0.0.1:{}", free_port());
    let mut relay = world
        .relay()
        .rabbitmq_uri(&format!("amqp://guest:{SECRET}@{endpoint}/v"))
        .build()?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_unreachable",
        &[&endpoint, "refused"],
    )
    .await?;
    tells_no(SECRET, &relay).await
}

#[tokio::test]
async fn a_vhost_that_is_missing_or_closed_to_the_user_heals() -> Result<()> {
    let world = World::without_exchange().await?;
    let (broker, port) = (shared_rabbitmq().await?, world.vhost.port());
    let name = format!("later-{}", world.database.name());
    let relay = world
        .relay()
        .rabbitmq_uri(&format!("amqp://guest:guest@127.0.0.1:{port}/{name}"));
    let mut relay = relay.text("rabbitmq.declare.exchange_type", "topic").build()?;
    relay.setup().await?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "broker_vhost", &["530", &name]).await?;
    broker.ctl(&["add_vhost", &name]).await?;
    let told = |line: &str| line.contains("broker_vhost") && line.contains("refused for user");
    relay.wait_for_log("the missing permission", LONG, told).await?;
    broker
        .ctl(&["set_permissions", "-p", &name, "guest", ".*", ".*", ".*"])
        .await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn an_exchange_that_may_not_be_written_to_is_named_once_and_heals() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name().to_owned());
    let user = format!("reader-{}", world.database.name());
    broker.ctl(&["add_user", &user, SECRET]).await?;
    broker
        .ctl(&["set_permissions", "-p", &vhost, &user, "", "", ".*"])
        .await?;
    let uri = format!("amqp://{user}:{SECRET}@127.0.0.1:{}/{vhost}", world.vhost.port());
    let mut relay = world.relay().rabbitmq_uri(&uri).build()?;
    relay.setup().await?;
    world.commit_events(3).await?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "exchange_forbidden",
        &["403", EXCHANGE, &user],
    )
    .await?;
    stays_unready(&mut relay, "exchange_forbidden").await?;
    tells_no(SECRET, &relay).await?;

    broker
        .ctl(&["set_permissions", "-p", &vhost, &user, "", ".*", ".*"])
        .await?;
    world.recorder().await?.wait_for_distinct(3, LONG).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}
