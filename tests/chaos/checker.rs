//! From a history to a verdict. Pure: no server, no clock.
//!
//! **Positions.** Everybody writes to one stream, whose order is the truth. A mark is sent after the position that it
//! carries was read; an event that is acknowledged was confirmed, so stored, before that. An event that is found for
//! the first time behind a mark whose position lies beyond its commit was therefore acknowledged while no broker had
//! it. Delays of marks, of the reader and of the broker only make the check weaker, never wrong.
//!
//! Dead letters are the exception to order, positions and repetition; in the end they have to be delivered all the same.
//!
//! **Times.** A delivery was stored after the last mark before it was known, and before it was read. It is blamed for
//! coming at a wrong time only if this whole span lies outside of every round.
//!
//! **Duplicates** are counted by round. Each new link sends at most the window again. The death of a relay, or a
//! take-over, repeats at most the window, what was settled and not reported (again at most a window: a report is due
//! after as many), and the delivered part of one open transaction. Nacks with a queue that accepts repeat the window
//! and each probe. Where the database or the way to it fails in the same round as a relay, what was not yet reported
//! has no such bound, and duplicates are only required to fall into the round; nor has it where rows are marked or
//! deleted, since a report waits for that, a second at most, and more is settled meanwhile (R18). A server that is restarted may have
//! forgotten what was acknowledged since it last saved the slot; the relay recognises what it has delivered itself, but
//! what an earlier process or another relay has delivered is the server's own duplicate.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::history::{Delivery, Entry, History, RSS_BOUND_KIB, Round};
use crate::schedule::Kind;

/// More probes than fit into a round.
const PROBES: u64 = 20;

/// After these, delivery may leave the order of commit (I3), unless it is strict.
const UNORDERED: &[Kind] = &[Kind::QueueFull, Kind::BindingRemoved, Kind::ExchangeDeleted];

/// The relay process ends, or loses its turn for good.
const DEATHS: &[Kind] = &[Kind::RelayKilled, Kind::RelayStopped];

/// The standby, where there is one, may follow.
const TAKE_OVERS: &[Kind] = &[
    Kind::RelayFrozen,
    Kind::WalsenderTerminated,
    Kind::DatabaseRestartedFast,
    Kind::DatabaseRestartedImmediate,
    Kind::DatabaseKilled,
    Kind::DatabaseLinkCut,
    Kind::DatabaseLinkRefused,
    Kind::DatabaseLinkStalled,
    Kind::DatabaseLinkHalfClosed,
    Kind::DatabaseLinkDelayed,
];

/// The server may forget what was reported.
const RESTARTS: &[Kind] = &[
    Kind::DatabaseRestartedFast,
    Kind::DatabaseRestartedImmediate,
    Kind::DatabaseKilled,
];

/// Reports are late, or the server forgets them.
const REPORTS_LOST: &[Kind] = &[
    Kind::DatabaseRestartedFast,
    Kind::DatabaseRestartedImmediate,
    Kind::DatabaseKilled,
    Kind::DatabaseLinkRefused,
    Kind::DatabaseLinkStalled,
    Kind::DatabaseLinkHalfClosed,
    Kind::DatabaseLinkDelayed,
];

/// What a run has shown.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<Violation>,
    pub(crate) figures: Figures,
}

/// What the report tells of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) delivered: u64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    /// The longest time in which nothing came for the first time.
    pub(crate) longest_stall: Duration,
    pub(crate) peak_kib: u64,
}

/// What may never be seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Committed, and nowhere.
    Lost(Uuid),
    /// Committed, and in the queue beside the stream, but not in the stream, even when that is read again: since both hang on
    /// one exchange, the relay has delivered it, and the broker lost it.
    NotInStream(Uuid),
    /// In the stream, but not brought by the reader the first time: a fault of the test's own.
    NotRead(Uuid),
    /// Committed, and not in the queue beside the stream.
    NotInQueue(Uuid),
    /// Delivered, although it was rolled back.
    RolledBack(Uuid),
    /// Delivered, although nobody committed it.
    NeverCommitted(Uuid),
    /// Its body is not the committed payload.
    Altered(Uuid),
    /// Delivered under two positions.
    TwoPositions(Uuid),
    /// Came after a later event of its aggregate.
    AggregateOrder(Uuid),
    /// Came after an event of a later commit.
    CommitOrder(Uuid),
    /// Repeated while nothing was wrong.
    CauselessDuplicate(Uuid),
    /// More repeated in a round than its faults explain.
    TooManyDuplicates {
        round: usize,
        counted: u64,
        allowed: u64,
    },
    /// The slot was acknowledged beyond it before the broker had it.
    AcknowledgedBefore { id: Uuid, flushed: u64 },
    /// A relay needed so many KiB.
    Memory(u64),
    /// Seen by the run itself.
    Complaint(String),
}

