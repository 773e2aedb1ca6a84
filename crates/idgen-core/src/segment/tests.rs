use super::tag::{Allocation, MAX_STEP, TagDefinition, next_step};
use super::*;
use crate::tenancy::Ended;
use proptest::prelude::*;
use std::time::Duration;

fn ring(stride: i64) -> (Ring, RingHandle) {
    let ring = Ring::new();
    let handle = ring.begin(stride);
    (ring, handle)
}

fn drawn(answer: Result<Draw, Ended>) -> ValueRun {
    match answer {
        Ok(Draw::Drawn { run, .. }) => run,
        other => panic!("{other:?}"),
    }
}

fn requests(answer: Result<Draw, Ended>) -> bool {
    matches!(answer, Ok(Draw::Drawn { request: true, .. }))
}

fn values(mut run: ValueRun) -> Vec<i64> {
    std::iter::from_fn(|| (run.count > 0).then(|| run.split_first())).collect()
}

#[test]
fn new_ring_is_dry() {
    let (ring, handle) = ring(1);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
    assert_eq!(ring.draw_block(handle, 1), Ok(Draw::Dry));
    assert_eq!(ring.remaining(handle), Remaining::default());
}

#[test]
fn ring_is_dry_after_all_values_of_its_range() {
    let (ring, handle) = ring(3);
    ring.install(handle, 10, 4, 0);
    assert_eq!(values(drawn(ring.draw(handle, 1))), [10]);
    assert_eq!(values(drawn(ring.draw(handle, 2))), [13, 16]);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [19]);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
}

#[test]
fn ranges_that_continue_each_other_are_drawn_as_one() {
    let (ring, handle) = ring(2);
    ring.install(handle, 1, 3, 0);
    ring.install(handle, 7, 3, 0);
    ring.install(handle, 13, 1, 0);
    assert_eq!(drawn(ring.draw_block(handle, 7)), ValueRun { first: 1, count: 7, stride: 2 });
}

#[test]
fn draws_stop_at_skipped_values() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 0);
    ring.install(handle, 100, 3, 0);
    let (current, next) = (ValueRun { first: 1, count: 3, stride: 1 }, ValueRun { first: 100, count: 3, stride: 1 });
    assert_eq!(ring.remaining(handle), Remaining { current: Some(current), next: Some(next) });
    assert!(!ring.has_room());
    assert_eq!(values(drawn(ring.draw(handle, 9))), [1, 2, 3]);
    assert!(ring.has_room());
    ring.install(handle, 200, 1, 0);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [100, 101, 102]);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [200]);
}

#[test]
fn block_is_complete_or_not_drawn() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 0);
    assert_eq!(ring.draw_block(handle, 4), Ok(Draw::Dry));
    assert_eq!(drawn(ring.draw(handle, 1)).first, 1);
    ring.install(handle, 4, 2, 0);
    assert_eq!(drawn(ring.draw_block(handle, 4)), ValueRun { first: 2, count: 4, stride: 1 });
}

#[test]
fn block_discards_a_rest_that_is_too_short() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 2);
    ring.install(handle, 100, 8, 9);
    let answer = ring.draw_block(handle, 5);
    assert_eq!(drawn(answer), ValueRun { first: 100, count: 5, stride: 1 });
    assert_eq!(ring.draw_block(handle, 5), Ok(Draw::Dry));
    assert_eq!(drawn(ring.draw(handle, 9)).first, 105);
}

#[test]
fn refill_is_requested_once_at_low_water() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 10, 4);
    assert!(!requests(ring.draw(handle, 5)));
    assert!(requests(ring.draw(handle, 1)));
    assert!(!requests(ring.draw(handle, 1)));
    ring.install(handle, 11, 10, 4);
    assert!(!requests(ring.draw(handle, 8)));
    assert!(requests(ring.draw(handle, 2)));
}

#[test]
fn block_that_discards_values_still_requests_a_refill() {
    let (ring, handle) = ring(1);
    ring.install(handle, 1, 3, 0);
    ring.install(handle, 100, 8, 8);
    assert!(requests(ring.draw_block(handle, 5)));
}

#[test]
fn ended_tenancy_draws_nothing_and_leaves_no_values() {
    let (ring, old) = ring(1);
    ring.install(old, 1, 10, 0);
    ring.install(old, 50, 10, 0);
    ring.end(old);
    let new = ring.begin(1);
    assert_eq!(ring.draw(old, 1), Err(Ended));
    assert_eq!(ring.draw(new, 1), Ok(Draw::Dry));
    ring.install(new, 60, 2, 0);
    assert_eq!(ring.draw(old, 1), Err(Ended));
    assert_eq!(values(drawn(ring.draw(new, 9))), [60, 61]);
}

