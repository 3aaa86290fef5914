//! Strict order: no event is sent while an earlier one of its aggregate is unsettled (R14).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::window::Seq;

/// A hash of an aggregate's type and id. Two aggregates that share one are ordered among each other, which costs
/// speed and nothing else.
pub type AggregateHash = u64;

/// Which events may be sent: of each aggregate the oldest unsettled one.
///
/// The window keeps with each entry the next one of the same aggregate, so the chains need no memory of their own:
/// [`admit`](Self::admit) says whose successor an entry is, and [`settled`](Self::settled) is handed it.
#[derive(Debug, Default)]
pub struct Order {
    /// The newest unsettled event of each aggregate.
    newest: HashMap<AggregateHash, Seq>,
    /// The oldest of their aggregates; those that have been sent meanwhile are dropped when they come up.
    ready: BinaryHeap<Reverse<Seq>>,
}

/// Where an admitted event stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the oldest of its aggregate: it may be sent.
    First,
    /// It comes after this one.
    After(Seq),
}

impl Order {
    /// An event was admitted behind all others.
    pub fn admit(&mut self, aggregate: AggregateHash, seq: Seq) -> Place {
        match self.newest.insert(aggregate, seq) {
            Some(before) => Place::After(before),
            None => {
                self.ready.push(Reverse(seq));
                Place::First
            }
        }
    }

    /// The oldest event that may be sent, if any; it stays until [`sent`](Self::sent).
    #[must_use]
    pub fn next(&self) -> Option<Seq> {
        self.ready.peek().map(|Reverse(seq)| *seq)
    }

    /// The event that [`next`](Self::next) returned is sent, or needs no sending.
    pub fn sent(&mut self) {
        self.ready.pop();
    }

    /// The event must be sent again: the link is lost.
    pub fn unsent(&mut self, seq: Seq) {
        self.ready.push(Reverse(seq));
    }

    /// An event is settled; `successor` is its aggregate's next one, which may be sent now.
    pub fn settled(&mut self, aggregate: AggregateHash, seq: Seq, successor: Option<Seq>) {
        if let Some(next) = successor {
            self.ready.push(Reverse(next));
        } else if self.newest.get(&aggregate) == Some(&seq) {
            self.newest.remove(&aggregate);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.newest.clear();
        self.ready.clear();
    }
}
