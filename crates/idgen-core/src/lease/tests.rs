use super::*;
use proptest::prelude::*;

mod acquiring;
mod effects;
mod procedures;
mod shared;
mod world;

const MS: i64 = 1000;
const NOW: Now = Now { now_us: 1_000_000 * MS, began_us: 500_000 * MS };
const LOCK: LeaseDefinition = LeaseDefinition { slots: 1, ttl_us: 30_000 * MS, lock_delay_us: 0 };

fn held(slot: i32, ends_us: i64) -> Term {
    Term {
        slot,
        token: 1,
        depth: 1,
        ends_us,
        ttl_us: 30_000 * MS,
        revoked: false,
        by_this_clock: true,
        session: Session::None,
    }
}

fn free(slot: i32, since_us: i64) -> Term {
    Term { depth: 0, ..held(slot, since_us) }
}

fn take(slots: &[i32], all: bool) -> Decision {
    Decision::Take { slots: slots.to_vec(), all }
}

fn lease(terms: &[Term], definition: &LeaseDefinition, now: Now) -> Lease {
    Lease { definition: *definition, terms: terms.to_vec(), now }
}

fn decide(terms: &[Term], definition: &LeaseDefinition, now: Now) -> Decision {
    lease(terms, definition, now).decide(false)
}

fn decide_shared(terms: &[Term], definition: &LeaseDefinition, now: Now) -> Decision {
    lease(terms, definition, now).decide(true)
}

fn ends_before(terms: &[Term], definition: &LeaseDefinition, slot: i32, now: Now) -> Vec<i32> {
    lease(terms, definition, now).ends_before(slot)
}

#[test]
fn clock_is_another_after_a_boot_and_in_another_life() {
    let names = [("one", "1"), ("two", "1"), ("one", "2")].map(|(boot, life)| clock_name(boot, life));
    assert!(names[0] != names[1] && names[0] != names[2] && names[1] != names[2], "{names:?}");
}

#[test]
fn fewer_slots_exclude_whoever_may_renew_a_slot() {
    let shared = held(FIRST_SHARED, NOW.now_us + 1);
    let terms =
        [held(3, 0), shared, held(0, NOW.now_us + 1), free(2, 0), held(1, NOW.now_us + 1), held(5, NOW.now_us + 1)];
    let lease = lease(&terms, &LeaseDefinition { slots: 4, ..LOCK }, NOW);
    assert_eq!(lease.excluded_by(1), [1, 3]);
    assert_eq!(lease.excluded_by(4), [0; 0]);
}

#[test]
fn term_is_held_until_its_end() {
    assert_eq!(decide(&[held(0, NOW.now_us + 1)], &LOCK, NOW), Decision::Wait { until_us: Some(NOW.now_us + 1) });
    assert_eq!(decide(&[held(0, NOW.now_us)], &LOCK, NOW), take(&[0], true));
    assert!(held(0, NOW.now_us + 1).is_held(NOW));
    assert!(!held(0, NOW.now_us).is_held(NOW));
    assert!(!free(0, NOW.now_us + 1).is_held(NOW));
}

#[test]
fn released_slot_is_free_at_once_and_a_revoked_one_after_the_lock_delay() {
    let delayed = LeaseDefinition { lock_delay_us: 5 * MS, ..LOCK };
    let revoked = Term { revoked: true, ..free(0, NOW.now_us) };
    assert_eq!(decide(&[free(0, NOW.now_us)], &delayed, NOW), take(&[0], true));
    assert_eq!(decide(&[revoked], &delayed, NOW), Decision::Wait { until_us: Some(NOW.now_us + 5 * MS) });
    assert_eq!(decide(&[revoked], &LOCK, NOW), take(&[0], true));
}

#[test]
fn expired_term_is_taken_after_the_lock_delay() {
    let delayed = LeaseDefinition { lock_delay_us: 5 * MS, ..LOCK };
    let expired = held(0, NOW.now_us - 2 * MS);
    assert_eq!(decide(&[expired], &delayed, NOW), Decision::Wait { until_us: Some(NOW.now_us + 3 * MS) });
    assert!(!expired.is_held(NOW));
}

