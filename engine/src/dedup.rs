//! Publishing to a stream so that what was sent twice is stored once (rule 26).
//!
//! RabbitMQ keeps, for each named producer of a stream, the highest publishing id, and drops whatever comes with one that is
//! not higher: confirmed, but not stored. That is sound only where an id means the same event to everyone who sends it, and
//! where an event is known to be stored before its id is passed. So:
//!
//! - Ids are a plain count of the events that one producer name publishes, in the order of the stream; an event keeps its id
//!   for as long as the process lives. What has no place in that order (rows that the stream does not bring, retries of dead
//!   letters) is published without a name, and never dropped.
//! - Every message carries a [`Mark`]: its id, its event's position and commit time, and the **floor**, an id and position
//!   up to which every event was settled when it was sent.
//! - Whenever a link is made, the end of the stream is read back ([`Tail`]). An event is taken for stored where its own mark
//!   was found, or where it lies not beyond the floor of the newest mark; in both cases only where its commit time is not
//!   later than those found, since a log that was set back has other events at the same positions. The count goes on behind the
//!   newest id, so that what an older connection still has under way means the same events.
//! - An event at or before the newest mark that is neither was lost on the way or refused, or is of another log: its id is
//!   passed, so it is published without a name.
//! - Where the stream no longer has the newest mark, or not in time, or the log is another one, a count that goes on could
//!   give an id to another event than an older connection does. So the producer's name has a generation, and the next one
//!   begins at 1. Nothing is taken for stored then, which gives duplicates, and never a loss. It is put on record before
//!   more than one event is published under it ([`Anew`]).

mod beginning;
mod mark;
mod tail;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub use mark::{Mark, Position};
pub use tail::{Found, Tail};

use beginning::Beginning;

use crate::amqp::Message;
use crate::key::EventKey;
use crate::stream_protocol::encode;
use crate::window::{Entry, Seq};

/// Our number for the publisher with a name.
pub const COUNTED: u8 = 0;

/// Our number for the publisher without.
pub const UNCOUNTED: u8 = 1;

/// What is known when a link to a stream is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// The producer's name, with its generation.
    pub producer: String,
    /// The generation in it.
    pub generation: u32,
    /// What the end of the stream tells; none where the broker has nothing of this producer.
    pub found: Option<Found>,
}

/// A producer's name of this generation, which counts from 0. One is used until the next one's first message is stored.
#[must_use]
pub fn producer(base: &str, generation: u32) -> String {
    format!("{base}/{generation}")
}

/// The generation in a producer's name, where the rest of it is `base`.
#[must_use]
pub fn generation(base: &str, producer: &str) -> Option<u32> {
    let generation = producer.strip_prefix(base)?.strip_prefix('/')?;
    generation.parse().ok()
}

/// What to do with an event whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The stream has it.
    Stored,
    /// Publish it under the name, with this id.
    Counted(u64),
    /// Publish it without a name.
    Uncounted,
    /// Nothing is to be published on this link: see [`Dedup::anew`].
    Later,
}

/// What must be begun anew before more is published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anew {
    /// The session, and so the link: a generation's first event is on record, but whose it is, and who has had the slot
    /// since, is not known.
    Session,
    /// The link, with the next generation: others have left this one.
    Link,
    /// The session, with nothing of what was read and settled: others have begun a generation meanwhile, and what was settled
    /// here under the one before would be missing in their count.
    Everything,
}

/// A confirm of nothing that is outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the broker confirmed publishing id {id} of publisher {publisher}, which is not outstanding")]
pub struct UnknownId {
    /// Our number for the publisher.
    pub publisher: u8,
    /// The id.
    pub id: u64,
}

/// The ids of one producer. Memory is bounded by the window.
#[derive(Debug, Default)]
pub struct Dedup {
    producer: String,
    /// Events with an id that are not settled, or behind one that is not; rising in both.
    assigned: VecDeque<Assigned>,
    /// The highest id known of.
    last: u64,
    floor: Floor,
    /// What the stream had when the link was made.
    found: Option<Found>,
    /// The log is another one than that of this producer's marks.
    is_other_log: bool,
    beginning: Beginning,
    /// The current link's messages without an answer.
    sent: [Outstanding; 2],
    next_uncounted: u64,
    mark: Vec<u8>,
}

