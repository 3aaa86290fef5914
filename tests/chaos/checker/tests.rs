//! Broken histories: the checker must be able to fail, in each of its ways.

use super::*;
use crate::history::{Committed, Mark, Struck, digest};
use crate::schedule::{Fault, Settings};

const WINDOW: u32 = 10;

/// Seconds into the run.
fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// Events 1 to 60, one committed and delivered each second, a mark behind each; a round from second 20 to 30.
fn sound() -> History {
    let mut settings = Settings::of(1, Some(false));
    settings.window = WINDOW;
    settings.standby = false;
    settings.after_publish = "keep";
    let mut history = History {
        settings,
        committed: HashMap::new(),
        rolled_back: [id(1000)].into(),
        dead_letters: HashSet::new(),
        stream: Vec::new(),
        unread: HashSet::new(),
        queue: HashSet::new(),
        rounds: vec![round(&[])],
        peaks: vec![10_000, RSS_BOUND_KIB],
        complaints: Vec::new(),
        lasted: at(60),
    };
    for number in 1..=60 {
        let event = u128::from(number);
        let committed = Committed {
            aggregate: number as i64 % 3,
            number: number as i64,
            digest: digest(&[number as u8]),
        };
        history.committed.insert(id(event), committed);
        history.queue.insert(id(event));
        history.stream.push(delivery(number));
        history.stream.push(mark(number * 100 + 50, number));
    }
    history
}

fn round(kinds: &[Kind]) -> Round {
    let struck = |kind: &Kind| Struck {
        fault: Fault {
            kind: *kind,
            relay: 0,
            after: Duration::ZERO,
            lasting: Duration::ZERO,
            detail: 0,
        },
        from: at(20),
        until: at(25),
    };
    Round {
        faults: kinds.iter().map(struck).collect(),
        began: at(20),
        mended: at(25),
        caught_up: at(30),
        links: 0,
    }
}

/// The `number`th event, as it came in that second.
fn delivery(number: u64) -> Entry {
    Entry::Delivery(Delivery {
        id: id(number.into()),
        digest: digest(&[number as u8]),
        commit_lsn: number * 100,
        tx_seq: 0,
        read: at(number),
    })
}

fn mark(flushed: u64, second: u64) -> Entry {
    Entry::Mark(Mark {
        flushed,
        known: at(second),
    })
}

/// Where the `number`th event stands in the stream.
const fn place(number: usize) -> usize {
    (number - 1) * 2
}

fn change(history: &mut History, number: usize, change: impl FnOnce(&mut Delivery)) {
    let Entry::Delivery(delivery) = &mut history.stream[place(number)] else {
        panic!("not a delivery");
    };
    change(delivery);
}

/// Repeats events in the second, at the place that it has in the stream.
fn repeat(history: &mut History, second: u64, events: std::ops::RangeInclusive<u64>) {
    for number in events {
        let Entry::Delivery(mut delivery) = delivery(number) else {
            panic!("not a delivery");
        };
        delivery.read = at(second);
        history
            .stream
            .insert(place(second as usize + 1), Entry::Delivery(delivery));
    }
}

fn violations(history: &History) -> Vec<Violation> {
    Verdict::of(history).violations
}

#[test]
fn a_sound_history_passes_and_its_figures_are_right() {
    let mut history = sound();
    history.rounds = vec![round(&[Kind::BrokerKilled])];
    history.rounds[0].links = 1;
    change(&mut history, 60, |delivery| delivery.read = at(75));
    repeat(&mut history, 25, 18..=24);
    let verdict = Verdict::of(&history);
    assert_eq!(verdict.violations, []);
    let figures = Figures {
        delivered: 60,
        lost: 0,
        duplicates: 7,
        longest_stall: at(75 - 59),
        peak_kib: RSS_BOUND_KIB,
    };
    assert_eq!(verdict.figures, figures);
}