#[test]
fn term_by_another_clock_lasts_its_ttl_from_when_the_server_began() {
    let began_us = NOW.now_us - 10 * MS;
    let now = Now { began_us, ..NOW };
    for ends_us in [i64::MIN, 0, NOW.now_us, i64::MAX] {
        let foreign = Term { by_this_clock: false, ..held(0, ends_us) };
        assert_eq!(foreign.held_until_us(now), Some(began_us + foreign.ttl_us));
        assert!(foreign.is_held(now));
        let later = Now { now_us: began_us + foreign.ttl_us, ..now };
        assert_eq!(decide(&[foreign], &LOCK, later), take(&[0], true));
        let revoked = Term { depth: 0, revoked: true, ..foreign };
        let delayed = LeaseDefinition { lock_delay_us: 20 * MS, ..LOCK };
        assert_eq!(decide(&[revoked], &delayed, now), Decision::Wait { until_us: Some(began_us + 20 * MS) });
        assert_eq!(decide(&[Term { depth: 0, ..foreign }], &delayed, now), take(&[0], true));
    }
}

/// Callers look up when the server began only for terms that say so.
#[test]
fn beginning_of_the_server_matters_only_for_terms_that_count_from_it() {
    for by_this_clock in [false, true] {
        for session in [Session::None, Session::Lives, Session::Ended { since_us: 0 }, Session::EndedWithServer] {
            for depth in [0, 1] {
                let term = Term { by_this_clock, session, depth, ..held(0, NOW.now_us) };
                let read = |began_us| {
                    let now = Now { began_us, ..NOW };
                    (term.held_until_us(now), term.availability(0, now), term.is_abandoned(now), term.is_held(now))
                };
                assert!(term.counts_from_the_beginning() || read(NOW.began_us) == read(NOW.now_us), "{term:?}");
            }
        }
    }
}

#[test]
fn bound_term_lasts_as_long_as_its_session_whatever_its_end() {
    let bound = |session| Term { session, ..held(0, NOW.now_us - 1) };
    assert_eq!(decide(&[bound(Session::Lives)], &LOCK, NOW), Decision::Wait { until_us: None });
    assert!(bound(Session::Lives).is_held(NOW));
    let ended = Term { session: Session::Ended { since_us: NOW.now_us }, ..held(0, i64::MAX) };
    assert_eq!(decide(&[ended], &LOCK, NOW), take(&[0], true));
}

#[test]
fn bound_term_of_a_server_that_ended_lasts_its_ttl_from_when_the_new_one_began() {
    let now = Now { began_us: NOW.now_us - 10 * MS, ..NOW };
    let lost = |ends_us, by_this_clock| {
        Term { session: Session::EndedWithServer, by_this_clock, ..held(0, ends_us) }.held_until_us(now)
    };
    assert_eq!(lost(0, true), Some(now.began_us + 30_000 * MS));
    assert_eq!(lost(0, false), Some(now.began_us + 30_000 * MS));
    assert_eq!(lost(i64::MAX, true), Some(i64::MAX));
}

#[test]
fn lock_delay_begins_when_the_session_is_known_to_have_ended() {
    let ended = |since_us| Term { session: Session::Ended { since_us }, ..held(0, i64::MAX) };
    let delayed = LeaseDefinition { lock_delay_us: 5, ..LOCK };
    let since_us = NOW.now_us - 3;
    assert_eq!(decide(&[ended(since_us)], &delayed, NOW), Decision::Wait { until_us: Some(since_us + 5) });
    assert_eq!(decide(&[ended(since_us - 2)], &delayed, NOW), take(&[0], true));
    assert!(!ended(since_us).is_held(NOW));
}

#[test]
fn ended_session_keeps_the_time_at_which_it_was_first_seen() {
    let mut ends = EndedSessions::<4>::new();
    // Not remembered for a caller that does not want the slot, nor without a lock delay.
    assert_eq!(ends.since_us(7, 90, None), 90);
    assert_eq!(ends.since_us(7, 95, Some(0)), 95);
    assert_eq!(ends.since_us(7, 100, Some(10)), 100);
    assert_eq!(ends.since_us(7, 200, Some(10)), 100);
    assert_eq!(ends.since_us(7, 300, None), 100);
    assert_eq!(ends.since_us(7, 400, Some(0)), 100);
}

