//! What has happened to each event, and what therefore may.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::{Fate, Piece, Plan, Position, World, commit_lsn, number, payload};
use crate::policy::Policy;

pub(super) struct Books {
    pub(super) events: BTreeMap<Position, Book>,
    /// What reached a queue, in the order in which it did.
    pub(super) deliveries: Vec<Position>,
    /// Held: failed, and not accepted since.
    pub(super) failing: BTreeMap<Position, Failing>,
    /// To be stored as dead letters.
    pub(super) set_aside: BTreeSet<Position>,
    /// Set aside at some time: others went before them, also where that is forgotten before they are stored.
    pub(super) overtaken: BTreeSet<Position>,
    /// Dropped by policy, and not told yet.
    pub(super) discarded: VecDeque<Position>,
    /// In flight together when the broker closed over one of them.
    pub(super) suspects: BTreeSet<Position>,
    pub(super) sends: Vec<Instant>,
    /// The durable LSN of the session, as last seen.
    pub(super) durable: u64,
    /// No nack and no return so far.
    pub(super) is_calm: bool,
    /// The flow has forgotten what it had settled: for good reasons only.
    pub(super) may_repeat: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Book {
    pub(super) payload: Vec<u8>,
    pub(super) aggregate: u8,
    pub(super) fate: Fate,
    /// It is in no table, so nothing is marked.
    pub(super) is_message: bool,
    pub(super) is_sent: bool,
    /// It failed, or was not even sent.
    pub(super) has_failed: bool,
    pub(super) is_accepted: bool,
    pub(super) is_discarded: bool,
    pub(super) is_skipped: bool,
    /// When it was last accepted or discarded: since then its id waits for its mark, unless the process dies with it.
    pub(super) waits_since: Option<Instant>,
    /// Where the transaction that stored it as a dead letter ends.
    pub(super) stored: Option<u64>,
}

/// Why an event is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failing {
    Nacked,
    Unanswered,
    Unroutable,
    Refused,
    Invalid,
}

impl Book {
    pub(super) fn is_settled(&self) -> bool {
        self.is_accepted || self.is_discarded || self.is_skipped || self.stored.is_some()
    }

    /// Whether its row is to be marked. What a process has lost the id of is so by what the next one makes of it: it may be
    /// skipped then, or become a dead letter.
    pub(super) const fn is_to_be_marked(&self) -> bool {
        !self.is_message && self.waits_since.is_some()
    }

    /// Whether the stream may be acknowledged beyond it, once so much of it has been received.
    fn may_be_passed(&self, received: u64) -> bool {
        let is_stored = self.stored.is_some_and(|barrier| barrier <= received);
        self.is_accepted || self.is_discarded || self.is_skipped || is_stored
    }

    fn outcomes(&self) -> usize {
        [
            self.is_accepted,
            self.is_discarded,
            self.is_skipped,
            self.stored.is_some(),
        ]
        .into_iter()
        .filter(|outcome| *outcome)
        .count()
    }
}

impl Books {
    pub(super) fn new(plan: &Plan) -> Self {
        let mut events = BTreeMap::new();
        for (piece, rows) in plan.log.iter().enumerate() {
            let Piece::Transaction(rows) = rows else { continue };
            for (row, plan) in rows.iter().enumerate().filter(|(_, row)| !row.is_sent) {
                let position = (commit_lsn(piece), number(row));
                let book = Book {
                    payload: payload(position, plan.payload),
                    aggregate: plan.aggregate,
                    fate: plan.fate,
                    is_message: plan.is_message,
                    is_sent: false,
                    has_failed: false,
                    is_accepted: false,
                    is_discarded: false,
                    is_skipped: false,
                    waits_since: None,
                    stored: None,
                };
                events.insert(position, book);
            }
        }
        Self {
            events,
            deliveries: Vec::new(),
            failing: BTreeMap::new(),
            set_aside: BTreeSet::new(),
            overtaken: BTreeSet::new(),
            discarded: VecDeque::new(),
            suspects: BTreeSet::new(),
            sends: Vec::new(),
            durable: 0,
            is_calm: true,
            may_repeat: false,
        }
    }

    pub(super) fn book(&mut self, position: Position) -> &mut Book {
        self.events.get_mut(&position).expect("no event")
    }

    pub(super) fn oldest_failing(&self) -> Option<Position> {
        self.failing.keys().next().copied()
    }

    /// The log is another one: the flow starts over.
    pub(super) fn forget(&mut self) {
        self.may_repeat = true;
        self.failing.clear();
        self.set_aside.clear();
        self.suspects.clear();
    }

    /// What was written from `end` on is lost, and so is what was stored beyond `flushed`.
    pub(super) fn set_back(&mut self, end: u64, flushed: u64) {
        (self.may_repeat, self.is_calm) = (true, false);
        // What others write in place of it is another event, though it has the same key.
        self.deliveries.retain(|(commit_lsn, _)| *commit_lsn < end);
        self.overtaken.retain(|(commit_lsn, _)| *commit_lsn < end);
        for ((commit_lsn, _), book) in &mut self.events {
            if *commit_lsn >= end {
                *book = Book {
                    is_sent: false,
                    has_failed: false,
                    is_accepted: false,
                    is_discarded: false,
                    is_skipped: false,
                    waits_since: None,
                    ..book.clone()
                };
            }
            book.stored = book
                .stored
                .filter(|stored| *commit_lsn < end && *stored <= flushed);
        }
    }

