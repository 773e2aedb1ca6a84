//! The stock follows the rate of each server.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use idgen_testkit::parallel::End;
use idgen_testkit::sql::row;
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use super::{attached, coordinator};

const RESERVE: Duration = Duration::from_secs(10);

/// With the restart after it, and the pause before the next try, it is shorter than the reserve.
const OUTAGE: Duration = Duration::from_secs(4);

/// Draws about this many values a second, in ten statements or one, until told otherwise. A machine that is busy draws fewer.
fn draw_at(server: &Cluster, rate: i64, drawn: &AtomicI64, is_over: &AtomicBool) {
    let mut client = server.client();
    let turns = rate.min(10);
    let statement = client.prepare(&format!("SELECT count(*) FROM segment_next_many('t', {})", rate / turns)).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let count: i64 = client.query_one(&statement, &[]).expect("values are left").get(0);
        drawn.fetch_add(count, Ordering::Relaxed);
        std::thread::sleep(Duration::from_secs(1) / turns as u32);
    }
}

/// The stock, and the number of requests and waits so far.
fn stock(client: &mut Client) -> (i64, i64, i64) {
    let row = row(client, "SELECT remaining, refills, waits FROM idgen.stat_segment WHERE tag = 't'");
    (row.get(0), row.get(1), row.get(2))
}

/// What each server has drawn, second by second, for as long as the reserve.
struct Rates<'a> {
    drawn: &'a [AtomicI64; 3],
    seconds: VecDeque<(Instant, [i64; 3])>,
}

impl Rates<'_> {
    /// The values a second that each server has drawn lately, a second later.
    fn next(&mut self) -> [f64; 3] {
        std::thread::sleep(Duration::from_secs(1));
        let now = (Instant::now(), self.drawn.each_ref().map(|drawn| drawn.load(Ordering::Relaxed)));
        self.seconds.push_back(now);
        if self.seconds.len() > RESERVE.as_secs() as usize {
            self.seconds.pop_front();
        }
        let (since, drawn) = self.seconds[0];
        [0, 1, 2].map(|index| (now.1[index] - drawn[index]) as f64 / (now.0 - since).as_secs_f64())
    }
}

#[test]
fn stock_of_each_server_lasts_its_reserve_at_any_rate() {
    let rates = [1, 100, 100_000];
    let coordinator = coordinator(Cluster::builder());
    let reserve = format!("{} seconds", RESERVE.as_secs());
    let servers = rates.map(|_| attached(&coordinator.conninfo(), &reserve));
    servers.iter().for_each(|server| server.execute("SELECT segment_alter('t', step => 10)"));
    let (drawn, is_over) = ([0; 3].map(AtomicI64::new), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        for (index, server) in servers.iter().enumerate() {
            let (drawn, is_over) = (&drawn[index], &is_over);
            scope.spawn(move || draw_at(server, rates[index], drawn, is_over));
        }
        let mut clients = servers.each_ref().map(Cluster::client);
        let mut lately = Rates { drawn: &drawn, seconds: VecDeque::new() };
        // The mean of the rate has settled, and the first values are used up.
        for _ in 0..3 * RESERVE.as_secs() {
            lately.next();
        }
        let before = [0, 1, 2].map(|index| stock(&mut clients[index]));
        let samples = rounds(20, 200);
        for _ in 0..samples {
            for (index, rate) in lately.next().into_iter().enumerate() {
                let (remaining, _, _) = stock(&mut clients[index]);
                let (lasts, reserve) = (remaining as f64 / rate, RESERVE.as_secs_f64());
                // A burst counts as a rate at once, so the stock can be larger than it must be.
                assert!((reserve / 2.0..=reserve * 4.0).contains(&lasts), "{lasts:.1} s at {rate:.1} values a second");
            }
        }
        for index in 0..3 {
            let (_, refills, waits) = stock(&mut clients[index]);
            assert!(refills - before[index].1 <= samples as i64, "{refills} requests in {samples} s");
            assert_eq!(waits, before[index].2, "at {} values a second", rates[index]);
        }
        coordinator.stop(Stop::Immediate);
        std::thread::sleep(OUTAGE);
        coordinator.start_again();
        for index in 0..3 {
            let (_, _, waits) = stock(&mut clients[index]);
            assert_eq!(waits, before[index].2, "in an outage, at {} values a second", rates[index]);
        }
    });
}
