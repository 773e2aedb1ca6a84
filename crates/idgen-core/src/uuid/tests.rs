use super::*;
use crate::layout::{Layout, Node};
use crate::snowflake::{Bounds, Issue};
use proptest::prelude::*;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// 2023-01-13.
const MS: i64 = 0x0185_70bb_4a7d;
const ALL_ONES: u64 = u64::MAX;

/// As SQL shows it.
fn text(uuid: u128) -> String {
    let hex = format!("{uuid:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn of(time_ms: i64, sequence: i64, random: u64) -> u128 {
    of_id(time_ms << SEQUENCE_BITS | sequence, random)
}

fn as_version_7(uuid: u128) -> u128 {
    let digits = 0xf << 76 | 0b11 << 62;
    uuid & !digits | 0x7 << 76 | 0b10 << 62
}

/// Time, sequence number and random bits, read by the bits that RFC 9562 gives them.
fn parts(uuid: u128) -> (i64, i64, u64) {
    let bits = |from: u32, count: u32| (uuid >> from) & ((1 << count) - 1);
    (bits(80, 48) as i64, (bits(64, 12) << 8 | bits(54, 8)) as i64, bits(0, 54) as u64)
}

#[test]
fn uuids_match_the_vectors() {
    assert_eq!(text(of(MS, 0x100, 0)), "018570bb-4a7d-7001-8000-000000000000");
    assert_eq!(text(of(MS, 0xfffff, ALL_ONES)), "018570bb-4a7d-7fff-bfff-ffffffffffff");
    assert_eq!(text(of(0, 0, 0)), "00000000-0000-7000-8000-000000000000");
    assert_eq!(text(of(MS, 0x01, 0)), "018570bb-4a7d-7000-8040-000000000000");
    assert_eq!(text(of(MS, 0, 1)), "018570bb-4a7d-7000-8000-000000000001");
}

#[test]
fn rfc_example_has_its_time() {
    // RFC 9562, appendix A.6: 2022-02-22 14:22:22 at UTC-5.
    assert_eq!(time_ms(0x017f22e2_79b0_7cc3_98c4_dc0c0c07398f), Some(1_645_557_742_000));
}

#[test]
fn floor_and_ceil_match_the_vectors_and_are_clamped() {
    assert_eq!(text(floor(MS)), "018570bb-4a7d-7000-8000-000000000000");
    assert_eq!(text(ceil(MS)), "018570bb-4a7d-7fff-bfff-ffffffffffff");
    for early in [-1, i64::MIN] {
        assert_eq!(text(floor(early)), "00000000-0000-7000-8000-000000000000");
        assert_eq!(text(ceil(early)), "00000000-0000-7fff-bfff-ffffffffffff");
    }
    for late in [LAST_MS, LAST_MS + 1, i64::MAX] {
        assert_eq!(text(floor(late)), "ffffffff-ffff-7000-8000-000000000000");
        assert_eq!(text(ceil(late)), "ffffffff-ffff-7fff-bfff-ffffffffffff");
    }
}

#[test]
fn worker_id_comes_first_in_the_random_bits() {
    for worker in [0, 1, 7, 65_535, i32::MAX as u32] {
        for random in [0, 0x1234_5678_9abc_def0, ALL_ONES] {
            let (_, _, bits) = parts(of(MS, 5, with_worker(worker, random)));
            assert_eq!(bits >> 23, u64::from(worker));
            assert_eq!(bits & 0x7f_ffff, random & 0x7f_ffff);
        }
    }
    assert_eq!(text(of(MS, 0, with_worker(1, 0))), "018570bb-4a7d-7000-8000-000000800000");
    assert_eq!(text(of(MS, 0, with_worker(i32::MAX as u32, 0))), "018570bb-4a7d-7000-803f-ffffff800000");
}

#[test]
fn ids_of_the_layout_become_uuids_of_their_time() {
    let layout = Layout::parse(LAYOUT).unwrap();
    assert_eq!(layout.to_string(), LAYOUT);
    let id = layout.pack(MS, Node::default(), 0x12345).unwrap();
    assert_eq!(parts(of_id(id, 9)), (MS, 0x12345, 9));
    // The space is the same for all worker ids, so any worker id fits.
    let space = layout.id_space(Node { datacenter: Some(3), worker: i32::MAX as u32 }).unwrap();
    let Issue::Issued(run) = space.next(0, 1, &Bounds { now_ms: MS, limit_ms: MS, ceiling_ms: i64::MAX }) else {
        panic!("the time is inside of the layout");
    };
    assert_eq!(time_ms(of_id(space.id(run.first), 0)), Some(MS));
}

proptest! {
    #[test]
    fn parts_return_as_they_were_packed(id in 0..i64::MAX, random in any::<u64>()) {
        let uuid = of_id(id, random);
        let (time, sequence, bits) = parts(uuid);
        prop_assert_eq!(time << 20 | sequence, id);
        prop_assert_eq!(bits, random & ((1 << 54) - 1));
        prop_assert_eq!(time_ms(uuid), Some(time));
        prop_assert!(floor(time) <= uuid && uuid <= ceil(time));
    }

    #[test]
    fn uuids_sort_as_their_ids(a in 0..i64::MAX >> 1, bit in 0..62u32, randoms in any::<[u64; 2]>()) {
        let b = a + (1 << bit);
        prop_assert!(of_id(a, randoms[0]) < of_id(b, randoms[1]));
        prop_assert!(of_id(a, randoms[0]).to_be_bytes() < of_id(b, randoms[1]).to_be_bytes());
    }

    #[test]
    fn bounds_enclose_the_uuids_of_their_millisecond_only(time in 1..LAST_MS, other in any::<u128>()) {
        let uuid = as_version_7(other);
        let is_of_time = time_ms(uuid) == Some(time);
        prop_assert_eq!(is_of_time, (floor(time)..=ceil(time)).contains(&uuid));
        prop_assert!(ceil(time - 1) < floor(time) && floor(time) < ceil(time) && ceil(time) < floor(time + 1));
        prop_assert_eq!([time_ms(floor(time)), time_ms(ceil(time))], [Some(time); 2]);
    }

    #[test]
    fn other_versions_and_variants_have_no_time(uuid in any::<u128>()) {
        let is_version_7 = text(uuid).as_bytes()[14] == b'7' && b"89ab".contains(&text(uuid).as_bytes()[19]);
        prop_assert_eq!(time_ms(uuid).is_some(), is_version_7);
        let version_7 = as_version_7(uuid);
        prop_assert_eq!(time_ms(version_7), Some((uuid >> 80) as i64));
        for other in 1..16u8 {
            let changed = version_7 ^ u128::from(other) << 76;
            prop_assert_eq!((time_ms(changed), version(changed)), (None, Some(7 ^ other)));
        }
        for other in 1..4 {
            let changed = version_7 ^ other << 62;
            prop_assert_eq!((time_ms(changed), version(changed)), (None, None));
        }
    }
}

/// A source whose words all differ.
#[derive(Default)]
struct Source(Cell<u64>);

impl Source {
    fn words(&self) -> [u64; 4] {
        std::array::from_fn(|_| {
            self.0.set(self.0.get() + 1);
            self.0.get()
        })
    }
}

const PARENT: i32 = 100;
const CHILD: i32 = 101;

#[test]
fn each_random_word_is_handed_out_once() {
    let (store, source) = (RandomWords::<4>::new(), Source::default());
    let mut words: Vec<u64> = (0..12).map(|_| store.next(PARENT, || source.words())).collect();
    words.sort_unstable();
    assert_eq!(words, (1..=12).collect::<Vec<u64>>());
}

#[test]
fn child_process_uses_no_random_word_of_its_parent() {
    let (store, source) = (RandomWords::<4>::new(), Source::default());
    let before = store.next(PARENT, || source.words());
    let in_child = store.next(CHILD, || source.words());
    assert!(before <= 4 && in_child > 4, "{before}, then {in_child}");
}

#[test]
fn failed_source_leaves_no_word_to_hand_out() {
    let (store, source) = (RandomWords::<4>::new(), Source::default());
    let fails = |process| catch_unwind(AssertUnwindSafe(|| store.next(process, || panic!("no entropy")))).is_err();
    assert!(fails(PARENT) && fails(PARENT));
    assert!(store.next(PARENT, || source.words()) <= 4);
    // Three words of the parent are left.
    assert!(fails(CHILD));
    assert!(fails(PARENT));
    assert!(store.next(PARENT, || source.words()) > 4);
}
