//! The ledger step by step, and against a naive model in random order.

use proptest::prelude::*;

use super::*;

fn lsn(position: u64) -> Lsn {
    Lsn::new(position)
}

#[test]
fn the_durable_lsn_waits_for_the_oldest_unsettled_event() {
    let mut ledger = Ledger::new();
    ledger.begin();
    let first = ledger.admit();
    ledger.commit(lsn(10));
    ledger.begin();
    let second = ledger.admit();
    ledger.commit(lsn(20));
    ledger.settle(second);
    assert_eq!(ledger.durable(), Lsn::INVALID);
    ledger.settle(first);
    assert_eq!(ledger.durable(), lsn(20));
}

#[test]
fn a_settled_transaction_waits_for_its_commit() {
    let mut ledger = Ledger::new();
    ledger.begin();
    let event = ledger.admit();
    ledger.settle(event);
    assert_eq!(ledger.durable(), Lsn::INVALID);
    assert!(!ledger.is_idle());
    ledger.commit(lsn(10));
    assert_eq!(ledger.durable(), lsn(10));
    assert!(ledger.is_idle());
}

#[test]
fn a_keepalive_within_a_transaction_is_ignored() {
    let mut ledger = Ledger::new();
    ledger.begin();
    ledger.keepalive(lsn(15));
    assert_eq!(ledger.durable(), Lsn::INVALID);
    ledger.commit(lsn(20));
    assert_eq!(ledger.durable(), lsn(20));
}

#[test]
fn a_keepalive_behind_an_unsettled_event_waits_for_it() {
    let mut ledger = Ledger::new();
    ledger.begin();
    let event = ledger.admit();
    ledger.commit(lsn(10));
    ledger.keepalive(lsn(500));
    assert_eq!(ledger.durable(), Lsn::INVALID);
    ledger.settle(event);
    assert_eq!(ledger.durable(), lsn(500));
}

#[test]
fn transactions_without_events_take_no_room() {
    let mut ledger = Ledger::new();
    ledger.begin();
    let event = ledger.admit();
    ledger.commit(lsn(1));
    for position in 2..1000 {
        ledger.begin();
        ledger.commit(lsn(position));
    }
    assert_eq!(ledger.transactions.len(), 1);
    ledger.settle(event);
    assert_eq!(ledger.durable(), lsn(999));
}

/// R15.
#[test]
fn a_dead_letters_transaction_waits_until_its_commit_has_been_received() {
    let mut ledger = Ledger::new();
    ledger.begin();
    let event = ledger.admit();
    ledger.commit(lsn(10));
    ledger.settle_beyond(event, lsn(500));
    ledger.begin();
    ledger.commit(lsn(499));
    assert_eq!(ledger.durable(), Lsn::INVALID);
    assert!(!ledger.is_idle());
    ledger.keepalive(lsn(500));
    assert_eq!(ledger.durable(), lsn(500));
    assert!(ledger.is_idle());
}

/// R15: another session's ledger never counted the event that became a dead letter.
#[test]
fn what_is_received_after_a_dead_letter_of_an_event_still_to_come_waits_for_its_commit() {
    let mut ledger = Ledger::new();
    ledger.keepalive(lsn(5));
    ledger.wait_beyond(lsn(5));
    ledger.keepalive(lsn(6));
    assert_eq!(ledger.durable(), lsn(6), "received already");
    ledger.wait_beyond(lsn(500));
    ledger.begin();
    ledger.commit(lsn(10));
    assert_eq!(ledger.durable(), lsn(6));
    ledger.begin();
    let open = ledger.admit();
    ledger.wait_beyond(lsn(600));
    ledger.settle(open);
    ledger.commit(lsn(20));
    ledger.keepalive(lsn(500));
    assert_eq!(ledger.durable(), lsn(10));
    ledger.keepalive(lsn(600));
    assert_eq!(ledger.durable(), lsn(600));
    assert!(ledger.is_idle());
}

#[test]
fn any_number_of_ends_wait_in_bounded_memory() {
    let mut ledger = Ledger::new();
    for position in 1..10_000 {
        ledger.begin();
        let event = ledger.admit();
        ledger.commit(lsn(position));
        ledger.settle_beyond(event, lsn(100_000 + position));
    }
    assert!(ledger.waiting.len() <= WAITING_ENDS && ledger.transactions.is_empty());
    ledger.keepalive(lsn(200_000));
    assert_eq!(ledger.durable(), lsn(200_000));
}

