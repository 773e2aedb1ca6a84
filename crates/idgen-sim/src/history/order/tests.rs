use proptest::prelude::*;

use super::*;

fn draw(sent: Ns, returned: Ns, ids: &[i64]) -> Draw<i64> {
    Draw { sent, returned, ids: ids.to_vec() }
}

/// Calls of several sessions to a counter. Each is served at one moment inside of its time.
fn served() -> impl Strategy<Value = Vec<Draw<i64>>> {
    prop::collection::vec((1..50_u64, 1..50_u64, 1..4_usize), 2..60).prop_map(|calls| {
        let mut id = 0;
        let serve = |(n, (before, after, count)): (usize, (Ns, Ns, usize))| {
            let at = 1000 + 10 * n as Ns;
            let ids = (0..count as i64).map(|i| id + i).collect();
            id += count as i64;
            Draw { sent: at - before, returned: at + after, ids }
        };
        calls.into_iter().enumerate().map(serve).collect()
    })
}

/// The definition, in quadratic time.
fn breaks_order(draws: &[Draw<i64>]) -> usize {
    let received_before = |draw: &Draw<i64>| {
        draws.iter().filter(|earlier| earlier.returned < draw.sent).flat_map(|earlier| &earlier.ids).max().copied()
    };
    draws.iter().map(|draw| draw.ids.iter().filter(|id| Some(**id) <= received_before(draw)).count()).sum()
}

proptest! {
    #[test]
    fn ids_of_a_counter_pass(draws in served()) {
        prop_assert_eq!(judge(&draws).violations(), 0);
    }

    #[test]
    fn sweep_agrees_with_the_definition(mut draws in served(), swaps in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..4)) {
        for (one, two) in swaps {
            let (one, two) = (one.index(draws.len()), two.index(draws.len()));
            let ids = std::mem::take(&mut draws[one].ids);
            draws[one].ids = std::mem::replace(&mut draws[two].ids, ids);
        }
        prop_assert_eq!(judge(&draws).count(ORDER), breaks_order(&draws));
    }

    #[test]
    fn repeated_id_is_found(mut draws in served(), one in any::<prop::sample::Index>(), two in any::<prop::sample::Index>()) {
        let one = one.index(draws.len());
        let two = (one + 1 + two.index(draws.len() - 1)) % draws.len();
        draws[one].ids = draws[two].ids.clone();
        prop_assert!(judge(&draws).count(TWICE) >= 1);
    }
}

#[test]
fn calls_at_the_same_time_may_have_any_order() {
    assert_eq!(judge(&[draw(0, 10, &[2]), draw(10, 20, &[1])]).violations(), 0);
    assert_eq!(judge(&[draw(0, 9, &[2]), draw(10, 20, &[1])]).count(ORDER), 1);
}

#[test]
fn ids_of_a_call_must_rise() {
    assert_eq!(judge(&[draw(0, 10, &[1, 3, 2])]).count(WITHIN), 1);
}

#[test]
fn value_above_a_bound_that_is_read_later_is_found() {
    let bound = |sent, bound| Bound { sent, bound };
    let draws = [draw(0, 10, &[7]), draw(0, 20, &[5])];
    assert_eq!(judge_bounds(&draws, &[bound(10, 6), bound(11, 7)]).violations(), 0);
    assert_eq!(judge_bounds(&draws, &[bound(11, 6), bound(30, 6)]).count(BOUND), 2);
}