#[test]
fn a_lost_event_fails() {
    let mut history = sound();
    history.stream.remove(place(30));
    assert_eq!(violations(&history), [Violation::NotInStream(id(30))]);
    assert_eq!(Verdict::of(&history).figures.lost, 0);
    history.rounds.push(round(&[Kind::BrokerKilled]));
    assert_eq!(violations(&history), [Violation::NotInStream(id(30))]);
    history.queue.remove(&id(30));
    assert_eq!(violations(&history), [Violation::Lost(id(30))]);
    assert_eq!(Verdict::of(&history).figures.lost, 1);
    history.unread.insert(id(30));
    assert_eq!(violations(&history), [Violation::NotRead(id(30))]);
}

#[test]
fn an_event_that_missed_the_other_queue_fails() {
    let mut history = sound();
    history.queue.remove(&id(30));
    assert_eq!(violations(&history), [Violation::NotInQueue(id(30))]);
}

#[test]
fn an_event_that_was_rolled_back_fails() {
    let mut history = sound();
    change(&mut history, 60, |delivery| delivery.id = id(1000));
    assert!(violations(&history).contains(&Violation::RolledBack(id(1000))));
}

#[test]
fn an_event_that_nobody_committed_fails() {
    let mut history = sound();
    change(&mut history, 60, |delivery| delivery.id = id(2000));
    assert!(violations(&history).contains(&Violation::NeverCommitted(id(2000))));
}

#[test]
fn another_body_fails_in_a_duplicate_too() {
    let mut history = sound();
    change(&mut history, 30, |delivery| delivery.digest += 1);
    assert_eq!(violations(&history), [Violation::Altered(id(30))]);

    let mut history = sound();
    history.rounds[0].links = 1;
    repeat(&mut history, 25, 24..=24);
    change(&mut history, 26, |delivery| delivery.digest += 1);
    assert_eq!(violations(&history), [Violation::Altered(id(24))]);
}

#[test]
fn an_event_with_two_positions_fails() {
    let mut history = sound();
    history.rounds[0].links = 1;
    repeat(&mut history, 25, 24..=24);
    change(&mut history, 26, |delivery| delivery.commit_lsn += 1);
    assert_eq!(violations(&history), [Violation::TwoPositions(id(24))]);
}

#[test]
fn an_event_behind_a_later_one_of_its_aggregate_fails_unless_nacks_or_returns_excuse_it() {
    let mut history = sound();
    // Not acknowledged before.
    history.stream.retain(|entry| matches!(entry, Entry::Delivery(_)));
    history.stream.swap(23, 26);
    let entries = history.stream.iter_mut().enumerate();
    entries.for_each(|(place, entry)| {
        if let Entry::Delivery(delivery) = entry {
            delivery.read = at(place as u64);
        }
    });
    let order = Violation::AggregateOrder(id(24));
    assert!(violations(&history).contains(&order));
    // A round without them is no excuse.
    history.rounds = vec![round(&[Kind::BrokerKilled])];
    assert!(violations(&history).contains(&order));
    history.rounds = vec![round(&[Kind::BindingRemoved])];
    assert_eq!(violations(&history), []);
    // Strict order knows no excuse.
    history.settings.strict = true;
    assert!(violations(&history).contains(&order));
    // Nor is there one outside of the round.
    history.settings.strict = false;
    history.stream.insert(20, mark(0, 40));
    history.stream.iter_mut().skip(21).for_each(|entry| {
        if let Entry::Delivery(delivery) = entry {
            delivery.read += at(20);
        }
    });
    assert!(violations(&history).contains(&order));
}

#[test]
fn an_event_behind_one_of_a_later_commit_fails_unless_aggregates_alone_are_ordered() {
    let mut history = sound();
    history.stream.retain(|entry| matches!(entry, Entry::Delivery(_)));
    // Of other aggregates.
    history.stream.swap(40, 41);
    assert_eq!(violations(&history), [Violation::CommitOrder(id(41))]);
    history.settings.strict = true;
    assert_eq!(violations(&history), []);
}

#[test]
fn a_duplicate_while_nothing_was_wrong_fails() {
    for second in [19, 31] {
        let mut history = sound();
        repeat(&mut history, second, 15..=15);
        let expected = [Violation::CauselessDuplicate(id(15))];
        assert_eq!(violations(&history), expected, "second {second}");
    }
}

