//! Relays, connections and a stream without sockets: what is late, lost or dropped is chosen step by step.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::super::*;
use super::stream::{Pipe, Sent, Stream};
use crate::Lsn;
use crate::amqp::{MessageParts, Origin};
use crate::key::TransactionKey;
use crate::stream_protocol::chunk::MESSAGE_HEAD;
use crate::stream_protocol::encode::PUBLISH_OVERHEAD;
use crate::timestamp::PgTimestamp;

/// How many events the log has, and how many may be in flight.
pub(super) const EVENTS: u64 = 60;
pub(super) const WINDOW: usize = 12;

pub(super) fn key(event: u64) -> EventKey {
    EventKey {
        transaction: TransactionKey {
            commit_lsn: Lsn::new(1000 + event * 10),
            xid: 1,
            // Neighbours that commit at the same time may have their times the other way round.
            commit_time: PgTimestamp::new(i64::try_from(event ^ 1).expect("small")),
        },
        tx_seq: 0,
    }
}

pub(super) fn event_at(position: Position) -> u64 {
    (position.0.get() - 1000) / 10
}

pub(super) fn message() -> Message {
    let parts = MessageParts {
        mandatory: false,
        message_id: "id",
        ..MessageParts::empty(Origin::Replay { seq: 0 })
    };
    Message::encode(&mut Vec::new(), &parts, b"{}").expect("a message")
}

/// A relay's process.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) dedup: Dedup,
    /// The window: from the oldest unsettled event on, and whether each is settled. The place of an event is its number.
    pub(super) first: u64,
    pub(super) settled: VecDeque<bool>,
    /// The first that was not handed to the link.
    pub(super) unsent: u64,
    pub(super) tags: BTreeMap<u64, u64>,
    pub(super) next_tag: u64,
    pub(super) is_up: bool,
}

#[derive(Debug)]
pub(super) struct World {
    pub(super) message: Message,
    /// Everything before it was reported to PostgreSQL.
    pub(super) flushed: u64,
    pub(super) configuration: u32,
    pub(super) process: Process,
    pub(super) pipe: Pipe,
    zombies: Vec<Pipe>,
    pub(super) stream: Stream,
    /// The next read-back takes too long.
    pub(super) is_slow: bool,
    /// What may lead to duplicates has happened.
    pub(super) may_repeat: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Step {
    Publish(usize),
    Take(usize),
    Confirm(usize),
    Report,
    LoseLink,
    Crash,
    TakeLate(usize, usize),
    CutLate(usize),
    LoseOne,
    Truncate(usize),
    Slow,
    Reconfigure,
    /// Another process streams for a while, and this one comes back.
    Interlude(usize, usize),
    /// This one stands still meanwhile, and wakes up: it publishes, by a new link perhaps, before it notices that it has the
    /// slot no more.
    Paused {
        publish: usize,
        take: usize,
        relinks: bool,
    },
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..WINDOW).prop_map(Step::Publish),
        6 => (1..WINDOW).prop_map(Step::Take),
        6 => (1..WINDOW).prop_map(Step::Confirm),
        3 => Just(Step::Report),
        3 => Just(Step::LoseLink),
        3 => Just(Step::Crash),
        4 => (0..8_usize, 1..WINDOW).prop_map(|(pipe, count)| Step::TakeLate(pipe, count)),
        1 => (0..8_usize).prop_map(Step::CutLate),
        1 => Just(Step::LoseOne),
        1 => (0..40_usize).prop_map(Step::Truncate),
        3 => Just(Step::Slow),
        1 => Just(Step::Reconfigure),
        2 => (1..WINDOW, 1..WINDOW).prop_map(|(publish, take)| Step::Interlude(publish, take)),
        2 => paused(),
    ];
    proptest::collection::vec(step, 0..150)
}

fn paused() -> impl Strategy<Value = Step> {
    (1..WINDOW, 1..WINDOW, any::<bool>()).prop_map(|(publish, take, relinks)| Step::Paused {
        publish,
        take,
        relinks,
    })
}

/// Little but what generations begin with, and what their beginnings get in the way of.
pub(super) fn beginnings() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..WINDOW).prop_map(Step::Publish),
        4 => (1..WINDOW).prop_map(Step::Take),
        4 => (1..WINDOW).prop_map(Step::Confirm),
        2 => Just(Step::Report),
        3 => Just(Step::Crash),
        1 => Just(Step::LoseLink),
        6 => (0..8_usize, 1..WINDOW).prop_map(|(pipe, count)| Step::TakeLate(pipe, count)),
        3 => Just(Step::Slow),
        2 => (1..WINDOW, 1..WINDOW).prop_map(|(publish, take)| Step::Interlude(publish, take)),
        2 => paused(),
    ];
    proptest::collection::vec(step, 0..60)
}

