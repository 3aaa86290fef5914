//! The methods that amq-protocol generates are what we read.

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection, exchange, queue};
use amq_protocol::types::{AMQPValue, FieldTable};

use super::{generate, payload};
use crate::amqp::{AmqpError, Close, FieldValue, FrameKind, Method, Return};

/// Generates a method's frame and hands its payload to `check`, having cut and lengthened it first.
fn with_payload(class: AMQPClass, check: impl FnOnce(Result<Method<'_>, AmqpError>)) {
    let bytes = generate(&AMQPFrame::Method(1, class));
    let payload = payload(&bytes, FrameKind::Method, 1);
    for cut in 0..payload.len() {
        let decoded = Method::decode(&payload[..cut]);
        assert!(
            matches!(decoded, Err(AmqpError::Truncated { .. })),
            "{cut}: {decoded:?}"
        );
    }
    let lengthened = [payload, b"!"].concat();
    assert_eq!(Method::decode(&lengthened), Err(AmqpError::Trailing { bytes: 1 }));
    check(Method::decode(payload));
}

#[test]
fn every_method_a_publisher_meets_is_read_and_refused_when_cut_short() {
    use basic::AMQPMethod as Basic;
    use channel::AMQPMethod as Channel;
    use connection::AMQPMethod as Connection;

    let tune = connection::Tune {
        channel_max: 2047,
        frame_max: 131_072,
        heartbeat: 60,
    };
    let cases = [
        (
            AMQPClass::Connection(Connection::Secure(connection::Secure {
                challenge: "?".into(),
            })),
            Method::ConnectionSecure { challenge: b"?" },
        ),
        (
            AMQPClass::Connection(Connection::Tune(tune)),
            Method::ConnectionTune {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 60,
            },
        ),
        (
            AMQPClass::Connection(Connection::OpenOk(connection::OpenOk {})),
            Method::ConnectionOpenOk,
        ),
        (
            AMQPClass::Connection(Connection::Close(connection::Close {
                reply_code: 320,
                reply_text: "CONNECTION_FORCED".into(),
                class_id: 0,
                method_id: 0,
            })),
            Method::ConnectionClose(Close {
                reply_code: 320,
                reply_text: b"CONNECTION_FORCED",
                class_id: 0,
                method_id: 0,
            }),
        ),
        (
            AMQPClass::Connection(Connection::CloseOk(connection::CloseOk {})),
            Method::ConnectionCloseOk,
        ),
        (
            AMQPClass::Connection(Connection::Blocked(connection::Blocked {
                reason: "low on disk".into(),
            })),
            Method::ConnectionBlocked {
                reason: b"low on disk",
            },
        ),
        (
            AMQPClass::Connection(Connection::Unblocked(connection::Unblocked {})),
            Method::ConnectionUnblocked,
        ),
        (
            AMQPClass::Channel(Channel::OpenOk(channel::OpenOk {})),
            Method::ChannelOpenOk,
        ),
        (
            AMQPClass::Channel(Channel::Flow(channel::Flow { active: true })),
            Method::ChannelFlow { active: true },
        ),
        (
            AMQPClass::Channel(Channel::Close(channel::Close {
                reply_code: 404,
                reply_text: "no exchange".into(),
                class_id: 60,
                method_id: 40,
            })),
            Method::ChannelClose(Close {
                reply_code: 404,
                reply_text: b"no exchange",
                class_id: 60,
                method_id: 40,
            }),
        ),
        (
            AMQPClass::Channel(Channel::CloseOk(channel::CloseOk {})),
            Method::ChannelCloseOk,
        ),
        (
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {})),
            Method::ConfirmSelectOk,
        ),
        (
            AMQPClass::Exchange(exchange::AMQPMethod::DeclareOk(exchange::DeclareOk {})),
            Method::ExchangeDeclareOk,
        ),
        (
            AMQPClass::Basic(Basic::Return(basic::Return {
                reply_code: 312,
                reply_text: "NO_ROUTE".into(),
                exchange: "outbox".into(),
                routing_key: "order.placed".into(),
            })),
            Method::BasicReturn(Return {
                reply_code: 312,
                reply_text: b"NO_ROUTE",
                exchange: b"outbox",
                routing_key: b"order.placed",
            }),
        ),
        (
            AMQPClass::Basic(Basic::Ack(basic::Ack {
                delivery_tag: u64::MAX,
                multiple: true,
            })),
            Method::BasicAck {
                delivery_tag: u64::MAX,
                multiple: true,
            },
        ),
        (
            AMQPClass::Basic(Basic::Ack(basic::Ack {
                delivery_tag: 1,
                multiple: false,
            })),
            Method::BasicAck {
                delivery_tag: 1,
                multiple: false,
            },
        ),
        (
            AMQPClass::Basic(Basic::Nack(basic::Nack {
                delivery_tag: 2,
                multiple: true,
                requeue: false,
            })),
            Method::BasicNack {
                delivery_tag: 2,
                multiple: true,
                requeue: false,
            },
        ),
        (
            AMQPClass::Basic(Basic::Nack(basic::Nack {
                delivery_tag: 3,
                multiple: false,
                requeue: true,
            })),
            Method::BasicNack {
                delivery_tag: 3,
                multiple: false,
                requeue: true,
            },
        ),
    ];
    for (class, expected) in cases {
        with_payload(class, |decoded| assert_eq!(decoded, Ok(expected)));
    }
}

