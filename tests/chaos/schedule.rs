//! From a seed to what happens: the settings of a run, its rounds of faults, its writers' transactions.
//!
//! Everything here is a function of the seed. When things meet is not: the servers', the relay's and the writers'
//! speed decide where in the stream a fault strikes.

use std::time::Duration;

use fastrand::Rng;
use walrelay_testbed::QueueKind;

/// What a run is like, but for its faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) seed: u64,
    /// `ordering = "strict"`.
    pub(crate) strict: bool,
    /// What becomes of a row once it is published.
    pub(crate) after_publish: &'static str,
    /// `delivery.max_in_flight`.
    pub(crate) window: u32,
    /// A second relay on the same slot.
    pub(crate) standby: bool,
    /// A queue beside the stream that every message must reach too.
    pub(crate) queue: QueueKind,
    /// `delivery.on_unroutable = "dead_letter"`; what was set aside is tried again in the next round.
    pub(crate) dead_letters: bool,
    /// How many rows the largest transactions have.
    pub(crate) large: u32,
}

/// What a fault is done to: two faults of one round never share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Target {
    Broker,
    Topology,
    Database,
    Relay,
    BrokerLink,
    DatabaseLink,
}

macro_rules! kinds {
    ($($kind:ident, $target:ident, $name:literal, $shortest:literal..$longest:literal;)+) => {
        /// The kinds of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum Kind {
            $($kind),+
        }

        impl Kind {
            pub(crate) const ALL: &[Kind] = &[$(Kind::$kind),+];

            /// What the report calls it.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name),+
                }
            }

            pub(crate) fn target(self) -> Target {
                match self {
                    $(Kind::$kind => Target::$target),+
                }
            }

            /// How long it lasts, in ms: the time that a server needs to start comes on top.
            fn lasting(self) -> std::ops::Range<u64> {
                match self {
                    $(Kind::$kind => $shortest..$longest),+
                }
            }
        }
    };
}

kinds! {
    BrokerKilled, Broker, "broker killed", 0..1000;
    BrokerRestarted, Broker, "broker restarted", 0..1000;
    MemoryAlarm, Broker, "memory alarm", 300..3000;
    ConnectionsClosed, Broker, "connections closed (320)", 0..1;
    QueueFull, Topology, "queue full (nacks)", 300..2500;
    BindingRemoved, Topology, "binding removed (returns)", 300..2500;
    ExchangeDeleted, Topology, "exchange deleted", 100..2000;
    DatabaseRestartedFast, Database, "database restarted, fast", 0..1000;
    DatabaseRestartedImmediate, Database, "database restarted, immediate", 0..1000;
    DatabaseKilled, Database, "database killed", 0..1000;
    WalsenderTerminated, Database, "walsender terminated", 0..1;
    RelayKilled, Relay, "relay killed", 0..1500;
    RelayStopped, Relay, "relay stopped", 0..1500;
    RelayFrozen, Relay, "relay frozen", 200..6000;
    BrokerLinkCut, BrokerLink, "link to broker cut", 0..1500;
    BrokerLinkRefused, BrokerLink, "link to broker refused", 200..3000;
    BrokerLinkStalled, BrokerLink, "link to broker stalled", 200..6000;
    BrokerLinkHalfClosed, BrokerLink, "link to broker half-closed", 0..1500;
    BrokerLinkDelayed, BrokerLink, "link to broker delayed", 500..3000;
    AcksSwallowed, BrokerLink, "acks swallowed", 100..1500;
    DatabaseLinkCut, DatabaseLink, "link to database cut", 0..1500;
    DatabaseLinkRefused, DatabaseLink, "link to database refused", 200..3000;
    DatabaseLinkStalled, DatabaseLink, "link to database stalled", 200..5000;
    DatabaseLinkHalfClosed, DatabaseLink, "link to database half-closed", 0..1500;
    DatabaseLinkDelayed, DatabaseLink, "link to database delayed", 500..3000;
}

