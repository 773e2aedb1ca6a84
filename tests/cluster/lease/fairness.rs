//! Grants follow the queue, at a cost that does not depend on its length, and skip waiters that are gone.

use idgen_testkit::Cluster;
use idgen_testkit::lease::{acquire, try_acquire};
use idgen_testkit::script::play;
use idgen_testkit::sql::{backend_pid, execute, value};
use postgres::Client;

use crate::process::Psql;
use crate::{builder, counter, release, wait_until_head, wait_until_queued};

#[test]
fn waiters_are_granted_in_queue_order() {
    assert_granted_in_queue_order(&builder().start_with_extension(), 24);
}

/// Sessions queue for a lease one after the other. Tokens increase in the order of the grants.
pub fn assert_granted_in_queue_order(cluster: &Cluster, waiters: usize) {
    let queues = |n| {
        let event = if n == 0 { "Extension" } else { "advisory" };
        let call = ["lease_acquire('f', '1 day')", "lease_try_acquire('f', '1 hour', '1 day')"][n % 2];
        format!("\nw{n} waits for {event}: SELECT token FROM {call}")
    };
    let is_granted = |n| {
        let after = n + 1;
        let proofs = format!("lease_renew('f', $t{after}) IS NOT NULL, lease_release('f', $t{after})");
        format!("\nw{n} ends -> $t{after} > $t{n}\nw{n}: SELECT {proofs} -> t|t")
    };
    let script = format!(
        "holder: SELECT token FROM lease_acquire('f', '1 day') -> $t0{}
holder: SELECT queue FROM idgen.leases -> {waiters}
holder: SELECT lease_release('f', $t0) -> t{}",
        (0..waiters).map(queues).collect::<String>(),
        (0..waiters).map(is_granted).collect::<String>()
    );
    play(cluster, &script);
}

/// A session that holds the lease or queues for it.
struct Party {
    client: Client,
    pid: i32,
}

/// The cost of a grant.
#[derive(Debug)]
struct Cost {
    probes: f64,
    wal: f64,
}

fn wal_bytes(client: &mut Client) -> i64 {
    value(client, "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint")
}

/// Passes a lease around while this many wait: each releases it once the next one sleeps at the head, and queues again.
fn cost(cluster: &Cluster, waiting: usize) -> Cost {
    const GRANTS: usize = 64;
    let mut observer = cluster.client();
    let party = || {
        let mut client = cluster.client();
        // The first acquire of a process writes more.
        let token = acquire(&mut client, "'once'").token;
        assert!(release(&mut client, "once", token));
        Party { pid: backend_pid(&mut client), client }
    };
    std::thread::scope(|scope| {
        let queue = |mut party: Party| {
            let pid = party.pid;
            let waiter = scope.spawn(move || {
                let token = acquire(&mut party.client, "'price', '1 day'").token;
                (party, token)
            });
            (pid, waiter)
        };
        let mut holder = party();
        let mut token = acquire(&mut holder.client, "'price', '1 day'").token;
        let mut waiters = std::collections::VecDeque::new();
        for _ in 0..waiting {
            let (pid, waiter) = queue(party());
            if waiters.is_empty() {
                wait_until_head(cluster, pid)
            } else {
                wait_until_queued(cluster, pid)
            }
            waiters.push_back((pid, waiter));
        }
        let (probes, wal) = (counter(&mut observer, "probes"), wal_bytes(&mut observer));
        for _ in 0..GRANTS {
            assert!(release(&mut holder.client, "price", token));
            let (_, granted) = waiters.pop_front().expect("the queue never gets shorter");
            let released = std::mem::replace(&mut holder, {
                let (party, next) = granted.join().unwrap();
                token = next;
                party
            });
            let (pid, waiter) = queue(released);
            wait_until_queued(cluster, pid);
            waiters.push_back((pid, waiter));
            wait_until_head(cluster, waiters[0].0);
        }
        let per_grant = |after: i64, before: i64| (after - before) as f64 / GRANTS as f64;
        let price = Cost {
            probes: per_grant(counter(&mut observer, "probes"), probes),
            wal: per_grant(wal_bytes(&mut observer), wal),
        };
        while let Some((_, waiter)) = waiters.pop_front() {
            assert!(release(&mut holder.client, "price", token));
            (holder, token) = waiter.join().unwrap();
        }
        assert!(release(&mut holder.client, "price", token));
        price
    })
}

