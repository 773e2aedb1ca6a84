use super::*;
use proptest::prelude::*;

const LIMIT: Duration = Duration::from_secs(3);
const STAY: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(50);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A link that has opened connection 1 for a request at this time, and got an answer.
fn link_in_use(fresh: Duration, opened_at: Instant) -> Link<u32> {
    let mut link = Link::new(fresh);
    assert_eq!(link.request(opened_at, LIMIT), Step::Connect);
    assert_eq!(link.connect(), 0);
    link.answered(opened_at, 1, LIMIT, opened_at + STAY);
    link
}

#[test]
fn connection_that_has_just_answered_is_used_and_a_later_one_is_probed() {
    let start = Instant::now();
    assert_eq!(link_in_use(ms(1000), start).request(start + ms(999), LIMIT), Step::Use(1));
    assert_eq!(link_in_use(ms(1000), start).request(start + ms(1000), LIMIT), Step::Probe(1));
    // For requests that must not be repeated.
    assert_eq!(link_in_use(ms(0), start).request(start, LIMIT), Step::Probe(1));
}

#[test]
fn connection_is_replaced_when_the_limit_has_changed_or_it_may_not_stay_unused() {
    let start = Instant::now();
    assert_eq!(link_in_use(ms(1000), start).request(start, LIMIT * 2), Step::Connect);
    assert_eq!(link_in_use(ms(1000), start).request(start + STAY - ms(1), LIMIT), Step::Probe(1));
    assert_eq!(link_in_use(ms(1000), start).request(start + STAY, LIMIT), Step::Connect);
    let next_after = |pause| {
        let mut link = Link::new(ms(1000));
        link.answered(start, 1, LIMIT, start);
        link.request(start + pause, LIMIT)
    };
    assert_eq!(next_after(ms(999)), Step::Use(1));
    assert_eq!(next_after(ms(1000)), Step::Connect);
}

#[test]
fn connection_is_closed_before_a_pause_that_it_may_not_outlast() {
    let start = Instant::now();
    let after = |pause| {
        let mut link = link_in_use(ms(1000), start);
        link.pause(start + pause);
        link.request(start, LIMIT)
    };
    assert_eq!(after(STAY - ms(1)), Step::Use(1));
    assert_eq!(after(STAY), Step::Connect);
    let mut link = link_in_use(ms(1000), start);
    link.close();
    assert_eq!(link.request(start, LIMIT), Step::Connect);
}

#[test]
fn request_is_repeated_at_once_only_on_a_kept_connection_that_breaks_soon() {
    let start = Instant::now();
    let fails_after = |fresh, took| {
        let mut link = link_in_use(fresh, start);
        link.request(start, LIMIT);
        (link.failed(start + took, PAUSE), link.failures, link.first_host)
    };
    assert_eq!(fails_after(ms(1000), ms(999)), (true, 0, 0));
    assert_eq!(fails_after(ms(1000), ms(1000)), (false, 1, 1));
    assert_eq!(fails_after(ms(0), ms(0)), (false, 1, 1));
    // The new connection has broken too.
    let mut link = link_in_use(ms(1000), start);
    link.request(start, LIMIT);
    assert!(link.failed(start, PAUSE));
    assert_eq!((link.request(start, LIMIT), link.connect()), (Step::Connect, 0));
    assert!(!link.failed(start, PAUSE));
    // The kept connection was replaced because it did not answer.
    let mut link = link_in_use(ms(1000), start);
    assert_eq!((link.request(start + ms(1000), LIMIT), link.connect()), (Step::Probe(1), 0));
    assert!(!link.failed(start + ms(1000), PAUSE));
    assert_eq!(link.retry_at, Some(start + ms(1050)));
}

#[test]
fn pause_grows_up_to_a_limit_and_is_half_random() {
    let pauses = |jitter| [0, 1, 4, 6, u32::MAX].map(|failures| retry_pause(failures, ms(2000), jitter).as_millis());
    assert_eq!(pauses(1.0), [50, 100, 800, 2_000, 2_000]);
    assert_eq!(pauses(0.0), [25, 50, 400, 1_000, 1_000]);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Answer { has_room: bool },
    Fail,
    Pause,
    Reset,
}

fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let event = prop_oneof![
        any::<bool>().prop_map(|has_room| Event::Answer { has_room }),
        Just(Event::Fail),
        Just(Event::Pause),
        Just(Event::Reset),
    ];
    prop::collection::vec((event, prop_oneof![0..2_000u64, 0..400_000u64]), 0..60)
}

/// An open connection, as a model of the rules knows it.
#[derive(Clone, Copy)]
struct Open {
    number: u32,
    stays_until: Instant,
    answered_at: Instant,
}

proptest! {
    #[test]
    fn no_connection_is_used_after_a_failure_a_close_or_its_time(events in events(), fresh_ms in 0..2_000u64) {
        let fresh = ms(fresh_ms);
        let mut link = Link::new(fresh);
        let mut now = Instant::now();
        let mut open: Option<Open> = None;
        let (mut opened, mut failures, mut tries) = (0, 0, 0);
        for (event, pause_ms) in events {
            now += ms(pause_ms);
            match event {
                Event::Pause => {
                    link.pause(now + ms(pause_ms));
                    open = open.filter(|open| now + ms(pause_ms) < open.stays_until);
                    continue;
                }
                Event::Reset => {
                    link.reset();
                    (open, failures, tries) = (None, 0, 0);
                    prop_assert_eq!((link.failures, link.retry_at), (0, None));
                    continue;
                }
                Event::Answer { .. } | Event::Fail => {}
            }
            let is_fresh = open.is_some_and(|open| now < open.answered_at + fresh);
            let usable = open.take().filter(|open| is_fresh || now < open.stays_until);
            let step = link.request(now, LIMIT);
            let expected = match usable {
                Some(Open { number, .. }) if is_fresh => Step::Use(number),
                Some(Open { number, .. }) => Step::Probe(number),
                None => Step::Connect,
            };
            prop_assert_eq!(step, expected);
            if usable.is_none() {
                prop_assert_eq!(link.connect(), tries);
            }
            match event {
                Event::Answer { has_room } => {
                    opened += 1;
                    let new = (opened, if has_room { now + STAY } else { now });
                    let (number, stays_until) = usable.map_or(new, |open| (open.number, open.stays_until));
                    link.answered(now, number, LIMIT, stays_until);
                    open = Some(Open { number, stays_until, answered_at: now });
                    failures = 0;
                    prop_assert_eq!(link.retry_at, None);
                }
                _ if usable.is_some() && fresh_ms > 0 => prop_assert!(link.failed(now, PAUSE)),
                _ => {
                    prop_assert!(!link.failed(now, PAUSE));
                    prop_assert_eq!(link.retry_at, Some(now + PAUSE));
                    failures += 1;
                    tries += 1;
                }
            }
            prop_assert_eq!(link.failures, failures);
        }
    }
}
