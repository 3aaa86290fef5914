//! What tests need to play both servers: frames of a walsender, and a reader of what goes to the broker.

use std::time::{Duration, Instant};

use crate::Lsn;
use crate::amqp::{ContentHeader, Frame, FrameKind, Method, returned_key};
use crate::event::{AfterPublish, Columns, Content, OutboxTable, Route};
use crate::flow::{Flow, FlowConfig, Intake, LogIdentity, StreamError};
use crate::key::EventKey;
use crate::marks::{MarkSettings, Marked};
use crate::pgoutput::sample::{Cell, Sample, SampleColumn};
use crate::policy::{Policies, Policy};
use crate::route::Template;
use crate::window::WindowLimits;

/// Commit LSN and `tx_seq`: what names an event in these tests.
pub(super) type Position = (u64, u64);

pub(super) const FRAME_MAX: u32 = 4096;
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const CONFIRM_TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
pub(super) const OUTBOX_OID: u32 = 16_385;
pub(super) const OTHER_OID: u32 = 16_999;

/// The bytes between the start of one transaction's commit record and its end.
pub(super) const COMMIT_SIZE: u64 = 8;

pub(super) const COLUMNS: [(&str, u32); 6] = [
    ("id", 2950),
    ("aggregate_type", 25),
    ("aggregate_id", 20),
    ("event_type", 25),
    ("payload", 114),
    ("sent_at", 1184),
];

pub(super) fn config(events: usize, bytes: usize) -> FlowConfig {
    let template = |text| Template::parse(text).unwrap();
    FlowConfig {
        ignore_tables: Vec::new(),
        messages: None,
        tables: vec![OutboxTable {
            schema: "public".to_owned(),
            name: "outbox_events".to_owned(),
            columns: Columns::default(),
            route: Route {
                exchange: template("outbox"),
                routing_key: template("{aggregate_type}.{event_type}"),
                rules: Vec::new(),
            },
            content: Content::default(),
            after_publish: Some(AfterPublish::Keep),
        }],
        limits: WindowLimits { events, bytes },
        max_message_bytes: None,
        confirm_timeout: CONFIRM_TIMEOUT,
        status_interval: SECOND,
        silence_timeout: SILENCE_TIMEOUT,
        app_id: "walrelay".to_owned(),
        policies: Policies::default(),
        keep_rows: false,
        strict: false,
        max_rate: None,
        marks: MarkSettings {
            batch: 3,
            interval: SECOND,
        },
    }
}

/// Room for ten events, rows kept, and the same policy for whatever fails.
pub(super) fn config_with(policy: Policy) -> FlowConfig {
    FlowConfig {
        policies: Policies {
            unroutable: policy,
            invalid: policy,
        },
        keep_rows: true,
        ..config(10, 100_000)
    }
}

pub(super) fn identity(timeline: u32) -> LogIdentity {
    LogIdentity {
        system_id: 7_300_000_000_000_000_001,
        timeline,
    }
}

#[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
pub(super) fn origin() -> Instant {
    Instant::now()
}

/// One row of the outbox table.
#[derive(Debug, Clone)]
pub(super) struct OutboxRow {
    pub(super) id: String,
    pub(super) aggregate: String,
    pub(super) payload: Vec<u8>,
    pub(super) is_sent: bool,
}

impl OutboxRow {
    pub(super) fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            aggregate: "42".to_owned(),
            payload: br#"{"total": 0.10000000000000000001}"#.to_vec(),
            is_sent: false,
        }
    }

    /// One that cannot become a message.
    pub(super) fn invalid(id: impl Into<String>) -> Self {
        Self {
            payload: Vec::new(),
            ..Self::new(id)
        }
    }

    pub(super) fn insert(&self) -> Sample {
        let text = |text: &str| Cell::Text(text.as_bytes().to_vec());
        let sent_at = match self.is_sent {
            true => text("2026-01-01 00:00:00+00"),
            false => Cell::Null,
        };
        let row = vec![
            text(&self.id),
            text("order"),
            text(&self.aggregate),
            text("created"),
            Cell::Text(self.payload.clone()),
            sent_at,
        ];
        Sample::Insert {
            oid: OUTBOX_OID,
            new: row,
        }
    }
}

pub(super) fn relation(oid: u32, name: &str) -> Sample {
    let columns = COLUMNS.map(|(name, type_oid)| SampleColumn {
        flags: 0,
        name: name.to_owned(),
        type_oid,
        type_modifier: -1,
    });
    Sample::Relation {
        oid,
        namespace: "public".to_owned(),
        name: name.to_owned(),
        replica_identity: b'd',
        columns: columns.to_vec(),
    }
}