/// More slots have a lock delay than sessions are remembered, and callers take turns.
#[test]
fn every_lock_delay_ends() {
    const DELAY_US: i64 = 600_000_000;
    const CALL_EVERY_US: i64 = 1_000_000;
    let mut ends = EndedSessions::<4>::new();
    let mut waiting: Vec<i64> = (1..=12).collect();
    let mut known: Vec<(i64, i64)> = Vec::new();
    let mut now_us = 0;
    while !waiting.is_empty() {
        now_us += CALL_EVERY_US;
        assert!(now_us < 3 * (2 * DELAY_US + CALL_EVERY_US), "{} slots are still in the lock delay", waiting.len());
        waiting.retain(|key| {
            let since_us = ends.since_us(*key, now_us, Some(DELAY_US));
            // Others read the slots too, without wanting them.
            ends.since_us(-key, now_us, None);
            known.push((*key, since_us));
            now_us - since_us < DELAY_US
        });
    }
    // No lock delay began before the first call.
    assert!(known.iter().all(|(_, since_us)| *since_us >= CALL_EVERY_US));
}

/// A writer waits for more readers than sessions are remembered: all of their lock delays have to be over at one time.
#[test]
fn lock_delays_of_many_are_over_together() {
    const DELAY_US: i64 = 5_000_000;
    let (mut ends, mut seen) = (EndedSessions::<4>::new(), SeenEnded::default());
    let mut are_over = |now_us| {
        let mut is_over = |key| {
            let since_us = seen.since_us(key, now_us, Some(DELAY_US), ends.since_us(key, now_us, Some(DELAY_US)));
            assert!((1..=now_us).contains(&since_us));
            now_us - since_us >= DELAY_US
        };
        // All are asked for.
        (1..=1000).filter(|key| !is_over(*key)).count() == 0
    };
    assert!(!are_over(1));
    assert!(!are_over(DELAY_US));
    assert!(are_over(1 + DELAY_US));
    // As long as someone waits.
    assert!((2..300).all(|delays| are_over(delays * DELAY_US)));
}

#[test]
fn ended_sessions_that_nobody_asks_for_are_forgotten() {
    let mut seen = SeenEnded::default();
    for key in 1..100_000 {
        seen.since_us(key, key * 1_000_000, Some(10), key * 1_000_000);
        seen.since_us(-key, key * 1_000_000, None, key * 1_000_000);
        assert!(seen.by_key.len() < 200, "{key}");
    }
}

proptest! {
    /// Different lock delays: each keeps its beginning once the session is remembered.
    #[test]
    fn lock_delay_is_not_shortened_and_ends(
        delays in proptest::collection::vec(1..5_000_000i64, 1..12),
        steps in proptest::collection::vec(0..2_000_000i64, 1..50),
    ) {
        let mut ends = EndedSessions::<4>::new();
        let mut now_us = 0;
        let mut first = vec![None; delays.len()];
        for step in steps {
            now_us += step;
            for (key, delay_us) in (1i64..).zip(&delays) {
                let since_us = ends.since_us(key, now_us, Some(*delay_us));
                let first = first[key as usize - 1].get_or_insert(now_us);
                prop_assert!(since_us >= *first && since_us <= now_us);
            }
            // The first sessions are remembered for at least a minute.
            for key in (1i64..).take(delays.len().min(4)) {
                if now_us - first[key as usize - 1].unwrap_or(now_us) < KEPT_AFTER_DELAY_US {
                    prop_assert_eq!(Some(ends.since_us(key, now_us, None)), first[key as usize - 1]);
                }
            }
        }
    }
}

#[test]
fn slots_without_a_row_go_first_and_then_the_one_free_longest() {
    let five = LeaseDefinition { slots: 5, ..LOCK };
    let three = [free(0, 30), held(1, i64::MAX), free(3, 10)];
    assert_eq!(decide(&three, &five, NOW), Decision::Make { slot: 2 });
    let all = [free(4, 30), held(1, i64::MAX), free(3, 10), held(0, 20), free(2, 30)];
    assert_eq!(decide(&all, &five, NOW), take(&[3, 0, 2, 4], false));
    assert_eq!(decide(&[], &five, NOW), Decision::Make { slot: 0 });
}

