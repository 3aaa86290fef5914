//! What we encode is what amq-protocol reads.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection, exchange};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};
use proptest::prelude::*;

use super::headers::{json_object, table_of};
use super::{generate, parse, payload};
use crate::Lsn;
use crate::amqp::encode::{self, ClientProperties};
use crate::amqp::{
    EncodeError, EncodedHeaders, Frame, FrameKind, HeaderEntries, HeaderParts, Message, MessageParts,
    NameUse, Origin, PROTOCOL_HEADER, Publish, returned_key,
};
use crate::trace::{TraceContext, TraceValue};

fn parts() -> MessageParts<'static> {
    MessageParts {
        exchange: "outbox",
        routing_key: "order.placed",
        mandatory: true,
        persistent: true,
        message_id: "2f1c",
        message_type: "placed",
        content_type: "application/json",
        correlation_id: "",
        expiration: "",
        priority: None,
        timestamp: 1_700_000_000,
        app_id: "walrelay",
        headers: HeaderParts {
            aggregate_type: "order",
            aggregate_id: "42",
            origin: Origin::Stream {
                commit_lsn: Lsn::new(0x16_B374_D848),
                tx_seq: 7,
                backfill: false,
            },
            trace: TraceContext::default(),
            more: EncodedHeaders::default(),
        },
    }
}

/// The frames of a message as amq-protocol reads them, each checked to respect `frame_max`.
fn frames_of(message: &Message, frame_max: u32) -> Vec<AMQPFrame> {
    let mut bytes = Vec::new();
    message.write_frames(1, frame_max, &mut bytes);
    let mut rest = bytes.as_slice();
    while let Some((_, used)) = Frame::decode(rest, frame_max).unwrap() {
        rest = &rest[used..];
    }
    assert!(rest.is_empty());
    parse(&bytes)
}

#[test]
fn the_protocol_header_and_every_method_are_read_as_meant() {
    let mut out = PROTOCOL_HEADER.to_vec();
    encode::connection_tune_ok(&mut out, 2047, 131_072, 10);
    encode::connection_open(&mut out, "/shop").unwrap();
    encode::connection_close(&mut out, 200, "bye").unwrap();
    encode::connection_close_ok(&mut out);
    encode::channel_open(&mut out, 1);
    encode::channel_close(&mut out, 1, 200, "bye").unwrap();
    encode::channel_close_ok(&mut out, 1);
    encode::channel_flow_ok(&mut out, 1, true);
    encode::confirm_select(&mut out, 1);
    encode::exchange_declare(&mut out, 1, "outbox", "topic", false, true).unwrap();
    encode::exchange_declare(&mut out, 1, "outbox", "topic", true, false).unwrap();
    encode::heartbeat(&mut out);

    let connection = |method| AMQPFrame::Method(0, AMQPClass::Connection(method));
    let channel = |method| AMQPFrame::Method(1, AMQPClass::Channel(method));
    let declare = |passive| {
        let declare = exchange::Declare {
            exchange: "outbox".into(),
            kind: "topic".into(),
            passive,
            durable: !passive,
            auto_delete: false,
            internal: false,
            nowait: false,
            arguments: FieldTable::default(),
        };
        AMQPFrame::Method(1, AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare)))
    };
    let frames = parse(&out);
    assert!(matches!(&frames[0], AMQPFrame::ProtocolHeader(version) if version.to_string() == "0.9.1"));
    assert_eq!(
        frames[1..],
        [
            connection(connection::AMQPMethod::TuneOk(connection::TuneOk {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 10
            })),
            connection(connection::AMQPMethod::Open(connection::Open {
                virtual_host: "/shop".into()
            })),
            connection(connection::AMQPMethod::Close(connection::Close {
                reply_code: 200,
                reply_text: "bye".into(),
                class_id: 0,
                method_id: 0
            })),
            connection(connection::AMQPMethod::CloseOk(connection::CloseOk {})),
            channel(channel::AMQPMethod::Open(channel::Open {})),
            channel(channel::AMQPMethod::Close(channel::Close {
                reply_code: 200,
                reply_text: "bye".into(),
                class_id: 0,
                method_id: 0
            })),
            channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})),
            channel(channel::AMQPMethod::FlowOk(channel::FlowOk { active: true })),
            AMQPFrame::Method(
                1,
                AMQPClass::Confirm(confirm::AMQPMethod::Select(confirm::Select { nowait: false }))
            ),
            declare(false),
            declare(true),
            AMQPFrame::Heartbeat,
        ]
    );
}

