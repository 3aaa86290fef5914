//! Properties that the broker itself acts on, from columns of the row: expiration and priority (`docs/routing.md`).

use anyhow::{Context as _, Result, ensure};
use lapin::types::{AMQPValue, FieldTable};
use walrelay_testbed::{Delivery, QueueOptions, Recorder, Relay};

use crate::world::{EXCHANGE, LONG, World, wal_end};

/// Events whose table has columns for these properties, about orders that a running relay publishes.
struct Stage {
    world: World,
    _relay: Relay,
}

impl Stage {
    /// Binds this queue before the first event.
    async fn with(queue: QueueOptions, name: &str) -> Result<Self> {
        let world = World::new().await?;
        world.vhost.declare_queue(queue).await?;
        world.vhost.bind(name, EXCHANGE, "#").await?;
        let create = "create table outbox_events (
               id bigint generated always as identity primary key, aggregate_type text not null default 'order',
               aggregate_id text not null default '42', event_type text not null default 'created',
               payload text not null default '{}', ttl_ms integer, urgency smallint, cause text)";
        world.client.batch_execute(create).await?;
        let columns = "[outbox.columns]\nexpiration = 'ttl_ms'\npriority = 'urgency'\ncorrelation_id = 'cause'\n\
                       content_type = { value = 'application/vnd.{aggregate_type}+json' }\n";
        let relay = world.relay().extra(columns).start().await?;
        Ok(Self { world, _relay: relay })
    }

    /// Inserts rows, and waits until the broker has confirmed them.
    async fn publish(&self, columns: &str, rows: &str) -> Result<()> {
        let sql = format!("insert into outbox_events ({columns}) values {rows}");
        self.world.client.batch_execute(&sql).await?;
        self.world.wait_flushed(wal_end(&self.world.client).await?).await
    }
}

/// Why and in which queue a message became a dead letter of the broker's, and the expiration that it had.
fn death(delivery: &Delivery) -> Option<(String, String, String)> {
    let text = |table: &FieldTable, name: &str| {
        let value = table.inner().get(name)?.as_long_string()?;
        Some(value.to_string())
    };
    let headers = delivery.properties.headers().as_ref()?;
    let AMQPValue::FieldArray(deaths) = headers.inner().get("x-death")? else {
        return None;
    };
    let AMQPValue::FieldTable(first) = deaths.as_slice().first()? else {
        return None;
    };
    let of = |name| text(first, name);
    Some((of("reason")?, of("queue")?, of("original-expiration")?))
}

#[tokio::test]
async fn an_event_with_an_expiration_leaves_its_queue_when_its_time_is_over() -> Result<()> {
    for queue in [QueueOptions::classic("offers"), QueueOptions::quorum("offers")] {
        let queue = queue
            .text("x-dead-letter-exchange", "")
            .text("x-dead-letter-routing-key", "missed");
        let stage = Stage::with(queue, "offers").await?;
        let vhost = &stage.world.vhost;
        vhost.declare_queue(QueueOptions::classic("missed")).await?;
        let missed = Recorder::start(vhost, "missed").await?;
        stage
            .publish("ttl_ms, cause", "(200, 'c-1'), (null, 'c-2'), (3600000, 'c-3')")
            .await?;
        let came = missed.wait_for(1, LONG).await?;
        let expected = ("expired".to_owned(), "offers".to_owned(), "200".to_owned());
        assert_eq!(death(&came[0]).context("no death")?, expected);
        let properties = &came[0].properties;
        let texts = [properties.correlation_id(), properties.content_type()];
        assert_eq!(
            texts.map(|text| text.as_ref().map(ToString::to_string)),
            [
                Some("c-1".to_owned()),
                Some("application/vnd.order+json".to_owned())
            ]
        );
        let waiting = Recorder::start(vhost, "offers").await?;
        let waiting: Vec<_> = waiting.wait_for(2, LONG).await?;
        let ids: Vec<_> = waiting
            .iter()
            .map(|delivery| delivery.message_id.as_str())
            .collect();
        assert_eq!(ids, ["2", "3"]);
        assert_eq!(missed.count(), 1);
    }
    Ok(())
}

/// Those of one priority stay in commit order; none is the lowest.
#[tokio::test]
async fn a_queue_with_priorities_hands_out_the_urgent_first() -> Result<()> {
    let queue = QueueOptions::classic("jobs").number("x-max-priority", 9);
    let stage = Stage::with(queue, "jobs").await?;
    stage
        .publish("urgency", "(1), (9), (null), (5), (9), (0), (1)")
        .await?;
    let recorder = Recorder::start(&stage.world.vhost, "jobs").await?;
    let came = recorder.wait_for(7, LONG).await?;
    let ids: Vec<_> = came.iter().map(|delivery| delivery.message_id.as_str()).collect();
    assert_eq!(ids, ["2", "5", "4", "1", "7", "3", "6"]);
    ensure!(*came[0].properties.priority() == Some(9) && came[5].properties.priority().is_none());
    Ok(())
}
