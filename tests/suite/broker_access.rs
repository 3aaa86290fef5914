//! The broker no longer lets us in, while the relay runs.

use anyhow::Result;
use walrelay_testbed::{TcpProxy, shared_rabbitmq};

use crate::complaint::{Part, complains};
use crate::world::{EXCHANGE, LONG, QUEUE, World};

const SECRET: &str = "not-to-be-told";

/// R8: a refused password is no halt, since a password file is changed after the broker's password or before it.
#[tokio::test]
async fn a_password_that_is_changed_while_the_relay_runs_heals_with_its_file() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name().to_owned());
    let user = format!("relay-{}", world.database.name());
    broker.ctl(&["add_user", &user, "first"]).await?;
    broker
        .ctl(&["set_permissions", "-p", &vhost, &user, ".*", ".*", ".*"])
        .await?;
    let recorder = world.recorder().await?;
    let proxy = TcpProxy::start(world.vhost.port()).await?;
    let uri = format!("amqp://{user}@127.0.0.1:{}/{vhost}", proxy.port());
    let mut relay = world.relay().rabbitmq_uri(&uri).arg("--exit-on-halt").build()?;
    relay.setup().await?;
    let file = relay.folder().path().join("password");
    relay.folder().write("password", "first\n", 0o600)?;
    relay.reconfigure(|relay| relay.text("rabbitmq.password_file", &file.to_string_lossy()))?;
    relay.start()?;
    let mut ids = world.commit_events(5).await?;
    recorder.wait_for_distinct(5, LONG).await?;

    broker.ctl(&["change_password", &user, SECRET]).await?;
    proxy.cut().await;
    ids.extend(world.commit_events(20).await?);
    let host = format!("127.0.0.1:{}", proxy.port());
    let words = ["403", &host];
    complains(&mut relay, Part::Broker, "broker_authentication", &words).await?;
    relay.folder().write("password", &format!("{SECRET}\n"), 0o600)?;
    recorder.wait_for_distinct(25, LONG).await?;
    relay.wait_ready(LONG).await?;
    assert_eq!(recorder.message_ids(), ids);
    assert!(!relay.log().iter().any(|line| line.contains(SECRET)));
    Ok(())
}

/// R8, I1: what the broker confirmed before went with its virtual host; what was committed since is delivered.
#[tokio::test]
async fn a_virtual_host_that_is_deleted_under_the_relay_heals_when_it_is_there_again() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name().to_owned());
    let mut relay = world.running().await?;
    world.commit_events(5).await?;
    let before = crate::world::wal_end(&world.client).await?;
    world.wait_flushed(before).await?;

    broker.ctl(&["delete_vhost", &vhost]).await?;
    let ids = world.commit_events(20).await?;
    complains(&mut relay, Part::Broker, "broker_vhost", &["530", &vhost]).await?;
    broker.ctl(&["add_vhost", &vhost]).await?;
    broker
        .ctl(&["set_permissions", "-p", &vhost, "guest", ".*", ".*", ".*"])
        .await?;
    let told = |line: &str| line.contains("exchange_missing") && line.contains("404");
    relay.wait_for_log("the missing exchange", LONG, told).await?;
    world.vhost.declare_route(EXCHANGE, QUEUE).await?;
    let recorder = world.recorder().await?;
    recorder.wait_for_distinct(20, LONG).await?;
    relay.wait_ready(LONG).await?;
    assert_eq!(recorder.message_ids(), ids);
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_sessions_total", &[]), Some(1.0));
    Ok(())
}