    /// The process died: what was settled and neither acknowledged nor on record as settled is read again.
    pub(super) fn restart(&mut self, confirmed: u64, stored: Option<Position>) {
        let beyond = self.events.range_mut((confirmed, 0)..);
        for (_, book) in beyond.filter(|(event, _)| Some(**event) > stored) {
            self.may_repeat |= book.is_settled();
            book.waits_since = None;
        }
        self.failing.clear();
        self.set_aside.clear();
        self.suspects.clear();
        self.sends.clear();
        self.discarded.clear();
        self.durable = 0;
    }

    /// Checks what is said about the one that is being sent.
    pub(super) fn check_order(&self, position: Position, is_strict: bool) {
        let book = &self.events[&position];
        assert!(
            !book.is_settled() || self.may_repeat,
            "I7: sent again after it was settled"
        );
        assert!(
            !self.set_aside.contains(&position),
            "sent although it is set aside"
        );
        for (earlier, other) in self.events.range(..position) {
            if is_strict && other.aggregate == book.aggregate {
                assert!(
                    other.is_settled(),
                    "R14: {position:?} sent while {earlier:?} of its aggregate is unsettled"
                );
            }
            assert!(
                book.is_sent || other.is_sent || other.has_failed || is_strict,
                "I3: sent before an earlier one"
            );
        }
    }

    /// `max_rate`, over every span of time.
    pub(super) fn check_pace(&mut self, now: Instant, max_rate: Option<u32>) {
        let Some(max_rate) = max_rate else { return };
        self.sends.push(now);
        let mut count = 0;
        for since in self.sends.iter().rev() {
            count += 1;
            let due = Duration::from_secs(1) / max_rate * (count - 1);
            let tolerance = Duration::from_millis(50) + Duration::from_micros(1);
            assert!(
                due <= now - *since + tolerance,
                "{count} messages in {:?}",
                now - *since
            );
        }
    }

    pub(super) fn check_position(&self, position: u64, confirmed: u64, received: u64) {
        // What this session does not bring is behind us.
        let mut below = self.events.range((confirmed, 0)..(position.max(confirmed), 0));
        if let Some((event, book)) = below.find(|(_, book)| !book.may_be_passed(received)) {
            panic!("I1: {position} would acknowledge {event:?}, which is {book:?}, with {received} received");
        }
    }

    pub(super) fn check_end(&self, is_strict: bool) {
        for (event, book) in &self.events {
            let outcomes = book.outcomes();
            assert!(outcomes > 0, "I1: lost {event:?}: {book:?}");
            assert!(
                outcomes == 1 || self.may_repeat,
                "settled more than once {event:?}: {book:?}"
            );
        }
        assert!(self.discarded.is_empty(), "discarded and not told");
        let mut seen = BTreeSet::new();
        let mut first = self.deliveries.clone();
        first.retain(|position| seen.insert(*position));
        for (event, book) in &self.events {
            assert!(
                !book.is_accepted || seen.contains(event),
                "accepted and not delivered"
            );
        }
        // Dead letters, skips and discards are the exceptions: a new process knows nothing of them.
        first.retain(|position| {
            let book = &self.events[position];
            book.is_accepted && book.outcomes() == 1 && !self.overtaken.contains(position)
        });
        if is_strict {
            for aggregate in 0..=u8::MAX {
                let ordered = first
                    .iter()
                    .filter(|position| self.events[position].aggregate == aggregate);
                assert!(ordered.is_sorted(), "R14: first deliveries of {aggregate}");
            }
        } else {
            assert!(
                first.is_sorted() || !self.is_calm,
                "I3: first deliveries in commit order"
            );
        }
    }
}

impl World {
    /// An event fails: what its policy says is what must come of it.
    pub(super) fn fails(&mut self, position: Position, failing: Failing) {
        let policy = self.policy_of(failing);
        let (now, books) = (self.now, &mut self.books);
        books.failing.remove(&position);
        books.suspects.remove(&position);
        books.book(position).has_failed = true;
        match policy {
            Policy::Discard => {
                let book = books.book(position);
                (book.is_discarded, book.waits_since) = (true, Some(now));
                books.discarded.push_back(position);
            }
            Policy::DeadLetter if self.plan.keep_rows && !self.are_dead_letters_full => {
                books.set_aside.insert(position);
            }
            Policy::Hold | Policy::DeadLetter => {
                books.failing.insert(position, failing);
            }
        }
    }

    pub(super) fn policy_of(&self, failing: Failing) -> Policy {
        match failing {
            Failing::Nacked | Failing::Unanswered => Policy::Hold,
            Failing::Unroutable => self.plan.policies.unroutable,
            Failing::Refused | Failing::Invalid => self.plan.policies.invalid,
        }
    }
}
