use super::*;
use proptest::prelude::*;

const LIMITS: RangeInclusive<i64> = 1..=1_000_000_000;
const RATES: [f64; 3] = [1.0, 100.0, 100_000.0];
const RESERVES: [u64; 4] = [2, 15, 600, 3600];
/// Sessions that can wait at once.
const SESSIONS: u64 = 50;

/// A server that draws at a steady rate, its worker and a coordinator, in small steps of time.
struct Simulation {
    supply: Supply,
    reserve: Duration,
    rate: f64,
    /// The worker looks at the ring every second, and not only when a draw requests it.
    is_watching: bool,
    is_outage: bool,
    now_us: i64,
    tick_us: i64,
    /// Part of a value that the clients have yet to draw.
    credit: f64,
    position: u64,
    received: u64,
    waiting: u64,
    /// As that of the ring: `None` once it was reached.
    request_at: Option<u64>,
    /// When the answer to the open request arrives, and the values it brings.
    answer: Option<(i64, u64)>,
    requests: u64,
}

impl Simulation {
    fn new(rate: f64, reserve_s: u64, step: u64, is_watching: bool) -> Self {
        let tick_us = (reserve_s as i64 * 500).clamp(1_000, 100_000);
        Self {
            supply: Supply::new(0, 0),
            reserve: Duration::from_secs(reserve_s),
            rate,
            is_watching,
            is_outage: false,
            now_us: 0,
            tick_us,
            credit: 0.0,
            position: 0,
            received: step,
            waiting: 0,
            request_at: Some(step),
            answer: None,
            requests: 0,
        }
    }

    fn left(&self) -> u64 {
        self.received - self.position
    }

    fn tick(&mut self) {
        self.now_us += self.tick_us;
        self.credit += self.rate * self.tick_us as f64 / 1e6;
        let arrived = self.credit as u64;
        self.credit -= arrived as f64;
        let wanted = self.waiting + arrived;
        let drawn = wanted.min(self.left());
        self.position += drawn;
        self.waiting = (wanted - drawn).min(SESSIONS);
        match self.answer {
            Some((arrives_us, count)) if self.now_us >= arrives_us && !self.is_outage => self.receive(count),
            Some(_) => {}
            None => self.work(),
        }
    }

    fn work(&mut self) {
        let is_requested = self.request_at.is_some_and(|position| self.position >= position);
        let is_due = self.is_watching && self.now_us % 1_000_000 < self.tick_us;
        let is_dry = self.waiting > 0;
        if is_dry || is_requested || is_due {
            self.supply.sample(self.position, self.now_us, self.reserve, is_dry);
        }
        let is_low = is_due && self.supply.low_water(self.reserve, LIMITS).is_some_and(|low| self.left() < low);
        if is_dry || is_requested || is_low {
            self.request_at = None;
            let demand = self.waiting + u64::from(is_requested && !is_dry);
            let count = self.supply.wanted(self.left(), self.reserve, demand, LIMITS);
            self.answer = Some((self.now_us + 2_000, count));
            self.requests += 1;
        }
    }

    fn receive(&mut self, count: u64) {
        self.received += count;
        self.request_at = self.supply.low_water(self.reserve, LIMITS).map(|low| self.received.saturating_sub(low));
        self.answer = None;
    }

    /// Runs for a time, and calls `look` after each step of it.
    fn run(&mut self, seconds: f64, mut look: impl FnMut(&Self)) {
        let end_us = self.now_us + (seconds * 1e6) as i64;
        while self.now_us < end_us {
            self.tick();
            look(self);
        }
    }

    /// Until the first values are used up, and some time for the worker to learn the rate.
    fn settle(&mut self) {
        let seconds = self.received as f64 / self.rate + 4.0 * self.reserve.as_secs_f64() + 40.0;
        self.run(seconds, |_| {});
    }

    /// The stock in reserves. Below 0 if sessions wait.
    fn stock(&self) -> f64 {
        (self.left() as f64 - self.waiting as f64) / self.rate / self.reserve.as_secs_f64()
    }

