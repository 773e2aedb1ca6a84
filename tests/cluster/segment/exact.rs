//! Without a crash the values count from 1 without repeats and gaps. Two independent servers issue even and odd ones.

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::segment::create;
use idgen_testkit::sql::{ids, row, value};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use crate::fixed;

const SESSIONS: usize = 16;

/// Draws in one of three ways: one by one, as a set, or as a reserved block.
fn draw(client: &mut Client, way: usize, tag: &str, count: i64) -> Vec<i64> {
    let sql = match way % 3 {
        0 => format!("SELECT segment_next('{tag}') FROM generate_series(1, {count})"),
        1 => format!("SELECT segment_next_many('{tag}', {count})"),
        _ => return reserve(client, tag, count),
    };
    let drawn = ids(client, &sql);
    assert_eq!(drawn.len() as i64, count);
    drawn
}

fn reserve(client: &mut Client, tag: &str, count: i64) -> Vec<i64> {
    let row = row(client, &format!("SELECT first_id, last_id, stride FROM segment_reserve('{tag}', {count})"));
    let [first, last, stride]: [i64; 3] = [row.get(0), row.get(1), row.get(2)];
    assert_eq!((last - first, stride), (count - 1, 1), "a block of {count} is contiguous");
    (first..=last).collect()
}

/// One of many sessions, which draws in all ways and sizes this many times.
fn session(cluster: &Cluster, number: usize, tag: &str, step: i64, times: usize) -> Vec<i64> {
    let mut client = cluster.client();
    let mut received = Vec::new();
    for turn in 0..times * 9 {
        // Each session begins elsewhere, so that ways and sizes mix.
        let (way, size) = (number + turn, number + turn / 3);
        let count = [1, step, 10 * step][size % 3];
        received.extend(draw(&mut client, way, tag, count));
    }
    received
}

#[test]
fn sixteen_sessions_get_every_value_once_smoke() {
    let cluster = Cluster::builder().start_with_extension();
    for (step, times) in [(1, rounds(2, 200)), (2, rounds(2, 200)), (10, rounds(5, 200)), (1000, rounds(1, 20))] {
        let tag = format!("step {step}");
        create(&mut cluster.client(), &tag, &fixed(step));
        let drawn: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let start = |number| {
                let (cluster, tag) = (&cluster, &tag);
                scope.spawn(move || session(cluster, number, tag, step, times))
            };
            let sessions: Vec<_> = (0..SESSIONS).map(start).collect();
            sessions.into_iter().map(|session| session.join().unwrap()).collect()
        });
        drawn.iter().for_each(|received| assert_increasing(received));
        let all = assert_distinct(drawn.concat());
        // Distinct, and as many as the range has values.
        assert_eq!((all[0], last(&all)), (1, all.len() as i64), "{tag}");
        let issued = format!("SELECT issued FROM idgen.stat_segment WHERE tag = '{tag}'");
        assert_eq!(value::<i64>(&mut cluster.client(), &issued), all.len() as i64, "{tag}");
    }
}

/// Values increase in the order of the calls over all sessions.
#[test]
fn sessions_that_alternate_count_without_gaps() {
    let cluster = Cluster::builder().start_with_extension();
    create(&mut cluster.client(), "t", &fixed(7));
    let mut sessions = [cluster.client(), cluster.client(), cluster.client()];
    let mut drawn = Vec::new();
    for turn in 0..60 {
        // Every combination of size and way, and batches over several ranges.
        drawn.extend(draw(&mut sessions[turn % 3], turn / 3, "t", [1, 5, 30, 70][turn % 4]));
    }
    assert_eq!(drawn, (1..=drawn.len() as i64).collect::<Vec<_>>());
}

/// The step affects how values are fetched, not the values.
#[test]
fn adapting_step_skips_no_value() {
    let cluster = Cluster::builder().start_with_extension();
    cluster.execute("SELECT segment_create('t', step => 1)");
    let mut client = cluster.client();
    let drawn = draw(&mut client, 0, "t", 20_000);
    assert_eq!(drawn, (1..=20_000).collect::<Vec<_>>());
    let step: i64 = value(&mut client, "SELECT step FROM idgen.segment WHERE tag = 't'");
    assert!(step > 1, "the step did not grow");
}

#[test]
fn strides_separate_the_values_of_two_servers() {
    let servers = [0, 1].map(|residue| {
        let cluster = Cluster::builder().start_with_extension();
        create(&mut cluster.client(), "t", &format!("{}, stride => 2, residue => {residue}", fixed(50)));
        cluster
    });
    let drawn = std::thread::scope(|scope| {
        servers.each_ref().map(|server| scope.spawn(|| draw_in_all_ways(server))).map(|worker| worker.join().unwrap())
    });
    let mut all = drawn.concat();
    for (residue, (server, drawn)) in (0..).zip(servers.iter().zip(&drawn)) {
        // All of one residue and none skipped. Values start at 1, so the even ones begin at 2.
        assert_eq!(*drawn, (2 - residue..).step_by(2).take(3600).collect::<Vec<_>>(), "residue {residue}");
        // Each keeps its residue after a crash.
        server.restart_by(Stop::Immediate);
        let after = draw(&mut server.client(), 1, "t", 500);
        assert!(after.iter().all(|value| value % 2 == residue), "residue {residue}");
        all.extend(after);
    }
    assert_distinct(all);
}

fn draw_in_all_ways(server: &Cluster) -> Vec<i64> {
    let mut client = server.client();
    let mut drawn = Vec::new();
    for _ in 0..10 {
        drawn.extend(draw(&mut client, 0, "t", 120));
        drawn.extend(draw(&mut client, 1, "t", 130));
        let block = row(&mut client, "SELECT first_id, last_id, stride FROM segment_reserve('t', 110)");
        let [first, end, stride]: [i64; 3] = [block.get(0), block.get(1), block.get(2)];
        assert_eq!(stride, 2);
        drawn.extend((first..=end).step_by(2));
    }
    drawn
}