impl Verdict {
    /// Judges a history.
    pub(crate) fn of(history: &History) -> Verdict {
        let mut verdict = Verdict::default();
        verdict.read_stream(history);
        verdict.compare_sets(history);
        let peak = history.peaks.iter().copied().max().unwrap_or_default();
        verdict.figures.peak_kib = peak;
        if peak > RSS_BOUND_KIB {
            verdict.violations.push(Violation::Memory(peak));
        }
        let complaints = history.complaints.iter().cloned();
        verdict.violations.extend(complaints.map(Violation::Complaint));
        verdict
    }

    /// What the order of the stream shows.
    fn read_stream(&mut self, history: &History) {
        let mut seen: HashMap<Uuid, Delivery> = HashMap::new();
        let mut newest: HashMap<i64, i64> = HashMap::new();
        let mut last = (0, 0);
        let (mut flushed, mut known) = (0, Duration::ZERO);
        let mut newest_at = Duration::ZERO;
        let mut repeated: Vec<Vec<Delivery>> = vec![Vec::new(); history.rounds.len()];
        for entry in &history.stream {
            let delivery = match entry {
                Entry::Mark(mark) => {
                    flushed = flushed.max(mark.flushed);
                    known = known.max(mark.known);
                    continue;
                }
                Entry::Delivery(delivery) => delivery,
            };
            let id = delivery.id;
            let round = round_of(&history.rounds, known, delivery.read);
            let position = (delivery.commit_lsn, delivery.tx_seq);
            self.check_content(history, delivery);
            if let Some(first) = seen.get(&id) {
                if (first.commit_lsn, first.tx_seq) != position {
                    self.violations.push(Violation::TwoPositions(id));
                }
                if history.dead_letters.contains(&id) {
                    continue;
                }
                self.figures.duplicates += 1;
                match round.and_then(|round| repeated.get_mut(round)) {
                    Some(repeated) => repeated.push(*first),
                    None => self.violations.push(Violation::CauselessDuplicate(id)),
                }
                continue;
            }
            seen.insert(id, *delivery);
            self.figures.delivered += 1;
            let stall = delivery.read.saturating_sub(newest_at);
            self.figures.longest_stall = self.figures.longest_stall.max(stall);
            newest_at = delivery.read;
            // The database has it: it may be acknowledged, and comes when it is asked for.
            if history.dead_letters.contains(&id) {
                continue;
            }
            if flushed > delivery.commit_lsn {
                self.violations
                    .push(Violation::AcknowledgedBefore { id, flushed });
            }
            let may_overtake =
                !history.settings.strict && round.is_some_and(|round| history.rounds[round].has(UNORDERED));
            if let Some(committed) = history.committed.get(&id) {
                let newest = newest.entry(committed.aggregate).or_insert(i64::MIN);
                if committed.number <= *newest && !may_overtake {
                    self.violations.push(Violation::AggregateOrder(id));
                }
                *newest = committed.number.max(*newest);
            }
            if position <= last && !may_overtake && !history.settings.strict {
                self.violations.push(Violation::CommitOrder(id));
            }
            last = position.max(last);
        }
        for (number, repeated) in repeated.iter().enumerate() {
            self.check_duplicates(history, number, repeated);
        }
    }

    fn check_content(&mut self, history: &History, delivery: &Delivery) {
        let id = delivery.id;
        match history.committed.get(&id) {
            Some(committed) if committed.digest == delivery.digest => {}
            Some(_) => self.violations.push(Violation::Altered(id)),
            None if history.rolled_back.contains(&id) => self.violations.push(Violation::RolledBack(id)),
            None => self.violations.push(Violation::NeverCommitted(id)),
        }
    }