    /// So many values are a small part of the stock, except at low rates.
    fn slack(&self) -> f64 {
        2.0 / self.rate / self.reserve.as_secs_f64()
    }

    fn assert_settled(&self) {
        let (stock, slack) = (self.stock(), self.slack());
        assert!((0.5 - slack..=2.0 + slack).contains(&stock), "a stock of {stock} reserves, slack {slack}");
        assert_eq!(self.waiting, 0, "the ring is dry");
    }
}

/// Every rate, reserve and first step.
fn servers(is_watching: bool) -> impl Iterator<Item = Simulation> {
    let steps = RATES.into_iter().flat_map(|rate| [10, 1000].map(|step| (rate, step)));
    let all = steps.flat_map(|(rate, step)| RESERVES.map(|reserve| (rate, reserve, step)));
    all.map(move |(rate, reserve, step)| Simulation::new(rate, reserve, step, is_watching))
}

#[test]
fn stock_settles_at_the_reserve_with_at_most_a_request_a_second() {
    for mut server in servers(false).chain(servers(true)) {
        server.settle();
        let (before, seconds) = (server.requests, 4.0 * server.reserve.as_secs_f64() + 40.0);
        server.run(seconds, Simulation::assert_settled);
        let requests = server.requests - before;
        assert!(requests as f64 <= seconds + 1.0, "{requests} requests in {seconds} s");
        assert!(requests as f64 <= seconds / server.reserve.as_secs_f64() * 3.0, "a request every half reserve");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn outage_of_the_reserve_leaves_the_ring_not_dry(
        rate in prop::sample::select(RATES.to_vec()), reserve in prop::sample::select(RESERVES.to_vec()),
        step in prop_oneof![Just(10u64), Just(1000)], is_watching: bool, at in 0.0..2.0f64,
    ) {
        let mut server = Simulation::new(rate, reserve, step, is_watching);
        server.settle();
        server.run(at * reserve as f64, |_| {});
        server.is_outage = true;
        server.run(reserve as f64, |server| assert_eq!(server.waiting, 0, "the ring is dry"));
        server.is_outage = false;
        server.run(0.5 * reserve as f64 + 1.0, |server| assert_eq!(server.waiting, 0, "the ring is dry"));
        server.assert_settled();
    }

    /// The rate of a sample is that of the draws, whenever the samples are taken.
    #[test]
    fn rate_is_measured_within_a_fifth(rate in 1.0..1e6f64, every_us in 1_000..3_000_000i64) {
        let mut supply = Supply::new(0, 0);
        for sample in 1..60_000_000 / every_us {
            let now_us = sample * every_us;
            supply.sample((rate * now_us as f64 / 1e6) as u64, now_us, Duration::from_secs(600), false);
        }
        prop_assert!((rate * 0.8 - 0.1..=rate * 1.2 + 0.1).contains(&supply.rate), "{} for {rate}", supply.rate);
    }

    #[test]
    fn request_stays_within_its_limits(
        counts in prop::collection::vec(0..1_000_000_000u64, 0..4), left in 0..1_000_000u64, reserve in 0..1_000_000u64,
        demand in 0..1000u64, min in 1..5000i64, more in 0..5000i64,
    ) {
        let mut supply = Supply::new(0, 0);
        let reserve = Duration::from_secs(reserve);
        for (count, at) in counts.iter().scan(0, |sum, count| { *sum += count; Some(*sum) }).zip(1..) {
            supply.sample(count, at * SHORTEST_US, reserve, false);
        }
        let wanted = supply.wanted(left, reserve, demand, min..=min + more);
        prop_assert!(wanted == 0 || wanted == demand || (min as u64..=(min + more) as u64).contains(&wanted));
        prop_assert!(wanted >= demand);
    }
}

#[test]
fn rate_that_drops_to_zero_ends_the_requests() {
    for mut server in servers(true).chain(servers(false)) {
        server.settle();
        server.rate = 0.0;
        // An answer and a look of the worker later.
        server.run(2.0, |_| {});
        let requests = server.requests;
        server.run(server.reserve.as_secs_f64() * 3.0 + 300.0, |_| {});
        assert_eq!(server.requests, requests);
        if server.is_watching {
            assert_eq!(server.supply.rate, 0.0);
        }
    }
}

#[test]
fn stock_settles_within_a_few_requests_of_a_jump() {
    for reserve in RESERVES {
        for is_watching in [false, true] {
            let mut server = Simulation::new(100.0, reserve, 10, is_watching);
            server.settle();
            server.rate = 100_000.0;
            let before = server.requests;
            while server.requests < before + 6 {
                server.tick();
            }
            server.run(1.0, |_| {});
            server.run(3.0 * server.reserve.as_secs_f64(), Simulation::assert_settled);
        }
    }
}

#[test]
fn short_burst_counts_as_a_tenth_of_a_second_and_one_of_few_values_as_a_second() {
    let mut supply = Supply::new(0, 0);
    supply.sample(50, 1_000, Duration::from_secs(60), true);
    assert_eq!(supply.rate, 50.0);
    supply.sample(250, 2_000, Duration::from_secs(60), true);
    assert_eq!(supply.rate, 2000.0);
}

#[test]
fn samples_close_together_are_merged_unless_the_ring_is_dry() {
    let mut supply = Supply::new(0, 0);
    supply.sample(400, 50_000, Duration::from_secs(60), false);
    assert_eq!(supply.rate, 0.0);
    supply.sample(1000, 100_000, Duration::from_secs(60), false);
    assert_eq!(supply.rate, 10_000.0);
    supply.sample(9000, 150_000, Duration::from_secs(60), true);
    assert_eq!(supply.rate, 80_000.0);
}

#[test]
fn rate_rises_at_once_falls_slowly_and_not_while_the_ring_is_dry() {
    let reserve = Duration::from_secs(60);
    let mut supply = Supply::new(0, 0);
    supply.sample(10_000, 1_000_000, reserve, false);
    assert_eq!(supply.rate, 10_000.0);
    supply.sample(10_000, 100_000_000, reserve, true);
    assert_eq!(supply.rate, 10_000.0);
    supply.sample(10_000, 110_000_000, reserve, false);
    assert!((3_600.0..3_700.0).contains(&supply.rate), "{} after a time constant", supply.rate);
}

#[test]
fn discarded_stock_does_not_count_as_drawn() {
    let mut supply = Supply::new(0, 0);
    supply.sample(100, 1_000_000, Duration::from_secs(60), false);
    supply.restart(1_000_100, 1_100_000);
    supply.sample(1_000_200, 2_100_000, Duration::from_secs(60), false);
    assert_eq!(supply.rate, 100.0);
}

#[test]
fn limit_of_one_asks_for_one_value_and_not_before_the_ring_is_dry() {
    let (mut supply, reserve) = (Supply::new(0, 0), Duration::from_secs(60));
    supply.sample(1000, 1_000_000, reserve, false);
    assert_eq!(supply.low_water(reserve, 1..=1), None);
    assert_eq!([0, 1, 7].map(|demand| supply.wanted(0, reserve, demand, 1..=1)), [0, 1, 7]);
    assert_eq!(supply.low_water(reserve, 1..=2), Some(75_000));
}

#[test]
fn request_fills_the_stock_or_serves_the_demand() {
    let (mut supply, reserve) = (Supply::new(0, 0), Duration::from_secs(60));
    assert_eq!([0, 1, 500].map(|demand| supply.wanted(0, reserve, demand, 20..=9000)), [0, 20, 500]);
    supply.sample(100, 1_000_000, reserve, false);
    assert_eq!(supply.wanted(7_500, reserve, 1, 1..=9000), 3_000);
    assert_eq!(supply.wanted(7_500, reserve, 4_000, 1..=9000), 4_000);
    assert_eq!(supply.wanted(0, reserve, 1, 1..=9000), 9_000);
    assert_eq!(supply.wanted(20_000, reserve, 0, 1..=9000), 0);
}
