//! The virtual PostgreSQL: one slot, whose walsender begins at what was confirmed and sends whole transactions.

use std::collections::VecDeque;

use super::{Failing, Fate, Piece, RowPlan, World};
use crate::Lsn;
use crate::flow::Intake;
use crate::flow::tests::retries::message;
use crate::flow::tests::rig::{
    COMMIT_SIZE, OutboxRow, Position, begin, commit, identity, keepalive, outbox_relation, xlog,
};
use crate::pgoutput::sample::Sample;

/// PostgreSQL's side of the slot.
#[derive(Default)]
pub(super) struct Server {
    pub(super) confirmed: u64,
    /// What a crash of the server goes back to.
    pub(super) saved: u64,
    pub(super) timeline: u32,
    /// Where the newest transaction that stored a dead letter ends.
    pub(super) extra_end: u64,
    pub(super) sender: Option<Sender>,
    backup: Backup,
    /// How many pieces there were whenever the server was set back.
    set_back: Vec<usize>,
}

/// What setting the server back goes back to.
#[derive(Debug, Clone, Copy, Default)]
struct Backup {
    confirmed: u64,
    written: usize,
    extra_end: u64,
    stored: Option<(Position, bool)>,
}

/// A walsender: sends from what was confirmed, whole transactions, as a real one does.
#[derive(Default)]
pub(super) struct Sender {
    pub(super) next_piece: usize,
    pub(super) is_described: bool,
    pub(super) frames: VecDeque<StreamFrame>,
    /// A frame that found no room.
    pub(super) waiting: Option<StreamFrame>,
    /// Everything before is sent.
    pub(super) sent_end: u64,
    pub(super) loaded_end: u64,
    /// A status update under way.
    pub(super) status: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct StreamFrame {
    bytes: Vec<u8>,
    /// The event that it brings, if it does.
    event: Option<Position>,
}

impl World {
    pub(in crate::flow::tests) fn write_log(&mut self, pieces: usize) {
        self.written = (self.written + pieces).min(self.plan.log.len());
    }

    pub(in crate::flow::tests) fn session_started(&mut self) {
        if self.server.sender.is_some() {
            return;
        }
        let confirmed = self.server.confirmed;
        let flushed = self.flushed();
        let replaced = self
            .flow
            .session_started(identity(self.server.timeline), flushed, self.now);
        self.pass_over();
        let next_piece = (0..self.plan.log.len()).find(|piece| commit_lsn(*piece) >= confirmed);
        self.server.sender = Some(Sender {
            next_piece: next_piece.unwrap_or(self.plan.log.len()),
            sent_end: confirmed,
            loaded_end: confirmed,
            ..Sender::default()
        });
        self.books.durable = 0;
        if replaced {
            self.marker.lose();
            self.books.forget();
            self.pipe = None;
        }
    }

    fn flushed(&self) -> Lsn {
        let written = commit_lsn(self.written) - 100 + COMMIT_SIZE;
        Lsn::new(written.max(self.server.extra_end))
    }

    /// The last status update may get through or not.
    pub(in crate::flow::tests) fn session_lost(&mut self, status_lost: bool) {
        if !status_lost {
            self.status_arrives();
        }
        if self.server.sender.take().is_some() {
            self.flow.session_lost();
            self.books.may_repeat |= self.plan.history.is_some();
        }
    }

    pub(in crate::flow::tests) fn checkpoint(&mut self) {
        self.server.saved = self.server.confirmed;
    }

    pub(in crate::flow::tests) fn server_crash(&mut self) {
        self.session_lost(true);
        self.server.confirmed = self.server.saved;
    }

    /// A standby with the same log takes over.
    pub(in crate::flow::tests) fn promotion(&mut self) {
        self.session_lost(true);
        self.server.timeline += 1;
        self.session_started();
    }

    pub(in crate::flow::tests) fn back_up(&mut self) {
        self.server.backup = Backup {
            confirmed: self.server.confirmed,
            written: self.written,
            extra_end: self.server.extra_end,
            stored: self.marker.stored(),
        };
    }

    /// The server is set back to its backup, on the same timeline; others write in place of what is lost (R2).
    pub(in crate::flow::tests) fn set_back(&mut self) {
        self.session_lost(true);
        let backup = self.server.backup;
        (self.server.confirmed, self.server.saved) = (backup.confirmed, backup.confirmed);
        (self.written, self.server.extra_end) = (backup.written, backup.extra_end);
        self.server.set_back.push(backup.written);
        self.store = None;
        self.marker.set_back(&mut self.flow, backup.stored, self.now);
        self.books
            .set_back(commit_lsn(backup.written), self.flushed().get());
        self.session_started();
    }

    pub(in crate::flow::tests) fn status_arrives(&mut self) {
        let status = self
            .server
            .sender
            .as_mut()
            .and_then(|sender| sender.status.take());
        self.server.confirmed = self.server.confirmed.max(status.unwrap_or(0));
    }

