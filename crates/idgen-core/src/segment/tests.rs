use super::allocation::Allocation;
use super::definition::Definition;
use super::table::{DROPPED, Key, Table};
use super::*;
use proptest::prelude::*;
use std::time::Duration;

fn ring(stride: i64) -> (Ring, Handle) {
    let ring = Ring::new();
    let handle = ring.begin(stride);
    (ring, handle)
}

fn drawn(answer: Result<Answer, Ended>) -> Run {
    match answer {
        Ok(Answer::Drawn { run, .. }) => run,
        other => panic!("{other:?}"),
    }
}

fn asks(answer: Result<Answer, Ended>) -> bool {
    matches!(answer, Ok(Answer::Drawn { ask: true, .. }))
}

fn values(mut run: Run) -> Vec<i64> {
    std::iter::from_fn(|| (run.count > 0).then(|| run.split_first())).collect()
}

#[test]
fn a_new_ring_is_dry() {
    let (ring, handle) = ring(1);
    assert_eq!(ring.draw(handle, 1), Ok(Answer::Dry));
    assert_eq!(ring.draw_block(handle, 1), Ok(Answer::Dry));
    assert_eq!(ring.rest(handle), Rest::default());
}

#[test]
fn draws_go_through_a_range_and_then_it_is_dry() {
    let (ring, handle) = ring(3);
    ring.install(handle, 10, 4, 0);
    assert_eq!(values(drawn(ring.draw(handle, 1))), [10]);
    assert_eq!(values(drawn(ring.draw(handle, 2))), [13, 16]);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [19]);
    assert_eq!(ring.draw(handle, 1), Ok(Answer::Dry));
}

#[test]
fn a_range_that_continues_another_is_drawn_with_it() {
    let (ring, handle) = ring(2);
    ring.install(handle, 1, 3, 0);
    ring.install(handle, 7, 3, 0);
    ring.install(handle, 13, 1, 0);
    assert_eq!(drawn(ring.draw_block(handle, 7)), Run { first: 1, count: 7, stride: 2 });
}

#[test]
fn values_that_were_skipped_are_between_two_runs() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 0);
    ring.install(handle, 100, 3, 0);
    let (current, next) = (Run { first: 1, count: 3, stride: 1 }, Run { first: 100, count: 3, stride: 1 });
    assert_eq!(ring.rest(handle), Rest { current: Some(current), next: Some(next) });
    assert!(!ring.has_room());
    assert_eq!(values(drawn(ring.draw(handle, 9))), [1, 2, 3]);
    assert!(ring.has_room());
    ring.install(handle, 200, 1, 0);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [100, 101, 102]);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [200]);
}

#[test]
fn a_block_is_whole_or_not_at_all() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 0);
    assert_eq!(ring.draw_block(handle, 4), Ok(Answer::Dry));
    assert_eq!(drawn(ring.draw(handle, 1)).first, 1);
    ring.install(handle, 4, 2, 0);
    assert_eq!(drawn(ring.draw_block(handle, 4)), Run { first: 2, count: 4, stride: 1 });
}

#[test]
fn a_block_discards_what_can_never_be_part_of_one() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 2);
    ring.install(handle, 100, 8, 9);
    let answer = ring.draw_block(handle, 5);
    assert_eq!(drawn(answer), Run { first: 100, count: 5, stride: 1 });
    assert_eq!(ring.draw_block(handle, 5), Ok(Answer::Dry));
    assert_eq!(drawn(ring.draw(handle, 9)).first, 105);
}

#[test]
fn a_refill_is_asked_for_once_at_low_water() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 10, 4);
    assert!(!asks(ring.draw(handle, 5)));
    assert!(asks(ring.draw(handle, 1)));
    assert!(!asks(ring.draw(handle, 1)));
    ring.install(handle, 11, 10, 4);
    assert!(!asks(ring.draw(handle, 8)));
    assert!(asks(ring.draw(handle, 2)));
}

#[test]
fn a_block_that_discards_still_asks() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 0);
    ring.install(handle, 100, 8, 8);
    assert!(asks(ring.draw_block(handle, 5)));
}

#[test]
fn an_ended_tenancy_draws_nothing_and_leaves_nothing() {
    let (ring, old) = ring(1);
    ring.install(old, 1, 10, 0);
    ring.install(old, 50, 10, 0);
    ring.end(old);
    let new = ring.begin(1);
    assert_eq!(ring.draw(old, 1), Err(Ended));
    assert_eq!(ring.draw(new, 1), Ok(Answer::Dry));
    ring.install(new, 60, 2, 0);
    assert_eq!(ring.draw(old, 1), Err(Ended));
    assert_eq!(values(drawn(ring.draw(new, 9))), [60, 61]);
    assert!(!ring.is_current(old) && ring.is_current(new));
}

