//! The broker closes the connection or the channel: on an operator's word, or over one message.

use anyhow::{Context as _, Result};
use walrelay_testbed::{RabbitMq, RabbitMqOptions, shared_postgres, shared_rabbitmq};

use crate::faults::{shared_recorder, wait_for_cause, wait_for_metric, wait_for_more};
use crate::world::{EXCHANGE, LONG, QUEUE, World, text, wal_end};
use crate::writer::Writer;

/// I1, I2, I3, R8: 320, as before a shutdown or by an operator.
#[tokio::test]
async fn connections_closed_by_an_operator_under_load_cost_no_event() -> Result<()> {
    let world = World::new().await?;
    let (broker, vhost) = (shared_rabbitmq().await?, world.vhost.name().to_owned());
    let recorder = shared_recorder(&world).await?;
    let mut relay = world.relay().arg("--exit-on-halt").start().await?;
    let writer = Writer::start(&world.database, &recorder);
    for links in 2..4 {
        wait_for_more(&recorder).await?;
        let close = ["close_all_connections", "-p", &vhost, "moving house"];
        broker.ctl(&close).await?;
        wait_for_metric(&relay, "walrelay_links_total", f64::from(links)).await?;
    }
    wait_for_more(&recorder).await?;
    let written = writer.stop().await?;
    written.wait_delivered(&recorder).await?;
    assert!(written.came_in_commit_order(&recorder));
    relay.wait_ready(LONG).await?;
    let told = |line: &str| {
        line.contains("\"cause\":\"broker_closed\"") && line.contains("320") && line.contains("moving house")
    };
    relay.wait_for_log("the broker's reason", LONG, told).await?;
    Ok(())
}

/// The broker's own limit, below what its version takes by default: it closes the channel with 406.
#[tokio::test]
async fn of_a_window_only_the_message_over_the_brokers_limit_gets_its_policy() -> Result<()> {
    const LIMIT: usize = 50_000;
    let options = RabbitMqOptions::default().config("max_message_size", &LIMIT.to_string());
    let broker = RabbitMq::start(options).await?;
    let world = World::on(shared_postgres().await?, &broker).await?;
    let recorder = world.recorder().await?;
    let relay = world.relay().text("delivery.on_invalid", "dead_letter");
    let mut relay = relay.arg("--exit-on-halt").start().await?;
    let sql = format!(
        "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
         select gen_random_uuid(), 'order', n, 'OrderCreated',
                to_jsonb(repeat('x', case n when 150 then {LIMIT} else 10 end))
         from generate_series(1, 300) n"
    );
    world.client.batch_execute(&sql).await?;
    let committed = wal_end(&world.client).await?;
    recorder.wait_for_distinct(299, LONG).await?;
    world.wait_flushed(committed).await?;
    relay.wait_ready(LONG).await?;

    let stored = "select string_agg(reason || ' ' || attempts || ' ' || (columns->>'aggregate_id'), ', ')
                  from walrelay.dead_letters";
    assert_eq!(text(&world.client, stored).await?, "refused 1 150");
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_refused_total", &[]), Some(1.0));
    let told = |line: &str| line.contains("406") && line.contains("message size");
    relay.wait_for_log("the broker's reason", LONG, told).await?;
    let mut order: Vec<i64> = Vec::new();
    for delivery in recorder.deliveries() {
        let seq = crate::world::tx_seq(&delivery).context("a tx_seq")?;
        if !order.contains(&seq) {
            order.push(seq);
        }
    }
    assert!(order.is_sorted(), "{order:?}");
    Ok(())
}

/// R8: with a column in its name, an exchange is missing for some events only. They are not to blame for it.
#[tokio::test]
async fn an_event_that_names_an_exchange_which_is_missing_is_held_until_it_is_there() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world
        .relay()
        .text("rabbitmq.exchange", "{event_type}")
        .text("delivery.on_invalid", "discard")
        .start()
        .await?;
    let insert = async |event_type: &str| {
        let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   values (gen_random_uuid(), 'order', 1, $1, '{}')";
        world.client.execute(sql, &[&event_type]).await
    };
    for exchange in [EXCHANGE, "elsewhere", EXCHANGE, "elsewhere"] {
        insert(exchange).await?;
    }
    wait_for_cause(&mut relay, "delivery", "exchange_missing").await?;
    world
        .vhost
        .declare_exchange("elsewhere", lapin::ExchangeKind::Fanout)
        .await?;
    world.vhost.bind(QUEUE, "elsewhere", "").await?;
    recorder.wait_for_distinct(4, LONG).await?;
    relay.wait_ready(LONG).await?;
    let metrics = relay.metrics().await?;
    assert_eq!(metrics.value("walrelay_discarded_total", &[]), Some(0.0));
    Ok(())
}

/// I4, R9: AMQP's short strings end at 255 bytes; it is never cut.
#[tokio::test]
async fn a_routing_key_over_255_bytes_makes_the_event_invalid() -> Result<()> {
    let world = World::new().await?;
    let recorder = world.recorder().await?;
    let mut relay = world.running().await?;
    let insert = async |length: i32| {
        let sql = "insert into outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
                   values (gen_random_uuid(), repeat('a', $1), '1', repeat('e', 100), '{}') returning id::text";
        anyhow::Ok(world.client.query_one(sql, &[&length]).await?.get::<_, String>(0))
    };
    let longest = insert(154).await?;
    recorder.wait_for_distinct(1, LONG).await?;
    assert_eq!(recorder.deliveries()[0].routing_key.len(), 255);
    let invalid = insert(155).await?;
    let readiness = wait_for_cause(&mut relay, "delivery", "event_invalid").await?;
    let error = readiness.json["delivery"]["error"].as_str().context("an error")?;
    let reason = "routing key has 256 bytes, AMQP allows 255: shorten it";
    assert!(error.contains(&invalid) && error.ends_with(reason), "{error}");
    let after = world.commit_events(1).await?;
    let skip = ["skip", &invalid, "--reason", "too long"];
    let skipped = relay.run_command(&skip).await?;
    assert_eq!(skipped.code(), Some(0), "{}", skipped.stderr);
    recorder.wait_for_distinct(2, LONG).await?;
    assert_eq!(recorder.message_ids(), [longest, after[0].clone()]);
    Ok(())
}