    /// Hands in up to `frames` frames. Returns whether any was taken.
    pub(in crate::flow::tests) fn stream(&mut self, frames: usize) -> bool {
        let mut progress = false;
        for _ in 0..frames {
            let Some(frame) = self.next_frame() else { break };
            let (before, frame_event) = (self.visible(), frame.event);
            let read = self.flow.counters().read;
            match self.flow.handle_stream(&frame.bytes, self.now).unwrap() {
                Intake::Taken => progress = true,
                Intake::NoRoom => {
                    assert_eq!(self.visible(), before, "a frame without room changed something");
                    if let Some(sender) = &mut self.server.sender {
                        sender.waiting = Some(frame);
                    }
                    break;
                }
            }
            let admitted = self.flow.counters().read - read;
            assert!(
                self.books.failing.is_empty() || admitted == 0,
                "R9 and R11: admitted while an event is held"
            );
            if let Some(event) =
                frame_event.filter(|event| admitted > 0 && self.fate(*event) == Fate::Invalid)
            {
                self.fails(event, Failing::Invalid);
            }
            self.take_discarded();
            self.check();
        }
        progress
    }

    pub(in crate::flow::tests) fn keepalive(&mut self, reply_requested: bool) {
        let Some(sender) = self
            .server
            .sender
            .as_ref()
            .filter(|sender| sender.waiting.is_none())
        else {
            return;
        };
        let frame = keepalive(sender.sent_end, reply_requested);
        assert_eq!(self.flow.handle_stream(&frame, self.now).unwrap(), Intake::Taken);
    }

    fn next_frame(&mut self) -> Option<StreamFrame> {
        let sender = self.server.sender.as_mut()?;
        if let Some(frame) = sender.waiting.take() {
            return Some(frame);
        }
        while sender.frames.is_empty() {
            sender.sent_end = sender.loaded_end;
            if sender.next_piece >= self.written {
                sender.sent_end = sender.sent_end.max(self.server.extra_end);
                return None;
            }
            // A piece that was written anew is another transaction at the same place.
            let anew = self.server.set_back.iter();
            let anew = anew.filter(|written| **written <= sender.next_piece).count();
            let xid = 1 + sender.next_piece + 1_000 * anew;
            sender.load(sender.next_piece, xid, &self.plan.log[sender.next_piece]);
            sender.next_piece += 1;
        }
        let frame = sender.frames.pop_front();
        if sender.frames.is_empty() {
            sender.sent_end = sender.loaded_end;
        }
        frame
    }

    fn visible(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let flow = &self.flow;
        (
            *flow.counters(),
            flow.in_flight(),
            flow.in_flight_bytes(),
            flow.durable(),
            flow.received(),
        )
    }
}

impl Sender {
    /// Queues the frames of a piece of the log.
    fn load(&mut self, place: usize, xid: usize, piece: &Piece) {
        let lsn = commit_lsn(place);
        self.loaded_end = lsn + COMMIT_SIZE;
        let Piece::Transaction(rows) = piece else { return };
        let mut push = |bytes, event| self.frames.push_back(StreamFrame { bytes, event });
        push(xlog(&begin(lsn, u32::try_from(xid).unwrap())), None);
        for (row, plan) in rows.iter().enumerate() {
            if !self.is_described {
                push(xlog(&outbox_relation()), None);
                self.is_described = true;
            }
            let position = (lsn, number(row));
            if plan.is_message {
                push(
                    xlog(&in_no_table(plan, position)),
                    Some(position).filter(|_| !plan.is_sent),
                );
                continue;
            }
            let row = OutboxRow {
                aggregate: plan.aggregate.to_string(),
                payload: match plan.fate {
                    Fate::Invalid => Vec::new(),
                    Fate::Deliverable | Fate::Unroutable | Fate::Poison => payload(position, plan.payload),
                },
                is_sent: plan.is_sent,
                ..OutboxRow::new(super::marker::id(position))
            };
            push(xlog(&row.insert()), Some(position).filter(|_| !plan.is_sent));
        }
        push(xlog(&commit(lsn)), None);
    }
}

/// A row's event as a message; or one that is none.
fn in_no_table(plan: &RowPlan, position: Position) -> Sample {
    if plan.is_sent {
        return message("another", 1, 0, b"whatever");
    }
    let (id, aggregate) = (super::marker::id(position), plan.aggregate);
    let rest = match plan.fate {
        Fate::Invalid if plan.is_readable => "}".to_owned(),
        Fate::Invalid => String::new(),
        Fate::Deliverable | Fate::Unroutable | Fate::Poison => {
            let payload = String::from_utf8(payload(position, plan.payload)).unwrap();
            format!(", \"payload\": {payload}}}")
        }
    };
    let content = format!(
        "{{\"id\":\"{id}\",\"aggregate_id\":{aggregate},\"aggregate_type\":\"order\",\"event_type\":\"created\"{rest}"
    );
    message(super::MESSAGES, 1, 0, content.as_bytes())
}

pub(super) fn commit_lsn(piece: usize) -> u64 {
    (number(piece) + 1) * 100
}

pub(super) fn number(index: usize) -> u64 {
    index.try_into().unwrap()
}

/// A payload that names its event.
pub(super) fn payload((commit_lsn, tx_seq): Position, length: usize) -> Vec<u8> {
    let mut payload = format!("\"{commit_lsn}:{tx_seq}").into_bytes();
    payload.resize(payload.len().max(length), b'.');
    payload.push(b'"');
    payload
}