/// Up to here everything is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Floor {
    /// An id.
    pub id: u64,
    /// An event's position; none before the first.
    pub position: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
struct Assigned {
    seq: Seq,
    id: u64,
    position: Position,
}

/// Publishing ids with their delivery tags, rising in both.
#[derive(Debug, Default)]
struct Outstanding(VecDeque<(u64, Option<u64>)>);

impl Dedup {
    /// A link is made.
    pub fn link_up(&mut self, resume: Resume) {
        let Resume {
            producer,
            generation,
            found,
        } = resume;
        let newest = found.as_ref().map(|found| found.newest);
        let stored_through = newest.map_or(0, |newest| newest.id);
        let before = if self.producer == producer {
            Some(self.beginning)
        } else {
            let is_new = self.producer.is_empty() || self.is_other_log;
            (!is_new).then_some(Beginning::Foreign)
        };
        self.beginning = Beginning::link_up(before, generation, found.as_ref());
        // Before a generation has begun nobody's ids are certain, our own included.
        if before == Some(Beginning::Over) && self.beginning == Beginning::Over {
            self.last = self.last.max(stored_through);
        } else {
            self.assigned.clear();
            self.producer = producer;
            self.last = stored_through;
            self.floor = newest.map_or_else(Floor::default, |newest| newest.floor);
        }
        self.is_other_log = false;
        self.found = found;
        self.link_lost();
    }

    /// The link is lost: what is outstanding counts as unsent.
    pub fn link_lost(&mut self) {
        self.sent = Default::default();
        self.next_uncounted = 1;
    }

    /// What was read comes from another log than what is to come: the events that have ids are dropped.
    pub fn forget(&mut self) {
        self.assigned.clear();
        self.is_other_log = true;
    }

    /// The producer of the last link, once there was one. One of an earlier generation may not be used any more.
    #[must_use]
    pub fn producer(&self) -> Option<&str> {
        Some(self.producer.as_str()).filter(|producer| !producer.is_empty())
    }

