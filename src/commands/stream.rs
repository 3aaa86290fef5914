//! From the configuration to a stream's publisher.

use std::time::Duration;

use crate::config::{Config, OutboxConfig, SinkChoice};
use crate::rabbitmq::{Brokers, StreamProducer, StreamTarget};

/// The ports of RabbitMQ's stream listener (<https://www.rabbitmq.com/docs/networking#ports>), without and with TLS.
const PORT: u16 = 5552;
const TLS_PORT: u16 = 5551;

/// The time for reading back the end of the stream: half a million messages in as many chunks take less, unless the way to
/// the broker is narrow.
const READ_BACK_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether events go to a stream. On standard output one that is named as well has no part.
pub(super) fn is_sink(config: &Config) -> bool {
    config.rabbitmq.stream_name.is_some() && config.delivery.sink == SinkChoice::Rabbitmq
}

/// The same brokers, publishing to the configuration's stream where it names one.
pub(super) fn publishing_to(brokers: Brokers, config: &Config) -> Brokers {
    let Some(name) = &config.rabbitmq.stream_name else {
        return brokers;
    };
    brokers.map(|mut connector| {
        let by_default = if connector.uri.tls { TLS_PORT } else { PORT };
        connector.stream = Some(StreamTarget {
            name: name.clone(),
            port: config.rabbitmq.stream_port.unwrap_or(by_default),
            producer: StreamProducer {
                slot: config.postgres.slot.clone(),
                fingerprint: fingerprint(config),
            },
            read_back_timeout: READ_BACK_TIMEOUT,
        });
        connector
    })
}

/// Tells apart configurations, and versions, that may make messages of other events, so that publishing ids do not mean the
/// same (rule 26).
fn fingerprint(config: &Config) -> u64 {
    let (rabbitmq, delivery) = (&config.rabbitmq, &config.delivery);
    let outboxes: Vec<_> = config.outbox.iter().map(publishing_part).collect();
    let decides = (
        env!("CARGO_PKG_VERSION"),
        outboxes,
        (
            &config.postgres.ignore_tables,
            &config.postgres.shard,
            &config.messages_prefix,
        ),
        (&rabbitmq.exchange, &rabbitmq.routing_key, &rabbitmq.app_id),
        (
            delivery.max_message_bytes,
            delivery.max_event_bytes,
            delivery.on_invalid,
        ),
    );
    fnv_1a(format!("{decides:?}").as_bytes())
}

/// A table without what is done with its rows when they are published.
fn publishing_part(outbox: &OutboxConfig) -> OutboxConfig {
    OutboxConfig {
        after_publish: None,
        unsent: None,
        mark_set: None,
        keep_sent: None,
        ..outbox.clone()
    }
}

/// FNV-1a of 64 bits: the same for every build and machine.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AfterPublish, ColumnsConfig, ContentConfig, MessageFormat, NamedTexts, Preset};

    /// What is done with rows later on has no part in an event's place.
    #[test]
    fn what_becomes_of_published_rows_does_not_change_the_producer() {
        let before = OutboxConfig {
            table: "public.outbox_events".to_owned(),
            after_publish: None,
            unsent: None,
            mark_set: None,
            keep_sent: None,
            preset: Preset::Walrelay,
            columns: ColumnsConfig::default(),
            content: ContentConfig {
                format: MessageFormat::Payload,
                headers: NamedTexts::default(),
                cloudevents_prefix: String::new(),
                cloudevents_source: None,
                cloudevents_type: String::new(),
            },
            exchange: None,
            routing_key: None,
            routes: Vec::new(),
        };
        let kept = OutboxConfig {
            after_publish: Some(AfterPublish::Keep),
            keep_sent: Some(Duration::from_secs(1)),
            unsent: Some("true".to_owned()),
            mark_set: Some("state = 1".to_owned()),
            ..before.clone()
        };
        assert_eq!(publishing_part(&before), publishing_part(&kept));
        let routed = OutboxConfig {
            routing_key: Some("other".to_owned()),
            ..before.clone()
        };
        assert_ne!(publishing_part(&before), publishing_part(&routed));
    }

    #[test]
    fn the_hash_is_the_published_one() {
        // http://www.isthe.com/chongo/tech/comp/fnv/, test vectors
        assert_eq!(fnv_1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
