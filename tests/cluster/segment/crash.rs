//! Crashes: what a client has seen never comes again, committed or not, and what is lost is what was in the ring.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::segment::next;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, ids, stream};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use crate::refill::{wait_until_no_worker, wait_until_worker_waits, worker};
use crate::{COMMITS_CAN_BE_HELD, HOLD_COMMITS, max_id, remaining, singly, with_segment};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    Immediate,
    Postmaster,
    Backend,
    Worker,
}

fn die(cluster: &Cluster, death: Death, backend: i32) {
    match death {
        Death::Immediate => cluster.stop(Stop::Immediate),
        Death::Postmaster => cluster.kill9_postmaster(),
        Death::Backend => cluster.kill9(backend),
        Death::Worker => {
            let found = worker(&mut cluster.client(), "postgres");
            cluster.kill9(found.expect("a refill worker, under load"));
        }
    }
}

fn come_back(cluster: &Cluster, death: Death) {
    match death {
        Death::Immediate | Death::Postmaster => cluster.start_again(),
        Death::Backend | Death::Worker => cluster.wait_until_ready(),
    }
}

/// Draws in open transactions until the server dies under them. Returns what the clients saw, in order. Nothing of it was
/// committed.
fn see_until_death(cluster: &Cluster, death: Death) -> Vec<i64> {
    const ENOUGH: usize = 5_000;
    let counts: [AtomicUsize; 4] = Default::default();
    let mut clients: Vec<Client> = (0..4).map(|_| cluster.client()).collect();
    let victim = backend_pid(&mut clients[3]);
    let seen: Vec<Vec<i64>> = std::thread::scope(|scope| {
        let counts = &counts;
        let draw = |(n, mut client): (usize, Client)| {
            let sql = if n % 2 == 0 { singly(1000) } else { "SELECT segment_next_many('t', 250)".to_owned() };
            let mut seen = Vec::new();
            execute(&mut client, "BEGIN");
            while stream(&mut client, &sql, &mut seen, &counts[n]).is_ok() {}
            seen
        };
        let sessions: Vec<_> =
            clients.into_iter().enumerate().map(|session| scope.spawn(move || draw(session))).collect();
        let enough = || counts.iter().all(|count| count.load(Ordering::Relaxed) > ENOUGH);
        cluster.wait_for(PATIENCE, "the sessions to have seen enough", enough);
        die(cluster, death, victim);
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    seen.iter().for_each(|values| assert_increasing(values));
    assert_distinct(seen.concat())
}

/// The step is small, so the server dies in the middle of refills.
#[test]
fn nothing_that_was_seen_comes_again() {
    let cluster = with_segment(Cluster::builder(), 100);
    let mut highest = 0;
    for _ in 0..rounds(1, 20) {
        for death in [Death::Immediate, Death::Postmaster, Death::Backend, Death::Worker] {
            let seen = see_until_death(&cluster, death);
            assert!(seen[0] > highest, "{death:?}: {} after {highest}", seen[0]);
            come_back(&cluster, death);
            let mut client = cluster.client();
            let durable = max_id(&mut client, "t");
            assert!(durable >= last(&seen), "{death:?}: {} was used, the table says {durable}", last(&seen));
            let after = ids(&mut client, &singly(500));
            // And nothing beyond what the table has given out is lost.
            assert_eq!(after[0], durable + 1, "{death:?}");
            assert_increasing(&after);
            highest = last(&after);
        }
    }
}

#[test]
fn the_gap_is_what_was_in_the_ring() {
    let cluster = with_segment(Cluster::builder(), 1000);
    for death in [Death::Immediate, Death::Postmaster, Death::Backend] {
        let mut client = cluster.client();
        let backend = backend_pid(&mut client);
        execute(&mut client, "BEGIN");
        let seen = ids(&mut client, &singly(2300));
        wait_until_no_worker(&cluster, "postgres");
        let left = remaining(&mut cluster.client());
        // Half a range at least, or the next one were on its way; two at most.
        assert!((500..=2000).contains(&left), "{left} left");
        assert_eq!(max_id(&mut cluster.client(), "t"), last(&seen) + left);
        die(&cluster, death, backend);
        come_back(&cluster, death);
        assert_eq!(next(&mut cluster.client(), "t"), last(&seen) + left + 1, "{death:?}");
    }
}

/// How far a refill has come when its worker is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// It is about to look at the row.
    Begun,
    /// It has written the row, and is about to commit.
    Written,
    /// It has committed here, and waits for a standby. Nobody knows whether that has it.
    Committed,
}

/// Keeps the next refill at a moment, and kills its worker there. Returns the last value that was seen, which is the last
/// of its range.
fn kill_worker_in_refill(cluster: &Cluster, moment: Moment) -> i64 {
    const LAST: i64 = 3;
    let mut client = cluster.client();
    execute(&mut client, "BEGIN");
    let mut seen = vec![next(&mut client, "t")];
    let left = remaining(&mut client);
    seen.extend(ids(&mut client, &singly(left - LAST)));
    let mut holder = cluster.client();
    let event = match moment {
        Moment::Begun => {
            execute(&mut holder, "BEGIN; LOCK TABLE idgen.segment IN EXCLUSIVE MODE");
            "relation"
        }
        Moment::Written => {
            execute(&mut holder, HOLD_COMMITS);
            "advisory"
        }
        Moment::Committed => {
            cluster.set_conf("synchronous_standby_names", "nobody");
            cluster.reload();
            "SyncRep"
        }
    };
    // The last value of the range asks for the next one.
    seen.extend(ids(&mut client, &singly(LAST)));
    assert_increasing(&seen);
    assert_eq!(remaining(&mut client), 0);
    cluster.kill9(wait_until_worker_waits(cluster, event));
    cluster.wait_until_ready();
    cluster.set_conf("synchronous_standby_names", "");
    cluster.reload();
    last(&seen)
}

#[test]
fn a_worker_killed_in_the_middle_of_a_refill_repeats_nothing() {
    const STEP: i64 = 100;
    // A refill is asked for with the last value of a range, and not before.
    let cluster = with_segment(Cluster::builder().conf("idgen.segment_low_water", "0"), STEP);
    cluster.execute(COMMITS_CAN_BE_HELD);
    for (moment, lost) in [(Moment::Begun, 0), (Moment::Written, 0), (Moment::Committed, STEP)] {
        let seen = kill_worker_in_refill(&cluster, moment);
        assert_eq!(next(&mut cluster.client(), "t"), seen + lost + 1, "{moment:?}");
    }
}
