//! From the configuration to a stream's publisher.

use crate::config::Config;
use crate::rabbitmq::{Brokers, StreamProducer, StreamTarget};

/// The ports of RabbitMQ's stream listener (<https://www.rabbitmq.com/docs/networking#ports>), without and with TLS.
const PORT: u16 = 5552;
const TLS_PORT: u16 = 5551;

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
        });
        connector
    })
}

/// Tells apart configurations, and versions, that may make messages of other events, so that publishing ids do not mean the
/// same (rule 26).
fn fingerprint(config: &Config) -> u64 {
    let (rabbitmq, delivery) = (&config.rabbitmq, &config.delivery);
    let decides = (
        env!("CARGO_PKG_VERSION"),
        &config.outbox,
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

/// FNV-1a of 64 bits: the same for every build and machine.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // http://www.isthe.com/chongo/tech/comp/fnv/, test vectors
        assert_eq!(fnv_1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv_1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