#[test]
fn the_last_number_can_be_drawn() {
    let (ring, handle) = ring(1);
    ring.install(handle, i64::MAX - 1, 2, 0);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [i64::MAX - 1, i64::MAX]);
    assert_eq!(ring.draw(handle, 1), Ok(Answer::Dry));
}

#[derive(Clone, Debug)]
enum Step {
    Draw(u64),
    Block(u64),
    Install { skip: i64, count: u64, low_water: u64 },
    Change,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..20u64).prop_map(Step::Draw),
        2 => (1..20u64).prop_map(Step::Block),
        3 => (prop_oneof![Just(0i64), 0..50i64], 1..20u64, 0..20u64)
            .prop_map(|(skip, count, low_water)| Step::Install { skip, count, low_water }),
        1 => Just(Step::Change),
    ]
}

proptest! {
    /// G1, G3: beside a plain queue of values.
    #[test]
    fn a_ring_is_a_queue(steps in prop::collection::vec(step(), 1..200), stride in 1..4i64) {
        let (ring, mut handle) = ring(stride);
        let mut queue: Vec<i64> = Vec::new();
        let (mut next, mut last_drawn) = (1i64, 0i64);
        for step in steps {
            match step {
                Step::Draw(want) => match ring.draw(handle, want).unwrap() {
                    Answer::Dry => prop_assert!(queue.is_empty()),
                    Answer::Drawn { run, .. } => {
                        let got = values(run);
                        prop_assert!(got.len() as u64 <= want && !got.is_empty());
                        prop_assert_eq!(&got, &queue.drain(..got.len()).collect::<Vec<_>>());
                        prop_assert!(got[0] > last_drawn);
                        last_drawn = run.last();
                        prop_assert_eq!(Some(&last_drawn), got.last());
                    }
                },
                Step::Block(want) => if let Answer::Drawn { run, .. } = ring.draw_block(handle, want).unwrap() {
                    let got = values(run);
                    prop_assert_eq!(got.len() as u64, want);
                    let at = queue.iter().position(|value| *value == got[0]);
                    prop_assert!(at.is_some());
                    // What was discarded ended in a skip.
                    let at = at.unwrap();
                    prop_assert!(at == 0 || queue[at] != queue[at - 1] + stride);
                    prop_assert_eq!(&got, &queue.drain(at..at + got.len()).collect::<Vec<_>>());
                    queue.drain(..at);
                    prop_assert!(got[0] > last_drawn);
                    last_drawn = run.last();
                } else {
                    let run = queue.iter().zip(queue.first().into_iter().flat_map(|f| (*f..).step_by(stride as usize)));
                    let whole = run.take_while(|(a, b)| **a == *b).count() as u64;
                    prop_assert!(whole < want);
                    // A block that did not fit leaves nothing behind but what follows a skip, if there was one.
                    queue.drain(..queue.len() - ring_left(&ring, handle).len());
                    prop_assert_eq!(&queue, &ring_left(&ring, handle));
                },
                Step::Install { skip, count, low_water } => if ring.has_room() {
                    next += skip * stride;
                    ring.install(handle, next, count, low_water);
                    queue.extend((0..count as i64).map(|i| next + i * stride));
                    next += count as i64 * stride;
                },
                Step::Change => {
                    ring.end(handle);
                    prop_assert_eq!(ring.draw(handle, 1), Err(Ended));
                    handle = ring.begin(stride);
                    queue.clear();
                }
            }
            prop_assert_eq!(&queue, &ring_left(&ring, handle));
        }
    }

    /// G2: never above the bound, always in the residue, the very next ones, and the row's new `max_id` is the last.
    #[test]
    fn a_range_is_the_next_values_of_its_residue(
        max_id in -1..1000i64, stride in 1..50i64, residue in 0..50i64, room in 0..500i64, want in 1..60u64,
    ) {
        let residue = residue % stride;
        let upper_bound = max_id + room;
        let row = Allocation { max_id, stride, residue, upper_bound };
        let model: Vec<i64> = (max_id + 1..=upper_bound).filter(|v| v % stride == residue).take(want as usize).collect();
        let range = row.next(want);
        prop_assert_eq!(range.map(|r| (r.first, r.last, r.count)),
            model.first().map(|first| (*first, *model.last().unwrap(), model.len() as u64)));
    }

    /// Two masters with one stride and different residues never meet.
    #[test]
    fn residues_never_meet(a in -1..100i64, b in -1..100i64, stride in 2..9i64, r in 0..9i64, s in 0..9i64) {
        let (r, s) = (r % stride, s % stride);
        prop_assume!(r != s);
        let of = |max_id, residue| {
            let range = Allocation { max_id, stride, residue, upper_bound: i64::MAX }.next(40).unwrap();
            values(Run { first: range.first, count: range.count, stride })
        };
        let (a, b) = (of(a, r), of(b, s));
        prop_assert!(a.iter().all(|value| !b.contains(value)));
    }

    #[test]
    fn a_step_stays_within_its_limits(step in 1..step::MAX_STEP, ms in 0..100_000u64, min in 1..5000i64, more in 0..5000i64) {
        let next = step::next(step, Duration::from_millis(ms), Duration::from_secs(1), min..=min + more);
        prop_assert!((min..=min + more).contains(&next));
    }
}

