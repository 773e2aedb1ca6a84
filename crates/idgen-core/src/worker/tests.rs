use super::*;
use proptest::prelude::*;

#[test]
fn a_first_holder_begins_now_and_the_next_one_where_the_last_could_end() {
    let first = Interval::grant(None, 1000, 30);
    assert_eq!(first, Interval { not_before_us: 1000, not_after_us: 1030 });
    assert_eq!(
        Interval::grant(Some(first.used_until_us(None)), 1010, 30),
        Interval { not_before_us: 1030, not_after_us: 1060 }
    );
    assert_eq!(Interval::grant(Some(1030), 5000, 30), Interval { not_before_us: 1030, not_after_us: 5030 });
}

#[test]
fn a_renewal_never_takes_back_what_was_told() {
    let held = Interval { not_before_us: 10, not_after_us: 1000 };
    assert_eq!(held.renewed(990, 30).not_after_us, 1020);
    assert_eq!(held.renewed(0, 30), held);
    assert_eq!(held.renewed(i64::MAX, 30).not_after_us, i64::MAX);
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
    },
    Renew {
        holder: usize,
        ttl_us: i64,
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
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        3 => (1..100i64).prop_map(|ttl_us| Event::Acquire { ttl_us }),
        3 => (0..4usize, 1..100i64).prop_map(|(holder, ttl_us)| Event::Renew { holder, ttl_us }),
        1 => (0..4usize).prop_map(|holder| Event::Expire { holder }),
        1 => (0..4usize, proptest::option::of(0..1000i64))
            .prop_map(|(holder, used_us)| Event::Release { holder, used_us }),
        3 => (0..1000i64).prop_map(|now_us| Event::Clock { now_us }),
    ];
    proptest::collection::vec(event, 1..200)
}

proptest! {
    #[test]
    fn rectangles_of_a_number_never_overlap(events in events()) {
        const NUMBERS: usize = 3;
        let mut now_us = 500;
        // What the table has for each number, and whether it is held.
        let mut table = [None::<(Interval, bool)>; NUMBERS];
        let mut used = [const { Vec::<Interval>::new() }; NUMBERS];
        for event in events {
            match event {
                Event::Acquire { ttl_us } => {
                    let free = (0..NUMBERS).find(|number| !table[*number].is_some_and(|(_, held)| held));
                    if let Some(number) = free {
                        let until = table[number].map(|(interval, _)| interval.not_after_us);
                        let granted = Interval::grant(until, now_us, ttl_us);
                        prop_assert!(granted.not_before_us < granted.not_after_us);
                        used[number].push(granted);
                        table[number] = Some((granted, true));
                    }
                }
                Event::Renew { holder, ttl_us } => {
                    if let Some((interval, true)) = table[holder % NUMBERS] {
                        let renewed = interval.renewed(now_us, ttl_us);
                        *used[holder % NUMBERS].last_mut().expect("its holder") = renewed;
                        table[holder % NUMBERS] = Some((renewed, true));
                    }
                }
                Event::Expire { holder } => {
                    if let Some((_, held)) = &mut table[holder % NUMBERS] {
                        *held = false;
                    }
                }
                Event::Release { holder, used_us } => {
                    if let Some((interval, true)) = table[holder % NUMBERS] {
                        // He says what he has used, which is inside of what he was allowed.
                        let last_us = used_us.map(|used_us| (interval.not_before_us + used_us).min(interval.not_after_us - 1));
                        let until = interval.used_until_us(last_us);
                        let used = used[holder % NUMBERS].last_mut().expect("its holder");
                        used.not_after_us = last_us.map_or(used.not_after_us, |last_us| last_us + 1);
                        table[holder % NUMBERS] = Some((Interval { not_after_us: until, ..interval }, false));
                    }
                }
                Event::Clock { now_us: other_us } => now_us = other_us,
            }
        }
        for used in &used {
            for pair in used.windows(2) {
                prop_assert!(pair[0].not_after_us <= pair[1].not_before_us, "{pair:?}");
            }
        }
    }
}