#[test]
fn the_servers_start_is_read_with_its_nested_properties() {
    let mut capabilities = FieldTable::default();
    capabilities.insert("publisher_confirms".into(), AMQPValue::Boolean(true));
    let mut server_properties = FieldTable::default();
    server_properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    server_properties.insert("version".into(), AMQPValue::LongString("3.10.8".into()));
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties,
        mechanisms: "PLAIN AMQPLAIN".into(),
        locales: "en_US".into(),
    };
    with_payload(
        AMQPClass::Connection(connection::AMQPMethod::Start(start)),
        |decoded| {
            let Ok(Method::ConnectionStart {
                version_major,
                version_minor,
                server_properties,
                mechanisms,
                locales,
            }) = decoded
            else {
                panic!("{decoded:?}")
            };
            assert_eq!(
                (version_major, version_minor, mechanisms, locales),
                (0, 9, &b"PLAIN AMQPLAIN"[..], &b"en_US"[..])
            );
            assert_eq!(
                server_properties.find("version"),
                Some(FieldValue::Text(b"3.10.8"))
            );
            assert_eq!(server_properties.find("product"), None);
            let Some(FieldValue::Table(capabilities)) = server_properties.find("capabilities") else {
                panic!("{server_properties:?}")
            };
            assert_eq!(
                capabilities.find("publisher_confirms"),
                Some(FieldValue::Bool(true))
            );
        },
    );
}

#[test]
fn a_method_that_no_publisher_meets_is_named_by_its_numbers() {
    let method = queue::AMQPMethod::PurgeOk(queue::PurgeOk { message_count: 1 });
    let bytes = generate(&AMQPFrame::Method(1, AMQPClass::Queue(method)));
    let decoded = Method::decode(payload(&bytes, FrameKind::Method, 1));
    assert_eq!(
        decoded,
        Ok(Method::Other {
            class_id: 50,
            method_id: 31
        })
    );
}

#[test]
fn a_close_text_cut_in_mid_character_is_read_all_the_same() {
    let mut payload = vec![0, 20, 0, 40, 0x01, 0x94, 4];
    payload.extend_from_slice(&"né€".as_bytes()[..4]);
    payload.extend_from_slice(&[0, 60, 0, 40]);
    let Ok(Method::ChannelClose(close)) = Method::decode(&payload) else {
        panic!("not read")
    };
    assert_eq!((close.reply_code, close.class_id, close.method_id), (404, 60, 40));
    assert_eq!(close.reply_text_lossy(), "né\u{FFFD}");
}
