//! Any bytes as the payload of a `CopyData` frame, and on into the message that it carries: no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use walrelay_engine::pgoutput::Message;
use walrelay_engine::walsender::ServerMessage;

fuzz_target!(|payload: &[u8]| {
    if let Ok(ServerMessage::XLogData(piece)) = ServerMessage::decode(payload) {
        let _ = Message::decode(piece.data);
    }
});
