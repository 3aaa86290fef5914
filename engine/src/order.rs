//! Strict order: no event is sent while an earlier one of its aggregate is unsettled (R14).

use std::collections::{BTreeSet, HashMap};

use crate::window::Seq;

/// A hash of an aggregate's type and id. Two aggregates that share one are ordered among each other, which costs
/// speed and nothing else.
pub type AggregateHash = u64;

/// Which events may be sent: of each aggregate the oldest unsettled one, where it is still to be sent.
///
/// The window keeps with each unsettled event its [`Neighbours`], so the chains need no memory of their own.
#[derive(Debug, Default)]
pub struct Order {
    /// The newest unsettled event of each aggregate.
    newest: HashMap<AggregateHash, Seq>,
    ready: BTreeSet<Seq>,
}

/// The unsettled events of the same aggregate before and after one; none without strict order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Neighbours {
    /// The one before: while there is one, this event is not sent.
    pub before: Option<Seq>,
    /// The one after.
    pub after: Option<Seq>,
}

impl Order {
    /// An event was admitted behind all others. Returns the one of its aggregate before it; without one it is ready.
    pub fn admit(&mut self, aggregate: AggregateHash, seq: Seq) -> Option<Seq> {
        let before = self.newest.insert(aggregate, seq);
        if before.is_none() {
            self.ready.insert(seq);
        }
        before
    }

    /// The oldest event that may be sent, if any.
    #[must_use]
    pub fn next(&self) -> Option<Seq> {
        self.ready.first().copied()
    }

    /// The event, which is the oldest of its aggregate, is to be sent, maybe again.
    pub fn ready(&mut self, seq: Seq) {
        self.ready.insert(seq);
    }

    /// The event is sent, or needs no sending.
    pub fn not_ready(&mut self, seq: Seq) {
        self.ready.remove(&seq);
    }

    /// An event is settled, in whatever order; its neighbours are each other's from now on.
    pub fn settled(&mut self, aggregate: AggregateHash, seq: Seq, neighbours: Neighbours) {
        self.ready.remove(&seq);
        if neighbours.after.is_some() || self.newest.get(&aggregate) != Some(&seq) {
            return;
        }
        match neighbours.before {
            Some(before) => self.newest.insert(aggregate, before),
            None => self.newest.remove(&aggregate),
        };
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.newest.clear();
        self.ready.clear();
    }

    /// How many aggregates and ready events are kept.
    #[cfg(test)]
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.newest.len(), self.ready.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbours(before: impl Into<Option<Seq>>, after: impl Into<Option<Seq>>) -> Neighbours {
        Neighbours {
            before: before.into(),
            after: after.into(),
        }
    }

    #[test]
    fn the_first_of_each_aggregate_is_ready_and_the_oldest_comes_first() {
        let mut order = Order::default();
        assert_eq!(order.admit(7, 0), None);
        assert_eq!(order.admit(7, 1), Some(0));
        assert_eq!(order.admit(8, 2), None);
        assert_eq!(order.next(), Some(0));
        order.not_ready(0);
        assert_eq!(order.next(), Some(2));
        order.ready(0);
        assert_eq!(order.next(), Some(0));
    }

    /// The newest one goes, and what is admitted next still comes after those that are left.
    #[test]
    fn an_event_settled_out_of_order_leaves_those_before_it_in_the_way() {
        let mut order = Order::default();
        order.admit(7, 0);
        order.admit(7, 1);
        order.settled(7, 1, neighbours(0, None));
        assert_eq!(order.admit(7, 2), Some(0));
        order.settled(7, 0, neighbours(None, 2));
        order.settled(7, 2, neighbours(None, None));
        assert_eq!(order.sizes(), (0, 0));
        assert_eq!(order.admit(7, 3), None);
    }
}
