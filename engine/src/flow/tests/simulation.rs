//! Random schedules of what two servers may do to a flow. A failure shrinks to a short one, and is replayed by the
//! seed that it prints.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::world::{Answer, Fate, Piece, Plan, RowPlan, World};
use crate::policy::{Policies, Policy};

/// What happens next.
#[derive(Debug, Clone)]
enum Step {
    Write {
        pieces: usize,
    },
    Stream {
        frames: usize,
    },
    Keepalive {
        reply_requested: bool,
    },
    StatusArrives,
    SessionLost {
        status_lost: bool,
    },
    SessionStarted,
    Checkpoint,
    ServerCrash,
    Promotion,
    BackUp,
    SetBack,
    Publish {
        target: usize,
    },
    Receive {
        messages: usize,
    },
    Answer {
        answer: Answer,
        which: usize,
        multiple: bool,
    },
    Return {
        which: usize,
    },
    LinkLost {
        received: usize,
    },
    LinkUp,
    Blocked(bool),
    Pass {
        milliseconds: u64,
    },
    Turn,
    StoreBegins,
    StoreEnds {
        ahead: u64,
        is_answer_lost: bool,
    },
    Skip,
    SetHeldAside,
    DeadLettersFull(bool),
    MarksBegin,
    MarksEnd {
        is_committed: bool,
        is_answer_lost: bool,
        locked: usize,
    },
    Killed,
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..8_usize;
    let ack = (which.clone(), any::<bool>()).prop_map(|(which, multiple)| Step::Answer {
        answer: Answer::Ack,
        which,
        multiple,
    });
    let nack = (which.clone(), prop::bool::weighted(0.2)).prop_map(|(which, multiple)| Step::Answer {
        answer: Answer::Nack,
        which,
        multiple,
    });
    let works = prop_oneof![
        6 => (1..4_usize).prop_map(|pieces| Step::Write { pieces }),
        20 => (1..9_usize).prop_map(|frames| Step::Stream { frames }),
        4 => any::<bool>().prop_map(|reply_requested| Step::Keepalive { reply_requested }),
        5 => Just(Step::StatusArrives),
        14 => prop_oneof![Just(1_usize), Just(700), Just(20_000)].prop_map(|target| Step::Publish { target }),
        14 => (1..6_usize).prop_map(|messages| Step::Receive { messages }),
        20 => ack,
        8 => (1..1_500_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
        5 => Just(Step::LinkUp),
        5 => Just(Step::SessionStarted),
        5 => Just(Step::Turn),
        8 => Just(Step::StoreBegins),
        8 => (0..85_u64, prop::bool::weighted(0.2)).prop_map(|(ahead, is_answer_lost)| Step::StoreEnds {
            ahead,
            is_answer_lost,
        }),
        8 => Just(Step::MarksBegin),
        8 => (prop::bool::weighted(0.8), prop::bool::weighted(0.1), prop_oneof![9 => Just(0_usize), 1 => 1..3_usize])
            .prop_map(|(is_committed, is_answer_lost, locked)| Step::MarksEnd {
                is_committed,
                is_answer_lost,
                locked,
            }),
    ];
    let faults = prop_oneof![
        2 => nack,
        1 => which.prop_map(|which| Step::Return { which }),
        4 => (0..4_usize).prop_map(|received| Step::LinkLost { received }),
        4 => any::<bool>().prop_map(|status_lost| Step::SessionLost { status_lost }),
        3 => prop::bool::weighted(0.7).prop_map(Step::Blocked),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::ServerCrash),
        1 => Just(Step::Promotion),
        2 => Just(Step::BackUp),
        1 => Just(Step::SetBack),
        1 => Just(Step::Killed),
        4 => (1_500..120_000_u64).prop_map(|milliseconds| Step::Pass { milliseconds }),
    ];
    let decisions = prop_oneof![
        1 => Just(Step::Skip),
        1 => Just(Step::SetHeldAside),
        2 => any::<bool>().prop_map(Step::DeadLettersFull),
    ];
    prop_oneof![28 => works, 4 => faults, 1 => decisions]
}

/// A row: deliverable in so many cases, against five in which it is not.
fn row(deliverable: u32) -> impl Strategy<Value = RowPlan> {
    let payload = prop_oneof![8 => Just(10_usize), 2 => Just(400), 1 => Just(9_000)];
    let fate = prop_oneof![
        deliverable => Just(Fate::Deliverable),
        2 => Just(Fate::Invalid),
        2 => Just(Fate::Unroutable),
        1 => Just(Fate::Poison),
    ];
    let kind = (
        prop::bool::weighted(0.3),
        any::<bool>(),
        prop::bool::weighted(0.15),
    );
    (kind, payload, 0..3_u8, fate).prop_map(
        |((is_message, is_readable, is_sent), payload, aggregate, fate)| RowPlan {
            is_message,
            is_readable,
            is_sent,
            payload,
            aggregate,
            fate,
        },
    )
}

