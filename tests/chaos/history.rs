//! What happened in a run: what the checker judges. Nothing here knows how it was found out.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use uuid::Uuid;

use crate::schedule::{Fault, Kind, Settings};

/// The resident memory that a relay may need at most, in KiB, with the windows that a run configures.
pub(crate) const RSS_BOUND_KIB: u64 = 64 * 1024;

/// All that the verdict depends on. Times count from the run's beginning.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) settings: Settings,
    /// What is committed, by the database's own account at the end.
    pub(crate) committed: HashMap<Uuid, Committed>,
    /// What was written and rolled back, to a savepoint or as a whole.
    pub(crate) rolled_back: HashSet<Uuid>,
    /// What was set aside for a while, and delivered on request: it may come late, and once more.
    pub(crate) dead_letters: HashSet<Uuid>,
    /// The stream that takes every message, in the order in which the broker stored them.
    pub(crate) stream: Vec<Entry>,
    /// What the stream turned out to hold when it was read again, and had not brought the first time.
    pub(crate) unread: HashSet<Uuid>,
    /// What reached the queue beside the stream.
    pub(crate) queue: HashSet<Uuid>,
    pub(crate) rounds: Vec<Round>,
    /// The most memory of each relay process, in KiB.
    pub(crate) peaks: Vec<u64>,
    /// What went wrong while the run went on: a relay that ended by itself, a shutdown held up, a standstill.
    pub(crate) complaints: Vec<String>,
    pub(crate) lasted: Duration,
}

/// A committed event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    pub(crate) aggregate: i64,
    /// It grows with the order of commit within the aggregate, since who takes a number keeps the aggregate locked
    /// until the end of the transaction.
    pub(crate) number: i64,
    /// Of the payload, as the database prints it.
    pub(crate) digest: u64,
}

/// One message of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    Delivery(Delivery),
    Mark(Mark),
}

/// A message of the relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) id: Uuid,
    /// Of the body.
    pub(crate) digest: u64,
    /// Headers `commit_lsn` and `tx_seq`.
    pub(crate) commit_lsn: u64,
    pub(crate) tx_seq: u64,
    /// When it was read, so after it was stored.
    pub(crate) read: Duration,
}

/// A message that says how far the slot was acknowledged before the message was sent: everything below was settled by
/// then, so stands above it in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The slot's `confirmed_flush_lsn`.
    pub(crate) flushed: u64,
    /// When that was known, so before the mark was stored.
    pub(crate) known: Duration,
}

/// Faults, and the time until nothing is left of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    pub(crate) faults: Vec<Struck>,
    pub(crate) began: Duration,
    /// When the last fault was mended.
    pub(crate) mended: Duration,
    /// When everything committed by then, and everything committed while that was caught up with, was acknowledged.
    pub(crate) caught_up: Duration,
    /// How many connections the relays made to the broker.
    pub(crate) links: u64,
}

/// A fault that was carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Struck {
    pub(crate) fault: Fault,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

impl Round {
    pub(crate) fn has(&self, kinds: &[Kind]) -> bool {
        self.count(kinds) > 0
    }

    pub(crate) fn count(&self, kinds: &[Kind]) -> usize {
        let among = |struck: &&Struck| kinds.contains(&struck.fault.kind);
        self.faults.iter().filter(among).count()
    }
}

/// A short stand-in for a body.
pub(crate) fn digest(body: &[u8]) -> u64 {
    use std::hash::Hasher as _;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(body);
    hasher.finish()
}
