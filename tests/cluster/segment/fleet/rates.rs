//! The stock follows the rate of each server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use idgen_testkit::sql::row;
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use super::{End, attached, coordinator};

const RESERVE: Duration = Duration::from_secs(10);

/// With the restart after it, and the pause before the next try, it is shorter than the reserve.
const OUTAGE: Duration = Duration::from_secs(4);

/// Draws this many values a second, in ten statements or one, until told otherwise.
fn draw_at(server: &Cluster, rate: i64, is_over: &AtomicBool) {
    let mut client = server.client();
    let turns = rate.min(10);
    let statement = client.prepare(&format!("SELECT count(*) FROM segment_next_many('t', {})", rate / turns)).unwrap();
    let begun = Instant::now();
    for turn in 1.. {
        client.query(&statement, &[]).expect("values are left");
        std::thread::sleep((Duration::from_secs(turn) / turns as u32).saturating_sub(begun.elapsed()));
        if is_over.load(Ordering::Relaxed) {
            return;
        }
    }
}

/// How long the stock lasts at this rate, in seconds, and the number of requests and waits so far.
fn stock(client: &mut Client, rate: i64) -> (f64, i64, i64) {
    let row = row(client, "SELECT remaining, refills, waits FROM idgen.stat_segment WHERE tag = 't'");
    (row.get::<_, i64>(0) as f64 / rate as f64, row.get(1), row.get(2))
}

#[test]
fn stock_of_each_server_lasts_its_reserve_at_any_rate() {
    let rates = [1, 100, 100_000];
    let coordinator = coordinator(Cluster::builder());
    let reserve = format!("{} seconds", RESERVE.as_secs());
    let servers = rates.map(|_| attached(&coordinator.conninfo(), &reserve));
    servers.iter().for_each(|server| server.execute("SELECT segment_alter('t', step => 10)"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&is_over);
        for (server, rate) in servers.iter().zip(rates) {
            let is_over = &is_over;
            scope.spawn(move || draw_at(server, rate, is_over));
        }
        let mut clients = servers.each_ref().map(Cluster::client);
        // The mean of the rate has settled, and the first values are used up.
        std::thread::sleep(3 * RESERVE);
        let before = [0, 1, 2].map(|index| stock(&mut clients[index], rates[index]));
        let samples = rounds(20, 200);
        for _ in 0..samples {
            std::thread::sleep(Duration::from_secs(1));
            for index in 0..3 {
                let (lasts, _, _) = stock(&mut clients[index], rates[index]);
                let reserve = RESERVE.as_secs_f64();
                let rate = rates[index];
                assert!((reserve / 2.0..=reserve * 2.0).contains(&lasts), "{lasts:.1} s at {rate} values a second");
            }
        }
        for index in 0..3 {
            let (_, refills, waits) = stock(&mut clients[index], rates[index]);
            assert!(refills - before[index].1 <= samples as i64, "{refills} requests in {samples} s");
            assert_eq!(waits, before[index].2, "at {} values a second", rates[index]);
        }
        coordinator.stop(Stop::Immediate);
        std::thread::sleep(OUTAGE);
        coordinator.start_again();
        for index in 0..3 {
            let (_, _, waits) = stock(&mut clients[index], rates[index]);
            assert_eq!(waits, before[index].2, "in an outage, at {} values a second", rates[index]);
        }
    });
}
