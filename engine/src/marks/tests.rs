use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::held::HOLD_STEP;
use super::*;

const MILLISECOND: Duration = Duration::from_millis(1);
const BATCH: usize = 3;
const TABLES: usize = 2;

#[derive(Debug, Clone)]
enum Step {
    /// An event is settled; with a table, its row is to be marked.
    Settle {
        table: Option<TableNo>,
        length: usize,
    },
    /// The durable LSN moves.
    Durable,
    Pass {
        milliseconds: u64,
    },
    Poll,
    /// The batch that is out is committed, but for rows that others have locked.
    Commit {
        locked: Vec<bool>,
    },
    Fail,
    /// The batch that is out fails over one of its rows.
    FailRow,
    NewSession,
    Refuse {
        table: TableNo,
        refused: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let table = prop::option::weighted(0.8, 0..TableNo::try_from(TABLES).unwrap());
    prop_oneof![
        20 => (table.clone(), 0..40_usize).prop_map(|(table, length)| Step::Settle { table, length }),
        8 => Just(Step::Durable),
        8 => prop_oneof![1..60_u64, 300..1_200_u64].prop_map(|milliseconds| Step::Pass { milliseconds }),
        10 => Just(Step::Poll),
        10 => vec(prop::bool::weighted(0.1), 0..4).prop_map(|locked| Step::Commit { locked }),
        2 => Just(Step::Fail),
        1 => Just(Step::FailRow),
        1 => Just(Step::NewSession),
        1 => (0..TableNo::try_from(TABLES).unwrap(), any::<bool>())
            .prop_map(|(table, refused)| Step::Refuse { table, refused }),
    ]
}

/// Everything that was ever settled, never forgotten.
struct Model {
    marks: Marks,
    now: Instant,
    settled: u64,
    /// Events whose rows are to be marked and are not, by number, with the table and since when.
    unmarked: BTreeMap<u64, (TableNo, Instant)>,
    ids: BTreeMap<u64, String>,
    refused: [bool; TABLES],
    /// What the current session settled, from this number on.
    session_from: u64,
    /// Positions that became durable in this session: when, and how many events were settled by then.
    durable: Vec<(u64, Instant, u64)>,
    reported: u64,
    /// A batch under way, and the first event of its session.
    out: Option<(MarkBatch, u64)>,
}

impl Model {
    fn new(now: Instant) -> Self {
        let settings = MarkSettings {
            batch: BATCH,
            interval: HOLD,
        };
        let mut marks = Marks::new(settings, BATCH, TABLES);
        marks.session_started(now);
        for table in 0..TableNo::try_from(TABLES).unwrap() {
            marks.want(table, true);
        }
        Self {
            marks,
            now,
            settled: 0,
            unmarked: BTreeMap::new(),
            ids: BTreeMap::new(),
            refused: [false; TABLES],
            session_from: 0,
            durable: Vec::new(),
            reported: 0,
            out: None,
        }
    }

    fn prefix(&self) -> Option<Position> {
        (self.settled > self.session_from).then(|| (Lsn::new(self.settled), 0))
    }

    fn settle(&mut self, table: Option<TableNo>, length: usize) {
        if let Some(table) = table
            && self.marks.wants(table)
        {
            let id = format!("{}-{}", self.settled, "ü".repeat(length));
            self.marks.queue(table, (&id, 0), self.prefix(), self.now);
            self.unmarked.insert(self.settled, (table, self.now));
            self.ids.insert(self.settled, id);
        }
        self.settled += 1;
    }

    fn poll(&mut self) {
        let due = self.marks.deadline(self.prefix(), true);
        let batch = self.marks.poll_batch(self.prefix(), true, self.now);
        assert_eq!(
            batch.is_some(),
            due.is_some_and(|due| due <= self.now),
            "a batch comes when it is due"
        );
        let Some(batch) = batch else { return };
        for ids in &batch.tables {
            assert!(!ids.is_empty() && ids.len() <= BATCH + MAX_LOCKED);
            for id in ids.iter() {
                let event: u64 = id.split('-').next().unwrap().parse().unwrap();
                assert_eq!(self.ids[&event], id);
                let table = self.unmarked.get(&event).map(|(table, _)| *table);
                assert_eq!(table, Some(ids.table), "marked twice: {id}");
            }
        }
        self.out = Some((batch, self.session_from));
    }