#[test]
fn largest_bigint_can_be_drawn() {
    let (ring, handle) = ring(1);
    ring.install(handle, i64::MAX - 1, 2, 0);
    assert_eq!(values(drawn(ring.draw(handle, 9))), [i64::MAX - 1, i64::MAX]);
    assert_eq!(ring.draw(handle, 1), Ok(Draw::Dry));
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
    /// G1, G3: compared with a plain queue of values.
    #[test]
    fn ring_behaves_as_a_queue(steps in prop::collection::vec(step(), 1..200), stride in 1..4i64) {
        let (ring, mut handle) = ring(stride);
        let mut queue: Vec<i64> = Vec::new();
        let (mut next, mut last_drawn) = (1i64, 0i64);
        for step in steps {
            match step {
                Step::Draw(want) => match ring.draw(handle, want).unwrap() {
                    Draw::Dry => prop_assert!(queue.is_empty()),
                    Draw::Drawn { run, .. } => {
                        let got = values(run);
                        prop_assert!(got.len() as u64 <= want && !got.is_empty());
                        prop_assert_eq!(&got, &queue.drain(..got.len()).collect::<Vec<_>>());
                        prop_assert!(got[0] > last_drawn);
                        last_drawn = run.last();
                        prop_assert_eq!(Some(&last_drawn), got.last());
                    }
                },
                Step::Block(want) => if let Draw::Drawn { run, .. } = ring.draw_block(handle, want).unwrap() {
                    let got = values(run);
                    prop_assert_eq!(got.len() as u64, want);
                    let at = queue.iter().position(|value| *value == got[0]);
                    prop_assert!(at.is_some());
                    // Only values before a skip were discarded.
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
                    // A block that does not fit discards the values before a skip, if there is one.
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

    /// G2: the next values of the residue, none above the bound, and the last is the row's new `max_id`.
    #[test]
    fn allocation_returns_the_next_values_of_its_residue(
        max_id in -1..1000i64, stride in 1..50i64, residue in 0..50i64, room in 0..500i64, want in 1..60u64,
    ) {
        let residue = residue % stride;
        let upper_bound = max_id + room;
        let row = Allocation { max_id, stride, residue, upper_bound };
        let model = (max_id + 1..=upper_bound).filter(|v| v % stride == residue);
        let model: Vec<i64> = model.take(want as usize).collect();
        let run = row.next(want);
        prop_assert_eq!(run.map(|r| (r.first, r.last(), r.count)),
            model.first().map(|first| (*first, *model.last().unwrap(), model.len() as u64)));
    }

    /// As on two primaries with one stride.
    #[test]
    fn allocations_with_different_residues_never_meet(
        a in -1..100i64, b in -1..100i64, stride in 2..9i64, r in 0..9i64, s in 0..9i64,
    ) {
        let (r, s) = (r % stride, s % stride);
        prop_assume!(r != s);
        let of = |max_id, residue| {
            values(Allocation { max_id, stride, residue, upper_bound: i64::MAX }.next(40).unwrap())
        };
        let (a, b) = (of(a, r), of(b, s));
        prop_assert!(a.iter().all(|value| !b.contains(value)));
    }

    #[test]
    fn step_stays_within_its_limits(step in 1..MAX_STEP, ms in 0..100_000u64, min in 1..5000i64, more in 0..5000i64) {
        let next = next_step(step, Duration::from_millis(ms), Duration::from_secs(1), min..=min + more);
        prop_assert!((min..=min + more).contains(&next));
    }
}

/// The values that a ring has left, without drawing them.
fn ring_left(ring: &Ring, handle: RingHandle) -> Vec<i64> {
    let rest = ring.remaining(handle);
    rest.current.into_iter().chain(rest.next).flat_map(values).collect()
}

#[test]
fn allocation_near_the_end_of_bigint_returns_what_is_left() {
    let row = |max_id, stride, residue| Allocation { max_id, stride, residue, upper_bound: i64::MAX };
    let last = row(i64::MAX - 1, 1, 0).next(1000).unwrap();
    assert_eq!((last.first, last.last(), last.count), (i64::MAX, i64::MAX, 1));
    assert_eq!(row(i64::MAX, 1, 0).next(1), None);
    assert_eq!(row(i64::MAX - 1, 1000, 3).next(1), None);
}

#[test]
fn step_doubles_stays_or_halves_by_lifetime() {
    let next = |ms| next_step(100, Duration::from_millis(ms), Duration::from_secs(1), 1..=1000);
    assert_eq!([next(0), next(999), next(1000), next(1999), next(2000), next(90_000)], [200, 200, 100, 100, 50, 50]);
}

#[test]
fn invalid_definition_is_rejected_by_field_and_range() {
    let good = TagDefinition {
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
    let wrong = |change: fn(&mut TagDefinition)| {
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
    assert_eq!(wrong(|d| d.max_step = MAX_STEP + 1).0, "max_step");
    assert_eq!(wrong(|d| d.stride = 0).0, "stride");
    assert_eq!(wrong(|d| d.residue = 2), ("residue", "It must be 0 to 1.".to_owned()));
    assert_eq!(wrong(|d| d.target_us = 0), ("target_duration", "It must be above 0 microseconds.".to_owned()));
    assert_eq!(wrong(|d| d.upper_bound = -1), ("upper_bound", format!("It must be 0 to {}.", i64::MAX)));

    let at_its_end = TagDefinition { max_id: 99, ..good };
    assert_eq!(at_its_end.check(), Ok(()));
    assert_eq!(at_its_end.check_new().unwrap_err().to_string(), format!("It must be 100 to {}.", i64::MAX));
    assert_eq!(TagDefinition { max_id: 98, ..good }.check_new(), Ok(()));
}

struct Rings {
    rings: Vec<Ring>,
    tenants: Vec<Option<RingTenant>>,
}

impl Rings {
    fn new(size: usize) -> Self {
        Self { rings: (0..size).map(|_| Ring::new()).collect(), tenants: vec![None; size] }
    }

    fn table(&mut self) -> RingTable<'_> {
        RingTable { rings: &self.rings, tenants: &mut self.tenants }
    }
}

fn key(creation: i64) -> TagKey {
    TagKey { database: 5, creation }
}

#[test]
fn attach_finds_the_ring_of_a_tag() {
    let mut rings = Rings::new(2);
    let first = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert!(first.is_new);
    let again = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert_eq!((again.index, again.handle, again.is_new), (first.index, first.handle, false));
    assert!(rings.table().attach(TagKey { database: 6, creation: 1 }, 1, 1, 0, &[]).is_new);
    assert!(rings.table().is_full());
}

#[test]
fn changed_row_begins_a_tenancy_and_an_older_version_does_not() {
    let mut rings = Rings::new(2);
    let old = rings.table().attach(key(1), 1, 1, 0, &[]);
    rings.rings[old.index].install(old.handle, 1, 10, 0);
    let new = rings.table().attach(key(1), 2, 3, 0, &[]);
    assert!(new.is_new && new.index == old.index);
    assert_eq!(rings.rings[old.index].draw(old.handle, 1), Err(Ended));
    assert_eq!(rings.rings[new.index].draw(new.handle, 1), Ok(Draw::Dry));
    let late = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert_eq!((late.handle, late.is_new), (new.handle, false));
}

#[test]
fn superseded_row_loses_its_values_and_no_older_version_restores_them() {
    let mut rings = Rings::new(2);
    assert_eq!(rings.table().supersede(key(1), 2, 1, 0), None, "a tag without a ring gets none");
    assert!(rings.tenants.iter().all(Option::is_none));
    for version in [2, DROPPED] {
        let old = rings.table().attach(key(version), 1, 1, 0, &[]);
        rings.rings[old.index].install(old.handle, 1, 10, 0);
        let new = rings.table().supersede(key(version), version, 3, 0).expect("the tag has a ring");
        assert!(new.is_new && new.index == old.index);
        assert_eq!(rings.rings[old.index].draw(old.handle, 1), Err(Ended));
        // A session or the refill worker that has read the old row.
        let late = rings.table().attach(key(version), 1, 1, 0, &[]);
        assert_eq!((late.handle, late.is_new), (new.handle, false));
        assert_eq!(rings.rings[late.index].draw(late.handle, 1), Ok(Draw::Dry));
        let again = rings.table().supersede(key(version), version, 3, 0).expect("the tag has a ring");
        assert!(!again.is_new, "the ring has the new version already");
    }
}

#[test]
fn full_table_evicts_a_tag_that_is_gone_or_else_the_one_refilled_longest_ago() {
    let mut rings = Rings::new(3);
    let attached: Vec<_> = (1..=3).map(|n| rings.table().attach(key(n), 1, 1, 100 - n, &[])).collect();
    rings.rings[attached[2].index].install(attached[2].handle, 1, 10, 0);
    let fourth = rings.table().attach(key(4), 1, 1, 200, &[key(1)]);
    assert_eq!(fourth.index, attached[0].index);
    let fifth = rings.table().attach(key(5), 1, 1, 200, &[]);
    assert_eq!(fifth.index, attached[2].index);
    assert_eq!(rings.rings[fifth.index].draw(attached[2].handle, 1), Err(Ended));
    assert_eq!(rings.rings[fifth.index].draw(fifth.handle, 1), Ok(Draw::Dry));
}

#[test]
fn evicted_tag_returns_with_an_empty_ring() {
    let mut rings = Rings::new(1);
    let first = rings.table().attach(key(1), 1, 1, 0, &[]);
    rings.rings[0].install(first.handle, 1, 10, 0);
    rings.table().evict(0);
    let again = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert!(again.is_new);
    assert_eq!(rings.rings[0].draw(again.handle, 1), Ok(Draw::Dry));
}
