//! What the servers send: the walsender's frames of a backlog, and the broker's acks.

use walrelay_engine::Lsn;

pub(crate) const SCHEMA: &str = "public";
pub(crate) const TABLE: &str = "outbox_events";

/// When all transactions committed, in µs since 2000-01-01.
pub(crate) const COMMIT_TIME: i64 = 840_000_000_000_000;

const OID: u32 = 16_400;

/// Name and type oid of the columns of the table that `walrelay setup` creates (types as in PostgreSQL's `pg_type.dat`).
const COLUMNS: [(&str, u32); 8] = [
    ("id", 2950),
    ("aggregate_type", 25),
    ("aggregate_id", 20),
    ("event_type", 25),
    ("payload", 3802),
    ("sent_at", 1184),
    ("created_at", 1184),
    ("headers", 3802),
];

/// The frames of a backlog, one behind the other: one Relation, then transactions of so many rows.
pub(crate) struct Source {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// How many have been taken.
    taken: usize,
    /// The end of the last transaction.
    end: u64,
}

impl Source {
    /// All frames, encoded beforehand, so that encoding them is not counted.
    pub(crate) fn new(events: u64, rows: u64) -> Source {
        let mut source = Source {
            bytes: Vec::new(),
            ends: Vec::new(),
            taken: 0,
            end: 0,
        };
        let mut position = 0x16_b374_d848;
        let mut number = 0;
        while number < events {
            source.push(position, |frame| {
                frame.push(b'B');
                put(frame, &position.to_be_bytes());
                put(frame, &COMMIT_TIME.to_be_bytes());
                put(frame, &700_u32.to_be_bytes());
            });
            if number == 0 {
                source.push(0, relation);
            }
            for number in number..events.min(number + rows) {
                source.push(position, |frame| insert(frame, number));
            }
            number += rows;
            source.end = position + 48;
            let end = source.end;
            source.push(position, |frame| {
                put(frame, b"C\0");
                put(frame, &position.to_be_bytes());
                put(frame, &end.to_be_bytes());
                put(frame, &COMMIT_TIME.to_be_bytes());
            });
            position += 1_000;
        }
        source
    }

    /// The next frame, the same until it is [`taken`](Self::taken).
    pub(crate) fn frame(&self) -> Option<&[u8]> {
        let start = self.taken.checked_sub(1).map_or(0, |last| self.ends[last]);
        self.bytes.get(start..*self.ends.get(self.taken)?)
    }

    pub(crate) const fn taken(&mut self) {
        self.taken += 1;
    }

    /// The end of the last transaction.
    pub(crate) const fn end(&self) -> Lsn {
        Lsn::new(self.end)
    }

    /// Appends an XLogData frame (<https://www.postgresql.org/docs/current/protocol-replication.html>) around a message.
    fn push(&mut self, position: u64, message: impl FnOnce(&mut Vec<u8>)) {
        let frame = &mut self.bytes;
        frame.push(b'w');
        put(frame, &position.to_be_bytes());
        put(frame, &position.to_be_bytes());
        put(frame, &COMMIT_TIME.to_be_bytes());
        message(frame);
        self.ends.push(frame.len());
    }
}

/// How the table looks (<https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html>, as all messages here).
fn relation(frame: &mut Vec<u8>) {
    frame.push(b'R');
    put(frame, &OID.to_be_bytes());
    put(frame, format!("{SCHEMA}\0{TABLE}\0d").as_bytes());
    put(frame, &8_u16.to_be_bytes());
    for (name, type_oid) in COLUMNS {
        put(frame, format!("\0{name}\0").as_bytes());
        put(frame, &type_oid.to_be_bytes());
        put(frame, &(-1_i32).to_be_bytes());
    }
}

fn insert(frame: &mut Vec<u8>, number: u64) {
    frame.push(b'I');
    put(frame, &OID.to_be_bytes());
    frame.push(b'N');
    put(frame, &8_u16.to_be_bytes());
    text(frame, &format!("{number:08x}-1111-4222-8333-444444444444"));
    text(frame, "order");
    text(frame, &(number % 10_000).to_string());
    text(frame, "OrderCreated");
    text(frame, PAYLOAD);
    frame.push(b'n');
    text(frame, "2026-08-13 08:26:40.123456+00");
    frame.push(b'n');
}

/// A `basic.ack` (<https://www.rabbitmq.com/amqp-0-9-1-reference#basic.ack>).
pub(crate) fn ack(out: &mut Vec<u8>, tag: u64, multiple: bool) {
    // A method frame on channel 1, of 13 bytes: class 60, method 80.
    put(out, &[1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80]);
    put(out, &tag.to_be_bytes());
    put(out, &[u8::from(multiple), 0xce]);
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(bytes);
}

/// A column as text.
fn text(out: &mut Vec<u8>, text: &str) {
    out.push(b't');
    put(out, &u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    put(out, text.as_bytes());
}

/// 300 bytes of jsonb, as PostgreSQL prints it.
const PAYLOAD: &str = concat!(
    "{\"t\": 123456, \"note\": \"",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\", \"currency\": \"EUR\", \"order_id\": 123456}",
);
