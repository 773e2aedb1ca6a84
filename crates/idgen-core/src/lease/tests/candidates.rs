//! A choice among candidates agrees with a choice among all rows.

use super::*;
use crate::lease::candidates::{FreeSlot, grantable, spread};

const RANGE: LeaseDefinition = LeaseDefinition { first_slot: 10, slots: 6, ttl_us: 100, lock_delay_us: 20 };
const AT: Now = Now { now_us: 1_000, began_us: 700 };

fn term() -> impl Strategy<Value = Term> {
    let session = prop_oneof![
        3 => Just(Session::None),
        1 => Just(Session::Lives),
        1 => (0..60i64).prop_map(|ago_us| Session::Ended { since_us: AT.now_us - ago_us }),
        1 => Just(Session::EndedWithServer),
    ];
    (0..2i32, 900..1_100i64, 100..400i64, any::<bool>(), any::<bool>(), session).prop_map(
        |(depth, ends_us, ttl_us, revoked, by_this_clock, session)| {
            let session = if depth > 0 { session } else { Session::None };
            let revoked = revoked && depth == 0;
            Term { depth, ttl_us, revoked, by_this_clock, session, ..held(0, ends_us) }
        },
    )
}

/// The rows of a lease, all in its range.
fn rows() -> impl Strategy<Value = Vec<Term>> {
    proptest::collection::vec(proptest::option::of(term()), RANGE.slots as usize).prop_map(|slots| {
        let rows = (RANGE.first_slot..).zip(slots);
        rows.filter_map(|(slot, term)| Some(Term { slot, ..term? })).collect()
    })
}

proptest! {
    #[test]
    fn candidate_is_grantable_exactly_if_all_rows_let_it_be_granted_first(rows in rows(), asked in 8..18i32) {
        let of_candidate: Vec<Term> = rows.iter().copied().filter(|term| term.slot == asked).collect();
        let found = grantable(&[asked], &of_candidate, &RANGE, AT);
        let by_all = match choose(&rows, &RANGE, &[asked], AT) {
            Choice::Take { slots, .. } if slots[0] == asked => vec![FreeSlot { slot: asked, has_row: true }],
            // Without a preference, the lowest slot without a row goes first: only the one that was asked for counts.
            Choice::Make { slot } if slot == asked => vec![FreeSlot { slot, has_row: false }],
            Choice::Take { .. } | Choice::Make { .. } | Choice::Wait { .. } => Vec::new(),
        };
        let is_free = |term: &Term| matches!(term.availability(RANGE.lock_delay_us, AT), Availability::Since(_));
        if found.is_empty() {
            let is_taken = !RANGE.has(asked) || of_candidate.iter().any(|term| !is_free(term));
            prop_assert!(is_taken, "{rows:?}");
        } else {
            prop_assert_eq!(found, by_all);
            prop_assert_eq!(to_end_before(&rows, &RANGE, asked, AT), Vec::<i32>::new());
            prop_assert!(!has_holders_outside(&rows, &RANGE, AT));
        }
    }
}

#[test]
fn candidates_keep_their_order_and_those_outside_the_range_are_left_out() {
    let terms = [free(11, 900), held(12, 1_001), held(13, 900)];
    let found = grantable(&[15, 9, 13, 12, 11, 16], &terms, &RANGE, AT);
    let slot = |slot, has_row| FreeSlot { slot, has_row };
    assert_eq!(found, [slot(15, false), slot(13, true), slot(11, true)]);
}

#[test]
fn spread_is_the_whole_of_a_small_range_and_moves_over_a_large_one() {
    let range = |first_slot, slots| LeaseDefinition { first_slot, slots, ..RANGE };
    for offset in [0, 1, 7, u32::MAX] {
        assert_eq!(spread(&range(10, 1), offset), [10]);
        assert_eq!(spread(&range(10, 16), offset), (10..26).collect::<Vec<i32>>());
    }
    assert_eq!(spread(&range(0, MAX_SLOTS), 5), (0..16).map(|n| n * 4096 + 5).collect::<Vec<i32>>());
    let mut tried: Vec<i32> = (0..100).flat_map(|offset| spread(&range(100, 100), offset)).collect();
    tried.sort_unstable();
    tried.dedup();
    assert_eq!(tried, (100..200).collect::<Vec<i32>>());
}
