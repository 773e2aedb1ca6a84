use super::granting::{Grant, Request, acquire};
use super::holding::{Renewal, release, renew};
use super::*;
use crate::history::History;
use database::{Database, POOL};
use proptest::prelude::*;

mod coordinator;
mod database;
mod keeper;
mod own;

const BOUNDS: PoolBounds = PoolBounds { now_us: 1000, ttl_us: 30, max_lead_us: 60, floor_us: None };

fn at(now_us: i64) -> PoolBounds {
    PoolBounds { now_us, ..BOUNDS }
}

#[test]
fn first_rectangle_begins_now_and_the_next_where_the_last_ends() {
    let first = Rectangle::grant(None, 1000, 30, &BOUNDS).unwrap();
    assert_eq!(first, Rectangle { not_before_us: 1000, not_after_us: 1030 });
    assert_eq!(
        Rectangle::grant(Some(first.used_until_us(None)), 1010, 30, &at(1010)),
        Ok(Rectangle { not_before_us: 1030, not_after_us: 1060 })
    );
    assert_eq!(
        Rectangle::grant(Some(1030), 5000, 30, &at(5000)),
        Ok(Rectangle { not_before_us: 1030, not_after_us: 5030 })
    );
}

#[test]
fn rectangle_follows_the_time_of_the_holder_and_not_of_the_coordinator() {
    let behind = Rectangle::grant(None, 900, 30, &BOUNDS);
    assert_eq!(behind, Ok(Rectangle { not_before_us: 900, not_after_us: 930 }));
    let ahead = Rectangle::grant(None, 1060, 30, &BOUNDS);
    assert_eq!(ahead, Ok(Rectangle { not_before_us: 1000, not_after_us: 1090 }));
    // The coordinator's clock steps far forward.
    let held = ahead.unwrap();
    assert_eq!(held.renewed(1065, 30, &at(i64::MAX / 2)).not_after_us, 1095);
    assert_eq!(Rectangle::grant(Some(1090), 1065, 30, &at(i64::MAX / 2)).unwrap().not_after_us, 1120);
}

#[test]
fn rectangle_far_ahead_of_the_coordinators_clock_is_refused() {
    assert!(Rectangle::grant(Some(1060), 1000, 30, &BOUNDS).is_ok());
    assert_eq!(Rectangle::grant(Some(1061), 1000, 30, &BOUNDS), Err(1061));
    assert_eq!(Rectangle::grant(Some(i64::MAX), 1000, 30, &BOUNDS), Err(i64::MAX));
    assert_eq!((BOUNDS.excess_us(1060), BOUNDS.excess_us(1061)), (None, Some(61)));
    // A renewal is shortened, not refused.
    let held = Rectangle { not_before_us: 1000, not_after_us: 1030 };
    assert_eq!(held.renewed(5000, 30, &BOUNDS).not_after_us, 1090);
}

#[test]
fn rectangles_begin_after_all_that_an_interrupted_history_may_have_granted() {
    let interrupted = PoolBounds { floor_us: Some(1090), ..BOUNDS };
    let first = Rectangle::grant(None, 1000, 30, &interrupted).unwrap();
    assert_eq!(first, Rectangle { not_before_us: 1090, not_after_us: 1120 });
    assert_eq!(Rectangle::grant(Some(2000), 1000, 30, &interrupted), Err(2000));
    let later = PoolBounds { now_us: 2000, ..interrupted };
    assert_eq!(Rectangle::grant(None, 2000, 30, &later).unwrap().not_before_us, 2000);
}

#[test]
fn ttl_longer_than_the_pools_tells_how_far_the_caller_is_ahead() {
    assert_eq!(BOUNDS.split(30), (30, 1000));
    assert_eq!(BOUNDS.split(10), (10, 1000));
    assert_eq!(BOUNDS.split(50), (30, 1020));
    assert_eq!(BOUNDS.split(i64::MAX), (30, 1060));
}

#[test]
fn renewal_never_moves_the_end_back() {
    let held = Rectangle { not_before_us: 10, not_after_us: 1000 };
    assert_eq!(held.renewed(990, 30, &at(990)).not_after_us, 1020);
    assert_eq!(held.renewed(0, 30, &at(0)), held);
    assert_eq!(held.renewed(i64::MAX, 30, &at(i64::MAX)).not_after_us, i64::MAX);
}

#[test]
fn reported_last_time_lets_the_next_rectangle_begin_earlier_but_not_outside() {
    let held = Rectangle { not_before_us: 10, not_after_us: 1000 };
    assert_eq!(held.used_until_us(Some(500)), 501);
    assert_eq!(held.used_until_us(None), 1000);
    assert_eq!(held.used_until_us(Some(5)), 10);
    assert_eq!(held.used_until_us(Some(i64::MAX)), 1000);
    assert_eq!(held.used_until_us(Some(i64::MIN)), 10);
}

#[test]
fn milliseconds_of_a_rectangle_are_those_wholly_inside() {
    let held = Rectangle { not_before_us: 1001, not_after_us: 2999 };
    assert_eq!((held.first_ms(), held.end_ms()), (2, 2));
    let next = Rectangle { not_before_us: 2999, not_after_us: 5000 };
    assert_eq!((next.first_ms(), next.end_ms()), (3, 5));
    let before = Rectangle { not_before_us: -1001, not_after_us: -1000 };
    assert_eq!((before.first_ms(), before.end_ms()), (-1, -1));
    let all = Rectangle { not_before_us: i64::MIN, not_after_us: i64::MAX };
    assert!(all.first_ms() < all.end_ms());
}