    fn commit(&mut self, is_locked: &[bool]) {
        let Some((batch, session_from)) = self.out.take() else {
            return;
        };
        let mut marked = Marked::default();
        let ids = batch
            .tables
            .iter()
            .flat_map(|ids| ids.iter().map(move |id| (ids.table, id)));
        for (index, (table, id)) in ids.enumerate() {
            let event: u64 = id.split('-').next().unwrap().parse().unwrap();
            if is_locked.get(index) == Some(&true) {
                marked.locked.push((table, id.to_owned(), 0));
            } else {
                marked.rows += 1;
                self.unmarked.remove(&event);
            }
        }
        let locked: Vec<u64> = marked
            .locked
            .iter()
            .map(|(_, id, _)| id.split('-').next().unwrap().parse().unwrap())
            .collect();
        let prefix = batch.prefix.map(|prefix| prefix.with(locked.is_empty()));
        let still: Vec<u64> = self
            .marks
            .locked
            .iter()
            .map(|locked| number_of(&locked.id))
            .collect();
        self.marks.handle_marked(batch, marked, self.now);
        let Some(prefix) = prefix else { return };
        let position = prefix.position.0.get();
        assert!(
            position > session_from,
            "R19: the prefix is of an earlier session"
        );
        assert!(
            position <= self.settled,
            "R19: the prefix is beyond what is settled"
        );
        let unmarked = self.unmarked.range(..position).filter(|(event, (table, _))| {
            !locked.contains(event) && !still.contains(event) && !self.refused[usize::from(*table)]
        });
        // What is dropped with its refused table is for a sweep.
        let unmarked: Vec<_> = unmarked.filter(|_| self.marks.wants_sweep().is_none()).collect();
        assert!(
            unmarked.is_empty(),
            "R18: {unmarked:?} are unmarked before the prefix {position}"
        );
        if prefix.is_complete {
            let unmarked: Vec<_> = self.unmarked.range(..position).collect();
            assert!(unmarked.is_empty(), "R21: complete, with {unmarked:?} unmarked");
        }
    }

    /// R18, after every step.
    fn check(&mut self) {
        let durable = self.durable.last().map_or(0, |(durable, ..)| *durable);
        let reported = self.marks.report(Lsn::new(durable), self.now).get();
        assert!(reported >= self.reported, "the reported position went back");
        assert!(reported <= durable);
        self.reported = reported;
        for (position, since, settled) in &self.durable {
            let has_waited = self.now >= *since + HOLD;
            let early = self.unmarked.range(..settled).find(|(_, (table, queued))| {
                !self.refused[usize::from(*table)] && self.now + HOLD_STEP < *queued + HOLD
            });
            if *position <= reported {
                let is_lost = self.marks.wants_sweep().is_some();
                assert!(
                    early.is_none() || is_lost,
                    "R18: {position} is reported before {early:?} is marked"
                );
            } else {
                assert!(!has_waited, "R18: {position} is held back for too long");
                // Those that moved soon after are held back together with it.
                let together = self.durable.iter().filter(|(_, at, _)| *at < *since + HOLD_STEP);
                let settled = together.map(|(.., settled)| *settled).max().unwrap_or(*settled);
                let is_marked = self.unmarked.range(..settled).next().is_none();
                assert!(!is_marked, "{position} is held back for nothing");
            }
        }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Settle { table, length } => self.settle(table, length),
            Step::Durable => {
                if self
                    .durable
                    .last()
                    .is_none_or(|(durable, ..)| *durable < self.settled)
                    && self.settled > 0
                {
                    self.durable.push((self.settled, self.now, self.settled));
                }
            }
            Step::Pass { milliseconds } => self.now += Duration::from_millis(milliseconds),
            Step::Poll => self.poll(),
            Step::Commit { locked } => self.commit(&locked),
            Step::Fail => {
                if let Some((batch, _)) = self.out.take() {
                    self.marks.handle_failed(batch, self.now);
                }
            }
            Step::FailRow => {
                if let Some((batch, _)) = self.out.take() {
                    self.marks.handle_row_failed(batch, self.now);
                }
            }
            Step::NewSession => {
                self.marks.session_lost();
                self.marks.session_started(self.now);
                self.session_from = self.settled;
                self.durable.clear();
                self.reported = 0;
            }
            Step::Refuse { table, refused } => {
                self.marks.refuse(table, refused);
                self.refused[usize::from(table)] = refused;
            }
        }
        self.check();
    }
}

