use super::*;
use crate::fault::FaultKind;
use crate::net::{Stream, Wire};
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use walrelay_engine::pgoutput::{Message, Value};
use walrelay_engine::walsender::ServerMessage;

const MAX_EVENT_BYTES: usize = 1000;

/// A stream whose server side is in the test's hands.
fn pair() -> (Replication, UnixStream) {
    let (ours, server) = UnixStream::pair().unwrap();
    let session = Walsender {
        process_id: 7,
        wire: Wire::new(Stream::Unix(ours)),
        connector: Connector::new("postgres://u@h".parse().unwrap()),
        server_version: ServerVersion { major: 15, minor: 0 },
    };
    let identity = SystemIdentity {
        system_id: 7,
        timeline: 1,
    };
    let replication = Replication::new(session, identity, Lsn::new(100), MAX_EVENT_BYTES);
    (replication, server)
}

fn frames(list: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (tag, body) in list {
        frame::write(&mut bytes, *tag, body);
    }
    bytes
}

#[test]
fn the_session_frees_the_slot_by_its_own_timeout_only() {
    let settings = session_settings(Duration::from_secs(10));
    for (name, value) in [
        ("wal_sender_timeout", "10000"),
        ("tcp_keepalives_idle", "5"),
        ("tcp_user_timeout", "0"),
    ] {
        assert!(settings.contains(&(name, value.to_owned())), "{name}");
    }
}

#[tokio::test]
async fn a_frame_stays_until_it_is_consumed() {
    let (mut replication, mut server) = pair();
    let bytes = frames(&[(b'd', b"one"), (b'S', b"a\0b\0"), (b'd', b"two")]);
    server.write_all(&bytes).await.unwrap();
    assert_eq!(replication.next_frame().unwrap(), None);
    replication.io(true).await.unwrap();
    assert_eq!(replication.next_frame().unwrap(), Some(Incoming::Data(b"one")));
    assert_eq!(replication.next_frame().unwrap(), Some(Incoming::Data(b"one")));
    replication.consume_frame();
    assert_eq!(replication.next_frame().unwrap(), Some(Incoming::Data(b"two")));
    replication.consume_frame();
    replication.consume_frame();
    assert_eq!(replication.next_frame().unwrap(), None);
}

#[tokio::test]
async fn a_notice_comes_in_its_place_and_an_error_ends_the_stream() {
    let (mut replication, mut server) = pair();
    let notice = b"SWARNUNG\0VWARNING\0C55000\0Mskipped loading publication\0\0";
    let error = b"SFATAL\0VFATAL\0C57P01\0Mterminating\0\0";
    let bytes = frames(&[(b'N', notice), (b'd', b"x"), (b'E', error)]);
    server.write_all(&bytes).await.unwrap();
    drop(server);
    replication.io(true).await.unwrap();
    let Some(Incoming::Notice(notice)) = replication.next_frame().unwrap() else {
        panic!("no notice")
    };
    assert!(notice.tells_of_a_skipped_publication());
    assert_eq!(replication.next_frame().unwrap(), Some(Incoming::Data(b"x")));
    replication.consume_frame();
    let error = replication.next_frame().unwrap_err();
    assert_eq!(error.sqlstate(), Some(SqlState::ADMIN_SHUTDOWN));
    assert!(matches!(
        replication.io(true).await,
        Err(Error::Closed { step: Step::Stream })
    ));
}

#[tokio::test]
async fn the_end_of_the_copy_is_a_shutdown() {
    for tag in [b'c', b'C'] {
        let (mut replication, mut server) = pair();
        server.write_all(&frames(&[(tag, b"")])).await.unwrap();
        replication.io(true).await.unwrap();
        assert!(matches!(replication.next_frame(), Err(Error::ServerShutdown)));
    }
}

/// The payload of an Insert with one text value.
fn insert(length: usize) -> Vec<u8> {
    let mut payload = vec![b'w'];
    payload.extend_from_slice(&[0; 24]);
    payload.extend_from_slice(b"I\0\0\0\x07N\0\x01t");
    payload.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    payload.resize(payload.len() + length, b'x');
    payload
}

