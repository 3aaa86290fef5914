//! Any bytes as what a broker sends: no panic, no frame beyond the limit, and what decodes can be read to its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay_engine::amqp::{
    ContentHeader, FRAME_MIN_SIZE, FieldValue, Frame, FrameKind, Method, Publish, Table, returned_key,
};

fuzz_target!(|bytes: &[u8]| {
    payload(FrameKind::Method, bytes);
    payload(FrameKind::Header, bytes);
    let mut rest = bytes;
    while let Ok(Some((frame, used))) = Frame::decode(rest, FRAME_MIN_SIZE) {
        assert!(u32::try_from(used).is_ok_and(|used| used <= FRAME_MIN_SIZE));
        payload(frame.kind, frame.payload);
        rest = &rest[used..];
    }
});

fn payload(kind: FrameKind, payload: &[u8]) {
    match kind {
        FrameKind::Method => {
            if let Ok(Method::ConnectionStart {
                server_properties, ..
            }) = Method::decode(payload)
            {
                walk(server_properties);
            }
            let _ = Publish::decode(payload);
        }
        FrameKind::Header => {
            if let Ok(header) = ContentHeader::decode(payload) {
                let _ = header.properties.iter().count();
                if let Some(headers) = header.properties.headers() {
                    walk(headers);
                }
            }
            let _ = returned_key(payload);
        }
        FrameKind::Body | FrameKind::Heartbeat => {}
    }
}

fn walk(table: Table<'_>) {
    for (_, value) in table.iter().flatten() {
        walk_value(value);
    }
}

fn walk_value(value: FieldValue<'_>) {
    let _ = value.integer();
    match value {
        FieldValue::Table(table) => walk(table),
        FieldValue::Array(array) => array.iter().flatten().for_each(walk_value),
        _ => {}
    }
}