pub(super) fn outbox_relation() -> Sample {
    relation(OUTBOX_OID, "outbox_events")
}

pub(super) fn begin(commit_lsn: u64, xid: u32) -> Sample {
    Sample::Begin {
        final_lsn: commit_lsn,
        commit_time: 5_000_000,
        xid,
    }
}

pub(super) fn commit(commit_lsn: u64) -> Sample {
    Sample::Commit {
        flags: 0,
        commit_lsn,
        end_lsn: commit_lsn + COMMIT_SIZE,
        commit_time: 5_000_000,
    }
}

/// The payload of an XLogData frame; its positions are not looked at.
pub(super) fn xlog(sample: &Sample) -> Vec<u8> {
    [&b"w"[..], &[0; 24], &sample.encode()].concat()
}

pub(super) fn keepalive(wal_end: u64, reply_requested: bool) -> Vec<u8> {
    [
        &b"k"[..],
        &wal_end.to_be_bytes(),
        &[0; 8],
        &[u8::from(reply_requested)],
    ]
    .concat()
}

/// A message as the broker receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) position: Position,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) is_mandatory: bool,
    pub(super) message_id: String,
    pub(super) body: Vec<u8>,
}

/// Reads frames as a broker would: whole messages only.
pub(super) fn read_messages(mut bytes: &[u8]) -> Vec<Received> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let method = next_frame(&mut bytes, FrameKind::Method);
        assert_eq!(
            Method::decode(method),
            Ok(Method::Other {
                class_id: 60,
                method_id: 40
            }),
            "not a basic.publish"
        );
        // Behind class, method and a reserved number.
        let mut rest = &method[6..];
        let (exchange, routing_key) = (short_string(&mut rest), short_string(&mut rest));
        let header = next_frame(&mut bytes, FrameKind::Header);
        let content = ContentHeader::decode(header).unwrap();
        let (commit_lsn, tx_seq) = returned_key(header).unwrap().unwrap();
        let mut body = Vec::new();
        while u64::try_from(body.len()).unwrap() < content.body_size {
            body.extend_from_slice(next_frame(&mut bytes, FrameKind::Body));
        }
        messages.push(Received {
            position: (commit_lsn.get(), tx_seq),
            exchange,
            routing_key,
            is_mandatory: rest == [1],
            message_id: String::from_utf8(content.properties.message_id().unwrap().to_vec()).unwrap(),
            body,
        });
    }
    messages
}

fn next_frame<'a>(bytes: &mut &'a [u8], kind: FrameKind) -> &'a [u8] {
    let (frame, used) = Frame::decode(bytes, FRAME_MAX).unwrap().expect("a whole frame");
    *bytes = &bytes[used..];
    assert_eq!((frame.kind, frame.channel), (kind, 1));
    frame.payload
}

fn short_string(bytes: &mut &[u8]) -> String {
    let (text, rest) = bytes[1..].split_at(usize::from(bytes[0]));
    *bytes = rest;
    String::from_utf8(text.to_vec()).unwrap()
}

/// A flow, the time, and both servers' parts in few words.
pub(super) struct Rig {
    pub(super) flow: Flow,
    pub(super) now: Instant,
}

impl Rig {
    /// With a session that knows the outbox table, and a link.
    pub(super) fn started(config: FlowConfig) -> Self {
        let mut rig = Self {
            flow: Flow::new(config),
            now: origin(),
        };
        rig.start_session(1);
        rig.link_up();
        rig
    }

    /// Room for ten events.
    pub(super) fn small() -> Self {
        Self::started(config(10, 100_000))
    }

    /// With a server that has not lost anything.
    pub(super) fn start_session(&mut self, timeline: u32) -> bool {
        let received = self.flow.received().unwrap_or_default();
        let flushed = self.flow.log.flushed().max(self.flow.barrier).max(received);
        self.start_session_flushed(timeline, flushed.get())
    }

    pub(super) fn start_session_flushed(&mut self, timeline: u32, flushed: u64) -> bool {
        let replaced = self
            .flow
            .session_started(identity(timeline), Lsn::new(flushed), self.now);
        self.take(&outbox_relation());
        replaced
    }

    pub(super) fn link_up(&mut self) {
        self.flow.link_up(FRAME_MAX, 1_000_000, self.now);
    }

    pub(super) fn offer(&mut self, sample: &Sample) -> Result<Intake, StreamError> {
        self.flow.handle_stream(&xlog(sample), self.now)
    }