    /// `repeated` are the first deliveries of what came again in a round.
    fn check_duplicates(&mut self, history: &History, number: usize, repeated: &[Delivery]) {
        let round = &history.rounds[number];
        let turns = |round: &Round| {
            let take_overs = if history.settings.standby {
                round.count(TAKE_OVERS)
            } else {
                0
            };
            round.count(DEATHS) + take_overs
        };
        let deaths = turns(round);
        if deaths > 0 && (round.has(REPORTS_LOST) || history.settings.after_publish != "keep") {
            return;
        }
        let earlier = history.rounds.iter().take(number);
        let turn_began = earlier
            .filter(|earlier| round.has(RESTARTS) && turns(earlier) > 0)
            .map(|earlier| earlier.caught_up)
            .max();
        let window = u64::from(history.settings.window);
        let nacks = if round.has(UNORDERED) { window + PROBES } else { 0 };
        let allowed = round.links * window + 2 * deaths as u64 * window + nacks;
        // The delivered part of one open transaction for each death.
        let mut by_commit: HashMap<u64, u64> = HashMap::new();
        for delivery in repeated {
            if turn_began.is_none_or(|began| delivery.read > began) {
                *by_commit.entry(delivery.commit_lsn).or_default() += 1;
            }
        }
        let mut counts: Vec<u64> = by_commit.into_values().collect();
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let counted = counts.iter().skip(deaths).sum();
        if counted > allowed {
            self.violations.push(Violation::TooManyDuplicates {
                round: number,
                counted,
                allowed,
            });
        }
    }

    /// What is missing.
    fn compare_sets(&mut self, history: &History) {
        let in_stream = |entry: &Entry| match entry {
            Entry::Delivery(delivery) => Some(delivery.id),
            Entry::Mark(_) => None,
        };
        let delivered: HashSet<Uuid> = history.stream.iter().filter_map(in_stream).collect();
        for id in history.committed.keys() {
            let is_queued = history.queue.contains(id);
            if !delivered.contains(id) {
                let violation = match (history.unread.contains(id), is_queued) {
                    (true, _) => Violation::NotRead(*id),
                    (false, true) => Violation::NotInStream(*id),
                    (false, false) => {
                        self.figures.lost += 1;
                        Violation::Lost(*id)
                    }
                };
                self.violations.push(violation);
            } else if !is_queued {
                self.violations.push(Violation::NotInQueue(*id));
            }
        }
    }
}

/// The first round that has a moment in common with the span.
fn round_of(rounds: &[Round], from: Duration, until: Duration) -> Option<usize> {
    rounds
        .iter()
        .position(|round| round.began <= until && from <= round.caught_up)
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Lost(id) => write!(f, "lost: {id}"),
            Violation::NotInStream(id) => write!(
                f,
                "lost by the broker's stream, since the queue beside it has it: {id}"
            ),
            Violation::NotRead(id) => write!(f, "in the stream, but missed by this test's reader: {id}"),
            Violation::NotInQueue(id) => write!(f, "not in the queue beside the stream: {id}"),
            Violation::RolledBack(id) => write!(f, "rolled back, but delivered: {id}"),
            Violation::NeverCommitted(id) => write!(f, "never committed, but delivered: {id}"),
            Violation::Altered(id) => write!(f, "the body is not the payload: {id}"),
            Violation::TwoPositions(id) => write!(f, "delivered under two positions: {id}"),
            Violation::AggregateOrder(id) => write!(f, "after a later event of its aggregate: {id}"),
            Violation::CommitOrder(id) => write!(f, "after an event of a later commit: {id}"),
            Violation::CauselessDuplicate(id) => write!(f, "repeated while nothing was wrong: {id}"),
            Violation::TooManyDuplicates {
                round,
                counted,
                allowed,
            } => write!(
                f,
                "{counted} duplicates in round {}, explained are {allowed}",
                round + 1
            ),
            Violation::AcknowledgedBefore { id, flushed } => {
                write!(f, "the slot stood at {flushed:X} before the broker had {id}")
            }
            Violation::Memory(kib) => write!(f, "{kib} KiB resident, allowed are {RSS_BOUND_KIB}"),
            Violation::Complaint(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests;
