//! The virtual broker: one link at a time, which receives in order and answers as the schedule has it.

use std::collections::VecDeque;

use super::{Failing, Fate, World, commit_lsn};
use crate::Lsn;
use crate::flow::tests::rig::{FRAME_MAX, Position, read_messages};

/// How the broker answers for a message, and all before it where `multiple`.
#[derive(Debug, Clone, Copy)]
pub(in crate::flow::tests) enum Answer {
    Ack,
    Nack,
}

/// One AMQP connection.
#[derive(Default)]
pub(super) struct Pipe {
    pub(super) next_tag: u64,
    /// Sent and not yet received by the broker.
    pub(super) socket: VecDeque<(u64, Position)>,
    /// Received and not answered.
    pub(super) unanswered: Vec<Unanswered>,
    pub(super) last_sent: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Unanswered {
    pub(super) tag: u64,
    pub(super) position: Position,
    pub(super) is_returned: bool,
}

impl World {
    pub(in crate::flow::tests) fn link_up(&mut self) {
        if self.pipe.is_none() {
            self.flow.link_up(FRAME_MAX, 1_000_000, self.now);
            self.pipe = Some(Pipe::default());
            self.is_blocked = false;
        }
    }

    /// The broker still receives so many messages, whose answers are lost.
    pub(in crate::flow::tests) fn link_lost(&mut self, received: usize) {
        if self.pipe.is_some() {
            self.drop_pipe(received);
            self.flow.link_lost();
        }
    }

    pub(super) fn drop_pipe(&mut self, received: usize) {
        self.receive(received);
        self.pipe = None;
    }

    pub(in crate::flow::tests) fn blocked(&mut self, blocked: bool) {
        if self.pipe.is_some() {
            self.is_blocked = blocked;
            self.flow.handle_blocked(blocked, self.now);
        }
    }

    pub(in crate::flow::tests) fn publish(&mut self, target: usize) -> bool {
        let mut out = Vec::new();
        let count = self.flow.poll_publish(&mut out, target, self.now);
        let messages = read_messages(&out);
        assert_eq!(messages.len(), count);
        assert!(
            count == 0 || !self.is_blocked,
            "sent although the broker is blocked"
        );
        for message in messages {
            let position = message.position;
            let pipe = self.pipe.as_mut().expect("sent without a link");
            self.books.check_order(position, self.plan.strict);
            self.books.check_pace(self.now, self.plan.max_rate);
            assert!(
                !self.books.suspects.contains(&position) || pipe.is_idle(),
                "a message over which the broker may have closed is not alone"
            );
            assert!(
                !pipe.positions().any(|sent| self.books.suspects.contains(&sent)),
                "sent together with a message over which the broker may have closed"
            );
            let book = self.books.events.get_mut(&position).expect("no event");
            assert!(
                position.0 <= commit_lsn(self.written) - 100,
                "I2: sent before it was committed"
            );
            assert_eq!(message.body, book.payload, "I4");
            assert_eq!(
                (message.exchange.as_str(), message.is_mandatory),
                ("outbox", true)
            );
            assert!(!pipe.holds(position), "I7: sent again before it was answered");
            // An invalid row is never tried again, so there is nothing to be alone with.
            let mut failing = self.books.failing.values();
            if failing.all(|failing| *failing == Failing::Invalid) {
                let in_order = pipe.last_sent.is_none_or(|last| last < position);
                assert!(
                    in_order || !self.books.is_calm || self.books.may_repeat || self.plan.strict,
                    "I3: order on a link"
                );
            } else {
                assert!(pipe.is_idle(), "R11: not alone, though a delivery has failed");
            }
            book.is_sent = true;
            pipe.send(position);
        }
        count > 0
    }

