//! Several brokers in `rabbitmq.uri`, tried in turn.

use anyhow::Result;
use walrelay_testbed::{TcpProxy, eventually, free_port};

use crate::faults::wait_for_cause;
use crate::world::{LONG, World};

const SECRET: &str = "not-to-be-told";

/// R8: what fails is named by host and port, and never by its password.
#[tokio::test]
async fn of_several_brokers_the_next_one_is_tried_when_one_fails() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut first = TcpProxy::start(world.vhost.port()).await?;
    let mut second = TcpProxy::start(world.vhost.port()).await?;
    // The first lets us in nowhere, the second has no such user; the virtual host of the third is missing.
    let dead = free_port();
    let uris = [
        format!("amqp://u:{SECRET}@127.0.0.1:{dead}/v"),
        format!("amqp://nobody:{SECRET}@127.0.0.1:{}/%2f", world.vhost.port()),
        format!("amqp://guest:guest@127.0.0.1:{}/missing", world.vhost.port()),
        world.vhost.uri_through(first.port()),
        world.vhost.uri_through(second.port()),
    ];
    let list = serde_json::to_string(&uris)?;
    // A missing virtual host needs a person, but not while another broker of the list works.
    let relay = world.relay().set("rabbitmq.uri", &list).arg("--exit-on-halt");
    let mut relay = relay.start().await?;
    for (cause, host) in [
        ("broker_unreachable", format!("127.0.0.1:{dead}")),
        (
            "broker_authentication",
            format!("127.0.0.1:{}", world.vhost.port()),
        ),
        ("broker_vhost", format!("127.0.0.1:{}", world.vhost.port())),
    ] {
        let cause = format!("\"cause\":\"{cause}\"");
        let named = |line: &str| line.contains(&cause) && line.contains(&host);
        relay.wait_for_log(&cause, LONG, named).await?;
    }
    world.commit_events(10).await?;
    recorder.wait_for_distinct(10, LONG).await?;
    assert_eq!((first.connections(), second.connections()), (1, 0));

    // Lost: the one that last worked comes first, and when that is gone, the next one.
    first.cut().await;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(20, LONG).await?;
    assert_eq!((first.connections(), second.connections()), (1, 0));
    first.refuse().await;
    first.cut().await;
    world.commit_events(10).await?;
    recorder.wait_for_distinct(30, LONG).await?;
    assert_eq!((first.connections(), second.connections()), (0, 1));

    second.refuse().await;
    second.cut().await;
    world.commit_events(10).await?;
    wait_for_cause(&mut relay, "broker", "broker_authentication").await?;
    second.pass().await?;
    recorder.wait_for_distinct(40, LONG).await?;
    relay.wait_ready(LONG).await?;
    assert!(!relay.log().iter().any(|line| line.contains(SECRET)));
    Ok(())
}

#[tokio::test]
async fn with_exit_on_halt_the_process_ends_once_every_broker_of_the_list_needs_a_person() -> Result<()> {
    let world = World::new().await?;
    let uri = |vhost: &str| format!("amqp://guest:guest@127.0.0.1:{}/{vhost}", world.vhost.port());
    let list = serde_json::to_string(&[uri("missing-1"), uri("missing-2")])?;
    let relay = world.relay().set("rabbitmq.uri", &list).arg("--exit-on-halt");
    let mut relay = relay.build()?;
    relay.setup().await?;
    relay.start()?;
    let status = relay.wait_exit(LONG).await?;
    assert_eq!(status.code(), Some(69));
    let both_named = || {
        let log = relay.log().concat();
        std::future::ready(log.contains("missing-1") && log.contains("missing-2"))
    };
    Ok(eventually("both to be named", LONG, both_named).await?)
}

/// I9: of brokers that fail in turn for different reasons, each is told of once.
#[tokio::test]
async fn what_is_wrong_with_each_broker_of_the_list_is_said_once() -> Result<()> {
    let world = World::new().await?;
    let uris = [
        format!("amqp://u:{SECRET}@127.0.0.1:{}/v", free_port()),
        format!("amqp://nobody:{SECRET}@127.0.0.1:{}/%2f", world.vhost.port()),
    ];
    let list = serde_json::to_string(&uris)?;
    let mut relay = world.relay().set("rabbitmq.uri", &list).build()?;
    relay.setup().await?;
    relay.start()?;
    let count = |cause: &str, level: &str| {
        let of_both = |line: &&String| line.contains(cause) && line.contains(level);
        relay.log().iter().filter(of_both).count()
    };
    let tried = || std::future::ready(count("broker_authentication", "\"DEBUG\"") >= 2);
    eventually("three rounds", LONG, tried).await?;
    for cause in ["broker_unreachable", "broker_authentication"] {
        assert_eq!(count(cause, "\"WARN\""), 1, "{cause}");
    }
    Ok(())
}