fn policies() -> impl Strategy<Value = Policies> {
    let policy = || {
        prop_oneof![
            Just(Policy::Hold),
            Just(Policy::DeadLetter),
            Just(Policy::Discard)
        ]
    };
    (policy(), policy()).prop_map(|(unroutable, invalid)| Policies { unroutable, invalid })
}

fn piece(deliverable: u32) -> impl Strategy<Value = Piece> {
    prop_oneof![
        8 => vec(row(deliverable), 1..4).prop_map(Piece::Transaction),
        1 => vec(row(deliverable), 8..24).prop_map(Piece::Transaction),
        1 => Just(Piece::Transaction(Vec::new())),
        2 => Just(Piece::Other),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let history = prop_oneof![3 => Just(None), 1 => (0..4_usize).prop_map(Some)];
    let bytes = prop_oneof![Just(500_usize), Just(1_500), Just(1_000_000)];
    let max_rate = prop_oneof![3 => Just(None), 1 => (1..200_u32).prop_map(Some)];
    let flow = (1..9_usize, bytes, history, policies(), prop::bool::weighted(0.8));
    let log = prop_oneof![Just(3_u32), Just(40)].prop_flat_map(|deliverable| vec(piece(deliverable), 1..30));
    (
        log,
        flow,
        any::<bool>(),
        max_rate,
        any::<bool>(),
        prop::bool::weighted(0.7),
    )
        .prop_map(
            |(mut log, (events, bytes, history, policies, keep_rows), strict, max_rate, heals, marks)| {
                // Strict order cannot wait for an event whose aggregate nobody can read.
                for piece in &mut log {
                    if let Piece::Transaction(rows) = piece {
                        rows.iter_mut().for_each(|row| row.is_readable |= strict);
                    }
                }
                Plan {
                    log,
                    events,
                    bytes,
                    history,
                    policies,
                    keep_rows,
                    strict,
                    max_rate,
                    heals,
                    marks,
                }
            },
        )
}

fn run(world: &mut World, steps: Vec<Step>) {
    for step in steps {
        match step {
            Step::Write { pieces } => world.write_log(pieces),
            Step::Stream { frames } => drop(world.stream(frames)),
            Step::Keepalive { reply_requested } => world.keepalive(reply_requested),
            Step::StatusArrives => world.status_arrives(),
            Step::SessionLost { status_lost } => world.session_lost(status_lost),
            Step::SessionStarted => world.session_started(),
            Step::Checkpoint => world.checkpoint(),
            Step::ServerCrash => world.server_crash(),
            Step::Promotion => world.promotion(),
            Step::BackUp => world.back_up(),
            Step::SetBack => world.set_back(),
            Step::Publish { target } => drop(world.publish(target)),
            Step::Receive { messages } => world.receive(messages),
            Step::Answer {
                answer,
                which,
                multiple,
            } => world.answer(answer, which, multiple),
            Step::Return { which } => world.return_message(which),
            Step::LinkLost { received } => world.link_lost(received),
            Step::LinkUp => world.link_up(),
            Step::Blocked(blocked) => world.blocked(blocked),
            Step::Pass { milliseconds } => world.pass(Duration::from_millis(milliseconds)),
            Step::Turn => world.turn(),
            Step::StoreBegins => world.store_begins(),
            Step::StoreEnds {
                ahead,
                is_answer_lost,
            } => world.store_ends(ahead, is_answer_lost),
            Step::Skip => drop(world.skip()),
            Step::SetHeldAside => world.set_held_aside(),
            Step::DeadLettersFull(full) => world.dead_letters_full(full),
            Step::MarksBegin => world.marks_begin(),
            Step::MarksEnd {
                is_committed,
                is_answer_lost,
                locked,
            } => world.marks_end(is_committed, is_answer_lost, locked),
            Step::Killed => world.killed(),
        }
        world.settle_down();
    }
}

proptest! {
    #![proptest_config(crate::property::config())]

    /// I1 to I5, I7 to I9, R2, R3, R9 to R12, R14, R15, R18 and R19 after every step; see [`World`].
    #[test]
    fn whatever_both_servers_do_everything_is_delivered_and_nothing_acknowledged_before(
        plan in plan(),
        steps in vec(step(), 0..200),
        restarts in any::<bool>(),
    ) {
        let mut world = World::new(plan);
        run(&mut world, steps);
        if restarts {
            world.restart_cleanly();
        }
        world.drain();
    }
}