#[test]
fn row_is_abandoned_a_day_after_its_term() {
    const DAY: i64 = ABANDONED_AFTER_US;
    let now = Now { now_us: 10 * DAY, began_us: 5 * DAY };
    let long_ago = held(0, now.now_us - DAY);
    assert!(long_ago.is_abandoned(now));
    assert!(!held(0, now.now_us - DAY + 1).is_abandoned(now));
    assert!(Term { depth: 0, ..long_ago }.is_abandoned(now));
    let bound = |session| Term { session, ..long_ago };
    assert!(!bound(Session::Lives).is_abandoned(now));
    assert!(bound(Session::Ended { since_us: now.now_us }).is_abandoned(now));
    assert!(!Term { session: Session::Ended { since_us: 0 }, ..held(0, now.now_us) }.is_abandoned(now));
    // By another clock, from when this server began, whatever its end says.
    for session in [Session::None, Session::EndedWithServer] {
        let foreign = Term { by_this_clock: false, session, ..held(0, 0) };
        let began = |began_us| Now { began_us, ..now };
        assert!(foreign.is_abandoned(began(now.now_us - DAY - foreign.ttl_us)));
        assert!(!foreign.is_abandoned(began(now.now_us - DAY - foreign.ttl_us + 1)));
    }
    assert!(!bound(Session::EndedWithServer).is_abandoned(Now { began_us: now.now_us - DAY, ..now }));
}

#[test]
fn holders_above_a_lowered_limit_count_and_their_slots_are_not_granted_again() {
    let two = LeaseDefinition { slots: 2, ..LOCK };
    let above = [free(0, 1), free(1, 2), held(2, NOW.now_us + 7), held(3, NOW.now_us + 5)];
    assert_eq!(decide(&above, &two, NOW), Decision::Wait { until_us: Some(NOW.now_us + 5) });
    let later = Now { now_us: NOW.now_us + 5, ..NOW };
    assert_eq!(decide(&above, &two, later), take(&[0, 1], true));
    assert_eq!(decide(&[free(2, 1), free(3, 1)], &two, NOW), Decision::Make { slot: 0 });
}

#[test]
fn grant_ends_the_expired_terms_that_exceed_the_slots() {
    let one = LeaseDefinition { slots: 1, ..LOCK };
    let expired = |slot| held(slot, NOW.now_us - 10 - i64::from(slot));
    // The last term of the granted slot ends in any case.
    assert_eq!(ends_before(&[expired(0)], &one, 0, NOW), []);
    assert_eq!(ends_before(&[expired(0), expired(1)], &one, 0, NOW), [1]);
    assert_eq!(ends_before(&[free(0, 1), expired(2), expired(1)], &one, 0, NOW), [1, 2]);
    assert_eq!(ends_before(&[expired(1)], &one, 0, NOW), [1]);
    assert_eq!(ends_before(&[free(1, 1), expired(2)], &one, 0, NOW), [2]);
    // Two slots have room for one expired term beside the grant.
    let two = LeaseDefinition { slots: 2, ..LOCK };
    assert_eq!(ends_before(&[free(0, 1), expired(1)], &two, 0, NOW), []);
    assert_eq!(ends_before(&[free(0, 1), expired(1), expired(2)], &two, 0, NOW), [2]);
    // A running term outside the range uses the room of an expired one inside.
    assert_eq!(ends_before(&[expired(0), free(1, 1), held(2, i64::MAX)], &two, 1, NOW), [0]);
    assert_eq!(ends_before(&[expired(0), free(1, 1), held(2, i64::MAX)], &two, 0, NOW), []);
}

#[test]
fn slot_outside_the_range_counts_until_it_is_free() {
    let one = LeaseDefinition { slots: 1, lock_delay_us: 5, ..LOCK };
    let admits_next = |terms: &[Term], definition, now| lease(terms, definition, now).admits_next();
    assert!(admits_next(&[held(0, i64::MAX), free(1, 1)], &one, NOW));
    assert!(!admits_next(&[held(1, NOW.now_us + 1)], &one, NOW));
    assert!(!admits_next(&[held(1, 0)], &one, NOW));
    assert!(!admits_next(&[Term { revoked: true, ..free(1, NOW.now_us - 4) }], &one, NOW));
}

#[test]
fn largest_values_do_not_overflow() {
    let endless = LeaseDefinition { slots: MAX_SLOTS, ttl_us: i64::MAX, lock_delay_us: i64::MAX };
    let foreign = Term { by_this_clock: false, ttl_us: i64::MAX, ..held(0, i64::MAX) };
    let expired = held(1, NOW.now_us);
    assert_eq!(foreign.availability(i64::MAX, NOW), Availability::From(i64::MAX));
    assert_eq!(expired.availability(i64::MAX, NOW), Availability::From(i64::MAX));
    assert_eq!(decide(&[foreign, expired], &endless, NOW), Decision::Make { slot: 2 });
}