/// What the stream or the broker may do next.
#[derive(Debug, Clone)]
enum Step {
    Begin,
    Admit,
    Commit,
    Keepalive,
    Settle(prop::sample::Index),
    /// Settled by a write that ends so far beyond what has been received.
    SettleBeyond(prop::sample::Index, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Begin),
        5 => Just(Step::Admit),
        2 => Just(Step::Commit),
        1 => Just(Step::Keepalive),
        5 => any::<prop::sample::Index>().prop_map(Step::Settle),
        1 => (any::<prop::sample::Index>(), 0..20u64).prop_map(|(index, ahead)| Step::SettleBeyond(index, ahead)),
    ]
}

/// The naive model: everything received, in stream order, never forgotten.
#[derive(Debug, Default)]
struct Model {
    received: Vec<Received>,
}

#[derive(Debug)]
enum Received {
    /// Settled with the position that the stream must have been received beyond, if it is.
    Event {
        settled: Option<Lsn>,
    },
    Position(Lsn),
}

impl Model {
    fn durable(&self) -> Lsn {
        let positions = self.received.iter().filter_map(|received| match received {
            Received::Position(position) => Some(*position),
            Received::Event { .. } => None,
        });
        let reached = positions.max().unwrap_or_default();
        let mut durable = Lsn::INVALID;
        for received in &self.received {
            match received {
                Received::Event {
                    settled: Some(barrier),
                } if *barrier <= reached => {}
                Received::Event { .. } => break,
                Received::Position(position) => durable = durable.max(*position),
            }
        }
        durable
    }
}

impl Model {
    /// Events from the oldest unsettled one to the newest.
    fn span(&self) -> usize {
        let events = self
            .received
            .iter()
            .filter(|received| matches!(received, Received::Event { .. }));
        events
            .skip_while(|received| matches!(received, Received::Event { settled: Some(_) }))
            .count()
    }
}

proptest! {
    #![proptest_config(crate::property::config())]

    /// I1.
    #[test]
    fn the_durable_lsn_agrees_with_a_naive_model(steps in prop::collection::vec(step(), 0..200)) {
        let (mut ledger, mut model) = (Ledger::new(), Model::default());
        let mut unsettled: Vec<(TransactionNo, usize)> = Vec::new();
        let mut open = false;
        let mut position = 0;
        let mut before = Lsn::INVALID;
        for step in steps {
            position += 1;
            match step {
                Step::Begin if !open => {
                    open = true;
                    ledger.begin();
                }
                Step::Admit if open => {
                    unsettled.push((ledger.admit(), model.received.len()));
                    model.received.push(Received::Event { settled: None });
                }
                Step::Commit if open => {
                    open = false;
                    ledger.commit(lsn(position));
                    model.received.push(Received::Position(lsn(position)));
                }
                Step::Keepalive => {
                    ledger.keepalive(lsn(position));
                    if !open {
                        model.received.push(Received::Position(lsn(position)));
                    }
                }
                Step::Settle(index) if !unsettled.is_empty() => {
                    let (transaction, event) = unsettled.swap_remove(index.index(unsettled.len()));
                    ledger.settle(transaction);
                    model.received[event] = Received::Event { settled: Some(Lsn::INVALID) };
                }
                Step::SettleBeyond(index, ahead) if !unsettled.is_empty() => {
                    let (transaction, event) = unsettled.swap_remove(index.index(unsettled.len()));
                    let barrier = lsn(position + ahead);
                    ledger.settle_beyond(transaction, barrier);
                    model.received[event] = Received::Event { settled: Some(barrier) };
                }
                Step::Begin | Step::Admit | Step::Commit | Step::Settle(_) | Step::SettleBeyond(..) => {}
            }
            prop_assert_eq!(ledger.durable(), model.durable());
            prop_assert!(ledger.durable() >= before, "the durable LSN went back");
            before = ledger.durable();
            prop_assert_eq!(ledger.unsettled(), unsettled.len());
            prop_assert!(ledger.transactions.len() <= model.span() + usize::from(open));
        }
        // Drains completely, in whatever order.
        if open {
            position += 1;
            ledger.commit(lsn(position));
            model.received.push(Received::Position(lsn(position)));
        }
        for (transaction, event) in unsettled.into_iter().rev() {
            ledger.settle(transaction);
            model.received[event] = Received::Event { settled: Some(Lsn::INVALID) };
        }
        // Beyond every barrier.
        position += 100;
        ledger.keepalive(lsn(position));
        prop_assert!(ledger.is_idle());
        prop_assert_eq!(ledger.durable(), lsn(position));
    }
}