#[test]
fn a_duplicate_that_may_have_come_during_a_round_is_not_blamed_on_the_calm() {
    let mut history = sound();
    history.rounds[0].links = 1;
    // Neither mark nor reader say that it came after the round.
    history.stream.retain(
        |entry| !matches!(entry, Entry::Mark(Mark { known, .. }) if (at(30)..at(36)).contains(known)),
    );
    history.stream.insert(place(30) + 3, delivery(15));
    let Entry::Delivery(delivery) = &mut history.stream[place(30) + 3] else {
        panic!("not a delivery");
    };
    delivery.read = at(35);
    assert_eq!(violations(&history), []);
}

#[test]
fn more_duplicates_than_the_faults_of_a_round_explain_fail() {
    // The window for each link.
    let mut history = sound();
    history.rounds = vec![round(&[Kind::BrokerLinkCut])];
    history.rounds[0].links = 1;
    repeat(&mut history, 25, 5..=15);
    let too_many = |counted, allowed| Violation::TooManyDuplicates {
        round: 0,
        counted,
        allowed,
    };
    assert_eq!(violations(&history), [too_many(11, 10)]);
    history.rounds[0].links = 2;
    assert_eq!(violations(&history), []);

    // A death: the window, what was not reported, and one transaction.
    let mut history = sound();
    history.rounds = vec![round(&[Kind::RelayKilled])];
    repeat(&mut history, 25, 1..=22);
    assert_eq!(violations(&history), [too_many(21, 20)]);
    history.rounds = vec![round(&[Kind::RelayKilled, Kind::DatabaseLinkStalled])];
    assert_eq!(violations(&history), []);
}

#[test]
fn what_a_restarted_server_forgot_is_its_own_unless_the_same_relay_delivered_it() {
    let mut history = sound();
    let mut earlier = round(&[Kind::RelayKilled]);
    (earlier.began, earlier.caught_up) = (at(8), at(10));
    history.rounds = vec![earlier, round(&[Kind::DatabaseKilled])];
    repeat(&mut history, 25, 1..=10);
    assert_eq!(violations(&history), []);
    repeat(&mut history, 25, 11..=11);
    let too_many = Violation::TooManyDuplicates {
        round: 1,
        counted: 1,
        allowed: 0,
    };
    assert_eq!(violations(&history), [too_many]);
}

#[test]
fn a_dead_letter_may_come_late_and_again_but_may_not_be_lost() {
    let mut history = sound();
    let entry = history.stream.remove(place(30));
    history.stream.push(entry);
    history.stream.push(entry);
    assert_ne!(violations(&history), []);
    history.dead_letters.insert(id(30));
    assert_eq!(violations(&history), []);
    history
        .stream
        .retain(|entry| !matches!(entry, Entry::Delivery(delivery) if delivery.id == id(30)));
    history.queue.remove(&id(30));
    assert_eq!(violations(&history), [Violation::Lost(id(30))]);
}

#[test]
fn an_acknowledgement_before_the_delivery_fails() {
    let mut history = sound();
    // Known in second 39, before event 40 came.
    history.stream[place(39) + 1] = mark(4001, 39);
    let early = Violation::AcknowledgedBefore {
        id: id(40),
        flushed: 4001,
    };
    assert_eq!(violations(&history), [early]);
    // The commit itself is not beyond it.
    history.stream[place(39) + 1] = mark(4000, 39);
    assert_eq!(violations(&history), []);
}

#[test]
fn too_much_memory_fails() {
    let mut history = sound();
    history.peaks.push(RSS_BOUND_KIB + 1);
    assert_eq!(violations(&history), [Violation::Memory(RSS_BOUND_KIB + 1)]);
}

#[test]
fn what_the_run_complains_of_fails() {
    let mut history = sound();
    history.complaints.push("a relay ended by itself".to_owned());
    let complaint = Violation::Complaint("a relay ended by itself".to_owned());
    assert_eq!(violations(&history), [complaint]);
}
