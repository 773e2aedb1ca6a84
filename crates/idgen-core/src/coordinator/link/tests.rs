use super::*;
use proptest::prelude::*;

const LIMIT: Duration = Duration::from_secs(3);
const LONGEST: Duration = Duration::from_secs(2);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn terms(opened_at: Instant) -> Terms {
    Terms { limit: LIMIT, opened_at, may_stay: true }
}

/// A link that has opened connection 1 for a request at this time, and got an answer.
fn link_in_use(fresh: Duration, opened_at: Instant) -> Link<u32> {
    let mut link = Link::new(fresh);
    assert_eq!(link.request(opened_at, LIMIT), Step::Connect { first_host: 0 });
    link.connected(ms(5));
    link.answered(opened_at, 1, terms(opened_at));
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
fn connection_is_replaced_when_the_limit_has_changed_or_it_is_old_or_may_not_stay_unused() {
    let start = Instant::now();
    let connect = Step::Connect { first_host: 0 };
    assert_eq!(link_in_use(ms(1000), start).request(start, LIMIT * 2), connect);
    assert_eq!(link_in_use(ms(1000), start).request(start + LONGEST_USE - ms(1), LIMIT), Step::Probe(1));
    assert_eq!(link_in_use(ms(1000), start).request(start + LONGEST_USE, LIMIT), connect);
    let next_after = |pause| {
        let mut link = Link::new(ms(1000));
        link.answered(start, 1, Terms { may_stay: false, ..terms(start) });
        link.request(start + pause, LIMIT)
    };
    assert_eq!(next_after(ms(999)), Step::Use(1));
    assert_eq!(next_after(ms(1000)), connect);
}

#[test]
fn connection_is_closed_before_a_pause_that_outlasts_it_or_if_it_is_not_wanted() {
    let start = Instant::now();
    let after = |pause, is_wanted| {
        let mut link = link_in_use(ms(1000), start);
        link.pause(start, pause, is_wanted);
        link.request(start, LIMIT)
    };
    assert_eq!(after(LONGEST_USE - ms(1), true), Step::Use(1));
    assert_eq!(after(LONGEST_USE, true), Step::Connect { first_host: 0 });
    assert_eq!(after(ms(1), false), Step::Connect { first_host: 0 });
}

#[test]
fn request_is_repeated_at_once_only_on_a_kept_connection_that_breaks_soon() {
    let start = Instant::now();
    let fails_after = |fresh, took| {
        let mut link = link_in_use(fresh, start);
        link.request(start, LIMIT);
        let retry = link.failed(start + took, LONGEST, 1.0);
        (retry, link.failures(), link.first_host())
    };
    assert_eq!(fails_after(ms(1000), ms(999)), (Retry::Now, 0, 0));
    assert_eq!(fails_after(ms(1000), ms(1000)), (Retry::At(start + ms(1050)), 1, 1));
    assert_eq!(fails_after(ms(0), ms(0)), (Retry::At(start + ms(50)), 1, 1));
    // The new connection has broken too.
    let mut link = link_in_use(ms(1000), start);
    link.request(start, LIMIT);
    assert_eq!(link.failed(start, LONGEST, 1.0), Retry::Now);
    assert_eq!(link.request(start, LIMIT), Step::Connect { first_host: 0 });
    assert_eq!(link.failed(start, LONGEST, 1.0), Retry::At(start + ms(50)));
    // The kept connection was replaced because it did not answer.
    let mut link = link_in_use(ms(1000), start);
    assert_eq!(link.request(start + ms(1000), LIMIT), Step::Probe(1));
    assert_eq!(link.unanswered(), 0);
    assert_eq!(link.failed(start + ms(1000), LONGEST, 1.0), Retry::At(start + ms(1050)));
}

#[test]
fn change_of_the_setting_begins_with_the_first_host_and_no_failures() {
    let start = Instant::now();
    let mut link = link_in_use(ms(0), start);
    link.failed(start, LONGEST, 0.5);
    link.answered(start, 2, terms(start));
    link.failed(start, LONGEST, 0.5);
    link.reset();
    assert_eq!((link.failures(), link.retry_at(), link.connected_in()), (0, None, ms(5)));
    assert_eq!(link.request(start, LIMIT), Step::Connect { first_host: 0 });
}

#[test]
fn pause_grows_up_to_a_limit_and_is_half_random() {
    let pauses = |jitter| [0, 1, 4, 6, u32::MAX].map(|failures| retry_pause(failures, LONGEST, jitter).as_millis());
    assert_eq!(pauses(1.0), [50, 100, 800, 2_000, 2_000]);
    assert_eq!(pauses(0.0), [25, 50, 400, 1_000, 1_000]);
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Answer { may_stay: bool },
    Fail,
    Pause { is_wanted: bool },
    Reset,
}

fn events() -> impl Strategy<Value = Vec<(Event, u64)>> {
    let event = prop_oneof![
        any::<bool>().prop_map(|may_stay| Event::Answer { may_stay }),
        Just(Event::Fail),
        any::<bool>().prop_map(|is_wanted| Event::Pause { is_wanted }),
        Just(Event::Reset),
    ];
    prop::collection::vec((event, prop_oneof![0..2_000u64, 0..400_000u64]), 0..60)
}

/// An open connection, as a model of the rules knows it.
#[derive(Clone, Copy)]
struct Open {
    number: u32,
    opened_at: Instant,
    may_stay: bool,
    answered_at: Instant,
}

impl Open {
    fn may_stay_until(&self, time: Instant) -> bool {
        self.may_stay && time < self.opened_at + LONGEST_USE
    }
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
                Event::Pause { is_wanted } => {
                    link.pause(now, ms(pause_ms), is_wanted);
                    open = open.filter(|open| is_wanted && open.may_stay_until(now + ms(pause_ms)));
                    continue;
                }
                Event::Reset => {
                    link.reset();
                    (open, failures, tries) = (None, 0, 0);
                    continue;
                }
                Event::Answer { .. } | Event::Fail => {}
            }
            let is_fresh = open.is_some_and(|open| now < open.answered_at + fresh);
            let usable = open.take().filter(|open| is_fresh || open.may_stay_until(now));
            let step = link.request(now, LIMIT);
            let expected = match usable {
                Some(Open { number, .. }) if is_fresh => Step::Use(number),
                Some(Open { number, .. }) => Step::Probe(number),
                None => Step::Connect { first_host: tries },
            };
            prop_assert_eq!(step, expected);
            match event {
                Event::Answer { may_stay } => {
                    opened += 1;
                    let (number, opened_at) = usable.map_or((opened, now), |open| (open.number, open.opened_at));
                    link.answered(now, number, Terms { limit: LIMIT, opened_at, may_stay });
                    open = Some(Open { number, opened_at, may_stay, answered_at: now });
                    failures = 0;
                }
                _ if usable.is_some() && fresh_ms > 0 => prop_assert_eq!(link.failed(now, LONGEST, 0.0), Retry::Now),
                _ => {
                    let at = now + retry_pause(failures, LONGEST, 0.0);
                    prop_assert_eq!(link.failed(now, LONGEST, 0.0), Retry::At(at));
                    prop_assert_eq!(link.retry_at(), Some(at));
                    failures += 1;
                    tries += 1;
                }
            }
            prop_assert_eq!(link.failures(), failures);
        }
    }
}