/// One fault of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// Which relay it is done to, where it is done to one.
    pub(crate) relay: usize,
    /// How long after the round's beginning it strikes.
    pub(crate) after: Duration,
    pub(crate) lasting: Duration,
    /// What else is left to chance: a direction, a length.
    pub(crate) detail: u32,
}

/// The rounds of a run, without an end: faults that overlap, all mended before the next round.
#[derive(Debug)]
pub(crate) struct Rounds {
    random: Rng,
    relays: usize,
    /// The kinds that are still to come before any comes again.
    deck: Vec<Kind>,
}

impl Settings {
    /// What the seed says; `strict` may be chosen.
    pub(crate) fn of(seed: u64, strict: Option<bool>) -> Settings {
        let mut random = Rng::with_seed(seed);
        let by_seed = random.bool();
        Settings {
            seed,
            strict: strict.unwrap_or(by_seed),
            window: random.choice([20, 100, 200, 1000]).unwrap_or(200),
            standby: random.u8(..3) == 0,
            queue: random
                .choice([QueueKind::Classic, QueueKind::Quorum])
                .unwrap_or_default(),
            dead_letters: random.u8(..3) == 0,
            after_publish: ["mark", "delete", "keep"][(seed % 3) as usize],
            large: 20_000,
        }
    }

    pub(crate) fn relays(self) -> usize {
        1 + usize::from(self.standby)
    }

    pub(crate) fn rounds(self) -> Rounds {
        Rounds {
            // Not the sequence that the settings came from.
            random: Rng::with_seed(self.seed ^ 0x5EED),
            relays: self.relays(),
            deck: Vec::new(),
        }
    }
}

impl Iterator for Rounds {
    type Item = Vec<Fault>;

    fn next(&mut self) -> Option<Vec<Fault>> {
        let count = self.random.usize(2..=3);
        let mut faults: Vec<Fault> = Vec::with_capacity(count);
        for _ in 0..count {
            if self.deck.is_empty() {
                self.deck = Kind::ALL.to_vec();
                self.random.shuffle(&mut self.deck);
            }
            let free = |kind: &Kind| faults.iter().all(|other| other.kind.target() != kind.target());
            let Some(at) = self.deck.iter().position(free) else {
                break;
            };
            let kind = self.deck.remove(at);
            faults.push(Fault {
                kind,
                relay: self.random.usize(..self.relays),
                after: Duration::from_millis(self.random.u64(..1000)),
                lasting: Duration::from_millis(self.random.u64(kind.lasting())),
                detail: self.random.u32(..),
            });
        }
        Some(faults)
    }
}

/// Who writes what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriterKind {
    /// Small transactions, one after the other.
    Small,
    /// As small ones, but told of a commit before it is on disk: `synchronous_commit = off`.
    Asynchronous,
    /// Transactions of thousands of rows.
    Large,
}

impl WriterKind {
    /// The writers of a run, by number.
    pub(crate) const ALL: &[WriterKind] = &[
        WriterKind::Small,
        WriterKind::Small,
        WriterKind::Small,
        WriterKind::Asynchronous,
        WriterKind::Large,
    ];
}

/// Some rows for a span of aggregates, in one statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Statement {
    /// The first aggregate.
    pub(crate) first: u32,
    /// How many aggregates get rows, in turn.
    pub(crate) span: u32,
    pub(crate) rows: u32,
    /// Roughly the payload's size in characters.
    pub(crate) size: u32,
    /// Rolled back to a savepoint before it.
    pub(crate) is_undone: bool,
    /// What others may do before the next statement.
    pub(crate) pause: Duration,
}

/// A transaction to try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transaction {
    /// In the order of their aggregates, so that no two transactions wait for each other.
    pub(crate) statements: Vec<Statement>,
    pub(crate) is_rolled_back: bool,
    /// The time until the next.
    pub(crate) pause: Duration,
}

/// Small transactions meet on these; each is locked by the transaction that writes to it.
const SHARED_AGGREGATES: u32 = 100;

/// Large transactions have these to themselves: many, because with strict order each waits for its confirms.
const LARGE_AGGREGATES: u32 = 512;

