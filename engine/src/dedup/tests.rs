use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::amqp::{MessageParts, Origin};
use crate::key::TransactionKey;
use crate::stream_protocol::chunk::MESSAGE_HEAD;
use crate::stream_protocol::encode::PUBLISH_OVERHEAD;
use crate::timestamp::PgTimestamp;
use crate::{Lsn, property};

/// How many events the log has, and how many may be in flight.
const EVENTS: u64 = 60;
const WINDOW: usize = 12;

fn key(event: u64) -> EventKey {
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

fn event_at(position: Position) -> u64 {
    (position.0.get() - 1000) / 10
}

fn message() -> Message {
    let parts = MessageParts {
        mandatory: false,
        message_id: "id",
        ..MessageParts::empty(Origin::Replay { seq: 0 })
    };
    Message::encode(&mut Vec::new(), &parts, b"{}").expect("a message")
}

/// A frame under way.
#[derive(Debug, Clone)]
struct Sent {
    producer: Option<String>,
    id: u64,
    message: Vec<u8>,
}

/// Frames of one connection that the broker has not taken yet; after the connection's end it may still take some.
#[derive(Debug, Default)]
struct Pipe {
    frames: VecDeque<Sent>,
    confirms: VecDeque<(u8, u64)>,
    /// One was lost on the way, while later ones were taken.
    is_holed: bool,
}

#[derive(Debug, Default)]
struct Stream {
    messages: Vec<(Option<String>, Vec<u8>)>,
    highest: BTreeMap<String, u64>,
    /// How often each event was stored, those that were truncated since included.
    stored: BTreeMap<u64, u32>,
}

impl Stream {
    fn take(&mut self, sent: Sent) -> (u8, u64) {
        let publisher = match &sent.producer {
            Some(name) => {
                let highest = self.highest.entry(name.clone()).or_default();
                if sent.id <= *highest {
                    return (COUNTED, sent.id);
                }
                *highest = sent.id;
                COUNTED
            }
            None => UNCOUNTED,
        };
        let mark = crate::amqp::mark_of(&sent.message).expect("a mark");
        let numbers: Vec<u64> = mark[1..]
            .as_chunks::<8>()
            .0
            .iter()
            .map(|n| u64::from_be_bytes(*n))
            .collect();
        let event = event_at((Lsn::new(numbers[4]), numbers[5]));
        *self.stored.entry(event).or_default() += 1;
        self.messages.push((sent.producer, sent.message));
        (publisher, sent.id)
    }
}

/// A relay's process.
#[derive(Debug, Default)]
struct Process {
    dedup: Dedup,
    /// The window: from the oldest unsettled event on, and whether each is settled. The place of an event is its number.
    first: u64,
    settled: VecDeque<bool>,
    /// The first that was not handed to the link.
    unsent: u64,
    tags: BTreeMap<u64, u64>,
    next_tag: u64,
    is_up: bool,
}

#[derive(Debug)]
struct World {
    message: Message,
    /// Everything before it was reported to PostgreSQL.
    flushed: u64,
    configuration: u32,
    process: Process,
    pipe: Pipe,
    zombies: Vec<Pipe>,
    stream: Stream,
    /// The next read-back takes too long.
    is_slow: bool,
    /// What may lead to duplicates has happened.
    may_repeat: bool,
}

#[derive(Debug, Clone)]
enum Step {
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
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (1..WINDOW).prop_map(Step::Publish),
        6 => (1..WINDOW).prop_map(Step::Take),
        6 => (1..WINDOW).prop_map(Step::Confirm),
        3 => Just(Step::Report),
        3 => Just(Step::LoseLink),
        3 => Just(Step::Crash),
        4 => (0..4_usize, 1..WINDOW).prop_map(|(pipe, count)| Step::TakeLate(pipe, count)),
        1 => (0..4_usize).prop_map(Step::CutLate),
        1 => Just(Step::LoseOne),
        1 => (0..40_usize).prop_map(Step::Truncate),
        1 => Just(Step::Slow),
        1 => Just(Step::Reconfigure),
        2 => (1..WINDOW, 1..WINDOW).prop_map(|(publish, take)| Step::Interlude(publish, take)),
    ];
    proptest::collection::vec(step, 0..150)
}

