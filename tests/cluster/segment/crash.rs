//! Crashes: no value that a client has seen is issued again, committed or not, and only values in the ring are lost. A value
//! is used only after its refill has committed.

use std::sync::atomic::{AtomicUsize, Ordering};

use idgen_testkit::ids::{assert_distinct, assert_increasing, last};
use idgen_testkit::segment::next;
use idgen_testkit::sql::{PATIENCE, backend_pid, execute, ids, stream};
use idgen_testkit::{Cluster, Stop, rounds};
use postgres::Client;

use crate::refill::{wait_for_report, wait_until_no_worker, wait_until_worker_waits, worker};
use crate::{COMMITS_WAIT_FOR_LOCK, HOLD_COMMITS, RELEASE_COMMITS, draw_dry, max_id, remaining, singly, with_segment};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    Immediate,
    Postmaster,
    Backend,
    Worker,
}

fn crash(cluster: &Cluster, death: Death, backend: i32) {
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

fn recover(cluster: &Cluster, death: Death) {
    match death {
        Death::Immediate | Death::Postmaster => cluster.start_again(),
        Death::Backend | Death::Worker => cluster.wait_until_ready(),
    }
}

/// Draws in open transactions until the server crashes. Returns the values that the clients saw, in order. None is committed.
fn draw_until_crash(cluster: &Cluster, death: Death) -> Vec<i64> {
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
        crash(cluster, death, victim);
        sessions.into_iter().map(|session| session.join().unwrap()).collect()
    });
    seen.iter().for_each(|values| assert_increasing(values));
    assert_distinct(seen.concat())
}

/// With a small step the crash hits refills.
#[test]
fn crash_repeats_no_value_that_was_seen() {
    let cluster = with_segment(Cluster::builder(), 100);
    let mut highest = 0;
    for _ in 0..rounds(1, 20) {
        for death in [Death::Immediate, Death::Postmaster, Death::Backend, Death::Worker] {
            let seen = draw_until_crash(&cluster, death);
            assert!(seen[0] > highest, "{death:?}: {} after {highest}", seen[0]);
            recover(&cluster, death);
            let mut client = cluster.client();
            let durable = max_id(&mut client, "t");
            assert!(durable >= last(&seen), "{death:?}: {} was used, max_id is {durable}", last(&seen));
            let after = ids(&mut client, &singly(500));
            // Only values up to the durable max_id are lost.
            assert_eq!(after[0], durable + 1, "{death:?}");
            assert_increasing(&after);
            highest = last(&after);
        }
    }
}

#[test]
fn gap_after_a_crash_is_what_was_in_the_ring() {
    let cluster = with_segment(Cluster::builder(), 1000);
    for death in [Death::Immediate, Death::Postmaster, Death::Backend] {
        let mut client = cluster.client();
        let backend = backend_pid(&mut client);
        execute(&mut client, "BEGIN");
        let seen = ids(&mut client, &singly(2300));
        wait_until_no_worker(&cluster, "postgres");
        let left = remaining(&mut cluster.client());
        // Between half a range, below which a refill starts, and two ranges.
        assert!((500..=2000).contains(&left), "{left} left");
        assert_eq!(max_id(&mut cluster.client(), "t"), last(&seen) + left);
        crash(&cluster, death, backend);
        recover(&cluster, death);
        assert_eq!(next(&mut cluster.client(), "t"), last(&seen) + left + 1, "{death:?}");
    }
}

/// The progress of a refill when its worker is killed.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// It is about to read the row.
    Begun,
    /// It has written the row and is about to commit.
    Written,
    /// It has committed locally and waits for a standby, which may or may not have the commit.
    Committed,
}

/// Blocks the next refill at this moment and kills its worker. Returns the last value of the current range, which was drawn.
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
            cluster.reload_with("synchronous_standby_names", "absent");
            "SyncRep"
        }
    };
    // Drawing the last value of the range requests the next range.
    seen.extend(ids(&mut client, &singly(LAST)));
    assert_increasing(&seen);
    assert_eq!(remaining(&mut client), 0);
    cluster.kill9(wait_until_worker_waits(cluster, event));
    cluster.wait_until_ready();
    cluster.reload_with("synchronous_standby_names", "");
    last(&seen)
}

#[test]
fn worker_killed_during_a_refill_repeats_no_value() {
    const STEP: i64 = 100;
    // Only the last value of a range requests a refill.
    let cluster = with_segment(Cluster::builder().conf("idgen.segment_low_water", "0"), STEP);
    cluster.execute(COMMITS_WAIT_FOR_LOCK);
    for (moment, lost) in [(Moment::Begun, 0), (Moment::Written, 0), (Moment::Committed, STEP)] {
        let seen = kill_worker_in_refill(&cluster, moment);
        assert_eq!(next(&mut cluster.client(), "t"), seen + lost + 1, "{moment:?}");
    }
}

#[test]
fn value_is_not_used_before_its_refill_has_committed() {
    let cluster = with_segment(Cluster::builder(), 100);
    cluster.execute(COMMITS_WAIT_FOR_LOCK);
    let mut client = cluster.client();
    let first = ids(&mut client, &singly(10));
    let mut holder = cluster.client();
    execute(&mut holder, HOLD_COMMITS);
    // The worker writes the row and fails before the commit, again and again.
    let (mut drawn, _) = draw_dry(&mut client);
    wait_for_report(&cluster, "t", "canceling statement due to lock timeout");
    let (more, error) = draw_dry(&mut client);
    assert_eq!(more, []);
    assert_eq!(error.detail(), Some("canceling statement due to lock timeout"));
    drawn.splice(0..0, first);
    let durable = max_id(&mut client, "t");
    assert_eq!(drawn, (1..=durable).collect::<Vec<_>>());

    execute(&mut holder, RELEASE_COMMITS);
    assert_eq!(next(&mut client, "t"), durable + 1);
}