    /// Whether that one's name may not be used any more either.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.is_other_log || self.beginning == Beginning::Left
    }

    /// The session is lost.
    pub fn session_lost(&mut self) {
        self.beginning.session_lost();
    }

    /// A session has begun; it was tried for after the last one was lost.
    pub fn session_started(&mut self) {
        self.beginning.session_started();
    }

    /// Another process delivers what is in flight: what comes later is as for a new process, which has seen the same.
    pub fn stand_back(&mut self) {
        let seen = (self.beginning == Beginning::Between)
            .then(|| (std::mem::take(&mut self.producer), self.beginning));
        let (producer, beginning) = seen.unwrap_or_default();
        *self = Self {
            producer,
            beginning,
            ..Self::default()
        };
    }

    /// Whether nothing may be published for now: an answer is awaited, or something is to be begun [`anew`](Self::anew).
    #[must_use]
    pub const fn waits(&self) -> bool {
        self.beginning.waits()
    }

    /// What must be begun anew before more is published.
    #[must_use]
    pub const fn anew(&self) -> Option<Anew> {
        match self.beginning {
            Beginning::Recorded => Some(Anew::Session),
            Beginning::Left => Some(Anew::Link),
            Beginning::Foreign => Some(Anew::Everything),
            Beginning::Over
            | Beginning::Empty
            | Beginning::Sent
            | Beginning::Between
            | Beginning::Witnessed => None,
        }
    }

    /// Every event before this place of the window is settled.
    pub fn settled_before(&mut self, oldest: Seq) {
        while let Some(front) = self.assigned.front().filter(|front| front.seq < oldest) {
            self.floor = Floor {
                id: front.id,
                position: Some(front.position),
            };
            self.assigned.pop_front();
        }
    }

    /// What to do with an event of the window. Those that have no id yet come in the order of the stream.
    pub fn judge(&mut self, seq: Seq, key: &EventKey) -> Verdict {
        if key.transaction.is_backfill() {
            return Verdict::Uncounted;
        }
        let position = key.position();
        let id = self.id_of(seq);
        let is_passed = self.found.as_ref().is_some_and(|found| match id {
            Some(id) => id <= found.newest.id,
            None => position <= found.newest.position,
        });
        if !self.beginning.turn(is_passed) {
            return Verdict::Later;
        }
        if let Some(found) = self.found.as_ref().filter(|_| is_passed) {
            let is_settled = || {
                let is_of_this_log = key.transaction.commit_time <= found.latest_commit;
                is_of_this_log && found.newest.floor.position >= Some(position)
            };
            return match found.has(key) || is_settled() {
                true => Verdict::Stored,
                false => Verdict::Uncounted,
            };
        }
        if self.beginning == Beginning::Empty {
            self.beginning = Beginning::Sent;
        }
        if let Some(id) = id {
            return Verdict::Counted(id);
        }
        self.last += 1;
        self.assigned.push_back(Assigned {
            seq,
            id: self.last,
            position,
        });
        Verdict::Counted(self.last)
    }

    /// Judges an event of the window, whose oldest unsettled place is `oldest`, and appends its message's frame where it is to
    /// be published; to be followed by [`sent`](Self::sent) then.
    pub fn publish(&mut self, seq: Seq, entry: &Entry, oldest: Seq, out: &mut Vec<u8>) -> Verdict {
        self.settled_before(oldest);
        let verdict = self.judge(seq, &entry.key);
        if let Some(message) = &entry.message {
            self.write(verdict, Some(&entry.key), message, out);
        }
        verdict
    }

    /// Appends the frame of a message that goes out by this verdict; none where the stream has it. `key` is the event's, none
    /// where the message is no event of the window: a retry must not be taken for the event itself when it is read back. To be
    /// followed by [`sent`](Self::sent).
    pub fn write(&mut self, verdict: Verdict, key: Option<&EventKey>, message: &Message, out: &mut Vec<u8>) {
        let (publisher, id, counted) = match verdict {
            Verdict::Stored | Verdict::Later => return,
            Verdict::Counted(id) => (COUNTED, id, id),
            Verdict::Uncounted => (UNCOUNTED, self.next_uncounted, 0),
        };
        let mut mark = std::mem::take(&mut self.mark);
        mark.clear();
        if let Some(key) = key.filter(|key| !key.transaction.is_backfill()) {
            let written = Mark {
                id: counted,
                floor: self.floor,
                position: key.position(),
                commit_time: key.transaction.commit_time,
            };
            written.write(&self.producer, &mut mark);
        }
        encode::publish(out, publisher, id, |out| message.write_sections(&mark, out));
        self.mark = mark;
    }

    /// The message that was last written has this delivery tag.
    pub fn sent(&mut self, verdict: Verdict, tag: u64) {
        let [counted, uncounted] = &mut self.sent;
        match verdict {
            Verdict::Stored | Verdict::Later => {}
            Verdict::Counted(id) => counted.push(id, tag),
            Verdict::Uncounted => {
                uncounted.push(self.next_uncounted, tag);
                self.next_uncounted += 1;
            }
        }
    }

    /// The delivery tag of a message that the broker has confirmed. None where that tells nothing about its event: under a
    /// generation of which nothing was stored the broker may have had another's.
    ///
    /// # Errors
    /// None is outstanding under this id: the link must be given up.
    pub fn confirmed(&mut self, publisher: u8, id: u64) -> Result<Option<u64>, UnknownId> {
        let outstanding = self.sent.get_mut(usize::from(publisher));
        let tag = outstanding
            .and_then(|outstanding| outstanding.take(id))
            .ok_or(UnknownId { publisher, id })?;
        if publisher == COUNTED && self.beginning == Beginning::Sent {
            self.beginning = Beginning::Recorded;
            return Ok(None);
        }
        Ok(Some(tag))
    }

    fn id_of(&self, seq: Seq) -> Option<u64> {
        let index = self
            .assigned
            .binary_search_by_key(&seq, |assigned| assigned.seq)
            .ok()?;
        Some(self.assigned.get(index)?.id)
    }
}

impl Outstanding {
    fn push(&mut self, id: u64, tag: u64) {
        self.0.push_back((id, Some(tag)));
    }

    fn take(&mut self, id: u64) -> Option<u64> {
        let index = match self.0.front() {
            Some((front, _)) if *front == id => 0,
            _ => self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?,
        };
        let tag = self.0.get_mut(index)?.1.take();
        while self.0.front().is_some_and(|(_, tag)| tag.is_none()) {
            self.0.pop_front();
        }
        tag
    }
}