fn number_of(id: &str) -> u64 {
    id.split('-').next().unwrap().parse().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "an origin for the test's own time")]
fn origin() -> Instant {
    Instant::now()
}

proptest! {
    #![proptest_config(crate::property::config())]

    /// R18, R19, R21.
    #[test]
    fn positions_and_prefixes_wait_for_marks_as_in_a_naive_model(steps in vec(step(), 0..200)) {
        let mut model = Model::new(origin());
        for step in steps {
            model.run(step);
        }
        // Drains completely once nobody has a lock and no right is missing.
        for table in 0..TableNo::try_from(TABLES).unwrap() {
            model.run(Step::Refuse { table, refused: false });
        }
        model.marks.stop(model.now);
        for _ in 0..1_000 {
            model.run(Step::Commit { locked: Vec::new() });
            model.run(Step::Poll);
            model.run(Step::Pass { milliseconds: 1_000 });
        }
        prop_assert!(model.marks.is_drained(model.prefix(), true));
        prop_assert_eq!(model.marks.queued(), 0);
        let dropped = model.marks.counters().dropped;
        prop_assert!(u64::try_from(model.unmarked.len()).unwrap() <= dropped, "{:?} are left", model.unmarked);
    }
}

/// R21: what finds no room is counted and asks for a sweep.
#[test]
fn the_queue_is_bounded_by_count_and_by_bytes() {
    for (length, room) in [(1, MAX_IDS), (1_000, MAX_BYTES / 1_000)] {
        let mut model = Model::new(origin());
        let id = "x".repeat(length);
        for _ in 0..room {
            model.marks.queue(0, (&id, 0), None, model.now);
        }
        assert_eq!(model.marks.counters().dropped, 0);
        assert_eq!(model.marks.wants_sweep(), None);
        model.marks.queue(0, (&id, 0), None, model.now);
        assert_eq!((model.marks.queued(), model.marks.counters().dropped), (room, 1));
        let losses = model.marks.wants_sweep().unwrap();
        model.marks.swept(losses, 77);
        assert_eq!(model.marks.wants_sweep(), None);
    }
}

/// R18.
#[test]
fn a_position_waits_for_marks_for_a_second_and_no_longer() {
    let mut model = Model::new(origin());
    model.settle(Some(0), 1);
    assert_eq!(model.marks.report(Lsn::new(10), model.now), Lsn::INVALID);
    model.now += HOLD - MILLISECOND;
    model.poll();
    assert!(model.out.is_some(), "half a second before that the batch is due");
    assert_eq!(model.marks.report(Lsn::new(10), model.now), Lsn::INVALID);
    assert_eq!(model.marks.counters().late, 0);
    model.now += MILLISECOND;
    assert_eq!(model.marks.report(Lsn::new(10), model.now), Lsn::new(10));
    assert_eq!(model.marks.counters().late, 1);
    model.commit(&[]);
    model.settle(Some(0), 1);
    model.now += HOLD;
    model.poll();
    model.commit(&[]);
    assert_eq!(
        model.marks.report(Lsn::new(20), model.now),
        Lsn::new(20),
        "nothing is unmarked"
    );
}

/// R18: the second is the row's, whenever a position behind it is durable.
#[test]
fn a_later_position_waits_for_the_rest_of_the_same_second() {
    let mut model = Model::new(origin());
    model.settle(Some(0), 1);
    assert_eq!(model.marks.report(Lsn::new(10), model.now), Lsn::INVALID);
    model.now += HOLD / 2;
    assert_eq!(model.marks.report(Lsn::new(20), model.now), Lsn::INVALID);
    model.now += HOLD / 2;
    assert_eq!(model.marks.report(Lsn::new(20), model.now), Lsn::new(20));
    assert_eq!(model.marks.counters().late, 1);
}

