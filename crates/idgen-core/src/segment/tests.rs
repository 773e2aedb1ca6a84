use super::chains::{Chains, END, TagMap};
use super::tag::{Allocation, MAX_STEP, TagDefinition, next_step};
use super::*;
use crate::tenancy::{Attachment, Ended};
use proptest::prelude::*;
use std::time::Duration;

mod port;
mod procedures;
mod rows;

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
        (error.field, error.rule)
    };
    assert_eq!(wrong(|d| d.max_id = -2).0, "max_id");
    assert_eq!(wrong(|d| d.step = 0), ("step", "It must be 1 to 1000000000.".to_owned()));
    assert_eq!(wrong(|d| d.step = MAX_STEP + 1), ("step", "It must be 1 to 1000000000.".to_owned()));
    assert_eq!(wrong(|d| d.step = 101), ("step", "It must be 1 to 100.".to_owned()));
    assert_eq!(wrong(|d| d.min_step = 0).0, "min_step");
    assert_eq!(wrong(|d| d.min_step = MAX_STEP + 1).0, "min_step");
    assert_eq!(wrong(|d| d.max_step = 0).0, "max_step");
    assert_eq!(wrong(|d| d.max_step = MAX_STEP + 1).0, "max_step");
    assert_eq!(wrong(|d| d.stride = 0).0, "stride");
    assert_eq!(wrong(|d| d.stride = i64::from(i32::MAX) + 1), ("stride", "It must be 1 to 2147483647.".to_owned()));
    assert_eq!(wrong(|d| d.residue = -1), ("residue", "It must be 0 to 1.".to_owned()));
    assert_eq!(wrong(|d| d.residue = 2), ("residue", "It must be 0 to 1.".to_owned()));
    assert_eq!(wrong(|d| d.target_us = 0), ("target_duration", "It must be above 0 microseconds.".to_owned()));
    assert_eq!(wrong(|d| d.upper_bound = -1), ("upper_bound", format!("It must be 0 to {}.", i64::MAX)));

    let at_its_end = TagDefinition { max_id: 99, ..good };
    assert_eq!(at_its_end.check(), Ok(()));
    assert_eq!(at_its_end.check_new(100).unwrap_err().rule, format!("It must be 100 to {}.", i64::MAX));
    assert_eq!(TagDefinition { max_id: 98, ..good }.check_new(99), Ok(()));
    let before = good.check_new(i64::MIN).unwrap_err();
    assert_eq!((before.field, before.value), ("start", i64::MIN));
}

/// A table with this many rings, and places for rests.
fn table(rings: usize, rests: usize) -> RingTable<'static> {
    fn chains(places: usize) -> Chains<'static> {
        Chains { heads: vec![END; Chains::heads_of(places)].leak(), nexts: vec![END; places].leak() }
    }
    RingTable {
        rings: (0..rings).map(|_| Ring::new()).collect::<Vec<_>>().leak(),
        tenants: vec![None; rings].leak(),
        chains: chains(rings),
        hand: 0,
        displaced: 0,
        rests: TagMap { places: vec![None; rests].leak(), chains: chains(rests), count: 0, hand: 0 },
    }
}

impl RingTable<'_> {
    fn attach_row(&mut self, key: TagKey, version: i64, stride: i64) -> Attachment<RingHandle> {
        self.attach(key, version, stride, |_| None)
    }

    /// A ring of this tag, with so many values from 1 on.
    fn filled(&mut self, key: TagKey, count: u64) -> Attachment<RingHandle> {
        let attached = self.attach_row(key, 1, 1);
        self.rings[attached.index].install(attached.handle, 1, count, None);
        attached
    }

    /// The next value of a tag; `None` if its ring is dry.
    fn draw(&mut self, key: TagKey) -> Option<i64> {
        let Attachment { index, handle, .. } = self.attach_row(key, 1, 1);
        match self.rings[index].draw(handle, 1) {
            Ok(Draw::Drawn { run, .. }) => Some(run.first),
            _ => None,
        }
    }
}

fn key(creation: i64) -> TagKey {
    TagKey { database: 5, creation }
}

#[test]
fn attach_finds_the_ring_of_a_tag() {
    let mut table = table(2, 2);
    let first = table.attach_row(key(1), 1, 1);
    assert!(first.is_new);
    let again = table.attach_row(key(1), 1, 1);
    assert_eq!((again.index, again.handle, again.is_new), (first.index, first.handle, false));
    let other = table.attach_row(TagKey { database: 6, creation: 1 }, 1, 1);
    assert!(other.is_new && other.index != first.index);
}

#[test]
fn changed_row_begins_a_tenancy_and_an_older_version_does_not() {
    let mut table = table(2, 2);
    let old = table.filled(key(1), 10);
    let new = table.attach_row(key(1), 2, 3);
    assert!(new.is_new && new.index == old.index);
    assert_eq!(table.rings[old.index].draw(old.handle, 1), Err(Ended));
    assert_eq!(table.rings[new.index].draw(new.handle, 1), Ok(Draw::Dry));
    assert_eq!([old, new].map(|tenancy| table.has_tenancy(new.index, tenancy.handle)), [false, true]);
    let late = table.attach_row(key(1), 1, 1);
    assert_eq!((late.handle, late.is_new), (new.handle, false));
}