#[test]
fn start_ok_names_the_client_and_its_capabilities() {
    let mut out = Vec::new();
    let client = ClientProperties {
        version: "0.1.0",
        connection_name: "walrelay orders",
    };
    let response = encode::sasl_plain("relay", "s3cret");
    encode::connection_start_ok(&mut out, "PLAIN", &response, &client).unwrap();

    let mut capabilities = FieldTable::default();
    for name in [
        "publisher_confirms",
        "connection.blocked",
        "authentication_failure_close",
        "consumer_cancel_notify",
    ] {
        capabilities.insert(name.into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    for (name, value) in [
        ("product", "walrelay"),
        ("version", "0.1.0"),
        ("platform", "Rust"),
        ("connection_name", "walrelay orders"),
    ] {
        properties.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    let start_ok = connection::StartOk {
        client_properties: properties,
        mechanism: "PLAIN".into(),
        response: "\0relay\0s3cret".into(),
        locale: "en_US".into(),
    };
    let method = AMQPClass::Connection(connection::AMQPMethod::StartOk(start_ok));
    assert_eq!(parse(&out), [AMQPFrame::Method(0, method)]);
}

#[test]
fn a_text_of_more_than_255_bytes_is_refused_by_name_and_leaves_nothing_behind() {
    let (fits, long) = ("é".repeat(127) + "x", "é".repeat(128));
    let refusal = |field| Err(EncodeError::ShortStringTooLong { field, length: 256 });
    let mut out = b"before".to_vec();
    assert_eq!(encode::connection_open(&mut out, &long), refusal("virtual host"));
    assert_eq!(
        encode::connection_close(&mut out, 200, &long),
        refusal("reply text")
    );
    assert_eq!(
        encode::exchange_declare(&mut out, 1, "x", &long, false, true),
        refusal("exchange type")
    );
    assert_eq!(out, b"before");
    assert_eq!(encode::connection_open(&mut out, &fits), Ok(()));

    type With = fn(&str) -> MessageParts<'_>;
    let cases: [(&'static str, With); 8] = [
        ("exchange", |exchange| MessageParts { exchange, ..parts() }),
        ("routing key", |routing_key| MessageParts {
            routing_key,
            ..parts()
        }),
        ("message id", |message_id| MessageParts {
            message_id,
            ..parts()
        }),
        ("message type", |message_type| MessageParts {
            message_type,
            ..parts()
        }),
        ("content type", |content_type| MessageParts {
            content_type,
            ..parts()
        }),
        ("correlation id", |correlation_id| MessageParts {
            correlation_id,
            ..parts()
        }),
        ("expiration", |expiration| MessageParts {
            expiration,
            ..parts()
        }),
        ("app id", |app_id| MessageParts { app_id, ..parts() }),
    ];
    for (field, with) in cases {
        assert!(
            Message::encode(&mut Vec::new(), &with(&fits), b"{}").is_ok(),
            "{field}"
        );
        let mut buffer = Vec::with_capacity(4096);
        let refused = Message::encode(&mut buffer, &with(&long), b"{}");
        assert_eq!(
            refused,
            Err(EncodeError::ShortStringTooLong { field, length: 256 })
        );
        assert_eq!((buffer.len(), buffer.capacity()), (0, 4096), "{field}");
    }
}

#[test]
fn a_number_beyond_rabbitmqs_widest_is_refused() {
    let mut parts = parts();
    let stream = |tx_seq| Origin::Stream {
        commit_lsn: Lsn::new(1),
        tx_seq,
        backfill: false,
    };
    parts.headers.origin = stream(u64::MAX / 2);
    assert!(Message::encode(&mut Vec::new(), &parts, b"").is_ok());
    parts.headers.origin = stream(u64::MAX / 2 + 1);
    let refused = Message::encode(&mut Vec::new(), &parts, b"");
    assert_eq!(
        refused,
        Err(EncodeError::NumberTooLarge {
            field: "tx_seq",
            value: 1 << 63
        })
    );
}

#[test]
fn a_body_may_be_decoded_into_the_buffer_and_its_failure_is_passed_on() {
    #[derive(Debug, PartialEq)]
    enum Failure {
        Encode(EncodeError),
        Hex,
    }
    impl From<EncodeError> for Failure {
        fn from(error: EncodeError) -> Self {
            Self::Encode(error)
        }
    }
    let mut buffer = b"an earlier message".to_vec();
    let failed = Message::encode_with(&mut buffer, &parts(), |out| {
        out.push(0xCA);
        Err(Failure::Hex)
    });
    assert_eq!((failed, buffer.len()), (Err(Failure::Hex), 0));
    let decoded = Message::encode_with::<Failure>(&mut buffer, &parts(), |out| {
        out.extend_from_slice(&[0xCA, 0xFE]);
        Ok(())
    });
    assert_eq!(
        decoded,
        Ok(Message::encode(&mut Vec::new(), &parts(), &[0xCA, 0xFE]).unwrap())
    );
    let too_long = String::leak("x".repeat(256));
    let refused = Message::encode_with(
        &mut buffer,
        &MessageParts {
            exchange: too_long,
            ..parts()
        },
        |_| Ok(()),
    );
    assert!(matches!(
        refused,
        Err(Failure::Encode(EncodeError::ShortStringTooLong { .. }))
    ));
}

#[test]
fn a_buffer_goes_round_without_growing() {
    let mut buffer = Vec::with_capacity(4096);
    let start = buffer.as_ptr();
    for body in [&b"{\"a\": 1}"[..], b"", b"x"] {
        let message = Message::encode(&mut buffer, &parts(), body).unwrap();
        assert_eq!(message.body_len(), body.len());
        assert!(message.len() > body.len());
        assert_eq!(buffer.capacity(), 0, "taken over");
        buffer = message.into_buffer();
        assert_eq!((buffer.as_ptr(), buffer.capacity()), (start, 4096));
    }
}

#[test]
fn a_header_that_does_not_go_into_one_frame_is_told_before_sending() {
    let header_len = |message: &Message| {
        let mut out = Vec::new();
        message.write_frames(1, 131_072, &mut out);
        let (_, method) = Frame::decode(&out, 131_072).unwrap().unwrap();
        let (header, _) = Frame::decode(&out[method..], 131_072).unwrap().unwrap();
        assert_eq!(header.kind, FrameKind::Header);
        header.payload.len()
    };
    let with_id = |id: &str| {
        let mut parts = parts();
        parts.headers.aggregate_id = id;
        Message::encode(&mut Vec::new(), &parts, b"a body").unwrap()
    };
    let spare = 8192 - 8 - header_len(&with_id(""));
    assert!(with_id(&"x".repeat(spare)).fits(8192));
    assert!(!with_id(&"x".repeat(spare + 1)).fits(8192));
    assert!(with_id(&"x".repeat(spare + 1)).fits(8193));
    let message = Message::encode(&mut Vec::new(), &parts(), &vec![b'x'; 1 << 20]).unwrap();
    assert!(message.fits(4096), "a body is split");
}

#[test]
fn neither_debug_output_shows_a_body() {
    let message = Message::encode(&mut Vec::new(), &parts(), b"secret").unwrap();
    let len = message.len();
    assert_eq!(
        format!("{message:?}"),
        format!("Message {{ len: {len}, body_len: 6 }}")
    );
}

/// Sizes around the multiples of a piece, where splitting goes wrong first.
fn body_size(piece: usize) -> impl Strategy<Value = usize> {
    (0..4_usize, 0..5_usize).prop_map(move |(pieces, beside)| (pieces * piece + beside).saturating_sub(2))
}

fn frame_max_and_body_size() -> impl Strategy<Value = (u32, usize)> {
    (4096..20_000_u32).prop_flat_map(|max| (Just(max), body_size(piece_size(max))))
}

fn piece_size(frame_max: u32) -> usize {
    usize::try_from(frame_max).unwrap() - 8
}

/// `more` is what the message's further headers stand for.
fn assert_read_as_meant(parts: &MessageParts<'_>, more: FieldTable, body: &[u8], frame_max: u32) {
    let message = Message::encode(&mut Vec::new(), parts, body).unwrap();
    assert_eq!(message.body_len(), body.len());
    assert!(message.fits(frame_max));
    let frames = frames_of(&message, frame_max);

    let publish = basic::Publish {
        exchange: parts.exchange.into(),
        routing_key: parts.routing_key.into(),
        mandatory: parts.mandatory,
        immediate: false,
    };
    let method = AMQPClass::Basic(basic::AMQPMethod::Publish(publish));
    assert_eq!(frames[0], AMQPFrame::Method(1, method));
    let method = generate(&frames[0]);
    let ours = Publish {
        exchange: parts.exchange.as_bytes(),
        routing_key: parts.routing_key.as_bytes(),
        mandatory: parts.mandatory,
    };
    assert_eq!(
        Publish::decode(payload(&method, FrameKind::Method, 1)),
        Ok(Some(ours))
    );

    let headers = &parts.headers;
    let mut table = more;
    table.insert(
        "aggregate_type".into(),
        AMQPValue::LongString(headers.aggregate_type.into()),
    );
    table.insert(
        "aggregate_id".into(),
        AMQPValue::LongString(headers.aggregate_id.into()),
    );
    for (name, value) in [
        ("traceparent", headers.trace.traceparent),
        ("tracestate", headers.trace.tracestate),
    ] {
        if let Some(value) = value {
            table.insert(name.into(), AMQPValue::LongString(value.to_string().into()));
        }
    }
    let number = |number| AMQPValue::LongLongInt(i64::try_from(number).unwrap());
    let expected_key = match headers.origin {
        Origin::Stream {
            commit_lsn,
            tx_seq,
            backfill,
        } => {
            let text = AMQPValue::LongString(commit_lsn.to_string().into());
            table.insert("commit_lsn".into(), text);
            table.insert("tx_seq".into(), number(tx_seq));
            if backfill {
                table.insert("backfill".into(), AMQPValue::Boolean(true));
            }
            (commit_lsn, tx_seq)
        }
        Origin::Replay { seq } => {
            table.insert("replayed".into(), AMQPValue::Boolean(true));
            table.insert("replay_seq".into(), number(seq));
            (Lsn::INVALID, seq)
        }
    };
    let mut properties = basic::AMQPProperties::default()
        .with_headers(table)
        .with_delivery_mode(if parts.persistent { 2 } else { 1 })
        .with_timestamp(parts.timestamp);
    // An empty text leaves its property out.
    type With = fn(basic::AMQPProperties, ShortString) -> basic::AMQPProperties;
    let texts: [(&str, With); 6] = [
        (parts.content_type, basic::AMQPProperties::with_content_type),
        (parts.correlation_id, basic::AMQPProperties::with_correlation_id),
        (parts.expiration, basic::AMQPProperties::with_expiration),
        (parts.message_id, basic::AMQPProperties::with_message_id),
        (parts.message_type, basic::AMQPProperties::with_type),
        (parts.app_id, basic::AMQPProperties::with_app_id),
    ];
    for (text, with) in texts {
        if !text.is_empty() {
            properties = with(properties, text.into());
        }
    }
    if let Some(priority) = parts.priority {
        properties = properties.with_priority(priority);
    }
    let body_size = u64::try_from(body.len()).unwrap();
    let header = AMQPContentHeader {
        class_id: 60,
        body_size,
        properties,
    };
    assert_eq!(frames[1], AMQPFrame::Header(1, header));

    let pieces: Vec<_> = body
        .chunks(piece_size(frame_max))
        .map(|piece| AMQPFrame::Body(1, piece.to_vec()))
        .collect();
    assert_eq!(frames[2..], pieces);

    let header = generate(&frames[1]);
    let key = returned_key(payload(&header, FrameKind::Header, 1));
    assert_eq!(key, Ok(Some(expected_key)));
}

proptest! {
    #![proptest_config(crate::property::config())]

    #[test]
    fn a_message_is_read_as_meant(
        (frame_max, size) in frame_max_and_body_size(),
        texts in prop::array::uniform10("\\PC{0,60}"),
        (object, priority) in (json_object(), any::<Option<u8>>()),
        (mandatory, persistent, replayed, backfill) in any::<(bool, bool, bool, bool)>(),
        (timestamp, lsn, tx_seq) in (any::<u64>(), any::<u64>(), 0..=u64::MAX / 2),
        first in any::<u8>(),
    ) {
        let [
            exchange, routing_key, message_id, message_type, content_type, correlation_id, expiration, app_id, aggregate_type,
            aggregate_id,
        ] = texts.each_ref().map(String::as_str);
        let mut more = HeaderEntries::default();
        more.object(&object.to_string(), |_| NameUse::Joins).unwrap();
        let commit_lsn = Lsn::new(lsn);
        let origin = if replayed { Origin::Replay { seq: tx_seq } } else { Origin::Stream { commit_lsn, tx_seq, backfill } };
        let trace = TraceContext {
            traceparent: TraceValue::of_column(aggregate_id.as_bytes()),
            tracestate: TraceValue::of_column(message_type.as_bytes()),
        };
        let headers = HeaderParts { aggregate_type, aggregate_id, origin, trace, more: more.encoded() };
        let parts = MessageParts {
            exchange,
            routing_key,
            mandatory,
            persistent,
            message_id,
            message_type,
            content_type,
            correlation_id,
            expiration,
            priority,
            timestamp,
            app_id,
            headers,
        };
        let body: Vec<u8> = (0..=u8::MAX).cycle().skip(first.into()).take(size).collect();
        assert_read_as_meant(&parts, table_of(&object), &body, frame_max);
    }
}