/// R18: also where what was queued before it is excused.
#[test]
fn a_locked_row_has_a_second_of_its_own() {
    let mut model = Model::new(origin());
    model.settle(Some(0), 1);
    assert_eq!(model.marks.report(Lsn::new(10), model.now), Lsn::INVALID);
    model.now += HOLD - 100 * MILLISECOND;
    model.settle(Some(0), 1);
    model.poll();
    model.now += 100 * MILLISECOND;
    assert_eq!(model.marks.report(Lsn::new(10), model.now), Lsn::new(10));
    model.commit(&[false, true]);
    assert_eq!(model.marks.report(Lsn::new(20), model.now), Lsn::new(10));
    model.now += HOLD;
    assert_eq!(model.marks.report(Lsn::new(20), model.now), Lsn::new(20));
    assert_eq!(model.marks.counters().late, 2, "each for itself");
}

/// R19: without anything new nothing is written.
#[test]
fn an_idle_prefix_is_stored_once() {
    let mut model = Model::new(origin());
    model.settle(None, 0);
    model.poll();
    let stored = model.out.as_ref().and_then(|(batch, _)| batch.prefix).unwrap();
    assert_eq!((stored.position, stored.is_complete), ((Lsn::new(1), 0), true));
    model.commit(&[]);
    assert_eq!(model.marks.deadline(model.prefix(), true), None);
    model.settle(None, 0);
    let due = model.marks.deadline(model.prefix(), true);
    assert_eq!(due, Some(model.now + PREFIX_INTERVAL), "at most once a second");
}

/// R21: what was seen decided before a position need not be swept once that is settled, unless something was lost.
#[test]
fn rows_behind_what_is_settled_need_no_sweep() {
    let mut model = Model::new(origin());
    let commit = |model: &mut Model, seen| {
        model.settle(None, 0);
        model.now += PREFIX_INTERVAL;
        model.poll();
        let (batch, _) = model.out.take().unwrap();
        let swept_before = batch.prefix.unwrap().swept_before;
        let marked = Marked {
            seen: Some(seen),
            ..Marked::default()
        };
        model.marks.handle_marked(batch, marked, model.now);
        swept_before
    };
    assert_eq!(commit(&mut model, (Lsn::new(2), 700)), None);
    assert_eq!(commit(&mut model, (Lsn::new(9), 800)), None, "not beyond 2");
    assert_eq!(commit(&mut model, (Lsn::new(9), 900)), Some(700));
    model.marks.suspect_losses();
    for _ in 0..9 {
        assert_eq!(
            commit(&mut model, (Lsn::new(20), 1_000)),
            None,
            "something was lost"
        );
    }
    model.marks.swept(1, 950);
    assert_eq!(commit(&mut model, (Lsn::new(20), 1_000)), Some(950));
}

/// R20: a constraint or a trigger of the table's owner may refuse one row.
#[test]
fn a_row_that_fails_alone_is_given_up_and_keeps_no_other_from_its_mark() {
    let mut model = Model::new(origin());
    let settings = MarkSettings {
        batch: 10,
        interval: MILLISECOND,
    };
    model.marks = Marks::new(settings, 10, TABLES);
    model.marks.want(0, true);
    model.marks.session_started(model.now);
    for id in 0..10 {
        model.marks.queue(0, (&id.to_string(), 0), None, model.now);
    }
    let mut marked = Vec::new();
    for _ in 0..20 {
        model.now += MILLISECOND;
        let Some(batch) = model.marks.poll_batch(None, false, model.now) else {
            break;
        };
        let ids: Vec<String> = batch
            .tables
            .iter()
            .flat_map(TableIds::iter)
            .map(str::to_owned)
            .collect();
        if ids.iter().any(|id| id == "7") {
            model.marks.handle_row_failed(batch, model.now);
        } else {
            marked.extend(ids);
            model.marks.handle_marked(batch, Marked::default(), model.now);
        }
    }
    assert_eq!(marked, ["0", "1", "2", "3", "4", "5", "6", "8", "9"]);
    assert_eq!((model.marks.queued(), model.marks.counters().dropped), (0, 1));
    assert!(model.marks.wants_sweep().is_some());
}