impl World {
    pub(super) fn new() -> Self {
        Self {
            message: message(),
            flushed: 0,
            configuration: 0,
            process: Process::default(),
            pipe: Pipe::default(),
            zombies: Vec::new(),
            stream: Stream::default(),
            is_slow: false,
            may_repeat: false,
        }
    }

    /// How often an event was stored.
    pub(super) fn times(&self, event: u64) -> u32 {
        self.stream.stored.get(&event).copied().unwrap_or_default()
    }

    pub(super) fn link_up(&mut self) {
        if self.process.is_up {
            return;
        }
        let base = format!("walrelay/slot/1/1/{}", self.configuration);
        let name = |generation| producer(&base, generation);
        let last = |generation| self.stream.highest.get(&name(generation)).copied();
        let fresh = (0..).find(|generation| last(*generation).is_none()).expect("one");
        let used = self.process.dedup.producer();
        let used = used.and_then(|used| generation(&base, used));
        let is_spent = self.process.dedup.is_spent();
        let least = used.map_or(0, |used| used + u32::from(is_spent));
        let newest = fresh.checked_sub(1).filter(|newest| *newest >= least);
        let is_slow = std::mem::take(&mut self.is_slow);
        let found = newest.filter(|_| !is_slow).and_then(|generation| {
            let found = self.read_back(&name(generation), last(generation)?)?;
            Some((generation, found))
        });
        self.may_repeat |= fresh > 0 && found.is_none();
        let (generation, found) = found.map_or((fresh.max(least), None), |(generation, found)| {
            (generation, Some(found))
        });
        self.process.dedup.link_up(Resume {
            producer: name(generation),
            generation,
            found,
        });
        self.process.is_up = true;
        self.process.unsent = self.process.first;
        self.process.tags.clear();
        self.process.next_tag = 1;
    }

    /// From further and further back, until it is enough.
    pub(super) fn read_back(&self, producer: &str, last: u64) -> Option<Found> {
        let all = &self.stream.messages;
        let mut count = 1;
        loop {
            let from = all.len().saturating_sub(count);
            let mut tail = Tail::new(producer.to_owned(), last);
            for (_, message) in &all[from..] {
                tail.message(&message[..message.len().min(MESSAGE_HEAD)]);
            }
            if from == 0 || tail.is_complete() {
                return tail.found(from == 0);
            }
            count *= 3;
        }
    }

    pub(super) fn publish(&mut self, count: usize) {
        self.link_up();
        self.begin_anew();
        self.link_up();
        self.publish_more(count);
    }

    /// Over the link that there is.
    pub(super) fn publish_more(&mut self, count: usize) {
        let process = &mut self.process;
        for _ in 0..count {
            if process.dedup.waits() {
                return;
            }
            let event = process.unsent.max(process.first);
            process.unsent = event;
            let place = usize::try_from(event - process.first).expect("small");
            if event == EVENTS || place >= WINDOW {
                return;
            }
            process.unsent += 1;
            if place == process.settled.len() {
                process.settled.push_back(false);
            } else if process.settled[place] {
                continue;
            }
            process.dedup.settled_before(process.first);
            let verdict = process.dedup.judge(event, &key(event));
            let mut out = Vec::new();
            process
                .dedup
                .write(verdict, Some(&key(event)), &self.message, &mut out);
            let (producer, id) = match verdict {
                Verdict::Stored => {
                    process.settle(event);
                    continue;
                }
                Verdict::Counted(id) => (Some(process.dedup.producer.clone()), id),
                Verdict::Uncounted => (None, process.dedup.next_uncounted),
                Verdict::Later => return,
            };
            process.dedup.sent(verdict, process.next_tag);
            process.tags.insert(process.next_tag, event);
            process.next_tag += 1;
            self.pipe.frames.push_back(Sent {
                producer,
                id,
                message: out.split_off(PUBLISH_OVERHEAD),
            });
        }
    }

    pub(super) fn take(&mut self, count: usize) {
        for _ in 0..count {
            let Some(sent) = self.pipe.frames.pop_front() else {
                return;
            };
            let confirm = self.stream.take(sent);
            self.pipe.confirms.push_back(confirm);
        }
    }

    pub(super) fn confirm(&mut self, count: usize) {
        for _ in 0..count {
            let Some((publisher, id)) = self.pipe.confirms.pop_front() else {
                return;
            };
            let tag = self
                .process
                .dedup
                .confirmed(publisher, id)
                .expect("it is outstanding");
            let Some(tag) = tag else { continue };
            let event = self.process.tags.remove(&tag).expect("it was sent");
            self.process.settle(event);
        }
    }