#[test]
fn cost_of_a_grant_does_not_depend_on_the_number_of_waiters() {
    let cluster = quiet();
    let (few, many) = (cost(&cluster, 2), cost(&cluster, 32));
    println!("cost of a grant with 2 waiting: {few:?}; with 32: {many:?}");
    for (what, few, many) in [("probes", few.probes, many.probes), ("bytes of WAL", few.wal, many.wal)] {
        assert!(few > 0.0);
        assert!((many - few).abs() <= few * 0.2, "{what} of a grant: {few} with 2 waiting, {many} with 32");
    }
}

/// A server without background writes.
pub fn quiet() -> Cluster {
    let minimal = builder().conf("wal_level", "minimal").conf("max_wal_senders", "0");
    minimal
        .conf("autovacuum", "off")
        .conf("checkpoint_timeout", "1h")
        .conf("full_page_writes", "off")
        .start_with_extension()
}

/// Ends the head of a queue before the release. The next waiter is granted.
fn assert_skips(cluster: &Cluster, acquisition: &str, end: impl FnOnce(Psql)) {
    let (mut holder, mut next) = (cluster.client(), cluster.client());
    let pid = backend_pid(&mut next);
    let token = acquire(&mut holder, "'k', '1 day'").token;
    let mut head = Psql::start(cluster);
    head.send(acquisition);
    wait_until_head(cluster, head.backend);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| acquire(&mut next, "'k', '1 day'"));
        wait_until_queued(cluster, pid);
        end(head);
        assert!(release(&mut holder, "k", token));
        let granted = next.join().unwrap();
        assert!(release(&mut holder, "k", granted.token));
    });
}

#[test]
fn queue_skips_a_head_that_is_gone() {
    let cluster = builder().start_with_extension();
    let wish = "SELECT token FROM lease_acquire('k', '1 day')";
    let grants = |client: &mut Client| counter(client, "grants") + counter(client, "take_overs");
    let mut observer = cluster.client();

    // A terminated session, and a killed client on a server that checks its connections.
    let before = grants(&mut observer);
    assert_skips(&cluster, wish, |head| {
        let end = format!("SELECT pg_terminate_backend({}, 60000)", head.backend);
        assert!(value::<bool>(&mut cluster.client(), &end));
    });
    let watching = format!("SET client_connection_check_interval = '50ms'; {wish}");
    assert_skips(&cluster, &watching, |head| head.kill_and_wait(&cluster));
    assert_eq!(grants(&mut observer) - before, 4, "the ended sessions got no turn");

    // A server that does not check grants the lease to the dead client, and then notices.
    assert_skips(&cluster, "SELECT token FROM lease_acquire('k', '1 day', bind_session => true)", Psql::kill);
    assert_skips(&cluster, "SELECT token FROM lease_acquire('k', '100 ms')", Psql::kill);
    assert_skips(&cluster, "BEGIN; SELECT token FROM lease_acquire('k', '1 day'); COMMIT", Psql::kill);
    assert_eq!(grants(&mut observer) - before, 13);
}

/// Every waiter of a queue is gone.
#[test]
fn killed_waiters_leave_nothing_in_the_queue() {
    let cluster = builder().start_with_extension();
    let mut holder = cluster.client();
    let token = acquire(&mut holder, "'k', '1 day'").token;
    let mut waiters: Vec<Psql> = Vec::new();
    for _ in 0..5 {
        let mut waiter = Psql::start(&cluster);
        waiter.send("SET client_connection_check_interval = '50ms'; SELECT token FROM lease_acquire('k', '1 day')");
        if waiters.is_empty() {
            wait_until_head(&cluster, waiter.backend)
        } else {
            wait_until_queued(&cluster, waiter.backend)
        }
        waiters.push(waiter);
    }
    waiters.into_iter().for_each(|waiter| waiter.kill_and_wait(&cluster));
    assert_eq!(value::<i64>(&mut holder, "SELECT queue FROM idgen.leases"), 0);
    execute(&mut holder, &format!("SELECT lease_release('k', {token})"));
    assert_eq!(counter(&mut holder, "grants"), 1);
    assert!(try_acquire(&mut holder, "'k'").is_some());
}
