//! A consumer's queue, and the one beside it for dead letters.

use lapin::Channel;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};

use crate::consumer::Source;

/// Which events: all of orders.
const ROUTING_KEY: &str = "order.#";

/// Declares exchange, queue, dead letters and binding, where they are missing. Returns the queue's name.
pub(crate) async fn declare(channel: &Channel, name: &str, source: &Source) -> lapin::Result<String> {
    let exchange = ShortString::from(source.exchange.as_str());
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .exchange_declare(
            exchange.clone(),
            lapin::ExchangeKind::Topic,
            durable,
            FieldTable::default(),
        )
        .await?;
    let (queue, dead) = (format!("shop.{name}"), format!("shop.{name}.dead"));
    let durable = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    let mut arguments = FieldTable::default();
    text(&mut arguments, "x-queue-type", "quorum");
    channel
        .queue_declare(dead.as_str().into(), durable, arguments.clone())
        .await?;

    // A quorum queue counts deliveries, so that a message at which consumers die is not delivered for ever.
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongInt(limit(source)));
    text(&mut arguments, "x-dead-letter-exchange", "");
    text(&mut arguments, "x-dead-letter-routing-key", &dead);
    // The message leaves the queue once the dead letters' queue has confirmed it. That needs the overflow, which makes a full
    // queue refuse messages (walrelay tries them again) where it would drop the oldest.
    text(&mut arguments, "x-dead-letter-strategy", "at-least-once");
    text(&mut arguments, "x-overflow", "reject-publish");
    channel
        .queue_declare(queue.as_str().into(), durable, arguments)
        .await?;
    let options = QueueBindOptions::default();
    channel
        .queue_bind(
            queue.as_str().into(),
            exchange,
            ROUTING_KEY.into(),
            options,
            FieldTable::default(),
        )
        .await?;
    Ok(queue)
}

fn text(arguments: &mut FieldTable, name: &str, value: &str) {
    arguments.insert(name.into(), AMQPValue::LongString(value.into()));
}

fn limit(source: &Source) -> i32 {
    i32::try_from(source.delivery_limit).unwrap_or(i32::MAX)
}