/// All that a ring has left, without drawing it.
fn ring_left(ring: &Ring, handle: Handle) -> Vec<i64> {
    let rest = ring.rest(handle);
    rest.current.into_iter().chain(rest.next).flat_map(values).collect()
}

#[test]
fn a_row_near_the_end_of_bigint_gives_what_is_left() {
    let row = |max_id, stride, residue| Allocation { max_id, stride, residue, upper_bound: i64::MAX };
    let last = row(i64::MAX - 1, 1, 0).next(1000).unwrap();
    assert_eq!((last.first, last.last, last.count), (i64::MAX, i64::MAX, 1));
    assert_eq!(row(i64::MAX, 1, 0).next(1), None);
    assert_eq!(row(i64::MAX - 1, 1000, 3).next(1), None);
}

#[test]
fn a_step_doubles_stays_and_halves() {
    let next = |ms| step::next(100, Duration::from_millis(ms), Duration::from_secs(1), 1..=1000);
    assert_eq!([next(0), next(999), next(1000), next(1999), next(2000), next(90_000)], [200, 200, 100, 100, 50, 50]);
}

#[test]
fn a_definition_names_what_is_wrong() {
    let good = Definition {
        max_id: 0,
        step: 10,
        min_step: 1,
        max_step: 100,
        target_us: 1,
        stride: 2,
        residue: 1,
        upper_bound: 99,
    };
    assert_eq!(good.check(), Ok(()));
    let wrong = |change: fn(&mut Definition)| {
        let mut definition = good;
        change(&mut definition);
        let error = definition.check().unwrap_err();
        (error.field, error.to_string())
    };
    assert_eq!(wrong(|d| d.max_id = -2).0, "start");
    assert_eq!(wrong(|d| d.step = 0), ("step", "It must be 1 to 1000000000.".to_owned()));
    assert_eq!(wrong(|d| d.step = 101), ("step", "It must be 1 to 100.".to_owned()));
    assert_eq!(wrong(|d| d.min_step = 0).0, "min_step");
    assert_eq!(wrong(|d| d.max_step = 0).0, "max_step");
    assert_eq!(wrong(|d| d.max_step = step::MAX_STEP + 1).0, "max_step");
    assert_eq!(wrong(|d| d.stride = 0).0, "stride");
    assert_eq!(wrong(|d| d.residue = 2), ("residue", "It must be 0 to 1.".to_owned()));
    assert_eq!(wrong(|d| d.target_us = 0), ("target_duration", "It must be above 0 microseconds.".to_owned()));
    assert_eq!(wrong(|d| d.upper_bound = -1), ("upper_bound", format!("It must be 0 to {}.", i64::MAX)));

    let at_its_end = Definition { max_id: 99, ..good };
    assert_eq!(at_its_end.check(), Ok(()));
    assert_eq!(at_its_end.check_new().unwrap_err().to_string(), format!("It must be 100 to {}.", i64::MAX));
    assert_eq!(Definition { max_id: 98, ..good }.check_new(), Ok(()));
}

struct Rings {
    rings: Vec<Ring>,
    tenants: Vec<Option<table::Tenant>>,
}

impl Rings {
    fn new(size: usize) -> Self {
        Self { rings: (0..size).map(|_| Ring::new()).collect(), tenants: vec![None; size] }
    }

    fn table(&mut self) -> Table<'_> {
        Table { rings: &self.rings, tenants: &mut self.tenants }
    }
}

fn key(creation: i64) -> Key {
    Key { database: 5, creation }
}

#[test]
fn a_tag_finds_its_ring_again() {
    let mut rings = Rings::new(2);
    let first = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert!(first.new);
    let again = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert_eq!((again.index, again.handle, again.new), (first.index, first.handle, false));
    assert!(rings.table().attach(Key { database: 6, creation: 1 }, 1, 1, 0, &[]).new);
    assert!(rings.table().is_full());
}

