//! A virtual PostgreSQL, a virtual broker and a shell that looks after dead letters around one flow, with the books of
//! what may and may not happen.

mod books;
mod broker;
mod marker;
mod operator;
mod postgres;

use std::time::{Duration, Instant};

use books::{Books, Failing};
pub(super) use broker::Answer;
use broker::Pipe;
use marker::Marker;
use operator::Store;
use postgres::{Server, commit_lsn, number, payload};

use super::rig::{Position, config, origin, position};
use crate::emitted::{SCHEMA, table_name};
use crate::event::{AfterPublish, OutboxTable};
use crate::flow::{Flow, FlowConfig, Timeout};
use crate::history::History;
use crate::policy::Policies;

/// The prefix of messages that are events.
const MESSAGES: &str = "outbox";

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
    /// It is in no table.
    pub(super) is_message: bool,
    /// If it is an invalid message: whether it is at least JSON, so that its aggregate is known.
    pub(super) is_readable: bool,
    /// It has been sent, or is a message of somebody else's: no event, but a place in its transaction.
    pub(super) is_sent: bool,
    pub(super) payload: usize,
    pub(super) aggregate: u8,
    pub(super) fate: Fate,
}

/// Whether an event can be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Deliverable,
    /// The row cannot become a message.
    Invalid,
    /// No queue for it, until the faults are over.
    Unroutable,
    /// The broker closes over it, until the faults are over.
    Poison,
}

#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) log: Vec<Piece>,
    pub(super) events: usize,
    pub(super) bytes: usize,
    /// How many transactions the flow remembers; none for as many as it does.
    pub(super) history: Option<usize>,
    pub(super) policies: Policies,
    pub(super) keep_rows: bool,
    pub(super) strict: bool,
    pub(super) max_rate: Option<u32>,
    /// Rows are marked.
    pub(super) marks: bool,
    /// At the end the broker takes what it has refused; otherwise a person must skip what is held.
    pub(super) heals: bool,
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
    /// A dead letter that is being stored.
    store: Option<Store>,
    marker: Marker,
    are_dead_letters_full: bool,
    is_healed: bool,
    books: Books,
}

impl World {
    pub(super) fn new(plan: Plan) -> Self {
        let mut world = Self {
            flow: new_flow(&plan),
            now: origin(),
            written: 0,
            server: Server::default(),
            pipe: None,
            is_blocked: false,
            store: None,
            marker: Marker::default(),
            are_dead_letters_full: false,
            is_healed: false,
            books: Books::new(&plan),
            plan,
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
                    self.fails(oldest, Failing::Unanswered);
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
            self.check_marked(positions.durable.get());
        }
        self.take_discarded();
        self.check();
    }

    /// One whole turn of the shell. Then every deadline lies ahead: it never turns for nothing.
    pub(super) fn turn(&mut self) {
        self.publish(usize::MAX);
        self.marks_begin();
        self.settle_down();
        let deadline = self.flow.deadline();
        assert!(
            deadline.is_none_or(|deadline| deadline > self.now),
            "a deadline that has passed and stays"
        );
    }

    /// All faults off until nothing is left to do; then everything must have come out right.
    pub(super) fn drain(&mut self) {
        self.is_healed = self.plan.heals;
        self.write_log(self.plan.log.len());
        self.work();
        self.keepalive(false);
        // The settled prefix goes last, and after failures as late as they have it wait.
        self.pass(Duration::from_secs(32));
        self.mark_all();
        assert!(self.flow.is_drained());
        let end = self.server.sender.as_ref().map(|sender| sender.sent_end);
        assert_eq!(
            self.flow.durable().map(crate::Lsn::get),
            end,
            "I8: the durable LSN is not the log's end"
        );
        self.books.check_end(self.plan.strict);
        self.check_all_marked(u64::MAX);
    }

    /// A clean stop, and another process that begins from what this one has acknowledged.
    pub(super) fn restart_cleanly(&mut self) {
        self.flow.stop(self.now);
        self.work();
        assert!(self.flow.is_drained());
        let positions = self.flow.final_status(self.now).unwrap();
        self.check_position(positions.durable.get());
        self.server.confirmed = self.server.confirmed.max(positions.durable.get());
        // What was settled beyond it is read again: behind a barrier, or since a session was lost.
        let mut beyond = self.books.events.range((self.server.confirmed, 0)..);
        self.books.may_repeat |= beyond.any(|(_, book)| book.is_settled());
        self.server.sender = None;
        self.check_all_marked(self.server.confirmed);
        (self.pipe, self.store) = (None, None);
        self.marker.forget();
        self.books.sends.clear();
        self.flow = new_flow(&self.plan);
        self.are_dead_letters_full = false;
    }

    /// Works without faults until no step makes progress and no event is left.
    fn work(&mut self) {
        self.blocked(false);
        for _ in 0..10_000 {
            self.session_started();
            self.link_up();
            let mut progress = self.stream(usize::MAX);
            self.keepalive(false);
            self.publish(usize::MAX);
            // Whatever is under way is answered or refused.
            progress |= self.pipe.as_ref().is_some_and(|pipe| !pipe.is_idle());
            self.receive(usize::MAX);
            let newest = self.pipe.as_ref().map_or(0, |pipe| pipe.unanswered.len());
            if newest > 0 {
                self.answer(Answer::Ack, newest - 1, true);
            }
            progress |= self.store_all();
            progress |= self.skip_what_is_doomed();
            progress |= self.mark_all();
            self.settle_down();
            self.status_arrives();
            if !progress {
                if self.flow.in_flight() == 0 && self.flow.unmarked() == 0 {
                    // What waits for marks no longer does.
                    self.settle_down();
                    return;
                }
                self.turn();
                let deadline = self.flow.deadline().expect("nothing to wait for");
                self.now = deadline;
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
        let held = self.flow.held().map(|held| position(&held.key));
        assert_eq!(held, self.books.oldest_failing(), "I9: what is held is said");
        assert_eq!(self.flow.held_count(), self.books.failing.len(), "I9");
        let set_aside = self.flow.next_set_aside().map(|event| position(&event.event.key));
        assert_eq!(
            set_aside,
            self.books.set_aside.first().copied(),
            "what is to be stored"
        );
        assert_eq!(self.flow.set_aside_count(), self.books.set_aside.len());
        self.books.overtaken.extend(&self.books.set_aside);
    }

    /// I1 and R15.
    fn check_position(&self, position: u64) {
        let received = self.flow.received().map_or(0, crate::Lsn::get);
        self.books
            .check_position(position, self.server.confirmed, received);
    }
}

fn new_flow(plan: &Plan) -> Flow {
    let mut flow = Flow::new(FlowConfig {
        policies: plan.policies,
        keep_rows: plan.keep_rows,
        strict: plan.strict,
        max_rate: plan.max_rate,
        tables: tables(plan.marks),
        messages: Some(MESSAGES.to_owned()),
        ..config(plan.events, plan.bytes)
    });
    if let Some(history) = plan.history {
        flow.history = History::new(history);
    }
    flow
}

fn tables(marks: bool) -> Vec<OutboxTable> {
    let after_publish = match marks {
        true => None,
        false => Some(AfterPublish::Keep),
    };
    let mut tables = config(1, 1).tables;
    for table in &mut tables {
        table.after_publish = after_publish;
    }
    // The one that stands for messages, as the last.
    let messages = OutboxTable {
        schema: SCHEMA.to_owned(),
        name: table_name(MESSAGES),
        after_publish: Some(AfterPublish::Keep),
        ..tables[0].clone()
    };
    tables.push(messages);
    tables
}