    pub(super) fn lose_link(&mut self) {
        let mut pipe = std::mem::take(&mut self.pipe);
        // The broker forgets a publisher that it has lost something of, and takes no more.
        if !pipe.is_holed {
            pipe.confirms.clear();
            self.zombies.push(pipe);
        }
        self.process.dedup.link_lost();
        self.process.is_up = false;
    }

    /// What the relay does when it is told to.
    pub(super) fn begin_anew(&mut self) {
        match self.process.dedup.anew() {
            Some(Anew::Session) => self.session_anew(),
            Some(Anew::Link) => self.lose_link(),
            Some(Anew::Everything) => self.crash(),
            None => {}
        }
    }

    /// The process has the slot, and a link of its own.
    pub(super) fn session_anew(&mut self) {
        self.lose_link();
        self.process.dedup.session_lost();
        // What the slot has passed is settled here too (R19).
        while self.process.first < self.flushed {
            self.process.settle(self.process.first);
        }
        self.process.dedup.session_started();
    }

    /// Another process has the slot for a while. Returns this one, and the frames that it has under way.
    pub(super) fn interlude(&mut self, publish: usize, take: usize) -> (Process, Pipe) {
        let other = Process::starting_at(self.flushed);
        let ours = std::mem::replace(&mut self.process, other);
        let pipe = std::mem::take(&mut self.pipe);
        // As often as something may have to be begun anew, and once more.
        for _ in 0..4 {
            self.publish(publish);
            self.take(take);
            self.confirm(take);
        }
        self.flushed = self.process.first;
        self.lose_link();
        (ours, pipe)
    }

    pub(super) fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish(count) => self.publish(count),
            Step::Take(count) => self.take(count),
            Step::Confirm(count) => self.confirm(count),
            Step::Report => self.flushed = self.process.first,
            Step::LoseLink => self.lose_link(),
            Step::Crash => self.crash(),
            Step::TakeLate(pipe, count) => {
                let count_of = self.zombies.len().max(1);
                if let Some(pipe) = self.zombies.get_mut(pipe % count_of) {
                    for sent in pipe.frames.drain(..count.min(pipe.frames.len())) {
                        self.stream.take(sent);
                    }
                }
            }
            Step::CutLate(pipe) => {
                if pipe < self.zombies.len() {
                    self.zombies.remove(pipe);
                }
            }
            Step::LoseOne => {
                if self.pipe.frames.len() > 1 {
                    self.pipe.frames.pop_front();
                    self.pipe.is_holed = true;
                    self.may_repeat = true;
                    self.take(1);
                }
            }
            Step::Truncate(keep) => {
                // What the broker forgets here may have to be looked for.
                let cut = self.stream.messages.len().saturating_sub(keep);
                self.may_repeat |= cut > 0;
                self.stream.messages.drain(..cut);
            }
            Step::Slow => self.is_slow = true,
            Step::Interlude(publish, take) => {
                self.lose_link();
                (self.process, self.pipe) = self.interlude(publish, take);
                self.session_anew();
            }
            Step::Paused {
                publish,
                take,
                relinks,
            } => {
                (self.process, self.pipe) = self.interlude(publish, take);
                self.take(take);
                if relinks {
                    self.lose_link();
                    self.publish(publish);
                } else if self.process.is_up {
                    self.confirm(take);
                    self.publish_more(publish);
                }
                self.session_anew();
            }
            Step::Reconfigure => {
                self.configuration += 1;
                self.may_repeat = true;
                self.crash();
            }
        }
    }

    pub(super) fn crash(&mut self) {
        self.lose_link();
        self.process = Process::starting_at(self.flushed);
    }

    /// The broker takes so many frames more of each connection that is gone.
    pub(super) fn take_all_late(&mut self, count: usize) {
        for pipe in 0..self.zombies.len() {
            self.step(&Step::TakeLate(pipe, count));
        }
    }

    /// Nothing goes wrong any more.
    pub(super) fn finish(&mut self) {
        while self.process.first < EVENTS {
            let before = self.process.first;
            self.publish(WINDOW);
            self.take(WINDOW);
            self.confirm(WINDOW);
            if self.process.first == before {
                // As after the confirm time-out: something was lost on the way.
                self.lose_link();
            }
        }
    }
}

impl Process {
    pub(super) fn starting_at(event: u64) -> Self {
        Self {
            first: event,
            unsent: event,
            ..Self::default()
        }
    }

    pub(super) fn settle(&mut self, event: u64) {
        let place = usize::try_from(event - self.first).expect("in the window");
        if place == self.settled.len() {
            self.settled.push_back(true);
        }
        self.settled[place] = true;
        while self.settled.front() == Some(&true) {
            self.settled.pop_front();
            self.first += 1;
        }
    }
}