#[test]
fn superseded_row_loses_its_values_and_no_older_version_restores_them() {
    let mut table = table(2, 2);
    assert_eq!(table.supersede(key(1), 2, 1), None, "a tag without a ring gets none");
    assert!(table.tenants.iter().all(Option::is_none));
    for version in [2, DROPPED] {
        let old = table.filled(key(version), 10);
        let new = table.supersede(key(version), version, 3).expect("the tag has a ring");
        assert!(new.is_new && new.index == old.index);
        assert_eq!(table.rings[old.index].draw(old.handle, 1), Err(Ended));
        // A session or the refill worker that has read the old row.
        let late = table.attach_row(key(version), 1, 1);
        assert_eq!((late.handle, late.is_new), (new.handle, false));
        assert_eq!(table.rings[late.index].draw(late.handle, 1), Ok(Draw::Dry));
        let again = table.supersede(key(version), version, 3).expect("the tag has a ring");
        assert!(!again.is_new, "the ring has the new version already");
    }
}

#[test]
fn tag_without_a_ring_keeps_what_it_had_left_for_the_same_row() {
    let mut table = table(1, 2);
    table.filled(key(1), 10);
    assert_eq!([table.draw(key(1)), table.draw(key(1))], [Some(1), Some(2)]);
    table.filled(key(2), 10);
    assert_eq!([table.draw(key(1)), table.draw(key(2)), table.draw(key(1))], [Some(3), Some(1), Some(4)]);
    // The row has changed while another tag had the ring: found by a session, or announced by the commit.
    table.draw(key(2));
    let changed = table.attach_row(key(1), 2, 1);
    assert_eq!(table.rings[0].draw(changed.handle, 1), Ok(Draw::Dry));
    assert_eq!(table.supersede(key(2), 2, 1), None);
    assert_eq!(table.draw(key(2)), None, "no session that has read the old row gets its values");
    // The database was dropped.
    table.filled(key(3), 10);
    table.draw(TagKey { database: 6, creation: 4 });
    table.forget(5);
    assert_eq!(table.draw(key(3)), None);
}

#[test]
fn full_table_evicts_a_tag_that_has_not_drawn_since_the_last_look_or_was_dropped() {
    let mut table = table(3, 9);
    let [_, second, third] = [1, 2, 3].map(|n| table.filled(key(n), 10).index);
    // All have just begun: a full round.
    table.filled(key(4), 10);
    table.draw(key(2));
    assert_eq!(table.filled(key(5), 10).index, third, "the second has drawn");
    assert_eq!([table.draw(key(4)), table.draw(key(5))], [Some(1), Some(1)]);
    table.supersede(key(2), DROPPED, 1);
    table.draw(key(4));
    assert_eq!(table.attach_row(key(6), 1, 1).index, second);
}

/// A refill or a fetch is late: the row may have been read before, or after, that of the ring.
#[test]
fn range_is_installed_only_in_the_ring_of_its_row_and_version() {
    let range = ValueRun { first: 1, count: 10, stride: 1 };
    let mut new = NewRange { range, version: 2, is_attached: false, low_water: None, turn: None, began_us: 0 };
    let mut table = table(1, 1);
    let install = |table: &mut RingTable, creation, new: &NewRange| {
        table.install(0, key(creation), new, &mut turns::Turns::default(), 70)
    };
    assert!(!install(&mut table, 1, &new), "it has no tenant");
    let Attachment { handle, .. } = table.attach_row(key(1), 2, 1);
    assert!(!install(&mut table, 2, &new), "that of another tag");
    for version in [1, 3] {
        assert!(!install(&mut table, 1, &NewRange { version, ..new }), "version {version}");
    }
    assert_eq!((table.rings[0].draw(handle, 1), table.tenants[0].unwrap().refilled_us), (Ok(Draw::Dry), None));
    new.low_water = Some(9);
    assert!(install(&mut table, 1, &new));
    assert!(matches!(table.rings[0].draw(handle, 1), Ok(Draw::Drawn { request: true, .. })));
    assert_eq!(table.tenants[0].unwrap().refilled_us, Some(70));
}

#[test]
fn evict_discards_what_is_left() {
    let mut table = table(1, 2);
    table.filled(key(1), 10);
    table.end(0);
    assert_eq!(table.draw(key(1)), None);
}

proptest! {
    /// G1 and G3: each tag's values come in order, and with a place for each tag none is lost.
    #[test]
    fn many_tags_on_few_rings_lose_no_value(
        rings in 1..5usize, draws in prop::collection::vec((0..12i64, prop::bool::weighted(0.02)), 1..300),
        rests in prop::sample::select(vec![12usize, 3]),
    ) {
        let mut table = table(rings, rests);
        let mut last = std::collections::HashMap::new();
        for (tag, is_forgotten) in draws {
            if is_forgotten {
                table.forget(6);
            }
            let Attachment { index, handle, .. } = table.attach_row(key(tag), 1, 1);
            let drawn = match table.rings[index].draw(handle, 1).unwrap() {
                Draw::Drawn { run, .. } => run.first,
                Draw::Dry => {
                    // A refill: above all that the tag has had.
                    let had = last.get(&tag).map_or(0, |(_, had)| *had);
                    prop_assert!(rests < 12 || had % 7 == 0 && last.get(&tag).is_none_or(|(drawn, _)| *drawn == had));
                    table.rings[index].install(handle, had + 1, 7, None);
                    last.entry(tag).or_insert((0, 0)).1 = had + 7;
                    table.draw(key(tag)).unwrap()
                }
            };
            let (before, had) = last.get_mut(&tag).unwrap();
            prop_assert!(drawn > *before && drawn <= *had);
            prop_assert!(rests < 12 || drawn == *before + 1);
            *before = drawn;
        }
    }
}
