use super::tag::{Allocation, MAX_STEP, TagDefinition, next_step};
use super::*;
use crate::tenancy::Ended;
use proptest::prelude::*;
use std::time::Duration;

fn values(mut run: ValueRun) -> Vec<i64> {
    std::iter::from_fn(|| (run.count > 0).then(|| run.split_first())).collect()
}

proptest! {
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
    assert_eq!(wrong(|d| d.max_id = -2).0, "max_id");
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
    assert_eq!(at_its_end.check_new(100).unwrap_err().to_string(), format!("It must be 100 to {}.", i64::MAX));
    assert_eq!(TagDefinition { max_id: 98, ..good }.check_new(99), Ok(()));
    let before = good.check_new(i64::MIN).unwrap_err();
    assert_eq!((before.field, before.value), ("start", i64::MIN));
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
    rings.rings[old.index].install(old.handle, 1, 10, None);
    let new = rings.table().attach(key(1), 2, 3, 0, &[]);
    assert!(new.is_new && new.index == old.index);
    assert_eq!(rings.rings[old.index].draw(old.handle, 1), Err(Ended));
    assert_eq!(rings.rings[new.index].draw(new.handle, 1), Ok(Draw::Dry));
    assert_eq!([old, new].map(|tenancy| rings.table().has_tenancy(new.index, tenancy.handle)), [false, true]);
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
        rings.rings[old.index].install(old.handle, 1, 10, None);
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
    rings.rings[attached[2].index].install(attached[2].handle, 1, 10, None);
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
    rings.rings[0].install(first.handle, 1, 10, None);
    rings.table().evict(0);
    let again = rings.table().attach(key(1), 1, 1, 0, &[]);
    assert!(again.is_new);
    assert_eq!(rings.rings[0].draw(again.handle, 1), Ok(Draw::Dry));
}
