//! What consumers get, and what stands in the way.

use std::path::Path;

use anyhow::{Context as _, Result};
use lapin::types::AMQPValue;
use walrelay_testbed::{Certificates, QueueOptions};

use super::deduplication::Stage;
use crate::complaint::{Part, complains};
use crate::world::{LONG, insert_event};

#[tokio::test]
async fn a_consumer_by_amqp_0_9_1_sees_the_message_as_from_an_exchange() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relay = stage.relay().start().await?;
    let stored = stage.stored();
    let id = insert_event(&stage.client, 7).await?;
    stored.wait_for(1).await?;
    let (properties, body) = stored.with(|messages| {
        let message = messages.first().context("a message")?;
        Ok::<_, anyhow::Error>((message.properties.clone(), message.body.clone()))
    })?;
    assert_eq!(String::from_utf8(body)?, r#"{"number": 7}"#);
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().map(ToString::to_string);
    assert_eq!(text(properties.message_id()), Some(id));
    assert_eq!(text(properties.kind()).as_deref(), Some("OrderCreated"));
    assert_eq!(text(properties.app_id()).as_deref(), Some("walrelay"));
    assert_eq!(
        text(properties.content_type()).as_deref(),
        Some("application/json")
    );
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert!(properties.timestamp().is_some());
    let headers = properties.headers().as_ref().context("headers")?.inner();
    assert_eq!(
        headers.get("aggregate_id"),
        Some(&AMQPValue::LongString("42".into()))
    );
    assert_eq!(headers.get("tx_seq"), Some(&AMQPValue::LongLongInt(0)));
    assert!(headers.contains_key("commit_lsn"));
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// The listener's port is another one than that of the URI, and its certificate is looked at all the same.
#[tokio::test]
async fn the_stream_port_is_spoken_to_by_tls_where_the_uri_says_amqps() -> Result<()> {
    let certificates = Certificates::for_names(&["localhost"])?;
    let stage = Stage::with_tls(&certificates).await?;
    let uri = stage.vhost.tls_uri().context("no TLS listener")?;
    let ca = |path: &Path| path.to_string_lossy().into_owned();
    let other = Certificates::generate()?;
    let mut relay = stage
        .relay()
        .rabbitmq_uri(&uri)
        .text("rabbitmq.ca_file", &ca(other.ca_path()))
        .build()?;
    relay.setup().await?;
    relay.start()?;
    complains(
        &mut relay,
        Part::Broker,
        "broker_tls",
        &["not signed by a trusted root"],
    )
    .await?;
    relay.kill().await?;
    relay.reconfigure(|relay| relay.text("rabbitmq.ca_file", &ca(certificates.ca_path())))?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    let stored = stage.stored();
    let id = insert_event(&stage.client, 1).await?;
    stored.wait_for(1).await?;
    // What was stored is read back by TLS too.
    relay.kill().await?;
    relay.start()?;
    let next = insert_event(&stage.client, 2).await?;
    stored.wait_for(2).await?;
    assert_eq!(stored.ids(), [id, next]);
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_stream_that_is_missing_halts_until_it_is_there() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relay = stage.relay().text("rabbitmq.stream.name", "not-yet").build()?;
    relay.setup().await?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "stream_missing", &["0x02"]).await?;
    let id = insert_event(&stage.client, 1).await?;
    stage.vhost.declare_queue(QueueOptions::stream("not-yet")).await?;
    let stored = super::stored::Stored::read(&stage.vhost, "not-yet");
    stored.wait_for(1).await?;
    assert_eq!(stored.ids(), [id]);
    relay.wait_ready(LONG).await?;
    Ok(())
}

/// It becomes invalid, and by its policy a dead letter; what stands behind it goes on.
#[tokio::test]
async fn an_event_that_fits_into_no_frame_is_invalid() -> Result<()> {
    let stage = Stage::new().await?;
    let mut relay = stage
        .relay()
        .text("delivery.on_invalid", "dead_letter")
        .start()
        .await?;
    let stored = stage.stored();
    let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
               values (gen_random_uuid(), 'order', 1, 'Large', to_jsonb(repeat('x', 1100000)))";
    stage.client.batch_execute(sql).await?;
    let id = insert_event(&stage.client, 1).await?;
    stored.wait_for(1).await?;
    assert_eq!(stored.ids(), [id]);
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.sum("walrelay_invalid_total", &[]), 1.0);
    relay.wait_ready(LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_user_who_may_not_read_the_stream_back_is_told_so_and_what_doctor_finds() -> Result<()> {
    let stage = Stage::new().await?;
    let vhost = stage.vhost.name();
    let mut relay = stage.relay().build()?;
    relay.setup().await?;
    relay.start()?;
    relay.wait_ready(LONG).await?;
    insert_event(&stage.client, 1).await?;
    stage.stored().wait_for(1).await?;
    let doctor = relay.run_command(&["doctor"]).await?;
    assert!(
        doctor.stdout.contains("events go to the stream `events`"),
        "{}",
        doctor.stdout
    );
    relay.kill().await?;
    let permissions = |read| ["set_permissions", "-p", vhost, "guest", ".*", ".*", read];
    stage.broker.ctl(&permissions("^$")).await?;
    relay.start()?;
    complains(&mut relay, Part::Broker, "stream_forbidden", &["0x10"]).await?;
    stage.broker.ctl(&permissions(".*")).await?;
    relay.wait_ready(LONG).await?;
    Ok(())
}