impl World {
    fn new() -> Self {
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

    fn link_up(&mut self) {
        if self.process.is_up {
            return;
        }
        let base = format!("walrelay/slot/1/1/{}", self.configuration);
        let name = |generation| producer(&base, generation);
        let last = |generation| self.stream.highest.get(&name(generation)).copied();
        let fresh = (0..).find(|generation| last(*generation).is_none()).expect("one");
        let used = self.process.dedup.producer();
        let least = used.and_then(|used| generation(&base, used)).unwrap_or_default();
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
            found,
        });
        self.process.is_up = true;
        self.process.unsent = self.process.first;
        self.process.tags.clear();
        self.process.next_tag = 1;
    }

    /// From further and further back, until it is enough.
    fn read_back(&self, producer: &str, last: u64) -> Option<Found> {
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

    fn publish(&mut self, count: usize) {
        self.link_up();
        let process = &mut self.process;
        for _ in 0..count {
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

    fn take(&mut self, count: usize) {
        for _ in 0..count {
            let Some(sent) = self.pipe.frames.pop_front() else {
                return;
            };
            let confirm = self.stream.take(sent);
            self.pipe.confirms.push_back(confirm);
        }
    }

    fn confirm(&mut self, count: usize) {
        for _ in 0..count {
            let Some((publisher, id)) = self.pipe.confirms.pop_front() else {
                return;
            };
            let tag = self
                .process
                .dedup
                .confirmed(publisher, id)
                .expect("it is outstanding");
            let event = self.process.tags.remove(&tag).expect("it was sent");
            self.process.settle(event);
        }
    }

    fn lose_link(&mut self) {
        let mut pipe = std::mem::take(&mut self.pipe);
        // The broker forgets a publisher that it has lost something of, and takes no more.
        if !pipe.is_holed {
            pipe.confirms.clear();
            self.zombies.push(pipe);
        }
        self.process.dedup.link_lost();
        self.process.is_up = false;
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Publish(count) => self.publish(count),
            Step::Take(count) => self.take(count),
            Step::Confirm(count) => self.confirm(count),
            Step::Report => self.flushed = self.process.first,
            Step::LoseLink => self.lose_link(),
            Step::Crash => self.crash(),
            Step::TakeLate(pipe, count) => {
                if let Some(pipe) = self.zombies.get_mut(pipe) {
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
                let other = Process::starting_at(self.flushed);
                let ours = std::mem::replace(&mut self.process, other);
                self.publish(publish);
                self.take(take);
                self.confirm(take);
                self.flushed = self.process.first;
                self.lose_link();
                self.process = ours;
                // What the slot has passed is settled here too (R19).
                while self.process.first < self.flushed {
                    self.process.settle(self.process.first);
                }
            }
            Step::Reconfigure => {
                self.configuration += 1;
                self.may_repeat = true;
                self.crash();
            }
        }
    }

    fn crash(&mut self) {
        self.lose_link();
        self.process = Process::starting_at(self.flushed);
    }

    /// Nothing goes wrong any more.
    fn finish(&mut self) {
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
    fn starting_at(event: u64) -> Self {
        Self {
            first: event,
            unsent: event,
            ..Self::default()
        }
    }

    fn settle(&mut self, event: u64) {
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

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..property::config() })]

    #[test]
    fn r26_no_event_is_lost_and_without_losses_on_the_way_each_is_stored_once(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        world.finish();
        for event in 0..EVENTS {
            let times = world.stream.stored.get(&event).copied().unwrap_or_default();
            prop_assert!(times >= 1, "event {} is lost", event);
            prop_assert!(times == 1 || world.may_repeat, "event {} is stored {} times", event, times);
        }
    }
}

#[test]
fn r26_an_event_of_a_log_that_was_set_back_is_not_taken_for_the_one_that_stood_there() {
    let mut world = World::new();
    for _ in 0..2 {
        world.publish(5);
        world.take(5);
        world.confirm(5);
    }
    world.lose_link();
    world.process = Process::default();
    world.link_up();
    let dedup = &mut world.process.dedup;
    assert_eq!(dedup.judge(0, &key(0)), Verdict::Stored);
    let mut other = key(1);
    other.transaction.commit_time = PgTimestamp::new(99);
    assert_eq!(dedup.judge(1, &other), Verdict::Uncounted);
    other.transaction.commit_lsn = key(50).transaction.commit_lsn;
    assert_eq!(dedup.judge(2, &other), Verdict::Counted(11));
}

#[test]
fn a_row_that_the_stream_does_not_bring_is_never_counted() {
    let mut dedup = Dedup::default();
    let row = EventKey {
        transaction: TransactionKey::backfill(Lsn::new(5), PgTimestamp::new(1)),
        tx_seq: 0,
    };
    assert_eq!(dedup.judge(0, &row), Verdict::Uncounted);
    assert_eq!(dedup.judge(1, &key(0)), Verdict::Counted(1));
}

#[test]
fn a_mark_is_read_as_written_and_by_its_own_producer_only() {
    let mark = Mark {
        id: 7,
        floor: Floor {
            id: 3,
            position: Some((Lsn::new(9), 2)),
        },
        position: (Lsn::new(11), 4),
        commit_time: PgTimestamp::new(-5),
    };
    let mut bytes = Vec::new();
    mark.write("walrelay/a", &mut bytes);
    assert_eq!(Mark::read(&bytes, "walrelay/a"), Some(mark));
    assert_eq!(Mark::read(&bytes, "walrelay/b"), None);
    assert_eq!(Mark::read(&bytes[..bytes.len() - 11], "walrelay/a"), None);
}