/// A `usize` selects a term. `ahead_us` is how far the caller is ahead of the coordinator's clock.
#[derive(Clone, Copy, Debug)]
enum Event {
    Acquire {
        ttl_us: i64,
        ahead_us: i64,
    },
    Renew(usize, i64),
    /// With the last time used, if the holder reports it.
    Release(usize, Option<i64>),
    /// The coordinator's clock steps to this time.
    Clock(i64),
    /// A standby is promoted that lacks so many of the last changes. The clock continues.
    Failover(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1..=TTL_US, -200..200i64).prop_map(|(ttl_us, ahead_us)| Event::Acquire { ttl_us, ahead_us }),
        3 => (0..8usize, -200..200i64).prop_map(|(term, ahead_us)| Event::Renew(term, ahead_us)),
        2 => (0..8usize, proptest::option::of(0..1000i64)).prop_map(|(term, used_us)| Event::Release(term, used_us)),
        3 => (0..1000i64).prop_map(Event::Clock),
        1 => (0..6usize).prop_map(Event::Failover),
    ];
    proptest::collection::vec(event, 1..200)
}

const WORKERS: i32 = 3;
const TTL_US: i64 = 100;

/// What a holder was told, and the times that it may have used.
#[derive(Clone, Copy, Debug)]
struct Term {
    worker_id: i32,
    token: i64,
    told_us: i64,
    used: Rectangle,
    is_released: bool,
}

fn request(ttl_us: i64, reached_us: i64) -> Request<'static> {
    Request { owner: None, ttl_us: Some(ttl_us), ttl_limits_us: 1..=TTL_US, reached_us: Some(reached_us), prefer: None }
}

proptest! {
    #[test]
    fn rectangles_of_a_worker_id_never_overlap(events in events()) {
        let mut database = Database::new(WORKERS, TTL_US);
        // One state for each change, for failovers that lose the last ones.
        let mut states = vec![database.clone()];
        let mut terms: Vec<Term> = Vec::new();
        for event in events {
            // One of the latest, so that some of them are current.
            let latest = |index: usize| terms.len().checked_sub(index + 1);
            match event {
                Event::Acquire { ttl_us, ahead_us } => {
                    let request = request(ttl_us, database.now_us + ahead_us);
                    if let Ok((Grant { worker_id, token, rectangle, .. }, _)) = acquire(&mut database, POOL, &request) {
                        prop_assert!(rectangle.not_after_us >= rectangle.not_before_us + ttl_us);
                        prop_assert!(rectangle.not_after_us <= database.bounds().latest_end_us());
                        let told_us = rectangle.not_after_us;
                        terms.push(Term { worker_id, token, told_us, used: rectangle, is_released: false });
                    }
                }
                Event::Renew(index, ahead_us) => {
                    if let Some(term) = latest(index).map(|index| &mut terms[index]).filter(|term| !term.is_released) {
                        let reached_us = Some(database.now_us + ahead_us);
                        if let Ok(Renewal::Until(end_us)) = renew(&mut database, POOL, term.token, term.told_us, reached_us) {
                            prop_assert!(end_us >= term.told_us);
                            (term.told_us, term.used.not_after_us) = (end_us, end_us);
                        }
                    }
                }
                Event::Release(index, used_us) => {
                    if let Some(term) = latest(index).map(|index| &mut terms[index]).filter(|term| !term.is_released) {
                        // The last time that the holder used, inside its rectangle.
                        let last_us = used_us.map(|used_us| (term.used.not_before_us + used_us).min(term.told_us - 1));
                        let _ = release(&mut database, POOL, term.token, last_us, Some(term.told_us));
                        term.used.not_after_us = last_us.map_or(term.told_us, |last_us| last_us + 1);
                        term.is_released = true;
                    }
                }
                // Forward only, once history may be lost: the coordinator's clock must be right then.
                Event::Clock(now_us) if database.identity.timeline == 1 => database.now_us = now_us,
                Event::Clock(_) => database.now_us += 10,
                Event::Failover(lost) => {
                    let (timeline, now_us) = (database.identity.timeline + 1, database.now_us);
                    let promoted = states[states.len().saturating_sub(lost + 1)].promoted(timeline, now_us);
                    // Only if every rectangle, granted by whatever clock, ends before what the promoted one takes for forgotten.
                    let longest_us = database.bounds().longest_us();
                    let known_us = promoted.history.as_ref().and_then(History::forgotten_until_us);
                    let forgotten_until_us = known_us.unwrap_or(now_us).max(now_us) + longest_us;
                    if terms.iter().all(|term| term.used.not_after_us <= forgotten_until_us) {
                        database = Database { drawn: database.drawn, ..promoted };
                    }
                }
            }
            states.push(database.clone());
        }
        for worker_id in 0..WORKERS {
            let of_id = terms.iter().filter(|term| term.worker_id == worker_id).map(|term| term.used);
            let mut of_id: Vec<Rectangle> = of_id.filter(|used| used.not_before_us < used.not_after_us).collect();
            of_id.sort_by_key(|used| used.not_before_us);
            for pair in of_id.windows(2) {
                prop_assert!(pair[0].not_after_us <= pair[1].not_before_us, "{pair:?}");
            }
        }
    }
}
