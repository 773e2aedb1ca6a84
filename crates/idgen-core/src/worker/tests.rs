use super::*;
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds { now_us: 1000, ttl_us: 30, max_lead_us: 60, since_us: None, longest_forgotten_us: 0 };

fn at(now_us: i64) -> Bounds {
    Bounds { now_us, ..BOUNDS }
}

#[test]
fn a_first_holder_begins_now_and_the_next_one_where_the_last_could_end() {
    let first = Interval::grant(None, 1000, 30, &BOUNDS).unwrap();
    assert_eq!(first, Interval { not_before_us: 1000, not_after_us: 1030 });
    assert_eq!(
        Interval::grant(Some(first.used_until_us(None)), 1010, 30, &at(1010)),
        Ok(Interval { not_before_us: 1030, not_after_us: 1060 })
    );
    assert_eq!(
        Interval::grant(Some(1030), 5000, 30, &at(5000)),
        Ok(Interval { not_before_us: 1030, not_after_us: 5030 })
    );
}

#[test]
fn a_rectangle_follows_the_holders_own_time_and_not_the_coordinators() {
    let behind = Interval::grant(None, 900, 30, &BOUNDS);
    assert_eq!(behind, Ok(Interval { not_before_us: 900, not_after_us: 930 }));
    let ahead = Interval::grant(None, 1060, 30, &BOUNDS);
    assert_eq!(ahead, Ok(Interval { not_before_us: 1000, not_after_us: 1090 }));
    // The coordinator's clock leaps a year and comes back.
    let held = ahead.unwrap();
    assert_eq!(held.renewed(1065, 30, &at(i64::MAX / 2)).not_after_us, 1095);
    assert_eq!(Interval::grant(Some(1090), 1065, 30, &at(i64::MAX / 2)).unwrap().not_after_us, 1120);
}

#[test]
fn a_rectangle_far_ahead_of_the_coordinators_clock_is_refused() {
    assert!(Interval::grant(Some(1060), 1000, 30, &BOUNDS).is_ok());
    assert_eq!(Interval::grant(Some(1061), 1000, 30, &BOUNDS), Err(1061));
    assert_eq!(Interval::grant(Some(i64::MAX), 1000, 30, &BOUNDS), Err(i64::MAX));
    assert_eq!((BOUNDS.excess_us(1060), BOUNDS.excess_us(1061)), (None, Some(61)));
    // A renewal is bounded, and not refused.
    let held = Interval { not_before_us: 1000, not_after_us: 1030 };
    assert_eq!(held.renewed(5000, 30, &BOUNDS).not_after_us, 1090);
}

#[test]
fn grants_begin_after_the_longest_time_that_an_interrupted_history_may_have_granted() {
    let interrupted = Bounds { since_us: Some(1000), ..BOUNDS };
    let longer = Bounds { longest_forgotten_us: 500, ..interrupted };
    assert_eq!(longer.floor_us(), Some(1500), "rectangles were longer before the pool was redefined");
    assert_eq!(interrupted.floor_us(), Some(1090));
    let first = Interval::grant(None, 1000, 30, &interrupted).unwrap();
    assert_eq!(first, Interval { not_before_us: 1090, not_after_us: 1120 });
    assert_eq!(Interval::grant(Some(2000), 1000, 30, &interrupted), Err(2000));
    let later = Bounds { now_us: 2000, ..interrupted };
    assert_eq!(Interval::grant(None, 2000, 30, &later).unwrap().not_before_us, 2000);
}

#[test]
fn a_ttl_beyond_the_pools_says_how_far_the_caller_is_ahead() {
    assert_eq!(BOUNDS.split(30), (30, 1000));
    assert_eq!(BOUNDS.split(10), (10, 1000));
    assert_eq!(BOUNDS.split(50), (30, 1020));
    assert_eq!(BOUNDS.split(i64::MAX), (30, 1060));
}

#[test]
fn a_renewal_never_takes_back_what_was_told() {
    let held = Interval { not_before_us: 10, not_after_us: 1000 };
    assert_eq!(held.renewed(990, 30, &at(990)).not_after_us, 1020);
    assert_eq!(held.renewed(0, 30, &at(0)), held);
    assert_eq!(held.renewed(i64::MAX, 30, &at(i64::MAX)).not_after_us, i64::MAX);
}

#[test]
fn the_last_time_lets_the_next_one_begin_earlier_and_never_outside_of_what_was_allowed() {
    let held = Interval { not_before_us: 10, not_after_us: 1000 };
    assert_eq!(held.used_until_us(Some(500)), 501);
    assert_eq!(held.used_until_us(None), 1000);
    assert_eq!(held.used_until_us(Some(5)), 10);
    assert_eq!(held.used_until_us(Some(i64::MAX)), 1000);
    assert_eq!(held.used_until_us(Some(i64::MIN)), 10);
}

