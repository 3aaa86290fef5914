//! A virtual PostgreSQL and a virtual broker around one flow, with the books of what may and may not happen.

mod broker;
mod postgres;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

pub(super) use broker::Answer;
use broker::Pipe;
use postgres::{Server, commit_lsn, number, payload};

use super::rig::{COMMIT_SIZE, Position, config, origin};
use crate::Lsn;
use crate::flow::{Flow, Timeout};
use crate::history::History;

/// A piece of the log. It commits at 100 times its number, from 1.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    /// A transaction, maybe without a row of the outbox.
    Transaction(Vec<RowPlan>),
    /// Other writes, of which only keepalives tell.
    Other,
}

#[derive(Debug, Clone)]
pub(super) struct RowPlan {
    pub(super) is_sent: bool,
    pub(super) payload: usize,
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) log: Vec<Piece>,
    pub(super) events: usize,
    pub(super) bytes: usize,
    /// How many transactions the flow remembers; none for as many as it does.
    pub(super) history: Option<usize>,
}

pub(super) struct World {
    flow: Flow,
    now: Instant,
    plan: Plan,
    /// Pieces of the log that exist by now.
    written: usize,
    server: Server,
    pipe: Option<Pipe>,
    is_blocked: bool,
    books: Books,
}

/// What has happened, and what therefore may.
struct Books {
    events: BTreeMap<Position, Book>,
    /// What reached a queue, in the order in which it did.
    deliveries: Vec<Position>,
    /// Nacked, returned or unanswered, and not accepted since.
    failing: BTreeSet<Position>,
    /// The durable LSN of the session, as last seen.
    durable: u64,
    /// No nack and no return so far.
    is_calm: bool,
    /// The flow has forgotten what it had settled: for good reasons only.
    may_repeat: bool,
    has_lost_session: bool,
}

#[derive(Debug, Clone)]
struct Book {
    payload: Vec<u8>,
    is_sent: bool,
    is_accepted: bool,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let mut events = BTreeMap::new();
        for (piece, rows) in plan.log.iter().enumerate() {
            let Piece::Transaction(rows) = rows else { continue };
            for (row, plan) in rows.iter().enumerate().filter(|(_, row)| !row.is_sent) {
                let position = (commit_lsn(piece), number(row));
                let book = Book {
                    payload: payload(position, plan.payload),
                    is_sent: false,
                    is_accepted: false,
                };
                events.insert(position, book);
            }
        }
        let books = Books {
            events,
            deliveries: Vec::new(),
            failing: BTreeSet::new(),
            durable: 0,
            is_calm: true,
            may_repeat: false,
            has_lost_session: false,
        };
        let mut world = Self {
            flow: new_flow(&plan),
            now: origin(),
            plan,
            written: 0,
            server: Server::default(),
            pipe: None,
            is_blocked: false,
            books,
        };
        world.session_started();
        world.link_up();
        world
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// What the shell does after each step: deadlines, a status update, and the checks.
    pub(super) fn settle_down(&mut self) {
        while let Some(timeout) = self.flow.handle_timeout(self.now) {
            match timeout {
                Timeout::Confirm => {
                    assert!(!self.is_blocked, "R12: a time-out while blocked");
                    let oldest = self.pipe.as_ref().and_then(Pipe::oldest).unwrap();
                    self.books.failing.insert(oldest);
                    self.link_lost(0);
                }
                Timeout::Silence => self.session_lost(true),
            }
        }
        if let Some(positions) = self.flow.poll_status(self.now) {
            let sender = self.server.sender.as_mut().expect("a status without a session");
            sender.status = Some(positions.durable.get());
            assert!(positions.durable <= positions.received);
            self.check_position(positions.durable.get());
        }
        self.check();
    }

    /// All faults off until nothing is left to do; then everything must have come out right.
    pub(super) fn drain(&mut self) {
        self.write_log(self.plan.log.len());
        self.work();
        let end = commit_lsn(self.plan.log.len() - 1) + COMMIT_SIZE;
        self.keepalive(false);
        assert!(self.flow.is_drained());
        assert_eq!(
            self.flow.durable(),
            Some(Lsn::new(end)),
            "I8: the durable LSN is not the log's end"
        );
        let lost: Vec<_> = self
            .books
            .events
            .iter()
            .filter(|(_, book)| !book.is_accepted)
            .collect();
        assert!(lost.is_empty(), "I1: lost {lost:?}");
        let mut seen = BTreeSet::new();
        let mut first = self.books.deliveries.clone();
        first.retain(|position| seen.insert(*position));
        assert!(
            first.is_sorted() || !self.books.is_calm,
            "I3: first deliveries in commit order"
        );
        let delivered: Vec<_> = seen.iter().collect();
        assert_eq!(delivered, self.books.events.keys().collect::<Vec<_>>());
    }

    /// A clean stop, and another process that begins from what this one has acknowledged.
    pub(super) fn restart_cleanly(&mut self) {
        self.flow.stop();
        self.work();
        assert!(self.flow.is_drained());
        let positions = self.flow.final_status(self.now).unwrap();
        self.check_position(positions.durable.get());
        self.server.confirmed = self.server.confirmed.max(positions.durable.get());
        self.books.may_repeat |= self.books.has_lost_session;
        self.server.sender = None;
        self.pipe = None;
        self.flow = new_flow(&self.plan);
    }

    /// Works without faults until no step makes progress and no event is left.
    fn work(&mut self) {
        self.session_started();
        self.link_up();
        self.blocked(false);
        for _ in 0..10_000 {
            let mut progress = self.stream(usize::MAX);
            self.keepalive(false);
            progress |= self.publish(usize::MAX);
            self.receive(usize::MAX);
            let newest = self.pipe.as_ref().map_or(0, |pipe| pipe.unanswered.len());
            progress |= newest > 0;
            if newest > 0 {
                self.answer(Answer::Ack, newest - 1, true);
            }
            self.settle_down();
            self.status_arrives();
            if !progress {
                if self.flow.in_flight() == 0 {
                    return;
                }
                let deadline = self.flow.deadline().expect("nothing to wait for");
                assert!(deadline > self.now, "a deadline that has passed and stays");
                self.now = deadline;
                // A time-out would be for want of a reconnecting shell.
                self.session_started();
                self.link_up();
            }
        }
        panic!("does not drain: {:?}", self.flow);
    }

    fn check(&mut self) {
        assert!(self.flow.in_flight() <= self.plan.events, "I5: count");
        assert!(
            self.flow.in_flight_bytes() <= self.plan.bytes || self.flow.in_flight() == 1,
            "I5: bytes"
        );
        if let Some(durable) = self.flow.durable() {
            assert!(durable.get() >= self.books.durable, "the durable LSN went back");
            self.books.durable = durable.get();
            self.check_position(durable.get());
        }
        let fails = self.flow.held().is_some();
        assert_eq!(fails, !self.books.failing.is_empty(), "I9: what is held is said");
    }

    /// I1.
    fn check_position(&self, position: u64) {
        let mut below = self.books.events.range(..(position, 0));
        if let Some((event, _)) = below.find(|(_, book)| !book.is_accepted) {
            panic!("I1: {position} would acknowledge {event:?}, which the broker has not accepted");
        }
    }
}

fn new_flow(plan: &Plan) -> Flow {
    let mut flow = Flow::new(config(plan.events, plan.bytes));
    if let Some(history) = plan.history {
        flow.history = History::new(history);
    }
    flow
}