#[test]
fn a_changed_row_begins_anew_and_an_older_look_at_it_changes_nothing() {
    let mut rings = Rings::new(2);
    let old = rings.table().attach(key(1), 1, 1, 0, &[]);
    rings.rings[old.index].install(old.handle, 1, 10, 0);
    let new = rings.table().attach(key(1), 2, 3, 0, &[]);
    assert!(new.new && new.index == old.index);
    assert_eq!(rings.rings[old.index].draw(old.handle, 1), Err(Ended));
    assert_eq!(rings.rings[new.index].draw(new.handle, 1), Ok(Answer::Dry));
    let late = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert_eq!((late.handle, late.new), (new.handle, false));
}

#[test]
fn a_superseded_row_gives_no_more_values_and_nobody_brings_them_back() {
    let mut rings = Rings::new(2);
    assert_eq!(rings.table().supersede(key(1), 2, 1, 0), None, "a tag without a ring gets none");
    assert!(rings.tenants.iter().all(Option::is_none));
    for version in [2, DROPPED] {
        let old = rings.table().attach(key(version), 1, 1, 0, &[]);
        rings.rings[old.index].install(old.handle, 1, 10, 0);
        let new = rings.table().supersede(key(version), version, 3, 0).expect("the tag has a ring");
        assert!(new.new && new.index == old.index);
        assert_eq!(rings.rings[old.index].draw(old.handle, 1), Err(Ended));
        // A session, or the refill worker, that has seen the old row.
        let late = rings.table().attach(key(version), 1, 1, 0, &[]);
        assert_eq!((late.handle, late.new), (new.handle, false));
        assert_eq!(rings.rings[late.index].draw(late.handle, 1), Ok(Answer::Dry));
        let again = rings.table().supersede(key(version), version, 3, 0).expect("the tag has a ring");
        assert!(!again.new, "a session has seen the new row already");
    }
}

#[test]
fn a_full_table_takes_from_who_is_gone_and_else_from_who_is_still() {
    let mut rings = Rings::new(3);
    let places: Vec<_> = (1..=3).map(|n| rings.table().attach(key(n), 1, 1, 100 - n, &[])).collect();
    rings.rings[places[2].index].install(places[2].handle, 1, 10, 0);
    let fourth = rings.table().attach(key(4), 1, 1, 200, &[key(1)]);
    assert_eq!(fourth.index, places[0].index);
    let fifth = rings.table().attach(key(5), 1, 1, 200, &[]);
    assert_eq!(fifth.index, places[2].index);
    assert_eq!(rings.rings[fifth.index].draw(places[2].handle, 1), Err(Ended));
    assert_eq!(rings.rings[fifth.index].draw(fifth.handle, 1), Ok(Answer::Dry));
}

#[test]
fn a_tag_that_was_evicted_is_a_new_one_when_it_comes_back() {
    let mut rings = Rings::new(1);
    let first = rings.table().attach(key(1), 1, 1, 0, &[]);
    rings.rings[0].install(first.handle, 1, 10, 0);
    rings.table().evict(0);
    let again = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert!(again.new);
    assert_eq!(rings.rings[0].draw(again.handle, 1), Ok(Answer::Dry));
}

mod refillers {
    use super::super::refillers::{Call, Refiller, Refillers};

    const SECOND: i64 = 1_000_000;

    #[test]
    fn one_starts_a_worker_and_the_others_wait_for_it() {
        let mut places: [Option<Refiller>; 2] = [None; 2];
        let mut all = Refillers(&mut places);
        assert_eq!(all.call(7, 0), Call::Start);
        assert_eq!(all.call(7, SECOND), Call::Wait);
        assert_eq!(all.call(8, SECOND), Call::Start);
        assert!(all.begin(7, 70));
        assert_eq!(all.call(7, 60 * SECOND), Call::Wake { latch: 70 });
        assert!(!all.begin(7, 71), "a database has one worker");
        all.give_up(7);
        all.end(7, 71);
        assert_eq!(all.call(7, 60 * SECOND), Call::Wake { latch: 70 });
        all.end(7, 70);
        assert_eq!(all.call(7, 60 * SECOND), Call::Start);
    }

    #[test]
    fn a_start_that_came_to_nothing_is_tried_again() {
        let mut places: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut places);
        assert_eq!(all.call(7, 0), Call::Start);
        assert_eq!(all.call(7, 6 * SECOND), Call::Start);
        all.give_up(7);
        assert_eq!(all.call(7, 6 * SECOND), Call::Start);
    }

    #[test]
    fn a_running_worker_has_a_place_whatever_is_starting() {
        let mut places: [Option<Refiller>; 1] = [None];
        let mut all = Refillers(&mut places);
        assert_eq!(all.call(7, 0), Call::Start);
        assert_eq!(all.call(8, 0), Call::Start);
        assert!(all.begin(7, 70));
        assert!(!all.begin(8, 80), "there are as many places as workers");
        assert_eq!(all.call(8, 0), Call::Start);
    }
}