#[test]
fn milliseconds_of_an_interval_are_those_that_lie_in_it_whole() {
    let held = Interval { not_before_us: 1001, not_after_us: 2999 };
    assert_eq!((held.first_ms(), held.end_ms()), (2, 2));
    let next = Interval { not_before_us: 2999, not_after_us: 5000 };
    assert_eq!((next.first_ms(), next.end_ms()), (3, 5));
    let before = Interval { not_before_us: -1001, not_after_us: -1000 };
    assert_eq!((before.first_ms(), before.end_ms()), (-1, -1));
    let all = Interval { not_before_us: i64::MIN, not_after_us: i64::MAX };
    assert!(all.first_ms() < all.end_ms());
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Acquire {
        ttl_us: i64,
        /// How far the caller is ahead of the coordinator's clock.
        ahead_us: i64,
    },
    Renew {
        holder: usize,
        ahead_us: i64,
    },
    /// Nobody is told: the next one just acquires.
    Expire {
        holder: usize,
    },
    Release {
        holder: usize,
        used_us: Option<i64>,
    },
    /// The coordinator's clock goes to a time, as after a restart elsewhere.
    Clock {
        now_us: i64,
    },
    /// A standby is promoted that lacks the last changes of the table, while the clock goes on.
    Failover {
        lost: usize,
    },
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1..=TTL_US, -200..200i64).prop_map(|(ttl_us, ahead_us)| Event::Acquire { ttl_us, ahead_us }),
        3 => (0..4usize, -200..200i64).prop_map(|(holder, ahead_us)| Event::Renew { holder, ahead_us }),
        1 => (0..4usize).prop_map(|holder| Event::Expire { holder }),
        1 => (0..4usize, proptest::option::of(0..1000i64))
            .prop_map(|(holder, used_us)| Event::Release { holder, used_us }),
        3 => (0..1000i64).prop_map(|now_us| Event::Clock { now_us }),
        1 => (0..6usize).prop_map(|lost| Event::Failover { lost }),
    ];
    proptest::collection::vec(event, 1..200)
}

const NUMBERS: usize = 3;
const TTL_US: i64 = 100;

/// What the coordinator has for each worker id: the last interval, the term it was granted in, and whether it is held.
#[derive(Clone, Copy, Default)]
struct Coordinator {
    table: [Option<(Interval, usize, bool)>; NUMBERS],
    since_us: Option<i64>,
    first_term: usize,
}

proptest! {
    #[test]
    fn rectangles_of_a_worker_id_never_overlap(events in events()) {
        let mut now_us = 500;
        let mut coordinator = Coordinator::default();
        // Each change of the table, for failovers that lose some.
        let mut states = vec![coordinator];
        // What each term's holder may have used, by worker id.
        let mut used: Vec<(usize, Interval)> = Vec::new();
        for event in events {
            let bounds = Bounds { since_us: coordinator.since_us, now_us, ttl_us: TTL_US, max_lead_us: 150, ..BOUNDS };
            match event {
                Event::Acquire { ttl_us, ahead_us } => {
                    let reached_us = now_us + ahead_us;
                    let free = (0..NUMBERS).find(|id| !coordinator.table[*id].is_some_and(|(_, _, held)| held));
                    if let (Some(id), None) = (free, bounds.excess_us(reached_us)) {
                        let until = coordinator.table[id].map(|(interval, _, _)| interval.not_after_us);
                        if let Ok(granted) = Interval::grant(until, reached_us, ttl_us, &bounds) {
                            prop_assert!(granted.not_before_us < granted.not_after_us);
                            prop_assert!(granted.not_after_us >= granted.not_before_us + ttl_us);
                            prop_assert!(granted.not_after_us <= bounds.latest_end_us());
                            coordinator.table[id] = Some((granted, used.len(), true));
                            used.push((id, granted));
                        }
                    }
                }
                Event::Renew { holder, ahead_us } => {
                    let id = holder % NUMBERS;
                    if let Some((interval, term, true)) = coordinator.table[id] && term >= coordinator.first_term {
                        let renewed = interval.renewed(now_us + ahead_us, TTL_US, &bounds);
                        used[term].1 = renewed;
                        coordinator.table[id] = Some((renewed, term, true));
                    }
                }
                Event::Expire { holder } => {
                    if let Some((_, _, held)) = &mut coordinator.table[holder % NUMBERS] {
                        *held = false;
                    }
                }
                Event::Release { holder, used_us } => {
                    let id = holder % NUMBERS;
                    if let Some((interval, term, true)) = coordinator.table[id] && used[term].1 == interval {
                        // The holder says what it has used, which is inside of what it was allowed.
                        let last_us = used_us.map(|used_us| (interval.not_before_us + used_us).min(interval.not_after_us - 1));
                        let until = interval.used_until_us(last_us);
                        used[term].1.not_after_us = last_us.map_or(interval.not_after_us, |last_us| last_us + 1);
                        coordinator.table[id] = Some((Interval { not_after_us: until, ..interval }, term, false));
                    }
                }
                // Forward only where history may be lost: the clocks of coordinators are a rule there.
                Event::Clock { now_us: other_us } if coordinator.since_us.is_none() => now_us = other_us,
                Event::Clock { .. } => now_us += 10,
                Event::Failover { lost } => {
                    // All that was granted, by whatever clock, ends before the floor.
                    let ahead = used.iter().any(|(_, used)| used.not_after_us > bounds.latest_end_us());
                    if !ahead {
                        let since_us = coordinator.since_us.map_or(now_us, |since| now_us.max(since + bounds.longest_us()));
                        coordinator = states[states.len().saturating_sub(lost + 1)];
                        coordinator.since_us = Some(since_us);
                        coordinator.first_term = used.len();
                    }
                }
            }
            states.push(coordinator);
        }
        for id in 0..NUMBERS {
            let of_id = used.iter().filter(|(of, used)| *of == id && used.not_before_us < used.not_after_us);
            let mut of_id: Vec<Interval> = of_id.map(|(_, used)| *used).collect();
            of_id.sort_by_key(|used| used.not_before_us);
            for pair in of_id.windows(2) {
                prop_assert!(pair[0].not_after_us <= pair[1].not_before_us, "{pair:?}");
            }
        }
    }
}