    /// The broker receives up to `messages` of what was sent.
    pub(in crate::flow::tests) fn receive(&mut self, messages: usize) {
        for _ in 0..messages {
            let Some((tag, position)) = self.pipe.as_mut().and_then(|pipe| pipe.socket.pop_front()) else {
                break;
            };
            let fate = self.fate(position);
            if fate == Fate::Poison {
                return self.refuse(position);
            }
            self.books.deliveries.push(position);
            let Some(pipe) = &mut self.pipe else { return };
            let place = pipe.unanswered.len();
            pipe.unanswered.push(Unanswered {
                tag,
                position,
                is_returned: false,
            });
            if fate == Fate::Unroutable {
                self.return_message(place);
            }
        }
    }

    /// The broker closes over a message. What it was sent besides is lost with the link.
    fn refuse(&mut self, position: Position) {
        let Some(pipe) = self.pipe.take() else { return };
        self.flow
            .link_refused(406, "PRECONDITION_FAILED - invalid headers", self.now);
        if pipe.is_idle() {
            self.fails(position, Failing::Refused);
        } else {
            self.books.suspects.extend(pipe.positions());
            self.books.suspects.insert(position);
        }
    }

    /// The broker returns one of the messages that it has not answered; no queue has got it.
    pub(in crate::flow::tests) fn return_message(&mut self, which: usize) {
        let Some(pipe) = &mut self.pipe else { return };
        let open: Vec<&mut Unanswered> = pipe.unanswered.iter_mut().collect();
        let count = open.len().max(1);
        let Some(message) = open.into_iter().nth(which % count) else {
            return;
        };
        if message.is_returned {
            return;
        }
        message.is_returned = true;
        let (commit_lsn, tx_seq) = message.position;
        self.flow
            .handle_return((Lsn::new(commit_lsn), tx_seq), 312)
            .unwrap();
        let deliveries = &mut self.books.deliveries;
        let last = deliveries
            .iter()
            .rposition(|position| *position == message.position);
        deliveries.remove(last.unwrap());
        self.books.is_calm = false;
    }

    pub(in crate::flow::tests) fn answer(&mut self, answer: Answer, which: usize, multiple: bool) {
        let Some(pipe) = &mut self.pipe else { return };
        let count = pipe.unanswered.len().max(1);
        let Some(tag) = pipe.unanswered.get(which % count).map(|message| message.tag) else {
            return;
        };
        let (covered, left) = pipe
            .unanswered
            .iter()
            .partition(|message| message.tag == tag || (multiple && message.tag < tag));
        pipe.unanswered = left;
        let covered: Vec<Unanswered> = covered;
        match answer {
            Answer::Ack => self.flow.handle_ack(tag, multiple, self.now).unwrap(),
            Answer::Nack => self.flow.handle_nack(tag, multiple, self.now).unwrap(),
        }
        for message in covered {
            match (answer, message.is_returned) {
                (Answer::Ack, false) => {
                    self.books.failing.remove(&message.position);
                    self.books.suspects.remove(&message.position);
                    let now = self.now;
                    let book = self.books.book(message.position);
                    (book.is_accepted, book.waits_since) = (true, Some(now));
                }
                (Answer::Ack, true) => self.fails(message.position, Failing::Unroutable),
                (Answer::Nack, _) => {
                    self.books.is_calm = false;
                    self.fails(message.position, Failing::Nacked);
                }
            }
        }
    }
}

impl Pipe {
    fn send(&mut self, position: Position) {
        self.next_tag += 1;
        self.socket.push_back((self.next_tag, position));
        self.last_sent = Some(position);
    }

    pub(super) fn holds(&self, position: Position) -> bool {
        self.positions().any(|sent| sent == position)
    }

    fn positions(&self) -> impl Iterator<Item = Position> {
        let received = self.unanswered.iter().map(|message| message.position);
        received.chain(self.socket.iter().map(|(_, position)| *position))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.socket.is_empty() && self.unanswered.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<Position> {
        let received = self.unanswered.first().map(|message| message.position);
        received.or_else(|| self.socket.front().map(|(_, position)| *position))
    }
}