    /// Hands in a frame for which there is room.
    pub(super) fn take(&mut self, sample: &Sample) {
        assert_eq!(self.offer(sample).unwrap(), Intake::Taken, "{sample:?}");
    }

    pub(super) fn keepalive(&mut self, wal_end: u64, reply_requested: bool) {
        let frame = keepalive(wal_end, reply_requested);
        assert_eq!(self.flow.handle_stream(&frame, self.now).unwrap(), Intake::Taken);
    }

    /// A whole transaction with so many rows.
    pub(super) fn transaction(&mut self, commit_lsn: u64, rows: u64) {
        self.transaction_of(commit_lsn, 1, rows);
    }

    pub(super) fn transaction_of(&mut self, commit_lsn: u64, xid: u32, rows: u64) {
        self.take(&begin(commit_lsn, xid));
        for row in 0..rows {
            self.take(&OutboxRow::new(format!("{commit_lsn}:{row}")).insert());
        }
        self.take(&commit(commit_lsn));
    }

    /// A transaction with a row for each of these aggregates.
    pub(super) fn transaction_about(&mut self, commit_lsn: u64, aggregates: &[&str]) {
        self.take(&begin(commit_lsn, 1));
        for (row, aggregate) in aggregates.iter().enumerate() {
            let row = OutboxRow {
                aggregate: (*aggregate).to_owned(),
                ..OutboxRow::new(format!("{commit_lsn}:{row}"))
            };
            self.take(&row.insert());
        }
        self.take(&commit(commit_lsn));
    }

    pub(super) fn lose_and_find_session(&mut self) {
        self.flow.session_lost();
        assert!(!self.start_session(1));
    }

    /// What is sent now, as much as may be.
    pub(super) fn publish(&mut self) -> Vec<Position> {
        let messages = self.publish_messages();
        messages.into_iter().map(|message| message.position).collect()
    }

    pub(super) fn publish_one(&mut self) {
        assert_eq!(self.flow.poll_publish(&mut Vec::new(), 1, self.now), 1);
    }

    pub(super) fn publish_messages(&mut self) -> Vec<Received> {
        let mut out = Vec::new();
        let count = self.flow.poll_publish(&mut out, usize::MAX, self.now);
        let messages = read_messages(&out);
        assert_eq!(messages.len(), count);
        messages
    }

    pub(super) fn ack(&mut self, tag: u64) {
        self.flow.handle_ack(tag, false, self.now).unwrap();
    }

    pub(super) fn ack_all(&mut self) {
        self.flow.handle_ack(0, true, self.now).unwrap();
    }

    pub(super) fn nack(&mut self, tag: u64) {
        self.flow.handle_nack(tag, false, self.now).unwrap();
    }

    /// The broker returns a message as unroutable, then acks it.
    pub(super) fn return_and_ack(&mut self, position: Position, tag: u64) {
        let (commit_lsn, tx_seq) = position;
        let position = (Lsn::new(commit_lsn), tx_seq);
        self.flow.handle_return(position, 312).unwrap();
        self.ack(tag);
    }

    /// The broker closes the channel over a message; the next link is up at once.
    pub(super) fn refuse(&mut self) {
        self.refuse_with(406, "PRECONDITION_FAILED - invalid headers");
    }

    pub(super) fn refuse_with(&mut self, reply_code: u16, reply_text: &str) {
        self.flow.link_refused(reply_code, reply_text, self.now);
        self.link_up();
    }

    /// The oldest event that is to be stored as a dead letter.
    pub(super) fn set_aside(&self) -> Option<Position> {
        Some(position(&self.flow.next_set_aside()?.event.key))
    }

    /// It is stored by a transaction that ends at `end`.
    pub(super) fn store(&mut self, end: u64) {
        let seq = self.flow.next_set_aside().expect("nothing is set aside").seq;
        self.flow.stored(seq, Lsn::new(end), self.now);
    }

    pub(super) fn discarded(&mut self) -> Vec<(Position, Option<String>)> {
        let discarded = self.flow.take_discarded();
        discarded
            .map(|discarded| (position(&discarded.key), discarded.message_id))
            .collect()
    }

    /// Whatever is due is marked and stored.
    pub(super) fn mark(&mut self) {
        while let Some(batch) = self.flow.poll_marks(self.now) {
            self.flow.handle_marked(batch, Marked::default(), self.now);
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.flow.durable().unwrap().get()
    }

    pub(super) fn held(&self) -> Option<Position> {
        Some(position(&self.flow.held()?.key))
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

pub(super) fn position(key: &EventKey) -> Position {
    let (commit_lsn, tx_seq) = key.position();
    (commit_lsn.get(), tx_seq)
}