#[tokio::test]
async fn a_large_row_is_condensed_in_its_place_and_never_buffered() {
    const LENGTH: usize = 5_000_000;
    let (mut replication, mut server) = pair();
    let small = insert(MAX_EVENT_BYTES - 100);
    let bytes = frames(&[(b'd', &small), (b'd', &insert(LENGTH)), (b'd', b"next")]);
    let write = async { server.write_all(&bytes).await.unwrap() };
    let read = async {
        let mut payloads = Vec::new();
        while payloads.len() < 3 {
            while let Some(incoming) = replication.next_frame().unwrap() {
                let Incoming::Data(payload) = incoming else {
                    panic!("no data")
                };
                payloads.push(payload.to_vec());
                assert!(payloads.len() <= 3, "a frame came twice");
                let again = Some(Incoming::Data(payloads.last().unwrap()));
                assert_eq!(replication.next_frame().unwrap(), again);
                replication.consume_frame();
            }
            if payloads.len() < 3 {
                replication.io(true).await.unwrap();
                assert!(replication.session.wire.input().len() < 1_000_000);
            }
        }
        payloads
    };
    let (payloads, ()) = tokio::join!(read, write);
    assert_eq!(payloads[0], small);
    assert!(payloads[1].len() < 100);
    assert_eq!(payloads[2], b"next");
    let ServerMessage::XLogData(data) = ServerMessage::decode(&payloads[1]).unwrap() else {
        panic!("no XLogData")
    };
    let Message::Insert(insert) = Message::decode(data.data).unwrap() else {
        panic!("no insert")
    };
    let oversized = Value::Oversized {
        length: LENGTH as u64,
        limit: MAX_EVENT_BYTES as u64,
    };
    assert_eq!(insert.new.value(0), Some(oversized));
}

#[tokio::test]
async fn a_large_frame_of_rubbish_ends_the_stream() {
    let (mut replication, mut server) = pair();
    let mut payload = insert(2000);
    payload[33] = b'?';
    server.write_all(&frames(&[(b'd', &payload)])).await.unwrap();
    replication.io(true).await.unwrap();
    let error = replication.next_frame().unwrap_err();
    assert!(matches!(error, Error::Decode(_)), "{error}");
    assert_eq!(error.kind(), FaultKind::DatabaseProtocol);
}

#[tokio::test]
async fn closing_in_the_middle_of_a_large_row_drops_the_rest_of_it() {
    let (mut replication, mut server) = pair();
    let bytes = frames(&[
        (b'd', &insert(500_000)),
        (b'd', &insert(500_000)),
        (b'c', b""),
        (b'C', b"COPY 0\0"),
        (b'Z', b"I"),
    ]);
    server.write_all(&bytes[..50_000]).await.unwrap();
    replication.io(true).await.unwrap();
    assert_eq!(replication.next_frame().unwrap(), None);
    replication.consume_frame();
    let talk = async {
        server.write_all(&bytes[50_000..]).await.unwrap();
        server
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let (closed, _server) = tokio::join!(replication.close(deadline), talk);
    closed.unwrap();
}

#[tokio::test]
async fn closing_sends_the_last_status_and_waits_for_the_server() {
    use tokio::io::AsyncReadExt;
    let (mut replication, mut server) = pair();
    replication.queue_status(&[b'r'; 34]);
    let talk = async {
        let mut received = vec![0; 39 + 5];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!(received, frames(&[(b'd', &[b'r'; 34]), (b'c', b"")]));
        let answer = frames(&[(b'd', b"rest"), (b'c', b""), (b'C', b"COPY 0\0"), (b'Z', b"I")]);
        server.write_all(&answer).await.unwrap();
        let mut farewell = Vec::new();
        server.read_to_end(&mut farewell).await.unwrap();
        assert_eq!(farewell, frames(&[(b'X', b"")]));
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    let (closed, ()) = tokio::join!(replication.close(deadline), talk);
    closed.unwrap();
}

proptest! {
    #[test]
    fn no_bytes_make_the_stream_panic(chunks in proptest::collection::vec(
        proptest::collection::vec(prop_oneof![Just(b'd'), Just(0), Just(5), any::<u8>()], 1..30), 1..8))
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (mut replication, mut server) = pair();
            for chunk in chunks {
                server.write_all(&chunk).await.unwrap();
                replication.io(true).await.unwrap();
                while let Ok(Some(_)) = replication.next_frame() {
                    replication.consume_frame();
                }
            }
        });
    }
}