/// How many aggregates there are.
pub(crate) const AGGREGATES: u32 = SHARED_AGGREGATES + LARGE_AGGREGATES;

impl Transaction {
    /// The `number`th transaction of a writer.
    pub(crate) fn of(settings: &Settings, writer: usize, number: u64) -> Transaction {
        let sequence = settings.seed.wrapping_mul(31).wrapping_add(writer as u64) << 32;
        let mut random = Rng::with_seed(sequence ^ number);
        match WriterKind::ALL[writer] {
            WriterKind::Small | WriterKind::Asynchronous => small(&mut random),
            // The first of its kind, and some more, are as large as they get.
            WriterKind::Large if number.is_multiple_of(12) => large(&mut random, settings.large),
            WriterKind::Large => large(&mut random, 2_000),
        }
    }
}

fn small(random: &mut Rng) -> Transaction {
    let mut statements: Vec<Statement> = (0..random.u32(1..=3))
        .map(|_| Statement {
            // A few of the aggregates get most of the events.
            first: if random.bool() {
                random.u32(..8)
            } else {
                random.u32(8..SHARED_AGGREGATES)
            },
            span: 1,
            rows: random.u32(1..=3),
            size: if random.u8(..50) == 0 {
                random.u32(10_000..60_000)
            } else {
                random.u32(..300)
            },
            is_undone: random.u8(..12) == 0,
            pause: Duration::from_millis(if random.u8(..3) == 0 { random.u64(1..20) } else { 0 }),
        })
        .collect();
    statements.sort_by_key(|statement| statement.first);
    Transaction {
        statements,
        is_rolled_back: random.u8(..12) == 0,
        pause: Duration::from_millis(random.u64(2..25)),
    }
}

fn large(random: &mut Rng, rows: u32) -> Transaction {
    let statement = |rows, is_undone| Statement {
        first: SHARED_AGGREGATES,
        span: LARGE_AGGREGATES,
        rows,
        size: 50,
        is_undone,
        pause: Duration::ZERO,
    };
    let rows = random.u32(rows / 2..=rows);
    let mut statements = vec![statement(rows / 2, false), statement(rows - rows / 2, false)];
    if random.u8(..4) == 0 {
        statements.insert(1, statement(500, true));
    }
    Transaction {
        statements,
        is_rolled_back: random.u8(..6) == 0,
        pause: Duration::from_millis(random.u64(500..3000)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    #[test]
    fn a_seed_always_says_the_same_and_another_one_something_else() {
        let settings = |seed| Settings::of(seed, None);
        let rounds = |seed| settings(seed).rounds().take(20).collect::<Vec<_>>();
        let written = |seed| Transaction::of(&settings(seed), 1, 7);
        assert_eq!(
            (settings(7), rounds(7), written(7)),
            (settings(7), rounds(7), written(7))
        );
        assert!(rounds(7) != rounds(8) && written(7) != written(8));
        assert_ne!(Transaction::of(&settings(7), 1, 8), written(7));
    }

    #[test]
    fn every_kind_comes_before_any_comes_again_and_none_shares_its_target_within_a_round() {
        for seed in 0..50 {
            let rounds: Vec<_> = Settings::of(seed, None).rounds().take(60).collect();
            for faults in &rounds {
                let targets: HashSet<_> = faults.iter().map(|fault| fault.kind.target()).collect();
                assert_eq!(targets.len(), faults.len());
            }
            let kinds: Vec<_> = rounds.into_iter().flatten().map(|fault| fault.kind).collect();
            let first: BTreeSet<_> = kinds.iter().take(Kind::ALL.len() + 3).collect();
            assert_eq!(first.len(), Kind::ALL.len(), "seed {seed}");
        }
    }

    #[test]
    fn statements_lock_aggregates_in_one_order() {
        for number in 0..1000 {
            let settings = Settings::of(1, None);
            for (writer, _) in WriterKind::ALL.iter().enumerate() {
                let statements = Transaction::of(&settings, writer, number).statements;
                assert!(statements.is_sorted_by_key(|statement| statement.first));
            }
        }
    }
}
